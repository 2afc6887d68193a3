"""An example made so that what it adds to a round stands out from what everybody else adds."""

import copy

import torch
from torch import Tensor, nn

from epsilometer import _validate
from epsilometer.errors import InvalidArgument


def crafted_update(
    module: nn.Module,
    weights: Tensor,
    pool: Tensor,
    *,
    example: Tensor,
    clip: float,
    learning_rate: float = 1.0,
    steps: int = 200,
    rate: float = 0.1,
) -> Tensor:
    r"""The update of a client who makes one step on a crafted example, not clipped: ``(size,)``.

    Pixels and a soft label are optimised by Adam until the update c is orthogonal to the pool's
    updates u and as long as the clipping norm C: the least
    :math:`\sum_u \langle u, C c / \|c\| \rangle^2 + \max(C - \|c\|, 0)^2` (Maddock et al.
    2023; brought to length C as in their code, lest being short pass for being orthogonal).

    Assumes: a classifier of real features; parameters in the order of ``module.parameters()``.

    Args:
        module: The architecture; it is copied.
        weights: Its trainable parameters now, ``(size,)``.
        pool: Clipped updates of other clients, ``(clients, size)``.
        example: Where pixels begin, of the shape of one record.
        clip: C.
        learning_rate: Of the client.
        steps: Of crafting.
        rate: Its learning rate.
    """
    _validate.whole(0, steps=steps)
    _validate.positive(clip=clip, learning_rate=learning_rate, rate=rate)
    if not example.is_floating_point():
        raise InvalidArgument(
            "Expected real features to craft an example of, got whole numbers. Audit by random "
            "canaries instead."
        )
    plain = copy.deepcopy(module).to(weights.device).eval()
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
            update = -learning_rate * _gradient(plain, own, pixels, label, further=True)
            length = update.norm()
            overlaps = pool @ (update * (clip / length.clamp(min=1e-12)))
            badness = overlaps.square().sum() + (clip - length).clamp(min=0).square()
            pixels.grad, label.grad = torch.autograd.grad(badness, [pixels, label])
            adam.step()
        return -learning_rate * _gradient(plain, own, pixels, label, further=False)


def _gradient(
    module: nn.Module, own: list[nn.Parameter], pixels: Tensor, label: Tensor, *, further: bool
) -> Tensor:
    said = module(pixels[None])[0].log_softmax(0)
    loss = -(label.softmax(0) * said).sum()
    found = torch.autograd.grad(loss, own, create_graph=further)
    return torch.cat([part.flatten() for part in found])
