"""What the figures draw is what was measured and what theory allows."""

import math
import sys

import numpy as np
import pytest
from msgspec.structs import replace

from epsilometer import Claim, ScoreCounts, Scores, dp_curve, gaussian_epsilon
from epsilometer._dispatch import audit as run_audit
from epsilometer.core.audit import Audit
from epsilometer.core.document import Axis, Figure, Mark, Series
from epsilometer.core.findings import Curve
from epsilometer.report.figures import compare_views, draw_views
from epsilometer.report.tones import COLOURS
from tests.examples import (
    a_bound,
    a_series,
    a_view,
    an_audit,
    an_estimate,
    computed,
    several_views,
    some_evidence,
)


def figures(audit: Audit) -> tuple[Figure, ...]:
    (view,) = audit.views
    return draw_views([view], audit.claim)


def drawn(audit: Audit, key: str) -> Figure:
    return next(figure for figure in figures(audit) if figure.key == key)


def series(figure: Figure, role: str, kind: str = "line") -> Series:
    return next(s for s in figure.series if s.role == role and s.kind == kind)


AUDIT = an_audit(claim=Claim(3.0, delta=1e-3), bound=a_bound(delta=1e-3))
EVIDENCE = AUDIT.views[0].evidence


def test_a_view_has_its_four_figures() -> None:
    assert [f.key for f in figures(AUDIT)] == ["tradeoff", "low_fpr", "scores", "growth"]


@pytest.mark.parametrize(("role", "epsilon"), [("claim", 3.0), ("bound", 2.0)])
def test_curves_of_the_claim_and_of_the_bound_are_those_of_theory(
    role: str, epsilon: float
) -> None:
    curve = series(drawn(AUDIT, "tradeoff"), role)
    allowed = dp_curve(curve.x, epsilon=epsilon, delta=1e-3)
    np.testing.assert_allclose(curve.y, allowed, atol=2e-4)  # six digits, at a slope of e^ε
    assert (curve.x[0], curve.x[-1]) == (0.0, 1.0)
    corner = (1 - 1e-3) / (1 + math.exp(epsilon))
    assert min(abs(x - corner) for x in curve.x) < 1e-6


def test_low_rates_show_what_is_caught_instead_of_missed() -> None:
    figure = drawn(AUDIT, "low_fpr")
    curve = series(figure, "claim")
    np.testing.assert_allclose(curve.y, 1 - dp_curve(curve.x, epsilon=3.0, delta=1e-3), atol=2e-4)
    assert figure.x.log
    assert figure.y.log
    attack = series(figure, "attack", "step")
    assert attack.y == (0.0, 0.8, 1.0)
    band = series(figure, "attack", "band")
    assert all(low <= high for low, high in zip(band.y, band.top, strict=True))


def test_the_gaussian_curve_has_the_claimed_epsilon() -> None:
    audit = an_audit(
        claim=Claim(3.0, delta=1e-3), bound=a_bound(delta=1e-3), evidence=some_evidence(curves=())
    )
    curve = series(drawn(audit, "tradeoff"), "gdp")
    mu = float(curve.name.rpartition("=")[2])
    assert gaussian_epsilon(1 / mu, 1e-3) == pytest.approx(3.0, rel=5e-3)  # μ is named to 3 digits
    # It lies nowhere below the claim, and touches it: it is (ε, δ)-DP and no better.
    gap = np.asarray(curve.y) - dp_curve(curve.x, epsilon=3.0, delta=1e-3)
    assert -1e-5 < gap.min() < 2e-3
    # A computed curve would cover it.
    assert "gdp" not in {s.role for s in drawn(AUDIT, "tradeoff").series}


def test_curves_of_other_laws_keep_their_names() -> None:
    law = Curve(name="PLD", fpr=(0.0, 0.25, 1.0), fnr=(1.0, 0.5, 0.0))
    audit = an_audit(evidence=some_evidence(curves=(law,)))
    curve = series(drawn(audit, "tradeoff"), "law")
    assert (curve.name, curve.x, curve.y) == ("PLD", law.fpr, law.fnr)
    assert series(drawn(audit, "low_fpr"), "law").y == (0.0, 0.5, 1.0)


def test_the_attack_and_its_band_are_those_measured() -> None:
    figure = drawn(AUDIT, "tradeoff")
    attack = series(figure, "attack", "step")
    assert (attack.x, attack.y) == (EVIDENCE.fpr, EVIDENCE.fnr)
    band = series(figure, "attack", "band")
    at = {x: (low, high) for x, low, high in zip(band.x, band.y, band.top, strict=True)}
    # Left of a box the curve lies above its floor, right of one below its ceiling.
    assert at[0.0] == (0.9, 1.0)
    assert at[0.04] == (0.1, 1.0)
    assert at[0.06] == (0.0, 1.0)
    assert at[0.19] == (0.0, 1.0)
    assert at[0.21] == (0.0, 0.3)


def test_the_band_holds_the_true_curve(rng: np.random.Generator) -> None:
    """The law of the scores is known: the band misses its curve in at most 5 % of audits."""
    from scipy.special import ndtr, ndtri

    scores = Scores(inside=rng.normal(1, 1, 2000), outside=rng.normal(0, 1, 2000))
    # At 1 − 1e-6 a correct band fails this test once in a million runs.
    audit = run_audit(scores, delta=1e-5, confidence=1 - 1e-6)
    band = series(drawn(audit, "tradeoff"), "attack", "band")
    truth = ndtr(-ndtri(np.asarray(band.x)) - 1)
    assert (np.asarray(band.y) <= truth + 1e-6).all()
    assert (truth <= np.asarray(band.top) + 1e-6).all()
    assert np.mean(np.subtract(band.top, band.y)) < 0.25


def test_scores_are_drawn_as_shares() -> None:
    figure = drawn(AUDIT, "scores")
    inside, outside = series(figure, "attack", "bars"), series(figure, "outside", "bars")
    assert inside.x == outside.x == EVIDENCE.edges
    np.testing.assert_allclose(inside.y, (234 / 1234, 1000 / 1234), rtol=1e-5)
    np.testing.assert_allclose(outside.y, (500 / 567, 67 / 567), rtol=1e-5)
    assert [mark.x for mark in figure.marks] == [0.5]
    assert figure.y.high > max(*inside.y, *outside.y)


def test_growth_is_drawn_beside_the_claim() -> None:
    figure = drawn(AUDIT, "growth")
    proved = series(figure, "bound", "points")
    assert (proved.x, proved.y) == ((450, 900, 1801), (0.5, 1.0, 2.0))
    assert set(series(figure, "claim").y) == {3.0}


@pytest.mark.parametrize("growth", [(), ((100, 1.0),), ((100, math.inf), (200, math.inf))])
def test_without_growth_there_is_no_figure_of_it(growth: tuple) -> None:
    audit = an_audit(evidence=some_evidence(growth=growth))
    assert "growth" not in [figure.key for figure in figures(audit)]


def test_without_a_claim_none_is_drawn() -> None:
    for figure in figures(an_audit(claim=None)):
        assert not {s.role for s in figure.series} & {"claim", "gdp"}
        assert "claim" not in figure.alt.lower()


def test_an_invalid_bound_is_called_so() -> None:
    audit = an_audit(bound=a_bound(valid=False))
    names = [s.name for s in drawn(audit, "tradeoff").series if s.role == "bound"]
    assert names == ["(ε, δ) not a valid bound: ε = 2.00"]
    assert "not valid as a bound" in drawn(audit, "tradeoff").alt


@pytest.mark.parametrize("claimed", [0.0, 1e-300, 800.0, 1e308])
@pytest.mark.parametrize("found", [0.0, 800.0, 1e308, math.inf])
@pytest.mark.parametrize("delta", [0.0, 1e-300, 0.5, 1 - 1e-9])
def test_extreme_numbers_give_finite_figures(claimed: float, found: float, delta: float) -> None:
    audit = an_audit(
        claim=Claim(claimed, delta=delta),
        bound=a_bound(epsilon=found, delta=delta, threshold=-math.inf),
        evidence=some_evidence(growth=((10, 0.0), (20, found))),
    )
    for figure in figures(audit):
        for axis in (figure.x, figure.y):
            assert np.isfinite([axis.low, axis.high]).all()
            assert axis.low < axis.high
        for s in figure.series:
            assert np.isfinite([*s.x, *s.y, *s.top]).all()
            assert len(s.x) == len(s.y) + (s.kind == "bars")
            assert len(s.top) == (len(s.x) if s.kind == "band" else 0)
            assert list(s.x) == sorted(s.x)


def test_what_cannot_be_drawn_is_left_out() -> None:
    odd = Curve(name="odd", fpr=(0.0, math.inf, 1.0), fnr=(1.0, 0.5, -math.inf))
    audit = an_audit(evidence=some_evidence(edges=(-math.inf, 0.0, 1.0), curves=(odd,)))
    assert "scores" not in [figure.key for figure in figures(audit)]
    assert series(drawn(audit, "tradeoff"), "law").x == (0.0,)


def test_infinity_ends_no_axis_and_marks_nothing() -> None:
    axis = Axis(-math.inf, 1.08 * sys.float_info.max)
    assert np.isfinite([axis.low, axis.high]).all()
    marks = (Mark("there", 1.0), Mark("nowhere", math.inf))
    figure = Figure(key="k", title="t", caption="", alt="", x=axis, y=axis, series=(), marks=marks)
    assert [mark.name for mark in figure.marks] == ["there"]


def test_an_infinite_limit_takes_its_place_out_of_the_band() -> None:
    x, y, top = (0.0, 1.0, 2.0), (0.0, 1.0, -math.inf), (1.0, math.inf, 2.0)
    band = Series(name="b", kind="band", role="attack", x=x, y=y, top=top)
    assert (band.x, band.y, band.top) == ((0.0,), (0.0,), (1.0,))
    bars = Series(name="b", kind="bars", role="attack", x=(0.0, math.inf), y=(1.0,))
    assert (bars.x, bars.y) == ((), ())


def test_counts_can_be_drawn_too() -> None:
    counts = ScoreCounts(
        thresholds=np.array([0.0, 1.0]),
        inside_bins=np.array([10, 20, 170]),
        outside_bins=np.array([150, 30, 20]),
    )
    keys = [f.key for f in figures(run_audit(counts, delta=1e-5))]
    assert keys == ["tradeoff", "low_fpr", "scores"]  # counts have no parts, and so no growth


def test_the_text_beside_a_figure_has_its_numbers() -> None:
    alt = drawn(AUDIT, "tradeoff").alt
    assert "At false positive rates of 1% the attack catches 50% of those inside" in alt
    allowed = float(1 - dp_curve(0.01, epsilon=3.0, delta=1e-3))
    assert f"the claim of ε = 3 allows {100 * allowed:.3g}%" in alt
    assert "1,234 with the record" in drawn(AUDIT, "scores").alt
    assert "probability 0.875" in drawn(AUDIT, "scores").alt
    assert "0.50 from 450 observations, 2.00 from 1,801" in drawn(AUDIT, "growth").alt


def test_without_rates_the_text_is_still_a_text() -> None:
    audit = an_audit(attack=replace(AUDIT.views[0].attack, tpr_at_fpr=()))
    assert all(figure.alt for figure in figures(audit))


def _luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    """As WCAG 2 defines it."""
    low, high = sorted([_luminance(one), _luminance(other)])
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("role", COLOURS)
def test_colours_stand_out_from_their_ground(role: str) -> None:
    day, night = COLOURS[role]  # type: ignore[index]
    assert contrast(day, "#ffffff") >= 3
    assert contrast(night, "#171b21") >= 3


# Views side by side.


def test_views_of_one_adversary_stand_side_by_side_by_what_they_differ_in() -> None:
    final, every_round = compare_views(a_series())
    assert (final.key, every_round.key) == ("views-1", "views-2")
    assert (
        final.x.title == "each canary … 9 rounds: the final model"
    )  # as much as there is room for
    assert every_round.x.title == "each canary … 9 rounds: all rounds"
    assert "training, each canary … 9 rounds: the final model" in final.alt
    for figure in (final, every_round):
        assert figure.x.names == ("once", "2 times", "4 times")
        assert (figure.x.low, figure.x.high) == (0.5, 3.5)
        estimated, proved = (
            series(figure, "attack", "left_bars"),
            series(figure, "bound", "right_bars"),
        )
        assert (estimated.x, estimated.y) == ((1.0, 2.0, 3.0), (2.0, 5.0, 8.0))
        assert (proved.x, proved.y) == ((1.0, 2.0, 3.0), (1.0, 2.0, 3.0))
        claimed = series(figure, "claim")
        assert (claimed.x, claimed.y) == ((0.5, 3.5), (2.5, 2.5))
        assert "2 times: estimated 5.00, proved 2.00; 4 times" in figure.alt
        assert figure.alt.endswith("claimed 2.5.")
        assert figure.y.high > 8


def test_a_series_is_drawn_by_what_was_varied_although_the_gravest_come_first() -> None:
    assert [view.bound.epsilon for view in a_series().views] == [3.0, 3.0, 1.0, 1.0, 2.0, 2.0]
    assert compare_views(a_series())[0].x.names == ("once", "2 times", "4 times")
    unnumbered = a_series(("often", "rarely", "never"))
    assert compare_views(unnumbered)[0].x.names == ("never", "often", "rarely")


def test_only_views_with_estimates_that_are_several_and_few_stand_side_by_side() -> None:
    many = a_series(tuple(f"{n} times" for n in range(17)))
    lone = a_series(("once",))
    without = several_views(a_view(), a_view())
    theory = several_views(*[a_view(estimates=(computed(1.0, role="reference"),))] * 2)
    assert [compare_views(each) for each in (many, lone, without, theory)] == [(), (), (), ()]


def test_bars_of_what_is_infinite_or_proves_nothing() -> None:
    views = (
        a_view(estimates=(an_estimate(math.inf, low=0.0),)),
        a_view(estimates=(an_estimate(3.0),), bound=a_bound(valid=False)),
    )
    (figure,) = compare_views(several_views(*views, claim=None))
    assert figure.x.names == ("1", "2")  # nothing tells them apart
    assert series(figure, "attack", "left_bars").y == (figure.y.high, 3.0)
    assert series(figure, "bound", "right_bars").y == (2.0, 0.0)
    assert len(figure.series) == 2  # nothing was claimed
    assert "1: estimated ∞, proved 2.00; 2: estimated 3.00, proved 0.00." in figure.alt


@pytest.mark.parametrize(
    ("subjects", "title", "names"),
    [
        (("a b c", "a c"), "a … c", ("b", "2")),
        (("a a", "a a a"), "a a …", ("1", "a")),
        (("x", "y"), "…", ("x", "y")),
        (("", "y"), "…", ("1", "y")),
        (("m: 1, end", "m: 2, end"), "m: … end", ("1", "2")),
    ],
)
def test_words_that_differ_are_found(
    subjects: tuple[str, str], title: str, names: tuple[str, str]
) -> None:
    views = (a_view(subject=subject, estimates=(an_estimate(1.0),)) for subject in subjects)
    (figure,) = compare_views(several_views(*views))
    assert (figure.x.title, figure.x.names) == (title, names)


def test_views_share_their_figures_four_at_a_time() -> None:
    views = [replace(AUDIT.views[0], subject=f"run {name}") for name in "abcde"]
    drawn = {figure.key: figure for figure in draw_views(views, AUDIT.claim)}
    assert sorted(drawn) == sorted(
        [f"{key}-{i}" for key in ("tradeoff", "low_fpr", "growth") for i in (1, 2)]
        + [f"scores-{i}" for i in range(1, 6)]
    )
    attacks = [s for s in drawn["tradeoff-1"].series if s.kind == "step"]
    assert [s.name for s in attacks] == [f"the attack: {name}" for name in "abcd"]
    assert len({s.role for s in attacks}) == 4
    claims = [s for s in drawn["tradeoff-1"].series if s.role == "claim"]
    assert len(claims) == 1  # said once
    assert drawn["scores-5"].title == "Scores of the attack: e"
