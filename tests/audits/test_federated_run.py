from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import scipy.stats

from epsilometer.attacks.iterates import IteratesSeen
from epsilometer.audits.federated_run import audit_iterates
from epsilometer.claims import PrivacyClaim
from epsilometer.errors import InvalidArgument
from epsilometer.stats.gaussians import gdp_epsilon

FLAKE = 1e-6
DIMENSION, DELTA = 10_000, 1e-5


def seen(rng: np.random.Generator, *, mu: float, count: int = 300, rounds: int = 2) -> Any:
    """As if every canary had been released once by a μ-GDP mechanism."""
    shift = np.repeat([mu, 0.0], count)
    final = rng.normal(shift, 1) / np.sqrt(DIMENSION)
    return IteratesSeen(
        final=final,
        largest=np.maximum(final, rng.normal(size=2 * count) / np.sqrt(DIMENSION)),
        took=np.ones(count, np.int64),
        rounds=rounds,
        still=0,
        lost=0,
    )


def audited(what: IteratesSeen, **asked: Any) -> Any:
    return audit_iterates(what, dimension=DIMENSION, delta=DELTA, **asked)


@pytest.mark.slow
def test_bounds_exceed_the_truth_no_oftener_than_they_say(rng: np.random.Generator) -> None:
    truth, wrong, audits = gdp_epsilon(1.5, DELTA), [0, 0], 100
    for _ in range(audits):
        for at, result in enumerate(audited(seen(rng, mu=1.5), confidence=0.8).audits):
            wrong[at] += result.bound.refutes(truth)
    assert max(wrong) <= scipy.stats.binom.isf(FLAKE, audits, 0.2)


def test_a_loud_leak_is_found_by_both_adversaries(rng: np.random.Generator) -> None:
    claim = PrivacyClaim(epsilon=1.0, delta=DELTA)
    group = audited(seen(rng, mu=5), claim=claim)
    assert [result.verdict for result in group.audits] == ["refuted", "refuted"]


def test_after_one_round_there_is_one_adversary(rng: np.random.Generator) -> None:
    (result,) = audited(seen(rng, mu=1, rounds=1)).audits
    assert "before and after" in result.bound.adversary


def test_whoever_hides_who_took_part_counts_all(rng: np.random.Generator) -> None:
    what = seen(rng, mu=1)
    what = replace(what, took=np.where(np.arange(300) < 200, 2, 0))
    assert audited(what).audits[0].bound.n_in == 300
    known = audited(what, participation="known").audits[0]
    assert known.bound.n_in == 200
    assert "knows who took part" in known.bound.adversary
    assert "200 of 300 canaries took part" in " ".join(known.bound.caveats)


def test_unequal_participation_leaves_out_what_assumes_equality(rng: np.random.Generator) -> None:
    what = seen(rng, mu=1)
    methods = [bound.method for bound in audited(what).audits[0].also]
    assert "mean_cosine" in methods
    for took in (np.arange(300) % 2 + 1, np.arange(300) % 2):
        methods = [b.method for b in audited(replace(what, took=took)).audits[0].also]
        assert "mean_cosine" not in methods
    methods = [b.method for b in audited(what, participation="unseen").audits[0].also]
    assert "mean_cosine" not in methods


def test_few_canaries_are_told_in_the_result(rng: np.random.Generator) -> None:
    (first, _) = audited(seen(rng, mu=1, count=20), told=("Mind the gap.",)).audits
    assert "Mind the gap." in first.bound.caveats
    assert any("20 canaries are few" in caveat for caveat in first.bound.caveats)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"rounds": 0}, "at least one round that moved the weights"),
        ({"took": np.zeros(300, np.int64)}, "none was sampled"),
    ],
)
def test_nothing_to_judge(rng: np.random.Generator, change: Any, words: str) -> None:
    with pytest.raises(InvalidArgument, match=words):
        audited(replace(seen(rng, mu=1), **change))


def test_what_was_odd_is_told(rng: np.random.Generator) -> None:
    result = audited(replace(seen(rng, mu=1), still=2, lost=1)).audits[0]
    said = " ".join(result.bound.caveats)
    assert "2 rounds with canaries moved no weight" in said
    assert "1 times the weights were not finite" in said
    with pytest.raises(InvalidArgument, match="Expected participation to be one of"):
        audited(seen(rng, mu=1), participation="equal")


@pytest.mark.parametrize(
    ("took", "words"),
    [((1, 1), "took part, once each"), ((3, 3), "3 times each"), ((1, 2), "1 to 2 times each")],
)
def test_how_often_canaries_took_part_is_told(
    rng: np.random.Generator, took: tuple[int, int], words: str
) -> None:
    result = audited(replace(seen(rng, mu=1), took=np.repeat(took, 150))).audits[0]
    assert words in " ".join(result.bound.caveats)
