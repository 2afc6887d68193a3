"""Convolve images in JAX models that are trained many at once."""

from typing import Any

import jax.numpy as jnp


def convolve(images: Any, weight: Any, *, padding: int = 0) -> Any:
    """Convolve images by a matrix product; same result as ``torch.nn.functional.conv2d``.

    Use it in a :class:`~epsilometer.networks.jax_trainer.JaxModel`. There each run has its own
    weights, so ``jax.lax.conv`` would become a grouped convolution, which is so slow that LeNet-5
    does not finish within minutes.

    Args:
        images: Shape ``(n, channels, height, width)``.
        weight: Shape ``(outputs, channels, rows, columns)``.
        padding: Number of zeros on every side.

    Example:
        >>> convolve(jnp.ones((1, 3, 4, 4)), jnp.ones((2, 3, 3, 3)), padding=1).shape
        (1, 2, 4, 4)
    """
    outputs, channels, rows, columns = weight.shape
    sides = (padding, padding)
    padded = jnp.pad(images, ((0, 0), (0, 0), sides, sides))
    height, width = padded.shape[2] - rows + 1, padded.shape[3] - columns + 1
    shifted = [
        padded[:, :, row : row + height, column : column + width]
        for row in range(rows)
        for column in range(columns)
    ]
    weights = weight.reshape(outputs, channels, rows * columns)
    return jnp.einsum("ncshw,ocs->nohw", jnp.stack(shifted, 2), weights)
