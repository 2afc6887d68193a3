"""Inspect modules: refuse those that cannot be trained as many models, and draw weights."""

import math
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch import Tensor, nn

from epsilometer.errors import InvalidArgument
from epsilometer.networks.attention import InProjection, OutProjection


def check_module(module: nn.Module) -> None:
    """Refuse modules of which many models cannot be trained privately."""
    if not isinstance(module, nn.Module):
        raise InvalidArgument(f"Expected a torch.nn.Module, got {type(module).__name__}.")
    for name, part in module.named_modules():
        if isinstance(part, nn.modules.batchnorm._BatchNorm):
            raise InvalidArgument(
                f"Expected no batch normalisation, got {type(part).__name__} at {name!r}: it mixes "
                "the examples of a batch, so that one record moves the gradients of all others and "
                "clipping bounds nothing. Use GroupNorm or LayerNorm."
            )
        if any(
            isinstance(own, nn.UninitializedParameter) for own in part.parameters(recurse=False)
        ):
            raise InvalidArgument(
                f"Expected parameters with a shape, got {type(part).__name__} at {name!r}: "
                "call the module once before."
            )
    devices = {str(tensor.device) for tensor in (*module.parameters(), *module.buffers())}
    if len(devices) > 1:
        raise InvalidArgument(
            f"Expected all parameters on one device, got {', '.join(sorted(devices))}."
        )
    if devices == {"meta"}:
        raise InvalidArgument(
            "Expected parameters with values, got a module on the meta device: "
            "give them memory with module.to_empty(device=...) and initialise them."
        )
    kinds = {parameter.dtype for parameter in module.parameters() if parameter.requires_grad}
    if kinds - {torch.float32}:
        raise InvalidArgument(
            f"Expected parameters of torch.float32, got {', '.join(sorted(map(str, kinds)))}."
        )


def forbid_in_place(module: nn.Module) -> None:
    """Forbid writing over outputs of layers, by which the loss is differentiated."""
    for part in module.modules():
        if getattr(part, "inplace", None) is True:
            part.inplace = False  # type: ignore[assignment]


@contextmanager
def track_layers(module: nn.Module) -> Iterator[list[str]]:
    """Return names of the layers that a call has entered and not left, the innermost last."""
    inside: list[str] = []
    handles = []
    for name, part in module.named_modules():
        said = f"{type(part).__name__} at {name!r}" if name else type(part).__name__
        handles.append(part.register_forward_pre_hook(lambda *_, said=said: inside.append(said)))
        handles.append(part.register_forward_hook(lambda *_: (inside.pop(), None)[1]))
    try:
        yield inside
    finally:
        for handle in handles:
            handle.remove()


def find_shared(module: nn.Module, names: list[str], x: Tensor) -> list[str]:
    """Return which layers are given the same for two examples as for three: no example's own.

    Args:
        module: Called without derivatives; no random number is used up.
        names: Of layers.
        x: One example, ``(1, …)``.
    """
    if not names:
        return []
    shapes: dict[str, list[torch.Size]] = {name: [] for name in names}
    handles = [
        module.get_submodule(name).register_forward_pre_hook(
            lambda _, given, noted=noted: noted.append(given[0].shape)
        )
        for name, noted in shapes.items()
    ]
    devices = [x.device] if x.is_cuda else []
    with torch.no_grad(), torch.random.fork_rng(devices), suppress(Exception):
        for count in (2, 3):
            module(x.expand(count, *x.shape[1:]))
    for handle in handles:
        handle.remove()
    return [
        name
        for name, found in shapes.items()
        if len(found) == 2 and found[0] == found[1] and (len(found[0]) == 1 or found[0][0] == 1)
    ]


def quote_error(error: Exception) -> str:
    """Return the first line of an error's message."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0].rstrip(".") + "."


def is_partly_frozen(module: nn.Module) -> bool:
    """Tell whether some parameters are not trained."""
    return not all(parameter.requires_grad for parameter in module.parameters())


def uses_spreadable(module: nn.Module) -> bool:
    """Tell whether parameters of its own, if any, broadcast over examples: ``(1, …)``, and no more.

    One that says how they are drawn may draw them with those of its children.
    """
    own = [part for part in module.parameters(recurse=False) if part.requires_grad]
    draws = hasattr(module, "reset_parameters") or hasattr(module, "_reset_parameters")
    return not own or not (draws or any(part.ndim < 2 or part.shape[0] != 1 for part in own))


def has_parameters(module: nn.Module) -> bool:
    """Tell whether a module has its own parameters, in addition to those of its children."""
    return next(module.parameters(recurse=False), None) is not None


def is_tied(module: nn.Module) -> bool:
    """Tell whether a parameter is shared between two places."""
    every = [id(parameter) for _, parameter in module.named_parameters(remove_duplicate=False)]
    return len(every) > len(set(every))


def draw_weights(module: nn.Module, name: str, into: Tensor, generator: torch.Generator) -> None:
    """Draw a parameter of every model as ``reset_parameters`` would.

    Args:
        module: The module of one model.
        name: Name of the parameter, as ``named_parameters`` has it.
        into: The parameter of all models, ``(runs, …)``.
        generator: Generator for all models at once.
    """
    path, _, last = name.rpartition(".")
    owner = module.get_submodule(path)
    if not _draw_known(owner, last, into, generator):
        _redraw(owner, last, into, generator)


def _draw_known(layer: Any, name: str, into: Tensor, generator: torch.Generator) -> bool:
    """Draw a parameter of every model as ``reset_parameters`` would; False if it is not known."""
    kind = type(layer)  # exactly: a class made from it may draw otherwise
    if kind in (InProjection, OutProjection) and name == "bias":
        into.zero_()
    elif kind is InProjection:
        reach = math.sqrt(6 / (layer.in_features + layer.out_features))
        into.uniform_(-reach, reach, generator=generator)
    elif kind in (nn.Linear, OutProjection, nn.Conv2d):
        reach = 1 / math.sqrt(math.prod(layer.weight.shape[1:]))
        into.uniform_(-reach, reach, generator=generator)
    elif kind is nn.Embedding:
        into.normal_(generator=generator)
        if layer.padding_idx is not None:
            into[:, layer.padding_idx] = 0
    elif kind in (nn.LayerNorm, nn.GroupNorm):
        into.fill_(1.0 if name == "weight" else 0.0)
    else:
        return False
    return True


def _redraw(owner: nn.Module, name: str, into: Tensor, generator: torch.Generator) -> None:
    """Call the module's ``reset_parameters`` per model; keep the given where it has none."""
    reset = getattr(owner, "reset_parameters", None) or getattr(owner, "_reset_parameters", None)
    if reset is None:
        into.copy_(owner.get_parameter(name).detach().expand_as(into))
        return
    before = {key: value.clone() for key, value in owner.state_dict().items()}
    seeds = torch.randint(2**62, (into.shape[0],), generator=generator, device=generator.device)
    with torch.random.fork_rng():
        for row, seed in zip(into, seeds.tolist(), strict=True):
            torch.manual_seed(seed)
            reset()
            row.copy_(owner.get_parameter(name).detach())
    owner.load_state_dict(before)
