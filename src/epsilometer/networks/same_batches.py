"""Train many models without privacy on the same batches, each without its own record.

All begin with the same weights and use the same records in the same order. For each model, its own
record is missing from its batch. So two models differ only by their records.
"""

import copy
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from epsilometer.errors import InvalidArgument
from epsilometer.networks.ensemble import check_loss, cross_entropy
from epsilometer.networks.many import Loss, ManyModels, per_example, try_models
from epsilometer.networks.optimizers import Adam, Optimizer
from epsilometer.types import IntArray

_TRIED = 2  # records on which many models are compared with the module itself
_ACTIVATIONS = (nn.ReLU, nn.Tanh, nn.Sigmoid)


class Models(Protocol):
    """Define many models with the same initial weights.

    Attributes:
        runs: How many.
        parameters: Their parameters, each ``(runs, …)``.
    """

    runs: int
    parameters: list[Tensor]

    def gradients(self, x: Tensor, y: Tensor, keep: Tensor) -> list[Tensor]:
        """Return gradients of the mean loss over records that count; 0 where none does.

        Args:
            x: Records that all models see, ``(batch, …)``.
            y: Their classes.
            keep: Which count for which model, ``(runs, batch)``.
        """
        ...

    def outputs(self, x: Tensor) -> Tensor:
        """Return outputs of every model's own records ``(runs, records, …)``; nothing random."""
        ...


def many_models(module: nn.Module, runs: int, *, loss: Any, x: Tensor, y: Tensor) -> Models:
    """Return models that begin with the weights of ``module``, on the device of ``x``.

    Args:
        module: Copied, and left as it is.
        runs: How many.
        loss: As of ``EnsembleDPSGD``.
        x: The records they will see, ``(n, …)``.
        y: Their labels.
    """
    device = str(x.device)
    tried = x[:_TRIED]
    few, whole = try_models(module, tried, device=device)
    check_loss(loss, few.plain(tried), y)
    if loss is cross_entropy and (layers := _find_perceptron(module)) is not None:
        return Perceptrons(layers, runs, device=device)
    return AnyModels(module, runs, loss=loss, device=device, whole=whole or few.general)


def train_without(
    models: Models,
    x: Tensor,
    y: Tensor,
    batches: Sequence[IntArray],
    *,
    left_out: IntArray,
    optimizer: Optimizer,
    rate: float,
) -> None:
    """Train all models at once, each without one record.

    Guarantees: what an ordinary loop does for each model alone, but for rounding. A batch that held
        nothing but the record is a step with gradient 0.

    Args:
        models: Trained in place.
        x: Records, ``(n, …)``.
        y: Their labels.
        batches: Numbers of records, one array per step.
        left_out: The record that each model lacks, ``(runs,)``; −1 for none.
        optimizer: Optimizer that acts on each number separately.
        rate: Learning rate.
    """
    absent = torch.from_numpy(left_out).to(x.device)[:, None]
    step = _make_stepper(models.parameters, optimizer, rate)
    with torch.no_grad():
        for batch in batches:
            rows = torch.from_numpy(batch).to(x.device)
            step(models.gradients(x[rows], y[rows], rows != absent))


def _make_stepper(
    parameters: list[Tensor], optimizer: Optimizer, rate: float
) -> Callable[[list[Tensor]], None]:
    """Return what takes a step of all models; torch's own Adam reads memory only once."""
    if type(optimizer) is Adam:
        adam = torch.optim.Adam(
            parameters,
            lr=rate,
            betas=optimizer.betas,
            eps=optimizer.epsilon,
            weight_decay=optimizer.weight_decay,
            fused=True,
        )

        def fused(gradients: list[Tensor]) -> None:
            for part, gradient in zip(parameters, gradients, strict=True):
                part.grad = gradient
            adam.step()
            for part in parameters:
                part.grad = None

        return fused
    state = [optimizer.start(part) for part in parameters]

    def step(gradients: list[Tensor]) -> None:
        for part, gradient, own in zip(parameters, gradients, state, strict=True):
            optimizer.step(part, gradient, own, rate=rate)

    return step


class AnyModels:
    """Models of any module, by :class:`ManyModels`."""

    def __init__(
        self, module: nn.Module, runs: int, *, loss: Any, device: str, whole: bool
    ) -> None:
        self.runs = runs
        self._models = ManyModels(_share_dropout(module, runs), runs, device=device, whole=whole)
        self._loss: Loss = per_example(loss)
        self.parameters = [self._models.parameters]

    def gradients(self, x: Tensor, y: Tensor, keep: Tensor) -> list[Tensor]:
        """Do as of :class:`Models`."""
        many_x, many_y = (part.expand(self.runs, *part.shape) for part in (x, y))
        return [self._models.mean_gradients(many_x, many_y, loss=self._loss, keep=keep)]

    def outputs(self, x: Tensor) -> Tensor:
        """Do as of :class:`Models`."""
        with torch.no_grad(), self._models.settled():
            return self._models(x)


class Perceptrons:
    """Linear layers with activations between them, and the cross-entropy of the last.

    Derived by hand into memory that is kept: what autograd allocates again at each step costs more
    than small products do.
    """

    def __init__(self, layers: Sequence[nn.Module], runs: int, *, device: str) -> None:
        self.runs = runs
        linear = [part for part in layers if isinstance(part, nn.Linear)]
        self._between = [type(part) for part in layers if isinstance(part, _ACTIVATIONS)]
        self._weights = [self._copies(part.weight, runs, device) for part in linear]
        self._biases = [self._copies(part.bias[None], runs, device) for part in linear]
        self.parameters = [*self._weights, *self._biases]
        self._gradients = [torch.empty_like(part) for part in self.parameters]
        self._memory: dict[int, tuple[list[Tensor], list[Tensor]]] = {}  # by size of batch
        self._classes = torch.eye(linear[-1].out_features, device=device)

    def gradients(self, x: Tensor, y: Tensor, keep: Tensor) -> list[Tensor]:
        """Do as of :class:`Models`."""
        many = x.flatten(1).expand(self.runs, len(x), -1)
        if len(x) not in self._memory:
            self._memory[len(x)] = self._outs(len(x)), self._outs(len(x))
        outs, backs = self._memory[len(x)]
        self._forward(many, outs)
        back = _softmax(outs[-1], into=backs[-1]).sub_(self._classes[:, y])
        back.mul_((keep / keep.sum(1, keepdim=True).clamp(min=1))[:, None])
        back = back.transpose(1, 2)
        last = len(outs) - 1
        by_weights, by_biases = self._gradients[: last + 1], self._gradients[last + 1 :]
        for layer in range(last, -1, -1):
            below = outs[layer - 1] if layer else many
            torch.bmm(back.transpose(1, 2), below, out=by_weights[layer])
            torch.sum(back, 1, keepdim=True, out=by_biases[layer])
            if layer:
                back = torch.bmm(back, self._weights[layer], out=backs[layer - 1])
                _derive(self._between[layer - 1], back, below)
        return self._gradients

    def outputs(self, x: Tensor) -> Tensor:
        """Do as of :class:`Models`."""
        outs = self._outs(x.shape[1])
        with torch.no_grad():
            self._forward(x.flatten(2), outs)
        return outs[-1].transpose(1, 2)

    def _forward(self, x: Tensor, outs: list[Tensor]) -> None:
        *hidden, (weight, bias, last) = zip(self._weights, self._biases, outs, strict=True)
        for kind, (its_weight, its_bias, out) in zip(self._between, hidden, strict=True):
            torch.baddbmm(its_bias, x, its_weight.transpose(1, 2), out=out)
            _activate(kind, out)
            x = out
        torch.baddbmm(bias.transpose(1, 2), weight, x.transpose(1, 2), out=last)

    def _outs(self, batch: int) -> list[Tensor]:
        """Memory for what layers give, ``(runs, batch, width)``; for the last with classes before
        the batch: they are few, and what is few is slow as a last axis.
        """
        widths = [weight.shape[1] for weight in self._weights]
        shapes = [(batch, width) for width in widths[:-1]] + [(widths[-1], batch)]
        return [self._weights[0].new_empty(self.runs, *shape) for shape in shapes]

    @staticmethod
    def _copies(parameter: Tensor, runs: int, device: str) -> Tensor:
        return parameter.detach().to(device).expand(runs, *parameter.shape).clone()


def _activate(kind: type[nn.Module], out: Tensor) -> None:
    if kind is nn.ReLU:
        out.clamp_(min=0)
    elif kind is nn.Tanh:
        out.tanh_()
    else:
        out.sigmoid_()


def _derive(kind: type[nn.Module], back: Tensor, out: Tensor) -> None:
    """Compute the backprops of an activation in place, from its outputs."""
    if kind is nn.ReLU:
        torch.ops.aten.threshold_backward.grad_input(back, out, 0, grad_input=back)
    elif kind is nn.Tanh:
        torch.ops.aten.tanh_backward.grad_input(back, out, grad_input=back)
    else:
        torch.ops.aten.sigmoid_backward.grad_input(back, out, grad_input=back)


def _softmax(outputs: Tensor, *, into: Tensor) -> Tensor:
    """Normalise over classes, ``(runs, classes, batch)``, by whole arrays."""
    torch.sub(outputs, outputs.amax(1, keepdim=True), out=into)
    into.exp_()
    return into.div_(into.sum(1, keepdim=True))


def _find_perceptron(module: nn.Module) -> list[nn.Module] | None:
    """Return alternating linear layers and activations; None for any other module."""
    layers = _flatten_layers(module)
    if layers and type(layers[0]) is nn.Flatten and layers[0].start_dim == 1:
        layers = layers[1:]
    kinds = [type(layer) for layer in layers]
    linear = [part for part in layers if type(part) is nn.Linear and part.bias is not None]
    own = {id(parameter) for part in linear for parameter in part.parameters()}
    in_turn = len(kinds) % 2 == 1 and len(linear) == len(kinds[::2])
    if (
        not in_turn
        or kinds[::2] != [nn.Linear] * len(linear)
        or any(kind not in _ACTIVATIONS for kind in kinds[1::2])
        or len(own) < 2 * len(linear)  # shared between layers
        or not all(parameter.requires_grad for parameter in module.parameters())
    ):
        return None
    return layers


def _flatten_layers(module: nn.Module) -> list[nn.Module]:
    if type(module) is not nn.Sequential:
        return [module]
    return [layer for part in module for layer in _flatten_layers(part)]


class _SharedDropout(nn.Module):
    """Dropout with the same mask for every model, so that models differ only by records.

    Assumes: records are on the first axis, those of the first model first.
    """

    def __init__(self, share: float, runs: int) -> None:
        super().__init__()
        self.share, self.runs = share, runs

    def forward(self, x: Tensor) -> Tensor:
        """Drop and scale, as ``nn.Dropout`` does."""
        if not self.training or self.share == 0:
            return x
        each = x.view(self.runs, -1, *x.shape[1:])
        return (each * nn.functional.dropout(torch.ones_like(each[0]), self.share)).view_as(x)


def _share_dropout(module: nn.Module, runs: int) -> nn.Module:
    shared = copy.deepcopy(module)
    for name, part in list(shared.named_modules()):
        if not isinstance(part, nn.modules.dropout._DropoutNd):
            continue
        if type(part) is not nn.Dropout:
            raise InvalidArgument(
                f"Expected no dropout but nn.Dropout, got {type(part).__name__} at {name!r}: only "
                "nn.Dropout can be made to drop the same in all models."
            )
        above, _, last = name.rpartition(".")
        if name:
            setattr(shared.get_submodule(above), last, _SharedDropout(part.p, runs))
    return shared
