"""Attention, numbers of places and a module's own parameters: on the fast path, and right."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from epsilometer.networks.attention import ManyAttention
from epsilometer.networks.many import ManyModels
from tests.networks.nets import (
    EPS,
    RELATIVE,
    in_order,
    off,
    same_weights,
    shaken,
    summed_by_definition,
)

_WORDS, _PLACES, _WIDTH = 7, 6, 4


def _causal(places: int) -> Tensor:
    return nn.Transformer.generate_square_subsequent_mask(places)


class Transformer(nn.Module):
    """Words, places, two layers of attention, classes: as small models of language are written."""

    def __init__(self, places: str, **options: Any) -> None:
        super().__init__()
        self.kind = places
        if places == "own":
            self.places = nn.Parameter(torch.randn(1, _PLACES, _WIDTH))
            self.first = nn.Parameter(torch.randn(1, 1, _WIDTH))
        else:
            self.places = nn.Embedding(_PLACES, _WIDTH)
        self.words = nn.Embedding(_WORDS, _WIDTH, padding_idx=0)
        layer = nn.TransformerEncoderLayer(
            _WIDTH, 2, 8, dropout=0.0, activation="gelu", batch_first=True, norm_first=True,
            layer_norm_eps=EPS, **options,
        )  # fmt: skip
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.classes = nn.Linear(_WIDTH, 3)

    def forward(self, words: Tensor) -> Tensor:
        """Return one number per class."""
        numbers = torch.arange(words.shape[1])
        x = self.words(words)
        if self.kind == "own":
            x = torch.cat([self.first.expand(len(x), -1, -1), x + self.places], 1)
        elif self.kind == "row":
            x = x + self.places(numbers)
        elif self.kind == "table":
            x = x + self.places(numbers[None])
        else:
            x = x + self.places(numbers)[None]
        return self.classes(self.layers(x, mask=_causal(x.shape[1])).mean(1))


class Attending(nn.Module):
    """Attention called in some way."""

    def __init__(self, call: Callable[[nn.Module, Tensor], Tensor], **options: Any) -> None:
        super().__init__()
        self.call = call
        self.attention = nn.MultiheadAttention(_WIDTH, 2, **{"batch_first": True, **options})
        self.classes = nn.Linear(_WIDTH, 3)

    def forward(self, x: Tensor) -> Tensor:
        """Return one number per class."""
        return self.classes(self.call(self.attention, x).mean(1))


CALLS: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "to itself": lambda attend, x: attend(x, x, x, need_weights=False)[0],
    "with weights": lambda attend, x: torch.matmul(*reversed(attend(x, x, x))),
    "weights of heads": lambda attend, x: (
        attend(x, x, x, average_attn_weights=False)[1].square().sum(1) @ x
    ),
    "to others": lambda attend, x: attend(x[:, :2], x, x, need_weights=False)[0],
    "to three": lambda attend, x: attend(x, 2 * x, 3 * x, need_weights=False)[0],
    "some masked": lambda attend, x: attend(
        x, x, x, attn_mask=torch.eye(_PLACES).roll(1, 0) > 0, need_weights=False
    )[0],
    "padded": lambda attend, x: attend(x, x, x, key_padding_mask=x[..., 0] > 1.5)[0],
    "each head masked": lambda attend, x: attend(
        x, x, x, attn_mask=torch.triu(torch.ones(2 * len(x), _PLACES, _PLACES), 1) > 0
    )[0],
}  # fmt: skip


def _check_sums(module: nn.Module, x: Tensor, *, runs: int) -> ManyModels:
    """Compare with the definition, and with ``torch.func``; returns models on the fast path."""
    fast, whole = ManyModels(module, runs), ManyModels(module, runs, whole=True)
    shaken(fast)
    same_weights(fast, whole)
    y = torch.randint(3, x.shape[:2])
    keep = torch.rand(x.shape[:2]) < 0.8
    how = {"loss": _loss, "clip": 0.5, "keep": keep}
    truth = summed_by_definition(fast, x, y, **how)
    for models in (fast, whole):
        assert off(in_order(models, models.sum_clipped(x, y, **how)), truth) < RELATIVE
    return fast


def _loss(outputs: Tensor, labels: Tensor) -> Tensor:
    return (outputs - nn.functional.one_hot(labels, 3)).square().sum(1)


@pytest.mark.parametrize("places", ["row", "table", "own"])
@pytest.mark.parametrize("examples", [1, 2, 3])  # with three there are as many as places
def test_a_transformer_is_on_the_fast_path(places: str, examples: int) -> None:
    torch.manual_seed(0)
    module = Transformer(places, bias=examples != 1)
    assert ManyModels(module, 2).agree(torch.randint(_WORDS, (2, _PLACES)))
    x = torch.randint(_WORDS, (2, examples, _PLACES))
    models = _check_sums(module, x, runs=2)
    own = 4 * (_PLACES + 1) if places == "own" else 0
    assert models.copied == own  # torch.func would copy all of them for every example


def test_places_that_cannot_be_told_apart_are_noticed() -> None:
    """(1, models' examples, …) would be added to all examples of all models."""
    models = ManyModels(Transformer("added later"), 2)
    assert not models.agree(torch.randint(_WORDS, (2, _PLACES)))


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
@pytest.mark.parametrize("bias", [True, False])
def test_attention_is_that_of_torch(call: Any, bias: bool) -> None:
    torch.manual_seed(1)
    module, x = Attending(call, bias=bias), torch.randn(2, 3, _PLACES, _WIDTH)
    models = ManyModels(module, 2)
    assert isinstance(models._many.attention, ManyAttention)
    assert models.agree(x[0, :2])
    if call is not CALLS["padded"]:  # vmap knows no mask that depends on the example
        _check_sums(module, x, runs=2)


@pytest.mark.parametrize(
    "options",
    [{"batch_first": False}, {"add_bias_kv": True}, {"add_zero_attn": True}, {"kdim": 3}],
    ids=str,
)
def test_other_attention_is_left_to_torch_func(options: dict[str, Any]) -> None:
    module = Attending(CALLS["to itself"], **options)
    assert not isinstance(ManyModels(module, 2)._many.attention, ManyAttention)


def test_dropout_of_attention_is_drawn_in_training_alone() -> None:
    module = Attending(CALLS["to itself"], dropout=0.5)
    models, x = ManyModels(module, 2), torch.randn(1, 1, _PLACES, _WIDTH).expand(2, 50, -1, -1)
    with torch.no_grad():
        assert len(models(x)[0].unique(dim=0)) == 50
        with models.settled():
            assert models(x).std(1).max() < 1e-6


def test_first_weights_are_drawn_as_torch_draws_them() -> None:
    """Xavier's law for queries, keys and values, 0 for the biases; each model its own."""
    module = nn.Sequential(Attending(CALLS["to itself"]))
    nn.init.constant_(module[0].attention.in_proj_bias, 9.0)
    models = ManyModels(module, 4000)
    models.reset("fresh", torch.Generator().manual_seed(0))
    drawn = torch.stack(
        [models.model(run)[0].attention.in_proj_weight.detach() for run in range(0, 4000, 10)]
    )
    reach = (6 / (4 * _WIDTH)) ** 0.5
    assert 0.99 * reach < drawn.abs().max() < reach
    assert abs(float(drawn.std()) * 3**0.5 / reach - 1) < 0.05  # 19,200 numbers
    last = models.model(3999)[0].attention
    assert not last.in_proj_bias.any()
    assert not last.out_proj.bias.any()


def test_a_layer_that_some_outputs_do_not_reach_gets_no_stale_gradient() -> None:
    """Queries alone are multiplied: keys and values come of a detached sum."""
    torch.manual_seed(2)
    module = Attending(lambda attend, x: attend(x, x.detach(), x, need_weights=False)[0].detach())
    models = ManyModels(module, 2)
    models.sums.fill_(7.0)
    x, y = torch.randn(2, 2, _PLACES, _WIDTH), torch.zeros(2, 2, dtype=torch.long)
    sums = models.sum_clipped(x, y, loss=_loss, clip=1.0, keep=torch.ones(2, 2))
    named = {models._prefix[id(layer)] + name: (a, b) for layer, name, a, b in models._columns_of}
    start, stop = named["attention.in_proj_weight"]
    assert not sums[:, start:stop].any()
