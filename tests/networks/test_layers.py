"""Clipped sums of known layers, of torch.func and of a plain loop: the same on random nets."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from epsilometer.networks import convolution
from epsilometer.networks import layers as layers_module
from epsilometer.networks import many as many_module
from epsilometer.networks.layers import ManyOthers, Parameters
from epsilometer.networks.many import ManyModels
from tests.networks.nets import (
    CLASSES,
    RELATIVE,
    Net,
    Scaled,
    Through,
    in_order,
    nets,
    off,
    same_weights,
    shaken,
    summed_by_definition,
)


def squares(outputs: Tensor, labels: Tensor) -> Tensor:
    """A loss that never saturates: there clipping would blow rounding up, on any path."""
    return (outputs - nn.functional.one_hot(labels, CLASSES)).square().sum(1)


def three_ways(
    net: Net, *, clip: float, runs: int = 2, examples: int = 3, **batch: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Sums on the fast path, through torch.func as a whole, and by definition."""
    fast = ManyModels(net.module, runs)
    shaken(fast)
    whole = ManyModels(net.module, runs, whole=True)
    assert whole.general
    same_weights(fast, whole)
    x = batch.get("x", net.examples(runs, examples))
    y = torch.randint(CLASSES, (runs, examples))
    keep = torch.rand(runs, examples) < 0.8
    found = [
        in_order(models, models.sum_clipped(x, y, loss=squares, clip=clip, keep=keep))
        for models in (fast, whole)
    ]
    truth = summed_by_definition(fast, x, y, loss=squares, clip=clip, keep=keep)
    return found[0], found[1], truth


@pytest.mark.filterwarnings("ignore:Using padding=.same.:UserWarning")
@settings(max_examples=50)
@given(nets(), st.sampled_from([1e-2, 0.5, 1e3]))
def test_both_paths_are_a_loop_over_models_and_examples(net: Net, clip: float) -> None:
    fast, whole, truth = three_ways(net, clip=clip)
    assert off(fast, truth) < RELATIVE
    assert off(whole, truth) < RELATIVE


def known(module: nn.Module, *shape: int, words: int = 0) -> Net:
    generator = torch.Generator().manual_seed(0)
    for parameter in module.parameters():
        parameter.data.normal_(0, 0.5, generator=generator)
    return Net(module, shape, words)


SINGLE = {
    "linear of one": known(nn.Sequential(nn.Linear(2, 1), nn.Linear(1, 1), nn.Linear(1, 3)), 2),
    "square, one place": known(nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3)), 3),
    "as many places as sides": known(
        nn.Sequential(nn.Linear(3, 3), nn.Flatten(), nn.Linear(9, 3)), 3, 3
    ),
    "a column of words": known(
        Through(
            lambda x, a, b, c: c(torch.cat([a(x[:, 0]), b(x[:, 1])], 1)),
            nn.Embedding(4, 2),
            nn.Embedding(4, 3, padding_idx=1),
            nn.Linear(5, 3),
        ),
        2,
        words=4,
    ),
    "words on a grid": known(
        nn.Sequential(nn.Embedding(3, 2), nn.Flatten(), nn.Linear(12, 3)), 2, 3, words=3
    ),
    "one layer only": known(nn.Linear(4, 3), 4),
    "one convolution only": known(nn.Sequential(nn.Conv2d(1, 3, 4), nn.Flatten()), 1, 4, 4),
    "scalar parameter": known(nn.Sequential(nn.Linear(4, 3), Scaled(3)), 4),
    "written over by a layer": known(
        nn.Sequential(nn.Linear(4, 4), nn.ELU(inplace=True), nn.Linear(4, 4), nn.ELU(inplace=True),
                      nn.Linear(4, 3)), 4
    ),
    "never reached": known(
        Through(lambda x, a, b: a(x), nn.Linear(4, 3), nn.Linear(4, 3)), 4
    ),
    "reached by none of the outputs": known(
        Through(lambda x, a, b: a(x) + 0 * b(x).detach(), nn.Linear(4, 3), nn.Linear(4, 3)), 4
    ),
}  # fmt: skip


@pytest.mark.parametrize("net", SINGLE.values(), ids=SINGLE.keys())
@pytest.mark.parametrize("clip", [0.1, 100.0])
def test_corners(net: Net, clip: float) -> None:
    torch.manual_seed(1)
    fast, whole, truth = three_ways(net, clip=clip)
    assert off(fast, truth) < RELATIVE
    assert off(whole, truth) < RELATIVE


@pytest.mark.parametrize("frozen", ["weight", "bias"])
def test_a_single_layer_frozen_in_part(frozen: str) -> None:
    module = nn.Linear(4, 3)
    module.get_parameter(frozen).requires_grad_(False)
    fast, whole, truth = three_ways(known(module, 4), clip=0.3)
    assert off(fast, truth) < RELATIVE
    assert off(whole, truth) < RELATIVE


def test_gradients_of_one_word_add_up_and_those_of_padding_count_nothing() -> None:
    module = nn.Sequential(nn.Embedding(3, 2, padding_idx=0), nn.Flatten(), nn.Linear(8, 3))
    x = torch.tensor([[[1, 1, 1, 1], [0, 0, 1, 2]], [[0, 0, 0, 0], [2, 1, 2, 1]]])
    fast, whole, truth = three_ways(known(module, 4, words=3), clip=0.05, examples=2, x=x)
    assert off(fast, truth) < RELATIVE
    assert off(whole, truth) < RELATIVE


def test_known_layers_are_known_exactly() -> None:
    class Own(nn.Linear):
        """May do anything in its forward pass."""

    assert many_module.layer_for(nn.Linear(2, 2)) is layers_module.ManyLinear
    assert many_module.layer_for(nn.Conv2d(2, 2, 1)) is many_module.ManyConv2d
    assert many_module.layer_for(nn.GroupNorm(1, 2)) is layers_module.ManyNorm
    for other in (
        Own(2, 2),
        nn.Conv2d(2, 2, 1, groups=2),
        nn.Conv2d(2, 2, 3, padding=1, padding_mode="reflect"),
        nn.Embedding(3, 2, max_norm=1.0),
        nn.Embedding(3, 2, scale_grad_by_freq=True),
        nn.PReLU(),
    ):
        assert many_module.layer_for(other) is ManyOthers


# The classic mistakes, planted: the tests above would see each.


def _seen(net: Net, clip: float = 0.05) -> bool:
    torch.manual_seed(1)
    fast, _, truth = three_ways(net, clip=clip)
    return off(fast, truth) > RELATIVE


def test_a_bias_left_out_of_the_norms_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    right = layers_module.ManyLinear.measure

    def forgetful(self: layers_module.ManyLinear, given: Tensor, back: Tensor) -> object:
        own, self.own = self.own, {"weight": self.own["weight"]}
        try:
            return right(self, given, back)
        finally:
            self.own = own

    net = SINGLE["square, one place"]
    assert not _seen(net)
    monkeypatch.setattr(layers_module.ManyLinear, "measure", forgetful)
    assert _seen(net)


def test_cross_terms_left_out_of_repeated_words_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    right = layers_module.ManyEmbedding.measure

    def forgetful(self: layers_module.ManyEmbedding, given: Tensor, back: Tensor) -> object:
        _, kept = right(self, given, back)
        return kept[1].square().sum((1, 2)), kept

    net = SINGLE["words on a grid"]
    assert not _seen(net)
    monkeypatch.setattr(layers_module.ManyEmbedding, "measure", forgetful)
    assert _seen(net)


def test_cross_terms_left_out_of_places_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    right = layers_module.measure_outer

    def forgetful(a: Tensor, b: Tensor, own: Parameters) -> object:
        _, kept = right(a, b, own)
        return (a.square().sum(1) * b.square().sum(1)).sum(1) + b.sum(2).square().sum(1), kept

    net = SINGLE["as many places as sides"]
    assert not _seen(net)
    monkeypatch.setattr(layers_module, "measure_outer", forgetful)
    assert _seen(net)


@pytest.mark.parametrize("cached", [1, 700])  # one example at a time, and two
def test_patches_of_a_few_examples_at_a_time_sum_up_alike(
    cached: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(convolution, "_CACHED", cached)
    torch.manual_seed(2)
    module = nn.Sequential(nn.Conv2d(1, 3, 3), nn.Flatten(), nn.Linear(108, 3))
    for clip in (0.1, 100.0):
        fast, _, truth = three_ways(known(module, 1, 8, 8), clip=clip, examples=4)
        assert off(fast, truth) < RELATIVE


@pytest.mark.parametrize("bias", [True, False])
def test_large_weights_are_multiplied_model_by_model_alike(
    bias: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layers_module, "_WIDE", 1)
    torch.manual_seed(3)
    layers = [nn.Linear(4, 5, bias=bias), nn.Tanh(), nn.Linear(5, 3, bias=bias)]
    for sequence in (False, True):
        shape = (2, 4) if sequence else (4,)
        module = nn.Sequential(*layers, *([nn.Flatten(), nn.Linear(6, 3)] if sequence else []))
        for clip in (0.1, 100.0):
            fast, whole, truth = three_ways(known(module, *shape), clip=clip, examples=4)
            assert off(fast, truth) < RELATIVE
            assert off(whole, truth) < RELATIVE
