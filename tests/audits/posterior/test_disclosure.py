"""Forms of publishing: every number by hand, and nothing from what is not published."""

import math
from typing import Any

import numpy as np
import pytest

from epsilometer.audits.posterior import disclosure
from epsilometer.audits.posterior.disclosure import (
    STATISTICS,
    Kind,
    ReleaseForm,
    as_form,
    entropy,
    measure_utility,
    mutual_information,
    variation_ratio,
)
from epsilometer.errors import InvalidArgument

# Two records, three samples, two classes.
SAMPLES = np.array(
    [[[0.61, 0.39], [0.73, 0.27], [0.16, 0.84]], [[0.52, 0.48], [0.12, 0.88], [0.44, 0.56]]]
)
VECTOR = np.array([[0.57, 0.43], [0.28, 0.72]])
MEANS = np.array([[0.50, 0.50], [0.36, 0.64]])
# std of 0.61, 0.73, 0.16: deviations 0.11, 0.23, −0.34; of 0.52, 0.12, 0.44: 0.16, −0.24, 0.08.
STDS = [math.sqrt((0.11**2 + 0.23**2 + 0.34**2) / 3), math.sqrt((0.16**2 + 0.24**2 + 0.08**2) / 3)]
# Quantiles 0.1, 0.5, 0.9 of three values a ≤ b ≤ c: a + 0.2 (b − a), b, b + 0.8 (c − b).
QUANTILES = [[0.25, 0.61, 0.706], [0.184, 0.44, 0.504]]
BY_HAND: dict[Kind, tuple[Any, Any]] = {  # as it is, and to tenths
    "label": ([[0], [0]], [[0], [0]]),
    "vector": (VECTOR[:, :1], [[0.6], [0.3]]),
    "mean": (MEANS[:, :1], [[0.5], [0.4]]),
    "mean+std": ([[0.5, -STDS[0]], [0.36, -STDS[1]]], [[0.5, -0.2], [0.4, -0.2]]),
    "quantiles": (QUANTILES, [[0.2, 0.6, 0.7], [0.2, 0.4, 0.5]]),
    # mean, −std, min, max; of 0.6, 0.7, 0.2 and of 0.5, 0.1, 0.4.
    "samples": (
        [[0.5, -STDS[0], 0.16, 0.73], [0.36, -STDS[1], 0.12, 0.52]],
        [
            [0.5, -math.sqrt((0.1**2 + 0.2**2 + 0.3**2) / 3), 0.2, 0.7],
            [1 / 3, -math.sqrt(0.26 / 9), 0.1, 0.5],
        ],
    ),
}


@pytest.mark.parametrize("kind", BY_HAND)
def test_statistics_are_those_by_hand(kind: Kind) -> None:
    samples = SAMPLES.copy()
    if kind == "label":
        samples[0, 0] = [0.51, 0.49]  # the mean is 0.4667: no tie
    for unit, expected in zip((None, 0.1), BY_HAND[kind], strict=True):
        found = ReleaseForm(kind, unit).statistics(samples, label=0, vector=VECTOR)
        np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)
        one = ReleaseForm(kind, unit).statistics(samples[1], label=0, vector=VECTOR[1])
        np.testing.assert_allclose(one, expected[1], rtol=1e-12, atol=1e-12)


def test_a_label_is_the_class_of_the_largest_mean() -> None:
    shown = ReleaseForm("label").publish(SAMPLES[1:])
    assert shown.tolist() == [[[0.0, 1.0]]]
    assert ReleaseForm("label").statistics(SAMPLES[1:], label=1).tolist() == [[1.0]]
    assert ReleaseForm("label", 0.3).publish(SAMPLES[1:]).tolist() == [[[0.0, 1.0]]]  # no number


@pytest.mark.parametrize(
    ("unit", "given", "expected"),
    [
        (1e-4, 0.123456, 0.1235),
        (1e-3, 0.123456, 0.123),
        (0.01, 0.29, 0.29),  # 0.29 / 0.01 is 28.999…
        (0.1, 0.25, 0.2),  # halves to the even
        (0.1, 0.75, 0.8),
        (0.25, 0.4, 0.5),
        (1.0, 0.51, 1.0),
    ],
)
def test_rounding(unit: float, given: float, expected: float) -> None:
    shown = ReleaseForm("vector", unit).publish([[0.5, 0.5]], np.array([given, 1 - given]))
    assert shown[0, 0] == pytest.approx(expected, abs=1e-15)


def test_a_set_holds_the_likeliest_classes_up_to_its_level(rng: np.random.Generator) -> None:
    form = ReleaseForm("set", level=0.9)
    samples = np.array([[[0.6, 0.3, 0.1]], [[0.95, 0.04, 0.01]], [[0.2, 0.1, 0.7]]])
    assert form.publish(samples)[:, 0].tolist() == [[1, 1, 0], [1, 0, 0], [1, 0, 1]]
    assert form.statistics(samples, label=1).tolist() == [[1, -2], [0, -1], [0, -2]]
    np.testing.assert_array_equal(
        form.features(samples, label=1), form.statistics(samples, label=1)
    )
    assert form.central(samples)[0].tolist() == [0.5, 0.5, 0.0]
    drawn = rng.dirichlet(np.ones(6), (50, 3))
    shown, mean = form.publish(drawn)[:, 0].astype(bool), drawn.mean(1)
    held = np.where(shown, mean, 0).sum(1)
    least = np.where(shown, mean, np.inf).min(1)
    assert (held >= 0.9 - 1e-9).all()
    assert (held - least < 0.9).all()  # none is larger than it needs to be
    assert (np.where(shown, 0, mean).max(1) <= least).all()


@pytest.mark.parametrize(
    "given", ["set", "set:1.5", "set:0", ReleaseForm("mean")], ids=["none", "above", "zero", "fine"]
)
def test_a_set_needs_a_level(given: Any) -> None:
    if isinstance(given, ReleaseForm):
        with pytest.raises(InvalidArgument, match="level"):
            ReleaseForm("mean", level=0.9)
        return
    with pytest.raises(InvalidArgument, match="level"):
        as_form(given)


@pytest.mark.parametrize("kind", BY_HAND)
@pytest.mark.parametrize("what", ["statistics", "features"])
def test_nothing_but_what_is_published_counts(
    kind: Kind, what: str, rng: np.random.Generator
) -> None:
    """Predictions that are published alike are told apart by nobody."""
    form, seen = ReleaseForm(kind, unit=0.25), {}
    for _ in range(300):
        samples = rng.dirichlet([3.0, 3.0], 2)
        alone = rng.dirichlet([3.0, 3.0])
        shown = form.publish(samples, alone).tobytes()
        found = getattr(form, what)(samples, label=0, vector=alone)
        expected = seen.setdefault(shown, found)
        np.testing.assert_array_equal(found, expected)
    assert len(seen) < 150  # many were published alike


@pytest.mark.parametrize("kind", ["samples", "mean+std"])
def test_statistics_of_unrounded_samples_would_be_found_out(
    kind: Kind, monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator
) -> None:
    form = ReleaseForm(kind, unit=0.25)
    published = ReleaseForm.publish

    def cheating(self: ReleaseForm, samples: Any, *, label: int, vector: Any = None) -> Any:
        return self._compute_statistics(published(ReleaseForm(self.kind), samples, vector), label)

    monkeypatch.setattr(ReleaseForm, "statistics", cheating)
    with pytest.raises(AssertionError):
        test_nothing_but_what_is_published_counts(form.kind, "statistics", rng)


@pytest.mark.parametrize(("kind", "more"), [("mean", 1), ("quantiles", 1), ("samples", 3)])
def test_features_are_statistics_and_uncertainties(kind: Kind, more: int) -> None:
    form = ReleaseForm(kind, unit=0.01)
    found = form.features(SAMPLES, label=0)
    known = form.statistics(SAMPLES, label=0)
    np.testing.assert_array_equal(found[:, :-more], known)
    if kind == "samples":
        shown = form.publish(SAMPLES)
        beyond = [-entropy(shown.mean(1)), -mutual_information(shown), -variation_ratio(shown)]
        np.testing.assert_allclose(found[:, -3:].T, beyond)
    else:
        np.testing.assert_allclose(found[:, -1], -entropy(form.central(SAMPLES)))
    assert ReleaseForm("label").features(SAMPLES, label=0).shape == (2, 1)


def test_what_a_user_takes_from_each_form() -> None:
    central = {kind: ReleaseForm(kind).central(SAMPLES, VECTOR) for kind in BY_HAND}
    np.testing.assert_array_equal(central["vector"], VECTOR)
    for kind in ("mean", "mean+std", "samples"):
        np.testing.assert_allclose(central[kind], MEANS)
    np.testing.assert_allclose(central["quantiles"], [[0.61, 0.39], [0.44, 0.56]])
    np.testing.assert_array_equal(central["label"].sum(1), 1)


def test_one_sample_has_no_spread_and_it_is_told(rng: np.random.Generator) -> None:
    samples = rng.dirichlet([1.0, 1.0, 1.0], (50, 1))
    for kind in ("mean+std", "samples"):
        form = ReleaseForm(kind)
        assert (form.statistics(samples, label=0)[:, 1] == 0).all()  # in no world more than 0
        assert np.isfinite(form.features(samples, label=0)).all()
    for kind in ("mean+std", "quantiles", "samples"):
        (said,) = ReleaseForm(kind).caveats(1)
        assert "no spread" in said
        assert "two or more" in said
        assert ReleaseForm(kind).caveats(2) == ()
    assert ReleaseForm("mean").caveats(1) == ()
    with pytest.raises(InvalidArgument, match="samples"):
        ReleaseForm("mean").caveats(0)


# Uncertainties


def test_uncertainties_are_their_definitions(rng: np.random.Generator) -> None:
    samples = rng.dirichlet([0.5] * 4, (3, 7))
    samples[0, 0] = [1.0, 0.0, 0.0, 0.0]  # 0 ln 0 is 0

    def naive(p: np.ndarray) -> float:
        return -sum(value * math.log(value) for value in p if value > 0)

    for row, found, spread, ratio in zip(
        samples,
        entropy(samples),
        mutual_information(samples),
        variation_ratio(samples),
        strict=True,
    ):
        np.testing.assert_allclose(found, [naive(p) for p in row], atol=1e-12)
        bald = naive(row.mean(0)) - np.mean([naive(p) for p in row])
        assert spread == pytest.approx(bald)
        assert spread >= 0
        named = [int(p.argmax()) for p in row]
        assert ratio == pytest.approx(1 - max(named.count(k) for k in range(4)) / 7)
    assert mutual_information(np.tile(samples[0, 1], (5, 1))) == pytest.approx(0)
    assert mutual_information(np.eye(4)) == pytest.approx(math.log(4))


def test_every_statistic_speaks_for_presence_where_it_is_larger() -> None:
    sure = np.array([[0.98, 0.02], [0.97, 0.03], [0.99, 0.01]])
    unsure = np.array([[0.9, 0.1], [0.2, 0.8], [0.5, 0.5]])
    for name, statistic in STATISTICS.items():
        assert statistic(sure, 0) > statistic(unsure, 0), name


# Utility


def naive_utility(p: np.ndarray, y: np.ndarray) -> tuple[float, float, float, float]:
    right, ties, losses = [], 0, []
    bins: list[list[tuple[float, float]]] = [[] for _ in range(15)]
    for row, label in zip(p.tolist(), y.tolist(), strict=True):
        top = max(row)
        tied = row.count(top) > 1
        ties += tied
        right.append(row.index(top) == label and not tied)
        losses.append(-math.log(row[label]))
        bins[min(int(top * 15), 14)].append((top, right[-1]))
    gaps = (
        len(part) * abs(sum(c for c, _ in part) - sum(r for _, r in part)) / len(part)
        for part in bins
        if part
    )
    n = len(y)
    return sum(right) / n, ties / n, sum(gaps) / n, sum(losses) / n


def test_utility_is_that_of_a_loop(rng: np.random.Generator) -> None:
    p, y = rng.dirichlet([0.7] * 5, 500), rng.integers(0, 5, 500)
    p[:20, 0] = p[:20, 1] = 0.4  # ties
    p[:20, 2:] = 0.2 / 3
    p[20] = [0.0, 1.0, 0.0, 0.0, 0.0]  # the last bin
    y[20] = 1
    found = measure_utility(p, y)
    expected = naive_utility(p, y)
    assert found.ties == 0.04
    np.testing.assert_allclose(
        [found.accuracy, found.ties, found.calibration_error, found.log_loss], expected
    )


def test_a_tie_is_wrong_whatever_the_label() -> None:
    p = np.array([[0.5, 0.5, 0.0], [0.4, 0.3, 0.3]])
    for y in ([0, 0], [1, 0]):
        found = measure_utility(p, y)
        assert (found.accuracy, found.ties) == (0.5, 0.5)


def test_ties_of_means_of_rounded_samples_are_seen_through_rounding_errors() -> None:
    samples = np.array([[[0.1, 0.3], [0.1, 0.0], [0.1, 0.0]]])
    central = ReleaseForm("samples", unit=0.1).central(samples)
    assert measure_utility(central, [0]).ties == 1


def test_what_was_rounded_to_nothing_counts_as_half_a_unit() -> None:
    assert measure_utility([[0.0, 1.0]], [0], unit=0.01).log_loss == pytest.approx(-math.log(0.005))
    assert measure_utility([[0.0, 1.0]], [0]).log_loss == pytest.approx(-math.log(1e-12))
    assert measure_utility([[1.2, 0.0]], [0], unit=0.6).log_loss == 0  # rounded beyond 1


def test_rounding_costs_accuracy_by_ties_alone(rng: np.random.Generator) -> None:
    p, y = rng.dirichlet([0.7] * 5, 2000), rng.integers(0, 5, 2000)
    before = measure_utility(p, y)
    for unit in (1e-3, 1e-2, 1e-1):
        form = ReleaseForm("vector", unit)
        after = measure_utility(form.central(p[:, None], p), y, unit=unit)
        assert before.accuracy - after.ties <= after.accuracy <= before.accuracy
        assert after.ties > 0


# Bad input


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: ReleaseForm("all"), "Expected one of"),
        (lambda: ReleaseForm("mean", 0.0), "unit > 0"),
        (lambda: ReleaseForm("mean", 2.0), r"unit in \[0, 1\]"),
        (lambda: ReleaseForm("mean", math.nan), "number for unit"),
        (lambda: ReleaseForm("vector").publish(SAMPLES), "without sampling.*got none"),
        (lambda: ReleaseForm("vector").publish(SAMPLES, VECTOR[0]), r"shape \(2, 2\), got \(2,"),
        (lambda: ReleaseForm("vector").publish(SAMPLES, VECTOR * np.nan), "nan or infinity"),
        (lambda: ReleaseForm("mean").publish([0.5, 0.5]), r"\(…, T, classes\), got \(2,\)"),
        (lambda: ReleaseForm("mean").publish(np.zeros((3, 0, 2))), "got"),
        (lambda: ReleaseForm("mean").publish([[np.nan, 1.0]]), "nan or infinity"),
        (lambda: ReleaseForm("mean").statistics(SAMPLES, label=2), "from 0 to 1.*got 2"),
        (lambda: ReleaseForm("mean").statistics(SAMPLES, label=-1), "label ≥ 0"),
        (lambda: measure_utility([0.5, 0.5], [0]), "records, classes"),
        (lambda: measure_utility([[1.0]], [0]), "two classes or more"),
        (lambda: measure_utility(np.zeros((0, 2)), []), "as many labels"),
        (lambda: measure_utility([[0.5, 0.5]], [0, 1]), "as many labels"),
        (lambda: measure_utility([[0.5, 0.5]], [2]), "labels from 0 to 1, got 2 to 2"),
        (lambda: measure_utility([[0.5, 0.5]], [-1]), "labels from 0 to 1, got -1"),
        (lambda: measure_utility([[0.5, np.nan]], [0]), "nan or infinity"),
    ],
)
def test_bad_calls_are_told(call: Any, said: str) -> None:
    with pytest.raises(InvalidArgument, match=said):
        call()


def test_forms_are_named_as_people_say_them() -> None:
    assert str(ReleaseForm("mean+std")) == "mean+std"
    assert str(ReleaseForm("mean", 0.01)) == "mean, to 0.01"
    assert disclosure.QUANTILES[len(disclosure.QUANTILES) // 2] == 0.5  # the central one
