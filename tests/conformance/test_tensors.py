"""Summaries of tensors are those of arrays, and parts of large tensors tell of the whole."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from epsilometer.conformance.comparisons import COMPARED, Comparisons, choose_compared
from epsilometer.conformance.noise_checks import MOST_ROWS
from epsilometer.conformance.summary import StepSummary, summarise_step
from epsilometer.conformance.tensors import TensorSummariser
from epsilometer.conformance.watch import StepWatch
from epsilometer.errors import InvalidArgument

Part = tuple[torch.Tensor, torch.Tensor | None]
DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def draw(*shapes: tuple[int, ...], seed: int = 0, **kind: Any) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    drawn = [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]
    return [each.to(**kind) for each in drawn]


def name_all(parts: list[Part]) -> list[tuple[str, tuple[int, ...]]]:
    return [(f"p{place}", tuple(first.shape)) for place, (first, _) in enumerate(parts)]


def summarise_arrays(parts: list[Part], unit: float) -> StepSummary:
    arrays = []
    for (name, _), (released, own) in zip(name_all(parts), parts, strict=True):
        value = released.double() if own is None else released.double() - own.double()
        arrays.append((name, value.cpu().numpy() / unit))
    return summarise_step(arrays)


def assert_same(found: StepSummary, expected: StepSummary) -> None:
    for a, b in zip(found.tensors, expected.tensors, strict=True):
        assert (a.name, a.count, a.positive) == (b.name, b.count, b.positive)
        assert abs(a.small - b.small) <= 1  # one may lie on the limit, but for rounding
        assert a.squares == pytest.approx(b.squares, rel=1e-5)
        assert a.total == pytest.approx(b.total, abs=1e-5 * (a.squares * a.count) ** 0.5)
        assert a.largest == pytest.approx(b.largest, rel=1e-6)
        np.testing.assert_allclose(a.rows, b.rows, rtol=1e-5, atol=1e-12)
        np.testing.assert_allclose(a.sketch, b.sketch, rtol=1e-5, atol=1e-6)
    assert [(what, size) for what, _, size in found.cosines] == [
        (what, size) for what, _, size in expected.cosines
    ]
    np.testing.assert_allclose(
        [cosine for _, cosine, _ in found.cosines],
        [cosine for _, cosine, _ in expected.cosines],
        atol=1e-5,
    )


SHAPES: dict[str, list[tuple[int, ...]]] = {
    "scalar": [()],
    "one value": [(1,), (1, 1)],
    "vectors": [(7,), (8,), (5000,)],
    "large vector": [(70_001,)],
    "network": [(300, 401), (300,), (128, 300), (128,), (10, 128), (10,)],
    "convolutions": [(64, 32, 5, 5), (64,), (96, 64, 3, 3), (3, 16, 3, 3, 3)],
    "equal shapes": [(200, 200), (200,), (200, 200), (200,), (200, 200)],
    "long rows": [(3, 50_001), (2, 3, 20_000)],
    "thin": [(60_000, 1), (1, 60_000)],
}


@pytest.mark.parametrize("chunk", [None, 1000, 777])
@pytest.mark.parametrize("name", SHAPES)
def test_tensors_are_summarised_as_arrays_are(name: str, chunk: int | None, device: str) -> None:
    released = draw(*SHAPES[name], dtype=torch.float32, device=device)
    own = draw(*SHAPES[name], seed=1, dtype=torch.float32, device=device)
    parts: list[Part] = list(zip(released, own, strict=True))
    summariser = TensorSummariser(name_all(parts), device, chunk=chunk)
    for _ in range(2):  # nothing is left of the step before
        assert_same(summariser.summarise(parts, 0.7), summarise_arrays(parts, 0.7))


@pytest.mark.parametrize(
    "kinds",
    [
        (torch.float32, None),
        (torch.bfloat16, torch.bfloat16),
        (torch.float16, torch.float16),
        (torch.float32, torch.bfloat16),
        (torch.bfloat16, torch.float32),
        (torch.float64, torch.float64),
        (torch.float32, torch.float64),
    ],
)
def test_every_type_is_taken(kinds: tuple[torch.dtype, torch.dtype | None], device: str) -> None:
    shapes = [(260, 300), (300,), (4, 4)]
    released = draw(*shapes, dtype=kinds[0], device=device)
    own: list[torch.Tensor] | list[None] = [None] * 3
    if kinds[1] is not None:
        own = draw(*shapes, seed=1, dtype=kinds[1], device=device)
    parts: list[Part] = list(zip(released, own, strict=True))
    found = TensorSummariser(name_all(parts), device, chunk=5000).summarise(parts, 2.5)
    assert_same(found, summarise_arrays(parts, 2.5))


def test_noise_beside_a_large_sum_is_not_rounded_more_than_it_was() -> None:
    noise, sums = draw((300, 300), dtype=torch.float64)[0], torch.full((300, 300), 1e9).double()
    parts: list[Part] = [(sums + noise, sums)]
    found = TensorSummariser(name_all(parts), "cpu").summarise(parts, 1.0)
    assert_same(found, summarise_arrays(parts, 1.0))


def test_tensors_need_not_be_contiguous() -> None:
    a, b = draw((400, 260), (260, 400), dtype=torch.float32)
    conv, own = draw((64, 32, 8, 8), (64, 32, 8, 8), seed=1, dtype=torch.float32)
    every = draw((90_000, 2), seed=2, dtype=torch.float32)[0]
    parts: list[Part] = [
        (a.t(), b),
        (a, b.t()),
        (conv.to(memory_format=torch.channels_last), own),
        (every[:, 0], None),
        (every[::2, 0], every[1::2, 1]),
        (a[:1].expand(300, 260), None),
    ]
    for chunk in (None, 1000):
        found = TensorSummariser(name_all(parts), "cpu", chunk=chunk).summarise(parts, 1.0)
        assert_same(found, summarise_arrays(parts, 1.0))


def test_gradients_that_are_tracked_are_taken() -> None:
    weight = torch.nn.Parameter(torch.ones(300, 300))
    parts: list[Part] = [(weight, None), (weight.sum() * torch.ones(3, requires_grad=True), None)]
    step = TensorSummariser(name_all(parts), "cpu").summarise(parts, 1.0)
    squares = [part.squares for part in step.tensors]
    assert squares == pytest.approx([90_000.0, 3 * 90_000.0**2])


@pytest.mark.parametrize("shape", [(9,), (300, 300)])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_refused(shape: tuple[int, ...], value: float, device: str) -> None:
    right, wrong = draw((8,), shape, dtype=torch.float32, device=device)
    wrong.view(-1)[-2] = value
    summariser = TensorSummariser([("fine", (8,)), ("lost", shape)], device, chunk=1000)
    with pytest.raises(InvalidArgument, match="finite numbers in the residual of lost"):
        summariser.summarise([(right, None), (wrong, right[0].expand(shape))], 1.0)


def test_other_tensors_than_announced_are_refused() -> None:
    summariser = TensorSummariser([("a", (2, 3)), ("b", ())], "cpu")
    a, b = torch.ones(2, 3), torch.ones(())
    assert summariser.summarise([(a, None), (b, None)], 1.0).tensors[1].count == 1
    with pytest.raises(InvalidArgument, match="2 tensors in every step, got 1"):
        summariser.summarise([(a, None)], 1.0)
    with pytest.raises(InvalidArgument, match="a of shape"):
        summariser.summarise([(a.t(), None), (b, None)], 1.0)
    for unit in (0.0, -1.0, math.nan):
        with pytest.raises(InvalidArgument, match="unit"):
            summariser.summarise([(a, None), (b, None)], unit)
    with pytest.raises(InvalidArgument, match="at least one tensor"):
        TensorSummariser([], "cpu")
    with pytest.raises(InvalidArgument, match="residual of empty"):
        TensorSummariser([("empty", (3, 0))], "cpu")
    with pytest.raises(InvalidArgument, match="chunk"):
        TensorSummariser([("a", (3,))], "cpu", chunk=0)


def test_ties_that_others_counted_are_passed_on() -> None:
    step = TensorSummariser([("a", (3,))], "cpu").summarise(
        [(torch.ones(3), None)], 1.0, ties=(1, 2)
    )
    assert step.ties == (1, 2)


class LargestMade(TorchDispatchMode):
    """Keeps the bytes of the largest memory that an operation returned."""

    def __init__(self, given: list[torch.Tensor]) -> None:
        super().__init__()
        self.bytes, self._given = 0, {each.untyped_storage().data_ptr() for each in given}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        for each in tree_leaves(made):
            if isinstance(each, torch.Tensor):
                storage = each.untyped_storage()
                if storage.data_ptr() not in self._given:
                    self.bytes = max(self.bytes, storage.nbytes())
        return made


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
def test_memory_is_bounded(kind: torch.dtype) -> None:
    shapes = [(2000, 1000), (3_000_000,), (1500, 2000)]
    released, own = draw(*shapes, dtype=kind), draw(*shapes, seed=1, dtype=kind)
    released[2], own[2] = released[2].t(), own[2].t()
    parts: list[Part] = list(zip(released, own, strict=True))
    chunk = 1 << 16
    summariser = TensorSummariser(name_all(parts), "cpu", chunk=chunk)
    with LargestMade(released + own) as largest:
        summariser.summarise(parts, 1.0)
    moved = 4 * (2 * COMPARED + 2000 + 3_000_000 + 2000)
    assert largest.bytes <= max(2 * 4 * chunk, moved)
    alone = TensorSummariser(name_all(parts)[:1], "cpu", chunk=chunk)
    with LargestMade(released + own) as largest:
        alone.summarise(parts[:1], 1.0)
    assert largest.bytes <= 2 * 4 * chunk


def test_too_many_rows_are_summarised_as_one() -> None:
    parts: list[Part] = [(each, None) for each in draw((MOST_ROWS,), (70_000,), (16, 4))]
    step = TensorSummariser(name_all(parts), "cpu").summarise(parts, 1.0)
    assert [part.rows.size for part in step.tensors] == [1, 70_000, 16]
    expected = summarise_arrays(parts, 1.0)
    assert step.tensors[0].rows[0] == pytest.approx(expected.tensors[0].squares, rel=1e-5)
    np.testing.assert_allclose(step.tensors[1].rows, expected.tensors[1].rows, rtol=1e-5)
    watch = StepWatch()
    watch.see_summary(step)
    assert watch.finding().verdict == "conforms"


def test_a_watch_judges_tensors() -> None:
    named = [("weight", (400, 300)), ("bias", (400,)), ("out", (10, 400))]
    verdicts = []
    for scale in (1.0, 0.5):
        watch, summariser = StepWatch(), TensorSummariser(named, "cpu")
        for seed in range(10):
            sums = draw(*(shape for _, shape in named), seed=100 + seed, dtype=torch.float32)
            noise = draw(*(shape for _, shape in named), seed=seed, dtype=torch.float32)
            parts = [(a + 3 * scale * b, a) for a, b in zip(sums, noise, strict=True)]
            watch.see_summary(summariser.summarise(parts, 3.0))
        verdicts.append(watch.finding().verdict)
    assert verdicts == ["conforms", "violated"]


LARGE = {"first": (1100, 701), "second": (701, 900), "conv": (128, 64, 5, 5), "third": (701, 900)}


def repeat_rows(noise: dict[str, Any]) -> None:
    noise["first"][:] = noise["first"][:1]


def repeat_pairs_of_columns(noise: dict[str, Any]) -> None:
    noise["second"][:, 1::2] = noise["second"][:, ::2]


def repeat_halves_of_channels(noise: dict[str, Any]) -> None:
    noise["conv"][:, 32:] = -noise["conv"][:, :32]


def repeat_in_a_kernel(noise: dict[str, Any]) -> None:
    noise["conv"][:] = noise["conv"][..., :1]


def share_between_layers(noise: dict[str, Any]) -> None:
    noise["third"][:] = noise["second"]


def share_a_stream(noise: dict[str, Any]) -> None:
    size = noise["second"].size
    noise["second"].ravel()[:] = noise["first"].ravel()[:size]


@pytest.mark.parametrize(
    ("repeat", "what", "sign"),
    [
        (repeat_rows, "neighbours along axis 0 of first", 1),
        (repeat_rows, "halves along axis 0 of first", 1),
        (repeat_pairs_of_columns, "neighbours along axis 1 of second", 1),
        (repeat_halves_of_channels, "halves along axis 1 of conv", -1),
        (repeat_in_a_kernel, "neighbours along axis 3 of conv", 1),
        (share_between_layers, "second and third", 1),
        (share_a_stream, "first and second", 1),
    ],
)
def test_repeats_show_in_the_parts_that_are_compared(
    repeat: Any, what: str, sign: int, rng: np.random.Generator
) -> None:
    noise = {name: rng.normal(size=shape) for name, shape in LARGE.items()}
    assert all(abs(cosine) * size**0.5 < 6 for _, cosine, size in cosines_of(noise))
    repeat(noise)
    found = {name: cosine for name, cosine, _ in cosines_of(noise)}
    assert found[what] == pytest.approx(sign)


def cosines_of(noise: dict[str, Any]) -> tuple[tuple[str, float, int], ...]:
    named = [(name, array.shape) for name, array in noise.items()]
    return Comparisons(named).take(list(noise.values()))


def test_small_tensors_are_compared_whole(rng: np.random.Generator) -> None:
    a, b = rng.normal(size=(9, 6)), rng.normal(size=(6, 4))
    found = {what: (cosine, size) for what, cosine, size in cosines_of({"a": a, "b": b})}
    assert len(found) == 9
    first, second = a.ravel()[:24], b.ravel()
    cosine = first @ second / np.linalg.norm(first) / np.linalg.norm(second)
    assert found["a and b"] == (pytest.approx(cosine), 24)
    first, second = a[:4].ravel(), a[4:8].ravel()
    cosine = first @ second / np.linalg.norm(first) / np.linalg.norm(second)
    assert found["halves along axis 0 of a"] == (pytest.approx(cosine), 24)
    first, second = a[:, ::2].ravel(), a[:, 1::2].ravel()
    cosine = first @ second / np.linalg.norm(first) / np.linalg.norm(second)
    assert found["neighbours along axis 1 of a"] == (pytest.approx(cosine), 27)


def test_parts_that_are_compared_are_few() -> None:
    many = [(768, 768), (768,), (50_000, 768), (3072, 768)] * 50
    parts = choose_compared(many)
    assert sum(part.beginning for part in parts) <= COMPARED
    assert sum(math.prod(part.block) for part in parts) <= COMPARED
    assert len({part.block for part in parts[::4]}) == 1
    deep = choose_compared([(1000,) * 6, (5,) * 6], total=100)
    assert [part.block for part in deep] == [(2,) * 6] * 2
