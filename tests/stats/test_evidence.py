"""What a report draws is what was observed, in few numbers."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from epsilometer import ScoreCounts, Scores, audit, tradeoff_curve
from epsilometer.stats.score_finding import condense_evidence, measure_growth

finite = st.floats(-100, 100)
anything = st.one_of(finite, st.just(np.inf), st.just(-np.inf))
samples = st.lists(anything, min_size=1, max_size=40)


@given(samples, samples)
def test_every_score_is_in_a_bin_and_every_point_on_the_curve(
    inside: list[float], outside: list[float]
) -> None:
    scores = Scores(np.array(inside), np.array(outside))
    curve = tradeoff_curve(scores)
    seen = condense_evidence(scores, curve, confidence=0.9)
    assert (sum(seen.inside_bins), sum(seen.outside_bins)) == (len(inside), len(outside))
    assert list(seen.edges) == sorted(seen.edges)
    exact = {(f"{x:.6g}", f"{y:.6g}") for x, y in zip(curve.fpr, curve.fnr, strict=True)}
    drawn = {(f"{x:.6g}", f"{y:.6g}") for x, y in zip(seen.fpr, seen.fnr, strict=True)}
    assert drawn <= exact
    assert {("0", "1"), ("1", "0")} <= drawn


def test_a_small_curve_is_drawn_whole(rng: np.random.Generator) -> None:
    curve = tradeoff_curve(Scores(rng.normal(1, 1, 30), rng.normal(0, 1, 30)))
    np.testing.assert_array_equal(curve.thin().thresholds, curve.thresholds)


def test_a_large_curve_is_thinned_and_loses_no_decade(rng: np.random.Generator) -> None:
    n = 30_000
    curve = tradeoff_curve(Scores(rng.normal(1, 1, n), rng.normal(0, 1, n)))
    thin = curve.thin()
    assert thin.thresholds.size < 700
    for counts in (thin.false_positives, thin.false_negatives):
        for decade in (1, 10, 100, 1_000, 10_000):
            assert np.any((counts >= decade) & (counts < 2 * decade))
    assert abs(thin.auc - curve.auc) < 1e-3
    kept = np.isin(curve.thresholds, thin.thresholds)
    for part, whole in zip(thin.band(0.95), curve.band(0.95), strict=True):
        np.testing.assert_allclose(part, whole[kept], rtol=1e-12)


def test_bins_of_counts_are_theirs_put_together() -> None:
    counts = ScoreCounts.at(np.arange(200.0)).add(inside=[-5.0, 0.5, 500.0], outside=[3.0])
    seen = condense_evidence(counts, tradeoff_curve(counts), confidence=0.95)
    assert (sum(seen.inside_bins), sum(seen.outside_bins)) == (3, 1)
    assert len(seen.edges) <= 61
    assert seen.inside_bins[0] == 2
    assert seen.inside_bins[-1] == 1


def test_one_threshold_is_two_bins() -> None:
    counts = ScoreCounts.at([0.0]).add(inside=[-1.0, 1.0], outside=[-1.0])
    seen = condense_evidence(counts, tradeoff_curve(counts), confidence=0.95)
    assert seen.inside_bins == (1, 1)


def test_growth_ends_with_the_bound_itself(rng: np.random.Generator) -> None:
    scores = Scores(rng.normal(1, 1, 1_000), rng.normal(0, 1, 1_000))
    (view,) = audit(scores, delta=1e-5).views
    sizes = [size for size, _ in view.evidence.growth]
    assert sizes == [124, 250, 500, 1000, 2000]
    assert view.evidence.growth[-1] == (2000, view.bound.epsilon)


def test_parts_are_taken_at_random_unless_the_order_is_meant() -> None:
    """A file sorted by score would else show an attack that is perfect at first."""
    ramp = np.arange(1_000.0)
    taken: list[Scores] = []

    def remember(part: Scores) -> float:
        taken.append(part)
        return 0.0

    measure_growth(Scores(ramp, ramp), remember, seed=0, in_order=False)
    measure_growth(Scores(ramp, ramp), remember, seed=0, in_order=True)
    shuffled, ordered = taken[1], taken[len(taken) // 2 + 1]
    assert shuffled.inside.size == ordered.inside.size == 500
    np.testing.assert_array_equal(ordered.inside, ramp[:500])
    assert shuffled.inside.max() > 900


def test_counts_have_no_parts() -> None:
    counts = ScoreCounts.at([0.0]).add(inside=[1.0] * 100, outside=[-1.0] * 100)
    (evidence,) = audit(counts, delta=1e-5).evidence
    assert evidence.growth == ()


@pytest.mark.parametrize("value", [0.0, np.inf, -np.inf])
def test_scores_that_are_all_alike_can_be_drawn(value: float) -> None:
    scores = Scores([value] * 60, [value] * 60)
    (seen,) = audit(scores, delta=1e-5).evidence
    assert sum(seen.inside_bins) == 60
