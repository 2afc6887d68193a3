"""An example made so that what it adds to a round stands out from what everybody else adds."""

import copy

import torch
from torch import Tensor, nn

from epsilometer import _validate
from epsilometer.errors import InvalidArgument


def crafted_direction(
    module: nn.Module,
    weights: Tensor,
    pool: Tensor,
    *,
    example: Tensor,
    clip: float,
    steps: int = 200,
    rate: float = 0.1,
) -> Tensor:
    r"""The direction of the update that a crafted example causes, as a unit vector.

    Pixels and a soft label are optimised by Adam until the example's gradient g is orthogonal to
    the pool's updates u and as long as the clipping norm C: the least
    :math:`\sum_u \langle u, g \rangle^2 + \max(C - \|g\|, 0)^2` (Maddock et al. 2023).

    Assumes: a classifier of real features; parameters in the order of ``module.parameters()``.

    Args:
        module: The architecture; it is copied.
        weights: Its trainable parameters now, ``(size,)``.
        pool: Clipped updates of other clients, ``(clients, size)``.
        example: Where pixels begin, of the shape of one record.
        clip: C.
        steps: Of optimisation.
        rate: Its learning rate.
    """
    _validate.whole(0, steps=steps)
    _validate.positive(clip=clip, rate=rate)
    if not example.is_floating_point():
        raise InvalidArgument(
            "Expected real features to craft an example of, got whole numbers. Audit by random "
            "canaries instead."
        )
    plain = copy.deepcopy(module).eval()
    own = [part for part in plain.parameters() if part.requires_grad]
    with torch.no_grad():
        start = 0
        for part in own:
            part.copy_(weights[start : start + part.numel()].view_as(part))
            start += part.numel()
        outputs = plain(example[None])
    if outputs.ndim != 2:
        raise InvalidArgument(
            f"Expected one output a class to craft an example of, got outputs of shape "
            f"{tuple(outputs.shape[1:])}."
        )
    pixels = example.clone().requires_grad_()
    label = torch.zeros(outputs.shape[1], device=example.device, requires_grad=True)
    adam = torch.optim.Adam([pixels, label], lr=rate)
    with torch.enable_grad():
        for _ in range(steps):
            gradient = _gradient(plain, own, pixels, label, further=True)
            short = (clip - gradient.norm()).clamp(min=0)
            badness = (pool @ gradient).square().sum() + short.square()
            pixels.grad, label.grad = torch.autograd.grad(badness, [pixels, label])
            adam.step()
        gradient = _gradient(plain, own, pixels, label, further=False)
    direction: Tensor = -gradient / gradient.norm().clamp(min=1e-12)
    return direction


def _gradient(
    module: nn.Module, own: list[nn.Parameter], pixels: Tensor, label: Tensor, *, further: bool
) -> Tensor:
    said = module(pixels[None])[0].log_softmax(0)
    loss = -(label.softmax(0) * said).sum()
    found = torch.autograd.grad(loss, own, create_graph=further)
    return torch.cat([part.flatten() for part in found])
