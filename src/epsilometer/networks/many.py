"""Train many models of one architecture in one batch dimension, with DP-SGD's clipped sums."""

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor, nn

from epsilometer.errors import InvalidArgument
from epsilometer.networks.attention import ManyAttention, is_plain_attention
from epsilometer.networks.convolution import ManyConv2d
from epsilometer.networks.devices import is_full, use_precision
from epsilometer.networks.layers import (
    Layer,
    ManyEmbedding,
    ManyLinear,
    ManyNorm,
    ManyOthers,
    OwnParameters,
    Parameters,
    Tape,
    round_down,
    sum_of,
)
from epsilometer.networks.modules import (
    check_module,
    draw_weights,
    find_shared,
    forbid_in_place,
    has_parameters,
    is_partly_frozen,
    is_tied,
    quote_error,
    track_layers,
    uses_spreadable,
)
from epsilometer.networks.quick_layers import quicken_layer, quicken_pooling
from epsilometer.networks.trainer import Precision

Loss: TypeAlias = Callable[[Tensor, Tensor], Tensor]
Initial: TypeAlias = Literal["fresh", "given"]
_ALIGNED = 4  # floats: what a GPU loads at once, so that no product starts in between
_CACHED = 1.2e7  # bytes of outputs of layers on a CPU: more takes pages that were given back
_TINY = 1e-6  # added to norms, as Opacus does: never divides by zero, never clips too little


class ManyModels:
    """Call and differentiate ``runs`` models together, each with its own weights.

    Known layers take a fast path, which stores a per-example gradient only if it is smaller than
    the activations it is made of; other layers use ``torch.func``. A module that calls a layer
    twice, or shares a parameter between layers, goes through ``torch.func`` as a whole.

    Attributes:
        runs: How many.
        parameters: Their trainable parameters, shape ``(runs, size)``; ``used`` says which of the
            columns are parameters, the others only keep them aligned.
        sums: Where :meth:`sum_clipped` and :meth:`mean_gradients` write, of the same shape.
    """

    def __init__(
        self,
        module: nn.Module,
        runs: int,
        *,
        device: str = "cpu",
        whole: bool = False,
        precision: Precision = "float32",
    ) -> None:
        """Copy ``module``, which is left as it is.

        Args:
            module: The architecture, and the initial weights.
            runs: Number of models.
            device: Where they live.
            whole: Take ``torch.func`` for everything.
            precision: What products of :meth:`sum_clipped` multiply; sums, norms and what
                ``torch.func`` does are in single precision.
        """
        check_module(module)
        self.runs, self.device = runs, device
        self._plain = copy.deepcopy(module).to(device).train()
        self._tape = Tape(runs, precision)
        self._tied = is_tied(self._plain)
        self._looked = False
        self._swap_layers(whole or self._tied)
        columns = self._list_columns()
        width = max((stop for _, _, _, stop in columns), default=0)
        if width == 0:
            raise InvalidArgument("Expected a module with trainable parameters, got none.")
        self.parameters = torch.zeros(runs, width, device=device)
        self.sums = torch.zeros_like(self.parameters)
        self.used = torch.zeros(width, dtype=torch.bool, device=device)
        for *_, start, stop in columns:
            self.used[start:stop] = True
        self._columns_of = columns
        self._views: dict[tuple[int, int], list[list[Parameters]]] = {}
        self._at_once = 1 if device == "cpu" else runs  # after a first one as many as fit its cache
        self._bind(0, runs)
        self._expected = sum(
            len(layer.own) if isinstance(layer, OwnParameters) else 1 for _, layer in self._layers
        )
        self.reset("given", torch.Generator(device))

    @property
    def size(self) -> int:
        """Number of trainable parameters of one model."""
        return int(self.used.sum())

    @property
    def copied(self) -> int:
        """Number of parameters that each example has a copy of: those of unknown layers."""
        return sum(
            stop - start
            for layer, _, start, stop in self._columns_of
            if isinstance(layer, OwnParameters)
        )

    @property
    def general(self) -> bool:
        """Whether the module as a whole goes through ``torch.func``."""
        return isinstance(self._many, ManyOthers)

    def reset(self, initial: Initial, generator: torch.Generator) -> None:
        """Set every model's initial weights: its own fresh ones, or those of the module."""
        for layer, name, start, stop in self._columns_of:
            given = layer.original[0].get_parameter(name)
            into = self.parameters[:, start:stop].view(self.runs, *given.shape)
            if initial == "given":
                into.copy_(given.detach().expand_as(into))
            else:
                draw_weights(layer.original[0], name, into, generator)

    def __call__(self, x: Tensor) -> Tensor:
        """Return outputs for every model's own examples: ``(runs, examples, …)`` in and out."""
        self._begin(x)
        out = self._many(x.flatten(0, 1))
        return out.view(len(x), -1, *out.shape[1:])  # type: ignore[no-any-return]

    def _begin(self, x: Tensor) -> None:
        """Prepare layers for examples of every model."""
        self._tape.calls.clear()
        self._tape.examples = x.shape[0] * x.shape[1]
        if not self._looked:
            self._looked = True
            self._find_shared(x[0, :1])
        if self._held is not None:
            self._held.hand_out(self._many)

    def _find_shared(self, x: Tensor) -> None:
        """Tell embeddings whether they are given numbers of places; ``x`` is one example."""
        embeddings = {
            prefix.rstrip("."): layer
            for prefix, layer in self._layers
            if isinstance(layer, ManyEmbedding)
        }
        for name in find_shared(self._plain, list(embeddings), x):
            embeddings[name].shared = True

    def forget(self) -> None:
        """Release the tensors of the last pass; the next pass would do so anyway."""
        self._tape.calls.clear()

    def until_random(self, x: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        """Return what the layers before the first random one make of examples; and the rest.

        Only a sequence can be cut: of any other module, the examples themselves and all of it.

        Args:
            x: Examples of every model, ``(runs, examples, …)``.
        """
        layers = list(self._many) if type(self._many) is nn.Sequential else [self._many]
        self._begin(x)
        given = x.flatten(0, 1)
        while layers:
            before = _generator_state(given)
            gave = layers[0](given.clone())  # it may write over what it is given
            if not torch.equal(before, _generator_state(given)):
                break
            given, layers = gave, layers[1:]
        if not layers:
            raise InvalidArgument(
                "Expected a module with dropout, this one draws nothing at random. Is there a "
                "layer of nn.Dropout with 0 < p < 1, that is not in evaluation mode?"
            )
        rest = nn.Sequential(*(map(quicken_layer, layers) if self.device == "cpu" else layers))

        def go_on(some: Tensor) -> Tensor:
            self._begin(some)
            out = rest(some.flatten(0, 1))
            return out.view(self.runs, -1, *out.shape[1:])  # type: ignore[no-any-return]

        return given.view(self.runs, -1, *given.shape[1:]), go_on

    def sum_clipped(self, x: Tensor, y: Tensor, *, loss: Loss, clip: float, keep: Tensor) -> Tensor:
        """Return sum of each model's per-example gradients, each clipped to norm ``clip``.

        A CPU computes a few models at a time, so that their activations stay in its cache.

        Args:
            x: Examples of every model, ``(runs, examples, …)``.
            y: Their labels, ``(runs, examples)``.
            loss: Loss of every example: ``loss(outputs, labels)`` of shape ``(n,)``.
            clip: Norm.
            keep: 1 for examples that count, 0 for those that do not, ``(runs, examples)``.

        Returns:
            The sums, ``(runs, size)``: overwritten by the next call.
        """
        stop = 0
        try:
            while stop < self.runs:
                start, stop = stop, min(stop + self._at_once, self.runs)
                self._bind(start, stop)
                weigh = partial(_weigh_norms, clip=clip, keep=keep[start:stop])
                self._weigh_sums(x[start:stop], y[start:stop], loss=loss, weigh=weigh)
        finally:
            self._bind(0, self.runs)
        return self.sums

    def mean_gradients(self, x: Tensor, y: Tensor, *, loss: Loss, keep: Tensor) -> Tensor:
        """Return the mean gradient of each model's examples that count, without privacy.

        Args:
            x: Examples of every model, ``(runs, examples, …)``.
            y: Their labels, ``(runs, examples)``.
            loss: Loss of every example, as of :meth:`sum_clipped`.
            keep: True for examples that count, ``(runs, examples)``.

        Returns:
            The means, ``(runs, size)``, 0 where no example counts: overwritten by the next call.
        """
        shares = keep / keep.sum(1, keepdim=True).clamp(min=1)
        self._weigh_sums(x, y, loss=loss, weigh=lambda _: shares)
        return self.sums

    def _weigh_sums(
        self, x: Tensor, y: Tensor, *, loss: Loss, weigh: Callable[[Tensor], Tensor]
    ) -> None:
        """Write sums of per-example gradients; ``weigh`` makes weights of their norms."""
        precision = self._tape.precision
        with torch.enable_grad(), use_precision(precision, rows=x.shape[1]):
            out = self(self._tape.lower(x))
            losses = loss(out.flatten(0, 1).float(), y.flatten(0, 1))
            calls = list(self._tape.calls)
            backs = torch.autograd.grad(
                losses.sum(), [call.gave for call in calls], allow_unused=True
            )
        self._tape.calls.clear()
        if self.device == "cpu":
            given = sum(call.gave.nbytes for call in calls)
            self._at_once = max(1, int(_CACHED * len(x) / max(given, 1)))
        reached = [
            (call, back) for call, back in zip(calls, backs, strict=True) if back is not None
        ]
        with torch.no_grad(), use_precision(precision, rows=x.shape[1]):
            measured = [call.layer.measure(call.given, back) for call, back in reached]
            norms = sum_of(squares for squares, _ in measured).sqrt_().view(len(x), -1)
            weights = round_down(weigh(norms), self._tape.dtype)
            parts = {call.part for call, _ in reached}
            if len(parts) < self._expected:
                for sums in self._sums_of.values():
                    for part in sums.values():
                        part.zero_()  # of layers that this forward pass did not reach
            for (call, _), (_, kept) in zip(reached, measured, strict=True):
                call.layer.add_up(kept, weights, self._sums_of[id(call.layer)])

    def agree(self, x: Tensor) -> bool:
        """Tell whether the models compute what the module does: outputs, and sums of gradients.

        Tried on the examples ``x`` of shape ``(examples, …)``, all randomness switched off, with
        weights that differ between models. A layer that is called twice, whose output is written
        over, or that sees the examples on another axis than the first, is found out.
        """
        before = self.parameters.clone()
        shaken = torch.randn(before.shape, generator=torch.Generator().manual_seed(0))
        self.parameters.add_(shaken.to(self.device), alpha=0.1)
        try:
            with self.settled(), use_precision("float32"):
                agrees = self._agrees(x)
            self._try(x)  # some layers raise in training only
            return agrees
        except Exception as error:  # whatever a forward pass may raise on such a batch
            if is_full(error):
                raise
            return False
        finally:
            self.parameters.copy_(before)

    def _try(self, x: Tensor) -> Tensor:
        """Return sums of gradients clipped to norm 1, of all models on the same examples."""
        many = x.expand(self.runs, *x.shape)
        keep = torch.ones(many.shape[:2], device=self.device)
        return self.sum_clipped(many, keep, loss=_tilt_loss, clip=1.0, keep=keep)

    def _agrees(self, x: Tensor) -> bool:
        """Compare with a plain loop over models and examples."""
        with torch.no_grad():
            outputs = self(x.expand(self.runs, *x.shape))
        if any(call.written_over for call in self._tape.calls):
            return False
        sums = self._try(x)
        for run in range(self.runs):
            module = self.model(run).eval()
            plain = module(x)
            if not _is_near(outputs[run], plain):
                return False
            if not _is_near(sums[run], self._sum_plainly(module, _tilt_loss(plain, x))):
                return False
        return True

    def _sum_plainly(self, module: nn.Module, losses: Tensor) -> Tensor:
        """Return gradients of a plain module, example by example clipped to norm 1."""
        parameters = [
            module.get_parameter(self._prefix[id(layer)] + name)
            for layer, name, *_ in self._columns_of
        ]
        total = torch.zeros_like(self.sums[0])
        for loss in losses:
            one = torch.zeros_like(total)
            gradients = torch.autograd.grad(loss, parameters, retain_graph=True, allow_unused=True)
            for (*_, start, stop), gradient in zip(self._columns_of, gradients, strict=True):
                if gradient is not None:
                    one[start:stop] = gradient.flatten()
            total += one * (1 / (one.norm() + _TINY)).clamp(max=1)
        return total

    def try_out(self, x: Tensor) -> None:
        """Say why, if ``torch.func`` cannot run the module on ``(examples, …)`` either."""
        with track_layers(self._plain) as inside:
            try:
                self._try(x)
            except Exception as error:  # whatever a forward pass may raise
                if is_full(error):
                    raise
                # Where it stopped; if it came through, differentiating it is what failed.
                guilty = inside[-1] if inside else type(self._plain).__name__
                raise InvalidArgument(
                    f"Expected a module that can be run for many models at once, {guilty} cannot: "
                    f"{quote_error(error)} Layers that are always supported: Linear, Conv2d, "
                    "Embedding, LayerNorm, GroupNorm; others must work with vmap."
                ) from error

    def try_lower(self, x: Tensor) -> None:
        """Raise an explanation if the module's own operations do not accept rounded numbers."""
        try:
            self._try(x)
        except Exception as error:  # whatever a forward pass may raise
            if is_full(error):
                raise
            raise InvalidArgument(
                f"Expected a module that can be run with precision={self._tape.precision!r}, it "
                f"raises: {quote_error(error)} Give precision='float32'."
            ) from error

    def one_by_one(self, x: Tensor) -> bool:
        """Tell whether outputs for an example do not depend on the others of its batch."""
        with torch.no_grad(), self.settled(), use_precision("float32"):
            together = self._plain(x)
            try:
                alone = torch.cat([self._plain(one[None]) for one in x])
            except Exception:  # it may not be written for a batch of one
                return True
        return alone.shape != together.shape or _is_near(together, alone)

    def plain(self, x: Tensor) -> Tensor:
        """Return the module's own outputs on examples ``(examples, …)``."""
        with torch.no_grad():
            out: Tensor = self._plain(x)
        return out

    @contextmanager
    def settled(self) -> Iterator[None]:
        """Switch dropout off."""
        self._many.eval()
        self._plain.eval()
        fast = torch.backends.mha.get_fastpath_enabled()
        torch.backends.mha.set_fastpath_enabled(False)  # of attention: vmap does not know it
        try:
            yield
        finally:
            torch.backends.mha.set_fastpath_enabled(fast)
            self._many.train()
            self._plain.train()

    def model(self, run: int) -> nn.Module:
        """Return a plain module with the weights of one run."""
        module = copy.deepcopy(self._plain)
        with torch.no_grad():
            for layer, name, start, stop in self._columns_of:
                prefix = self._prefix[id(layer)]
                into = module.get_parameter(f"{prefix}{name}")
                into.copy_(self.parameters[run, start:stop].view_as(into))
        return module

    def _swap_layers(self, whole: bool) -> None:
        """Put layers of many models in the place of those of one."""
        self._layers: list[tuple[str, Layer]] = []
        self._held: OwnParameters | None = None
        if whole or not uses_spreadable(self._plain) or not list(self._plain.children()):
            kind = ManyOthers if whole or is_partly_frozen(self._plain) else layer_for(self._plain)
            self._many: nn.Module = kind(self._plain, self._tape)
            self._layers.append(("", self._many))
        else:
            self._many = copy.deepcopy(self._plain)
            forbid_in_place(self._many)
            self._hold_own()
            self._swap_within(self._many, "")
        self._prefix = {id(layer): prefix for prefix, layer in self._layers}

    def _hold_own(self) -> None:
        """Take the parameters that the module itself uses out of it."""
        own = [
            (name, part)
            for name, part in self._many.named_parameters(recurse=False)
            if part.requires_grad
        ]
        if own:
            holder = nn.Module()
            for name, part in own:
                delattr(self._many, name)
                holder.register_parameter(name, part)
            self._held = OwnParameters(holder, self._tape)
            self._layers.append(("", self._held))

    def _swap_within(self, parent: nn.Module, prefix: str) -> None:
        quicken_pooling(parent)
        for name, child in parent.named_children():
            if not any(parameter.requires_grad for parameter in child.parameters()):
                continue  # nothing to train: one for all models
            where = f"{prefix}{name}."
            if (
                type(child) is nn.MultiheadAttention
                and is_plain_attention(child)
                and not is_partly_frozen(child)
            ):
                attention = ManyAttention(child, self._tape)
                setattr(parent, name, attention)
                self._layers.append((f"{where}in_proj_", attention.projections))
                self._layers.append((f"{where}out_proj.", attention.out))
            elif type(child) is nn.Linear or has_parameters(child):
                kind = layer_for(child)
                if is_partly_frozen(child):
                    kind = ManyOthers
                layer = kind(child, self._tape)
                setattr(parent, name, layer)
                self._layers.append((where, layer))
            else:
                self._swap_within(child, where)

    def _list_columns(self) -> list[tuple[Layer, str, int, int]]:
        """Return which columns of the flat tensor belong to which parameter."""
        columns, stop = [], 0
        for _, layer in self._layers:
            for name, parameter in layer.original[0].named_parameters():
                if parameter.requires_grad:
                    start = -(-stop // _ALIGNED) * _ALIGNED
                    stop = start + parameter.numel()
                    columns.append((layer, name, start, stop))
        return columns

    def _bind(self, start: int, stop: int) -> None:
        """Hand every layer its views of the parameters and sums of some models."""
        if (start, stop) not in self._views:
            self._views[start, stop] = [
                [self._view_layer(flat[start:stop], layer) for flat in (self.parameters, self.sums)]
                for _, layer in self._layers
            ]
        self._tape.runs = stop - start
        self._sums_of: dict[int, Parameters] = {}
        for (_, layer), (own, sums) in zip(self._layers, self._views[start, stop], strict=True):
            layer.own.update(own)  # sooner than an attribute, which nn.Module looks through
            self._sums_of[id(layer)] = sums

    def _view_layer(self, flat: Tensor, layer: Layer) -> Parameters:
        """Return a layer's parameters by name, as views of a flat tensor."""
        return {
            name: flat[:, start:stop].view(-1, *layer.original[0].get_parameter(name).shape)
            for each, name, start, stop in self._columns_of
            if each is layer
        }


def layer_for(module: nn.Module) -> type[Layer]:
    """Return what does the work of a module that has parameters."""
    kind, is_plain = _KNOWN.get(type(module), (ManyOthers, _always))
    return kind if is_plain(module) else ManyOthers


def _always(layer: Any) -> bool:
    return True


def _is_plain_conv(layer: Any) -> bool:
    return bool(layer.groups == 1 and layer.padding_mode == "zeros")


def _is_plain_embedding(layer: Any) -> bool:
    return layer.max_norm is None and not layer.scale_grad_by_freq and not layer.sparse


_KNOWN: dict[type[nn.Module], tuple[type[Layer], Callable[[Any], bool]]] = {
    nn.Linear: (ManyLinear, _always),
    nn.Conv2d: (ManyConv2d, _is_plain_conv),
    nn.Embedding: (ManyEmbedding, _is_plain_embedding),
    nn.LayerNorm: (ManyNorm, _always),
    nn.GroupNorm: (ManyNorm, _always),
}


def try_models(
    module: nn.Module,
    tried: Tensor,
    *,
    device: str,
    whole: bool = False,
    precision: Precision = "float32",
) -> tuple[ManyModels, bool]:
    """Return two models that compute what the module does, and whether by ``torch.func`` alone.

    Args:
        module: The architecture.
        tried: Examples on which the fast path is compared with the module, ``(examples, …)``.
        device: Where they live.
        whole: Take ``torch.func`` for everything.
        precision: In which models will be trained.
    """
    few = ManyModels(module, 2, device=device, whole=whole)
    if not few.general and not few.agree(tried):
        whole = True
        few = ManyModels(module, 2, device=device, whole=True)
    if few.general:
        few.try_out(tried)
    if not few.one_by_one(tried):
        raise InvalidArgument(
            "Expected a module that treats the records of a batch one by one, its outputs for "
            "two records are not those for each alone: one record moves the gradients of all "
            "others, and clipping bounds nothing. Use GroupNorm instead of batch normalisation."
        )
    if precision != "float32":
        ManyModels(module, 2, device=device, whole=whole, precision=precision).try_lower(tried)
    return few, whole


def per_example(loss: Any) -> Loss:
    """Return a loss as one number for every example, from a loss of ``torch.nn`` or a function.

    A loss that averages over the batch would hide single examples; where there is a ``reduction``
    it is switched off.
    """
    if isinstance(loss, nn.Module) and hasattr(loss, "reduction"):
        loss = copy.copy(loss)
        loss.reduction = "none"
    elif "reduction" in getattr(getattr(loss, "__code__", None), "co_varnames", ()):
        averaged = loss

        def loss(outputs: Tensor, labels: Tensor) -> Tensor:
            unreduced: Tensor = averaged(outputs, labels, reduction="none")
            return unreduced

    def each(outputs: Tensor, labels: Tensor) -> Tensor:
        losses = loss(outputs, labels)
        if not isinstance(losses, Tensor) or losses.shape[:1] != labels.shape[:1]:
            shape = tuple(losses.shape) if isinstance(losses, Tensor) else type(losses).__name__
            raise InvalidArgument(
                f"Expected a loss for every example, shape ({labels.shape[0]},), got {shape}. "
                "Give one that does not average, as nn.CrossEntropyLoss(reduction='none')."
            )
        return losses if losses.ndim == 1 else losses.flatten(1).mean(1)

    return each


def _weigh_norms(norms: Tensor, *, clip: float, keep: Tensor) -> Tensor:
    """Return the factors that clip gradients: 0 for those that do not count."""
    return (clip / norms.add_(_TINY)).clamp_(max=1.0).mul_(keep)


def _generator_state(tensor: Tensor) -> Tensor:
    """Return the state of torch's own generator where a tensor is."""
    return torch.cuda.get_rng_state(tensor.device) if tensor.is_cuda else torch.get_rng_state()


def _tilt_loss(outputs: Tensor, _: Tensor) -> Tensor:
    """Return a loss without labels whose gradient vanishes for no output in particular."""
    flat = outputs.reshape(len(outputs), -1)
    return flat @ torch.linspace(0.5, 1.5, flat.shape[1], device=flat.device)


def _is_near(a: Tensor, b: Tensor) -> bool:
    """Tell whether two results differ only by rounding."""
    return a.shape == b.shape and bool((a - b).norm() <= 1e-3 * b.norm() + 1e-5)
