"""A watch accuses programs whose noise is wrong, and at most a share ``level`` of right ones."""

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import scipy.stats

from epsilometer.conformance import evidence
from epsilometer.conformance.evidence_check import Bets
from epsilometer.conformance.noise_checks import CHECKS, KEPT, NoiseCheck
from epsilometer.conformance.summary import choose_sketch, summarise_step
from epsilometer.conformance.watch import StepWatch
from epsilometer.core.findings import ConformanceFinding
from epsilometer.errors import InvalidArgument

FLAKE = 1e-6
SHAPES = {"first.weight": (16, 12), "first.bias": (16,), "second.weight": (16, 12), "out": (3, 16)}
Noise = dict[str, Any]


def draw(rng: np.random.Generator) -> Noise:
    return {name: rng.normal(size=shape) for name, shape in SHAPES.items()}


def change(changed: Callable[[str, Any], Any]) -> Callable[[np.random.Generator], Iterator[Noise]]:
    def run(rng: np.random.Generator) -> Iterator[Noise]:
        while True:
            yield {name: changed(name, value) for name, value in draw(rng).items()}

    return run


def watch_run(noises: Iterator[Noise], *, steps: int = 40, **options: Any) -> ConformanceFinding:
    watch = StepWatch(**options)
    for _, noise in zip(range(steps), noises, strict=False):
        watch.see(noise.items())
    return watch.finding()


def resample(value: Any, cut: float) -> Any:
    levels = scipy.stats.norm.cdf(value)
    low = scipy.stats.norm.cdf(-cut)
    return scipy.stats.norm.ppf(low + levels * (1 - 2 * low))


def truncate_and_blur(rng: np.random.Generator) -> Iterator[Noise]:
    """As where the sum before noise is the mean of 31 other calls."""
    while True:
        noise, other = draw(rng), draw(rng)
        yield {
            name: (31 / 32) ** 0.5 * resample(noise[name], 3.0) + other[name] / 32**0.5
            for name in noise
        }


def same(rng: np.random.Generator) -> Iterator[Noise]:
    noise = draw(rng)
    while True:
        yield noise


def reseed(rng: np.random.Generator) -> Iterator[Noise]:
    while True:
        epoch = np.random.default_rng(7)
        for _ in range(10):
            yield draw(epoch)


def cancel(rng: np.random.Generator) -> Iterator[Noise]:
    before = draw(rng)
    while True:
        now = draw(rng)
        yield {name: now[name] - before[name] for name in now}
        before = now


def cancel_late(rng: np.random.Generator) -> Iterator[Noise]:
    """Each step subtracts the noise of the step 5 before."""
    kept: list[Noise] = []
    while True:
        kept.append(draw(rng))
        old = kept[-6] if len(kept) > 5 else dict.fromkeys(SHAPES, 0)
        yield {name: kept[-1][name] - old[name] for name in SHAPES}


def lean(rng: np.random.Generator) -> Iterator[Noise]:
    """Noise with a correlation of 0.2 with the step before."""
    before = draw(rng)
    while True:
        fresh = draw(rng)
        before = {name: 0.2 * before[name] + 0.98**0.5 * 0.99 * fresh[name] for name in fresh}
        yield before


def decay(rng: np.random.Generator) -> Iterator[Noise]:
    step = 0
    while True:
        yield {name: value * 1.5 / (1 + step / 16) for name, value in draw(rng).items()}
        step += 1


def skip(rng: np.random.Generator) -> Iterator[Noise]:
    step = 0
    while True:
        yield {name: value * (step % 20 != 13) for name, value in draw(rng).items()}
        step += 1


def copy_layer(rng: np.random.Generator) -> Iterator[Noise]:
    while True:
        noise = draw(rng)
        yield {**noise, "second.weight": noise["first.weight"]}


def pick(name: str, value: Any, then: Callable[[Any], Any], where: str) -> Any:
    return then(value) if name == where else value


WRONG: dict[str, tuple[Callable[[np.random.Generator], Iterator[Noise]], str]] = {
    "no noise": (change(lambda _, v: 0 * v), "noise scale"),
    "half": (change(lambda _, v: v / 2), "noise scale"),
    "10 % less": (change(lambda _, v: 0.9 * v), "noise scale"),
    "decays": (decay, "noise scale"),
    "none on biases": (
        change(lambda n, v: pick(n, v, lambda x: 0 * x, "first.bias")),
        "noise in every part",
    ),
    "half in the last layer": (
        change(lambda n, v: pick(n, v, lambda x: x / 2, "out")),
        "noise in every part",
    ),
    "a row without": (
        change(
            lambda n, v: pick(n, v, lambda x: x * (np.arange(16) != 5)[:, None], "first.weight")
        ),
        "noise in every part",
    ),
    "every eighth coordinate without": (
        change(lambda _, v: v * (np.arange(v.size) % 8 > 0).reshape(v.shape)),
        "noise in every part",
    ),
    "none in sums of tensors": (
        change(lambda _, v: (v - v.mean()) * (v.size / (v.size - 1)) ** 0.5),
        "noise in every part",
    ),
    "every 20th step without": (skip, "noise in every step"),
    "uniform": (
        change(lambda _, v: 3**0.5 * (2 * scipy.stats.norm.cdf(v) - 1)),
        "noise shape",
    ),
    "coins": (change(lambda _, v: np.sign(v)), "noise shape"),
    "Laplace": (
        change(lambda _, v: scipy.stats.laplace.ppf(scipy.stats.norm.cdf(v)) / 2**0.5),
        "noise shape",
    ),
    "truncated at 2": (change(lambda _, v: resample(v, 2.0) / 0.8796), "noise shape"),
    "truncated at 3": (change(lambda _, v: resample(v, 3.0)), "noise shape"),
    "truncated at 3, and blurred": (truncate_and_blur, "noise shape"),
    "one-sided": (change(lambda _, v: np.abs(v)), "noise shape"),
    "quantised": (change(lambda _, v: np.round(4 * v) / 4), "quantised noise"),
    "same in every step": (same, "independence of steps"),
    "reseeded every epoch": (reseed, "independence of steps"),
    "leans to the step before": (lean, "independence of steps"),
    "cancels": (cancel, "noise that cancels"),
    "cancels after 5 steps": (cancel_late, "independence of steps"),
    "rows equal": (
        change(lambda _, v: np.broadcast_to(v[:1], v.shape) if v.ndim > 1 else v),
        "independence within a step",
    ),
    "columns equal": (
        change(lambda _, v: np.broadcast_to(v[:, :1], v.shape) if v.ndim > 1 else v),
        "independence within a step",
    ),
    "halves opposite": (
        change(lambda _, v: np.concatenate([v[: len(v) // 2], -v[: len(v) // 2], v[: len(v) % 2]])),
        "independence within a step",
    ),
    "layers share their noise": (copy_layer, "independence within a step"),
}
RIGHT = {
    "right": change(lambda _, v: v),
    "more": change(lambda _, v: 1.7 * v),
    "more in one layer": change(lambda n, v: pick(n, v, lambda x: 3 * x, "out")),
    "float32": change(lambda _, v: v.astype(np.float32)),
    "bf16": change(lambda _, v: _to_bfloat16(v)),
    "rounded to 1/32": change(lambda _, v: np.round(32 * v) / 32),
}


def _to_bfloat16(value: Any) -> Any:
    """Keep 8 bits of precision."""
    mantissa, exponent = np.frexp(value)
    return np.ldexp(np.round(mantissa * 256) / 256, exponent)


@pytest.mark.parametrize("name", WRONG)
def test_wrong_noise_is_found_by_its_check(name: str, rng: np.random.Generator) -> None:
    noise, check = WRONG[name]
    finding = watch_run(noise(rng))
    assert finding.verdict == "violated"
    assert finding.check(check).outcome == "violated", finding.checks
    assert 1 <= finding.check(check).steps <= 40


@pytest.mark.parametrize("name", RIGHT)
def test_right_noise_is_spared(name: str, rng: np.random.Generator) -> None:
    finding = watch_run(RIGHT[name](rng))
    assert finding.verdict == "conforms", finding.find("violated")
    remarked = {check.name for check in finding.find("remark")}
    expected = {"noise scale"} if "more" in name else set()
    assert remarked - {"quantised noise"} == expected


def test_rounding_is_a_remark(rng: np.random.Generator) -> None:
    assert watch_run(RIGHT["rounded to 1/32"](rng)).check("quantised noise").outcome == "remark"


def count_accused(runs: int, steps: int, level: float, rng: np.random.Generator) -> int:
    """Right runs that are accused, of a small vector and a small matrix."""
    accused = 0
    for _ in range(runs):
        watch = StepWatch(level=level)
        for _ in range(steps):
            watch.see([("a", rng.normal(size=(4, 8))), ("b", rng.normal(size=8))])
        accused += watch.violated
    return accused


@pytest.mark.simulation
def test_right_runs_are_accused_no_more_often_than_the_level_says(rng: np.random.Generator) -> None:
    runs, level = 600, 0.05  # a level at which a mistake would show
    assert count_accused(runs, 4, level, rng) <= scipy.stats.binom.isf(FLAKE, runs, level)


@pytest.mark.slow
@pytest.mark.parametrize("level", [1e-3, 0.05])
def test_long_right_runs_are_not_accused_more_often_either(
    level: float, rng: np.random.Generator
) -> None:
    runs = 2000
    assert count_accused(runs, 40, level, rng) <= scipy.stats.binom.isf(FLAKE, runs, level)


@pytest.mark.slow
@pytest.mark.parametrize("check", [CHECKS[1], CHECKS[3]], ids=lambda check: check.name)
def test_a_maximum_in_place_of_the_average_would_be_caught(
    check: type[NoiseCheck], rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    def measure_mean() -> tuple[float, float]:
        values = []
        for _ in range(1000):
            own = check(level=1e-3)
            for step in range(1, 3):
                own.see(summarise_step([("a", rng.normal(size=(2, 8)))]), step)
            values.append(min(20.0, math.exp(own.compute_evidence() or 0.0)))  # a mean that settles
        return float(np.mean(values)), float(np.std(values)) / 1000**0.5

    mean, error = measure_mean()
    assert mean <= 1 + 5 * error
    monkeypatch.setattr(evidence, "average", lambda logs: float(np.max(logs)))
    monkeypatch.setattr(
        Bets, "value", lambda self: float(np.max(self._logs)) + math.log(self._logs.shape[1])
    )
    mean, error = measure_mean()
    assert mean > 1 + 5 * error


def test_the_same_wrong_run_is_accused_however_long_it_was_right(rng: np.random.Generator) -> None:
    watch = StepWatch()
    for _ in range(40):
        watch.see(draw(rng).items())
    assert not watch.violated
    for _ in range(8):
        watch.see((name, 0.7 * value) for name, value in draw(rng).items())
    assert watch.violated
    for _ in range(8):  # and once accused, it stays so
        watch.see((name, 2 * value) for name, value in draw(rng).items())
    assert watch.finding().verdict == "violated"


def test_a_drift_leaves_only_checks_that_hold_under_it(rng: np.random.Generator) -> None:
    watch = StepWatch(steady=False, drift="it trains")
    for step in range(20):
        watch.see((name, value + step) for name, value in draw(rng).items())
    finding = watch.finding()
    assert finding.verdict == "conforms"
    assert finding.check("noise shape").outcome == "not tested"
    assert finding.check("noise shape").seen == "it trains"
    half = StepWatch(steady=False)
    for _ in range(20):
        half.see((name, value / 2) for name, value in draw(rng).items())
    assert half.finding().check("noise scale").outcome == "violated"


def test_memory_is_bounded(rng: np.random.Generator) -> None:
    watch = StepWatch()
    for _ in range(KEPT + 40):
        watch.see([("a", rng.normal(size=16))])
    independence = next(c for c in watch._checks if c.name == "independence of steps")
    assert len(independence._first) + len(independence._latest) <= KEPT  # type: ignore[attr-defined]
    watch.see([("a", rng.normal(size=16))])
    assert not watch.violated
    sketch = choose_sketch([3, 5000, 10**6])
    assert sum(part.size for part in sketch) == 1024
    assert sketch[0].tolist() == [0, 1, 2]


def test_a_summary_made_elsewhere_counts_as_the_arrays_do(rng: np.random.Generator) -> None:
    one, two = StepWatch(), StepWatch()
    for _ in range(6):
        noise = [(name, 0.8 * value) for name, value in draw(rng).items()]
        one.see(noise)
        two.see_summary(summarise_step(noise))
    assert one.finding() == two.finding()


def test_nothing_seen_is_not_tested() -> None:
    finding = StepWatch().finding()
    assert finding.verdict == "not tested"
    assert len(finding.checks) == len(CHECKS)


def test_what_is_no_residual_is_refused(rng: np.random.Generator) -> None:
    watch = StepWatch()
    with pytest.raises(InvalidArgument, match="finite"):
        watch.see([("a", np.array([1.0, np.nan]))])
    with pytest.raises(InvalidArgument, match="at least one tensor"):
        watch.see([])
    watch = StepWatch()
    watch.see([("a", rng.normal(size=9))])
    with pytest.raises(InvalidArgument, match="same tensors"):
        watch.see([("b", rng.normal(size=9))])
