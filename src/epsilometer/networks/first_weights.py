"""Draw the first weights of every model, as modules of torch draw theirs."""

import math
from typing import Any

import torch
from torch import Tensor, nn

from epsilometer.networks.attention import InProjection, OutProjection


def draw_weights(module: nn.Module, name: str, into: Tensor, generator: torch.Generator) -> None:
    """Draw a parameter of every model as ``reset_parameters`` would.

    Args:
        module: Of one model.
        name: Name of the parameter, as ``named_parameters`` has it.
        into: The parameter of all models, ``(runs, …)``.
        generator: For all models at once.
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
