"""Two results: what differs, and that nothing is called different which chance explains."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.stats

from epsilometer import PrivacyClaim, Scores, to_json
from epsilometer.audits.evidence import evidence
from epsilometer.errors import UnreadableFile
from epsilometer.history.comparison import beyond, compare
from epsilometer.plain import plain_values
from epsilometer.stats.tradeoff import tradeoff_curve
from tests.examples import a_bound, a_provenance, a_release, a_series, an_audit, an_estimate
from tests.history.folders import digits, put

FLAKE = 1e-6


def both(folder: Path, first: Any, second: Any) -> Any:
    return compare(put(folder / "a.json", first), put(folder / "b.json", second))


def band(rng: np.random.Generator, shift: float, *, confidence: float = 0.95) -> dict[str, Any]:
    scores = Scores(inside=rng.normal(shift, 1, 400), outside=rng.normal(0, 1, 400))
    drawn = evidence(scores, tradeoff_curve(scores), confidence=confidence)
    return {name: plain_values(getattr(drawn, name)) for name in drawn.__dataclass_fields__}


def test_the_same_attack_is_called_different_no_oftener_than_it_says(
    rng: np.random.Generator,
) -> None:
    """Both bands hold with 0.8 each: of audits that are alike at most 0.4 may be told apart."""
    pairs = [[band(rng, 1.0, confidence=0.8) for _ in range(2)] for _ in range(100)]
    apart = sum(beyond(a, b) is not None or beyond(b, a) is not None for a, b in pairs)
    assert apart <= scipy.stats.binom.isf(FLAKE, 100, 0.4)


def test_limits_swapped_for_what_was_seen_would_be_caught(rng: np.random.Generator) -> None:
    """The classic mistake, planted: rates compared as if they were the truth."""
    pairs = [[band(rng, 1.0, confidence=0.8) for _ in range(2)] for _ in range(40)]
    seen = {"fpr_low": "fpr", "fpr_high": "fpr", "fnr_low": "fnr", "fnr_high": "fnr"}
    bare = [[{**b, **{limit: b[rate] for limit, rate in seen.items()}} for b in p] for p in pairs]
    apart = sum(beyond(a, b) is not None or beyond(b, a) is not None for a, b in bare)
    assert apart > scipy.stats.binom.isf(FLAKE, 40, 0.4)


def test_an_attack_that_is_better_is_told(rng: np.random.Generator) -> None:
    weak, strong = band(rng, 0.5), band(rng, 2.0)
    point = beyond(strong, weak)
    assert point is not None
    # The true curves: FPR of the point, and the least FNR that each law allows there.
    assert scipy.stats.norm.cdf(scipy.stats.norm.isf(point[0]) - 0.5) > point[1]
    assert beyond(weak, strong) is None
    assert beyond(strong, strong) is None


def test_settings_and_bounds_that_differ_are_told(tmp_path: Path) -> None:
    found = both(tmp_path, digits(0.5), digits(0.8, n_in=2000, method="gdp", seed=4))
    assert found.settings == (
        ("method", "clopper_pearson", "gdp"),
        ("seed", "0", "4"),
        ("n_in", "1234", "2000"),
    )
    (audit,) = found.audits
    assert audit.difference == pytest.approx(0.3)
    assert not audit.told_apart
    assert audit.meaning.startswith("Both are lower bounds: the smaller one does not say")
    assert audit.meaning.endswith("Error rates differ by no more than chance explains.")


def test_results_that_are_the_same_differ_in_nothing(tmp_path: Path) -> None:
    found = both(tmp_path, a_series(), a_series())
    assert (found.settings, found.only_first, found.only_second) == ((), (), ())
    assert [audit.difference for audit in found.audits] == [None] * 6
    assert {audit.meaning.partition(".")[0] for audit in found.audits} == {"Both prove the same"}


def test_a_better_attack_is_told_with_its_confidence(
    tmp_path: Path, rng: np.random.Generator
) -> None:
    results = []
    for shift in (0.5, 2.0):
        scores = Scores(inside=rng.normal(shift, 1, 400), outside=rng.normal(0, 1, 400))
        drawn = evidence(scores, tradeoff_curve(scores), confidence=0.95)
        results.append(an_audit(evidence=drawn))
    (audit,) = both(tmp_path, *results).audits
    assert audit.told_apart
    assert "the attack did better in the second" in audit.meaning
    assert "0.9 confidence" in audit.meaning


@pytest.mark.parametrize(
    ("first", "second", "apart", "said"),
    [
        (an_estimate(1.0), an_estimate(9.0), True, "lie apart (0.9 confidence)"),
        (an_estimate(1.0), an_estimate(1.5), False, "overlap"),
        (an_estimate(1.0), an_estimate(9.0, delta=1e-3), False, "different δ"),
        (digits(1.0), an_estimate(1.0), False, "different kinds"),
        (a_bound(), a_bound(epsilon=3.0), False, "nothing more to compare"),
        (a_bound(), a_bound(delta=1e-3), False, "different δ"),
        (a_bound(), a_bound(epsilon=3.0, valid=False), False, "not valid"),
        (a_release(), a_release(), False, "no more than its limits"),
        (a_release(), a_release(attacks=()), False, "No attack was run on both"),
    ],
)
def test_what_a_difference_means(
    first: Any, second: Any, apart: bool, said: str, tmp_path: Path
) -> None:
    (audit,) = both(tmp_path, first, second).audits
    assert audit.told_apart == apart
    assert said in audit.meaning


def test_attacks_on_classifiers_are_told_apart_by_their_limits(tmp_path: Path) -> None:
    from dataclasses import replace

    release = a_release()
    (attack, *_) = release.attacks
    low = replace(attack, advantage=0.1, advantage_low=0.0, advantage_high=0.2)
    high = replace(attack, advantage=0.8, advantage_low=0.7, advantage_high=0.9)
    (audit,) = both(
        tmp_path, replace(release, attacks=(low,)), replace(release, attacks=(high,))
    ).audits
    assert audit.told_apart
    assert attack.attack in audit.meaning


def test_audits_are_matched_by_their_subjects(tmp_path: Path) -> None:
    found = both(tmp_path, a_series(("once", "2 times")), a_series(("2 times", "8 times")))
    assert [audit.first.subject for audit in found.audits] == [
        audit.second.subject for audit in found.audits
    ]
    assert len(found.audits) == 2
    assert all("once" in subject for subject in found.only_first)
    assert all("8 times" in subject for subject in found.only_second)


def test_plans_and_provenance_are_compared(tmp_path: Path) -> None:
    for name, rate, version in (("a", 0.5, "1"), ("b", 0.25, "2")):
        source = a_provenance(versions=(("epsilometer", version),))
        put(tmp_path / name / "result.json", an_audit(provenance=source))
        put(tmp_path / name / "plan.json", json.dumps({"parameters": {"rate": rate, "same": 1}}))
    found = compare(tmp_path / "a", tmp_path / "b")
    assert found.settings == (
        ("version of epsilometer", "1", "2"),
        ("parameter rate", "0.5", "0.25"),
    )


def test_claims_are_compared(tmp_path: Path) -> None:
    other = an_audit(claim=PrivacyClaim(epsilon=3.0, delta=1e-5))
    assert both(tmp_path, an_audit(), other).settings == (("claimed epsilon", "1.0", "3.0"),)


def test_results_of_the_first_version_are_compared(tmp_path: Path) -> None:
    old = (Path(__file__).parents[1] / "data" / "first_result.json").read_text("utf-8")
    (audit,) = both(tmp_path, old, to_json(an_audit())).audits
    assert "nothing more to compare" in audit.meaning


@pytest.mark.parametrize("text", ["", "{}", '{"kind": "Cake"}'])
def test_what_is_no_result_is_told(text: str, tmp_path: Path) -> None:
    with pytest.raises(UnreadableFile, match=r"b\.json: Expected a result"):
        both(tmp_path, an_audit(), text)
    with pytest.raises(UnreadableFile, match="Could not read"):
        compare(tmp_path / "a.json", tmp_path / "nowhere")


def test_damaged_evidence_is_told(tmp_path: Path) -> None:
    plain = json.loads(to_json(an_audit()))
    for damage in ({"fpr_low": [0.1]}, {"fnr_high": "cake"}, {"band_confidence": None}):
        damaged = json.dumps({**plain, "evidence": {**plain["evidence"], **damage}})
        with pytest.raises(UnreadableFile, match="damaged"):
            both(tmp_path, an_audit(), damaged)
