"""Build the models that papers audit, as plain ``nn.Sequential``."""

import math
from typing import Literal, TypeAlias, get_args

import numpy as np
from torch import nn

from epsilometer import _validate
from epsilometer.errors import InvalidArgument
from epsilometer.types import FloatArray

ModelName: TypeAlias = Literal["mlp", "lenet5", "cnn"]
_POOLED = 2  # a pooling halves both sides


def mlp(inputs: int, classes: int, hidden: int = 32) -> nn.Sequential:
    """Return one hidden layer of ReLU; with 32 neurons the MLP of annamalai2025.

    Args:
        inputs: Features of a record; a record of any shape is flattened first.
        classes: Outputs.
        hidden: Neurons of the hidden layer.

    Example:
        >>> sum(parameter.numel() for parameter in mlp(600, 100).parameters())
        22532
    """
    _validate.whole(1, inputs=inputs, classes=classes, hidden=hidden)
    return nn.Sequential(
        nn.Flatten(), nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, classes)
    )


def lenet5(
    channels: int = 1, height: int = 28, width: int = 28, classes: int = 10
) -> nn.Sequential:
    """Return LeNet-5 with Tanh and average pooling, Table III of annamalai2025.

    Args:
        channels: Channels of an image.
        height: Height of an image, 12 or more.
        width: Width of an image, 12 or more.
        classes: Outputs.

    Example:
        >>> sum(parameter.numel() for parameter in lenet5(classes=2).parameters())
        61026
    """
    _validate.whole(1, channels=channels, height=height, width=width, classes=classes)
    rows, columns = (_shrink_by_lenet(side) for side in (height, width))
    _check_size("lenet5", height, width, least=12, left=min(rows, columns))
    return nn.Sequential(
        nn.Conv2d(channels, 6, 5, padding=2),
        nn.Tanh(),
        nn.AvgPool2d(_POOLED),
        nn.Conv2d(6, 16, 5),
        nn.Tanh(),
        nn.AvgPool2d(_POOLED),
        nn.Flatten(),
        nn.Linear(16 * rows * columns, 120),
        nn.Tanh(),
        nn.Linear(120, 84),
        nn.Tanh(),
        nn.Linear(84, classes),
    )


def cnn(channels: int = 3, height: int = 32, width: int = 32, classes: int = 10) -> nn.Sequential:
    """Return three pairs of convolutions with Tanh and max-pooling, Table II of annamalai2025.

    Args:
        channels: Channels of an image.
        height: Height of an image, 8 or more.
        width: Width of an image, 8 or more.
        classes: Outputs.

    Example:
        >>> sum(parameter.numel() for parameter in cnn().parameters())
        550570
    """
    _validate.whole(1, channels=channels, height=height, width=width, classes=classes)
    rows, columns = (side // _POOLED**3 for side in (height, width))
    _check_size("cnn", height, width, least=_POOLED**3, left=min(rows, columns))
    layers: list[nn.Module] = []
    before = channels
    for filters in (32, 64, 128):
        layers += [nn.Conv2d(before, filters, 3, padding=1), nn.Tanh()]
        layers += [nn.Conv2d(filters, filters, 3, padding=1), nn.Tanh(), nn.MaxPool2d(_POOLED)]
        before = filters
    layers += [nn.Flatten(), nn.Linear(before * rows * columns, 128), nn.Tanh()]
    return nn.Sequential(*layers, nn.Linear(128, classes))


def dropout_cnn(
    channels: int = 3,
    height: int = 32,
    width: int = 32,
    classes: int = 10,
    dropout: float = 0.5,
    *,
    filters: int = 64,
    kernel: int = 5,
    padding: int = 0,
    hidden: int = 512,
) -> nn.Sequential:
    """Return two convolutions and a dense layer, dropout after each: Table 1 of shibahara2021.

    Args:
        channels: Channels of an image.
        height: Height of an image; 16 or more with the paper's kernel and no padding.
        width: Width of an image.
        classes: Outputs.
        dropout: Probability of dropping a neuron.
        filters: Number of filters of both convolutions.
        kernel: Kernel size of the convolutions.
        padding: Padding of both convolutions; 1 with a kernel of 3 for small images.
        hidden: Neurons of the dense layer.

    Example:
        >>> sum(parameter.numel() for parameter in dropout_cnn().parameters())
        932170
    """
    _validate.whole(1, channels=channels, height=height, width=width, classes=classes)
    _validate.whole(1, filters=filters, kernel=kernel, hidden=hidden)
    _validate.whole(0, padding=padding)
    _validate.open_unit(dropout=dropout)
    rows, columns = height, width
    for _ in range(2):
        rows, columns = ((side + 2 * padding - kernel + 1) // _POOLED for side in (rows, columns))
    least = _find_least_side(kernel, padding)
    _check_size("dropout_cnn", height, width, least=least, left=min(rows, columns))
    return nn.Sequential(
        nn.Conv2d(channels, filters, kernel, padding=padding),
        nn.ReLU(),
        nn.Dropout(dropout),
        nn.MaxPool2d(_POOLED),
        nn.Conv2d(filters, filters, kernel, padding=padding),
        nn.ReLU(),
        nn.Dropout(dropout),
        nn.MaxPool2d(_POOLED),
        nn.Flatten(),
        nn.Linear(filters * rows * columns, hidden),
        nn.ReLU(),
        nn.Dropout(dropout),
        nn.Linear(hidden, classes),
    )


def dropout_mlp(
    inputs: int, classes: int, dropout: float = 0.5, *, hidden: int = 64
) -> nn.Sequential:
    """Return one hidden layer of ReLU, and dropout after it.

    Args:
        inputs: Features of a record; a record of any shape is flattened first.
        classes: Outputs.
        dropout: Probability of dropping a neuron.
        hidden: Neurons of the hidden layer.

    Example:
        >>> dropout_mlp(64, 10)[3]
        Dropout(p=0.5, inplace=False)
    """
    _validate.whole(1, inputs=inputs, classes=classes, hidden=hidden)
    _validate.open_unit(dropout=dropout)
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(inputs, hidden),
        nn.ReLU(),
        nn.Dropout(dropout),
        nn.Linear(hidden, classes),
    )


def build(
    name: ModelName, features_shape: tuple[int, ...], classes: int, *, hidden: int = 32
) -> nn.Sequential:
    """Return a model for records of a shape.

    Args:
        name: Name of the model.
        features_shape: Shape of one record; ``(channels, height, width)`` for lenet5 and cnn.
        classes: Outputs.
        hidden: Neurons of the hidden layer, for mlp only.

    Example:
        >>> build("lenet5", (1, 28, 28), 2)[0]
        Conv2d(1, 6, kernel_size=(5, 5), stride=(1, 1), padding=(2, 2))
    """
    _check_name(name)
    if name == "mlp":
        return mlp(math.prod(features_shape), classes, hidden)
    if len(features_shape) != 3:
        raise InvalidArgument(
            f"Expected images (channels, height, width) for {name}, got records of shape "
            f"{features_shape}. Give images, or take mlp."
        )
    channels, height, width = features_shape
    return (lenet5 if name == "lenet5" else cnn)(channels, height, width, classes)


def as_input(name: ModelName, features: FloatArray) -> FloatArray:
    """Return records in the model's input shape: images without channels get one.

    Args:
        name: Name of the model.
        features: Shape ``(n, …)``; images as ``(n, height, width)`` or ``(n, channels, height,
            width)``.

    Example:
        >>> as_input("cnn", np.zeros((5, 8, 8))).shape
        (5, 1, 8, 8)
    """
    _check_name(name)
    if name == "mlp":
        return features
    shape = features.shape
    if features.ndim == 3:
        return features[:, np.newaxis]
    if features.ndim == 4 and shape[1] > 4 >= shape[3]:
        raise InvalidArgument(
            f"Expected channels before height and width for {name}, got images of shape "
            f"{shape[1:]}. Give features.transpose(0, 3, 1, 2)."
        )
    return features


def _check_name(name: str) -> None:
    if name not in get_args(ModelName):
        raise InvalidArgument(
            f"Expected a model of {', '.join(get_args(ModelName))}, got {name!r}."
        )


def _shrink_by_lenet(side: int) -> int:
    """Return the length of a side after two poolings with a 5 × 5 convolution between them."""
    return (side // _POOLED - 4) // _POOLED


def _find_least_side(kernel: int, padding: int) -> int:
    """Return the smallest side for which two convolutions and poolings have any output."""
    side = 1
    for _ in range(2):
        side = _POOLED * side + kernel - 1 - 2 * padding
    return side


def _check_size(name: str, height: int, width: int, *, least: int, left: int) -> None:
    if left < 1:
        raise InvalidArgument(
            f"Expected images of {least}x{least} or more for {name}, got {height}x{width}: its "
            "poolings would leave nothing. Take mlp, or larger images."
        )
