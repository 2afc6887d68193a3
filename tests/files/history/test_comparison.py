"""Two results: what differs, and that nothing is called different which chance explains."""

import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import scipy.stats

from epsilometer import Audit, Scores
from epsilometer.core.findings import Evidence, MembershipFinding
from epsilometer.errors import UnreadableFile
from epsilometer.files.history.comparison import Comparison, compare, compare_audits, find_beyond
from epsilometer.stats.score_finding import condense_evidence
from epsilometer.stats.tradeoff import tradeoff_curve
from tests.examples import (
    AUDITS,
    a_bound,
    a_claim,
    a_provenance,
    a_release,
    a_series,
    a_shuffling,
    an_attack,
    an_audit,
    computed,
    some_evidence,
)
from tests.files.history.folders import digits, put

FLAKE = 1e-6


def both(folder: Path, first: Audit | str, second: Audit | str) -> Comparison:
    return compare(put(folder / "a.json", first), put(folder / "b.json", second))


def band(rng: np.random.Generator, shift: float, *, confidence: float = 0.95) -> Evidence:
    scores = Scores(inside=rng.normal(shift, 1, 400), outside=rng.normal(0, 1, 400))
    return condense_evidence(scores, tradeoff_curve(scores), confidence=confidence)


def test_the_same_attack_is_called_different_no_oftener_than_it_says(
    rng: np.random.Generator,
) -> None:
    """Both bands hold with 0.8 each: of audits that are alike at most 0.4 may be told apart."""
    pairs = [[band(rng, 1.0, confidence=0.8) for _ in range(2)] for _ in range(100)]
    apart = sum(find_beyond(a, b) is not None or find_beyond(b, a) is not None for a, b in pairs)
    assert apart <= scipy.stats.binom.isf(FLAKE, 100, 0.4)


@pytest.mark.slow
def test_limits_swapped_for_what_was_seen_would_be_caught(rng: np.random.Generator) -> None:
    """The classic mistake, planted: rates compared as if they were the truth."""
    pairs = [[band(rng, 1.0, confidence=0.8) for _ in range(2)] for _ in range(40)]
    bare = [
        [
            msgspec.structs.replace(b, fpr_low=b.fpr, fpr_high=b.fpr, fnr_low=b.fnr, fnr_high=b.fnr)
            for b in pair
        ]
        for pair in pairs
    ]
    apart = sum(find_beyond(a, b) is not None or find_beyond(b, a) is not None for a, b in bare)
    assert apart > scipy.stats.binom.isf(FLAKE, 40, 0.4)


def test_an_attack_that_is_better_is_told(rng: np.random.Generator) -> None:
    weak, strong = band(rng, 0.5), band(rng, 2.0)
    point = find_beyond(strong, weak)
    assert point is not None
    # The true curves: FPR of the point, and the least FNR that each law allows there.
    assert scipy.stats.norm.cdf(scipy.stats.norm.isf(point[0]) - 0.5) > point[1]
    assert find_beyond(weak, strong) is None
    assert find_beyond(strong, strong) is None


def test_settings_and_bounds_that_differ_are_told(tmp_path: Path) -> None:
    other = an_audit(
        subject="digits",
        bound=a_bound(epsilon=0.8, n_in=2000, method="gdp"),
        provenance=a_provenance(
            seed=4,
            settings={"source": {"type": "ScoreFile", "path": "new.csv"}, "method": "gdp"},
        ),
    )
    found = both(tmp_path, digits(0.5), other)
    assert found.settings == (
        ("source.path", "scores.csv", "new.csv"),
        ("method", "clopper_pearson", "gdp"),  # once, though settings and bound both have it
        ("seed", "7", "4"),
        ("n_in", "1234", "2000"),
    )
    (audit,) = found.audits
    assert audit.difference == pytest.approx(0.3)
    assert not audit.told_apart
    assert audit.meaning.startswith("Both are lower bounds: a smaller bound does not mean")
    assert audit.meaning.endswith("Error rates differ by no more than random variation.")


def test_settings_of_several_views_are_told_apart(tmp_path: Path) -> None:
    first = a_series(("once", "2 times"))
    views = [
        msgspec.structs.replace(view, bound=msgspec.structs.replace(view.bound, n_out=99))
        if "2 times" in view.subject
        else view
        for view in first.views
    ]
    second = msgspec.structs.replace(first, findings=tuple(views))
    names = [name for name, *_ in both(tmp_path, first, second).settings]
    assert len(names) == 2
    assert all(name.startswith("n_out of training, each canary 2 times") for name in names)


@pytest.mark.parametrize("name", AUDITS)
def test_an_audit_differs_from_itself_in_nothing(name: str) -> None:
    audit = AUDITS[name]
    found = compare_audits(audit, audit)
    assert (found.settings, found.only_first, found.only_second) == ((), (), ())
    assert len(found.audits) == max(1, len(audit.views))
    assert {pair.difference for pair in found.audits} == {None}
    assert not any(pair.told_apart for pair in found.audits)


def test_results_that_are_the_same_differ_in_nothing(tmp_path: Path) -> None:
    found = both(tmp_path, a_series(), a_series())
    assert (found.settings, found.only_first, found.only_second) == ((), (), ())
    assert [audit.difference for audit in found.audits] == [None] * 6
    assert {audit.meaning.partition(".")[0] for audit in found.audits} == {"Both prove the same ε"}


def test_a_better_attack_is_told_with_its_confidence(
    tmp_path: Path, rng: np.random.Generator
) -> None:
    results = []
    for shift in (0.5, 2.0):
        results.append(an_audit(evidence=band(rng, shift)))
    (audit,) = both(tmp_path, *results).audits
    assert audit.told_apart
    assert "the attack did better in the second" in audit.meaning
    assert "0.9 confidence" in audit.meaning


NO_RATES = some_evidence(
    **dict.fromkeys(("fpr", "fnr", "fpr_low", "fpr_high", "fnr_low", "fnr_high"), ())
)


@pytest.mark.parametrize(
    ("first", "second", "apart", "said"),
    [
        (a_shuffling(), a_shuffling(estimates=(computed(5.0),)), True, "by more than their num"),
        (a_shuffling(), a_shuffling(estimates=(computed(4.0, 5.0),)), False, "by no more than"),
        (a_shuffling(), an_audit(), False, "Error rates differ by no more"),
        (digits(1.0), a_release(), False, "different kinds"),
        (an_audit(), an_audit(evidence=NO_RATES), False, "nothing more to compare"),
        (an_audit(), an_audit(bound=a_bound(delta=1e-3)), False, "different δ"),
        (an_audit(), an_audit(bound=a_bound(epsilon=3.0, valid=False)), False, "not valid"),
        (a_release(), a_release(), False, "no more than its limits"),
        (a_release(), a_release(findings=()), False, "No attack was run on both"),
    ],
)
def test_what_a_difference_means(
    first: Any, second: Any, apart: bool, said: str, tmp_path: Path
) -> None:
    (audit,) = both(tmp_path, first, second).audits
    assert audit.told_apart == apart
    assert said in audit.meaning


def test_attacks_on_classifiers_are_told_apart_by_their_limits(tmp_path: Path) -> None:
    low, high = (
        an_attack(advantage=value, advantage_low=value - 0.1, advantage_high=value + 0.1)
        for value in (0.1, 0.8)
    )
    first, second = a_release(findings=(low,)), a_release(findings=(high,))
    (audit,) = both(tmp_path, first, second).audits
    assert audit.told_apart
    (attack,) = first.find(MembershipFinding)
    assert attack.attack in audit.meaning


def test_audits_are_matched_by_their_subjects(tmp_path: Path) -> None:
    found = both(tmp_path, a_series(("once", "2 times")), a_series(("2 times", "8 times")))
    assert [audit.first.subject for audit in found.audits] == [
        audit.second.subject for audit in found.audits
    ]
    assert len(found.audits) == 2
    assert all("once" in subject for subject in found.only_first)
    assert all("8 times" in subject for subject in found.only_second)


def test_provenance_is_compared(tmp_path: Path) -> None:
    """Of runs too: all settings stand in their results."""
    for name, rate, version in (("a", 0.5, "1"), ("b", 0.25, "2")):
        source = a_provenance(
            subject="DPSGD",
            settings={"rate": rate, "same": 1, "factory": {"type": "SGD", "momentum": rate}},
            versions=(("epsilometer", version),),
            shapes=(("data", name),),
        )
        put(tmp_path / name / "result.json", an_audit(provenance=source))
    found = compare(tmp_path / "a", tmp_path / "b")
    assert found.settings == (
        ("rate", "0.5", "0.25"),
        ("factory.momentum", "0.5", "0.25"),
        ("version of epsilometer", "1", "2"),
        ("shape of data", "a", "b"),
    )


def test_claims_are_compared(tmp_path: Path) -> None:
    other = an_audit(claim=a_claim(3.0))
    assert both(tmp_path, an_audit(), other).settings == (("claim.epsilon", "1.0", "3.0"),)
    names = [name for name, *_ in both(tmp_path, an_audit(), an_audit(claim=None)).settings]
    assert {"claim.epsilon", "claim.delta"} <= set(names)


def test_audits_of_other_formats_are_refused(tmp_path: Path) -> None:
    old = (Path(__file__).parents[2] / "data" / "first_result.json").read_text("utf-8")
    with pytest.raises(UnreadableFile, match=r"a\.json: Expected an audit of format 2"):
        both(tmp_path, old, an_audit())


@pytest.mark.parametrize("text", ["", "{}", '{"kind": "Cake"}'])
def test_what_is_no_audit_is_told(text: str, tmp_path: Path) -> None:
    with pytest.raises(UnreadableFile, match=r"b\.json: Expected an audit"):
        both(tmp_path, an_audit(), text)
    with pytest.raises(UnreadableFile, match="found none"):
        compare(tmp_path / "a.json", tmp_path / "nowhere")


def test_damaged_evidence_is_told(tmp_path: Path) -> None:
    plain = json.loads(an_audit().to_json())
    evidence = plain["findings"][0]["evidence"]
    damages: tuple[dict[str, Any], ...] = (
        {"fpr_low": [0.1]},
        {"fpr_low": [0.1, 0.2, "nan"]},
        {"fpr_low": [0.1, 0.2, 1.5]},
        {"fnr_high": "cake"},
        {"band_confidence": None},
    )
    for damage in damages:
        plain["findings"][0]["evidence"] = {**evidence, **damage}
        with pytest.raises(UnreadableFile, match=r"b\.json: Expected"):
            both(tmp_path, an_audit(), json.dumps(plain))
