"""The models of the papers: as many parameters as there, and outputs of the right shape."""

import numpy as np
import pytest
import torch

from epsilometer.errors import InvalidArgument
from epsilometer.networks.many import ManyModels
from epsilometer.networks.models import as_input, build, cnn, dropout_cnn, dropout_mlp, lenet5, mlp


def size(module: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def test_they_have_as_many_parameters_as_in_the_paper() -> None:
    assert size(lenet5(1, 28, 28, 2)) == 61_026
    assert size(mlp(600, 100)) == 22_532
    convolutions = [(3, 32), (32, 32), (32, 64), (64, 64), (64, 128), (128, 128)]
    expected = sum(9 * a * b + b for a, b in convolutions) + (128 * 16 + 1) * 128 + 129 * 2
    assert size(cnn(3, 32, 32, 2)) == expected


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("mlp", (600,)),
        ("mlp", (8, 8)),
        ("lenet5", (1, 28, 28)),
        ("lenet5", (3, 12, 17)),
        ("cnn", (3, 32, 32)),
        ("cnn", (1, 8, 8)),
    ],
)
def test_outputs_are_one_a_class_on_the_fast_path(name: str, shape: tuple[int, ...]) -> None:
    module = build(name, shape, 7)  # type: ignore[arg-type]
    assert module(torch.zeros(5, *shape)).shape == (5, 7)
    models = ManyModels(module, 2)
    assert not models.general  # every layer is a known one
    assert models.agree(torch.rand(2, *shape))


def test_activations_are_those_of_the_paper() -> None:
    kinds = {
        name: [type(m).__name__ for m in build(name, (1, 28, 28), 2)] for name in ("lenet5", "cnn")
    }
    assert kinds["lenet5"].count("Tanh") == 4
    assert kinds["lenet5"].count("AvgPool2d") == 2
    assert kinds["cnn"].count("Tanh") == 7
    assert kinds["cnn"].count("MaxPool2d") == 3


def test_hidden_neurons_can_be_chosen() -> None:
    assert size(build("mlp", (10,), 2, hidden=5)) == 11 * 5 + 6 * 2


def test_images_get_the_channel_they_lack() -> None:
    flat, grey, coloured = np.zeros((4, 9)), np.zeros((4, 28, 28)), np.zeros((4, 3, 32, 32))
    assert as_input("mlp", flat) is flat
    assert as_input("mlp", grey) is grey
    assert as_input("lenet5", grey).shape == (4, 1, 28, 28)
    assert as_input("cnn", coloured) is coloured


def test_what_cannot_work_is_refused() -> None:
    for shape, name in [((1, 11, 28), "lenet5"), ((1, 28, 8), "lenet5"), ((1, 7, 7), "cnn")]:
        with pytest.raises(
            InvalidArgument, match=rf"or more for {name}, got {shape[1]}x{shape[2]}"
        ):
            build(name, shape, 2)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match=r"records of shape \(600,\)"):
        build("lenet5", (600,), 2)
    with pytest.raises(InvalidArgument, match="mlp, lenet5, cnn, got 'resnet'"):
        build("resnet", (3, 32, 32), 2)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="resnet"):
        as_input("resnet", np.zeros((4, 8, 8)))  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match=r"transpose\(0, 3, 1, 2\)"):
        as_input("cnn", np.zeros((4, 32, 32, 3)))
    with pytest.raises(InvalidArgument, match="classes"):
        mlp(10, 0)


def test_the_network_with_dropout_is_the_papers_and_shrinks() -> None:
    """Table 1 of the audit of Bayesian networks: 28x28x64, 14, 10x10x64, 5x5x64, 512, 10."""
    paper = dropout_cnn()
    sizes, x = [], torch.zeros(1, 3, 32, 32)
    for layer in paper:
        x = layer(x)
        sizes.append(tuple(x.shape[1:]))
    assert sizes[::4][:2] == [(64, 28, 28), (64, 10, 10)]
    assert {(64, 14, 14), (64, 5, 5), (512,)} <= set(sizes)
    assert sum(isinstance(layer, torch.nn.Dropout) and layer.p == 0.5 for layer in paper) == 3
    small = dropout_cnn(1, 8, 8, 10, 0.2, filters=4, kernel=3, padding=1, hidden=16)
    assert small(torch.zeros(2, 1, 8, 8)).shape == (2, 10)
    with pytest.raises(InvalidArgument, match="16x16"):
        dropout_cnn(1, 8, 8)


def test_a_table_has_a_network_with_dropout_too() -> None:
    net = dropout_mlp(6, 3, 0.25, hidden=5)
    assert size(net) == 7 * 5 + 6 * 3
    assert [layer.p for layer in net if isinstance(layer, torch.nn.Dropout)] == [0.25]
    assert net(torch.zeros(2, 2, 3)).shape == (2, 3)
