from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import scipy.stats

from epsilometer.audits.federated.iterates import IterateSummary
from epsilometer.audits.federated.subject import measure_iterates
from epsilometer.core import judge
from epsilometer.core.bound import EpsilonEstimate
from epsilometer.core.claim import Claim
from epsilometer.core.findings import EpsilonFinding
from epsilometer.engine.request import Request
from epsilometer.errors import InvalidArgument
from epsilometer.stats.gaussians import gdp_epsilon

FLAKE = 1e-6
DIMENSION, DELTA = 10_000, 1e-5


def seen(rng: np.random.Generator, *, mu: float, count: int = 300, rounds: int = 2) -> Any:
    """As if every canary had been released once by a μ-GDP mechanism."""
    shift = np.repeat([mu, 0.0], count)
    final = rng.normal(shift, 1) / np.sqrt(DIMENSION)
    return IterateSummary(
        final=final,
        largest=np.maximum(final, rng.normal(size=2 * count) / np.sqrt(DIMENSION)),
        took=np.ones(count, np.int64),
        rounds=rounds,
        matched=final[:count],
        still=0,
        lost=0,
    )


def measure(what: IterateSummary, **asked: Any) -> tuple[EpsilonFinding, ...]:
    known = {name: asked.pop(name) for name in ("claim", "confidence", "seed") if name in asked}
    return measure_iterates(what, Request(delta=DELTA, **known), dimension=DIMENSION, **asked)


@pytest.mark.slow
@pytest.mark.parametrize("participation", ["hidden", "known"])
def test_bounds_exceed_the_truth_no_oftener_than_they_say(
    participation: str, rng: np.random.Generator
) -> None:
    """Both together, since one of them suffices to refute."""
    truth, wrong, audits = gdp_epsilon(1.5, DELTA), 0, 100
    for _ in range(audits):
        found = measure(seen(rng, mu=1.5), confidence=0.8, participation=participation)
        wrong += any(view.bound.refutes(truth) for view in found)
    assert wrong <= scipy.stats.binom.isf(FLAKE, audits, 0.2)


def test_a_loud_leak_is_found_by_both_adversaries(rng: np.random.Generator) -> None:
    claim = Claim(1.0, delta=DELTA)
    found = measure(seen(rng, mu=5), claim=claim)
    assert [judge.judge_finding(claim, view) for view in found] == ["refuted", "refuted"]


def test_both_adversaries_share_the_confidence(rng: np.random.Generator) -> None:
    both, one = (measure(seen(rng, mu=1, rounds=rounds), confidence=0.9) for rounds in (2, 1))
    assert [view.bound.confidence for view in both] == pytest.approx([0.95, 0.95])
    assert [view.bound.confidence for view in one] == [0.9]


def test_what_accounting_says_comes_after_what_was_seen(rng: np.random.Generator) -> None:
    said = EpsilonEstimate(
        epsilon=3.0,
        low=3.0,
        high=3.0,
        delta=DELTA,
        confidence=1.0,
        method="accounting",
        direction="both",
        subject="a client",
        role="reference",
    )
    claim = Claim(1.0, delta=DELTA)
    for view in measure(seen(rng, mu=0.1), claim=claim, estimates=(said,)):
        assert [estimate.role for estimate in view.estimates] == ["reference"] * 3
        assert view.estimates[-1] == said
        assert judge.judge_finding(claim, view) == "not refuted"  # it decides nothing


def test_after_one_round_there_is_one_adversary(rng: np.random.Generator) -> None:
    (result,) = measure(seen(rng, mu=1, rounds=1))
    assert "before and after" in result.bound.adversary


def test_whoever_hides_who_took_part_counts_all(rng: np.random.Generator) -> None:
    what = seen(rng, mu=1)
    what = replace(what, took=np.where(np.arange(300) < 200, 2, 0))
    assert measure(what)[0].bound.n_in == 300
    known = measure(what, participation="known")[0]
    assert known.bound.n_in == 200
    assert "knows who took part" in known.bound.adversary
    assert "200 of 300 canaries took part" in " ".join(known.bound.caveats)


def test_who_knows_the_rounds_of_canaries_proves_more(rng: np.random.Generator) -> None:
    what = seen(rng, mu=3)
    hidden, known = (measure(what, participation=how)[1] for how in ("hidden", "known"))
    assert hidden.bound.epsilon < known.bound.epsilon < gdp_epsilon(3.0, DELTA)
    assert "2 rounds" in hidden.bound.threshold_rule
    assert "exact null distribution" in known.bound.threshold_rule
    assert [len(view.estimates) for view in (hidden, known)] == [2, 2]
    assert "knows who took part" in known.bound.adversary


def test_unequal_participation_leaves_out_what_assumes_equality(rng: np.random.Generator) -> None:
    what = seen(rng, mu=1)
    methods = [bound.method for bound in measure(what)[0].also]
    assert "mean_cosine" in methods
    for took in (np.arange(300) % 2 + 1, np.arange(300) % 2):
        methods = [b.method for b in measure(replace(what, took=took))[0].also]
        assert "mean_cosine" not in methods
    methods = [b.method for b in measure(what, participation="unseen")[0].also]
    assert "mean_cosine" not in methods


def test_few_canaries_are_told_in_the_result(rng: np.random.Generator) -> None:
    (first, _) = measure(seen(rng, mu=1, count=20), caveats=("Mind the gap.",))
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
        measure(replace(seen(rng, mu=1), **change))


def test_what_was_odd_is_told(rng: np.random.Generator) -> None:
    result = measure(replace(seen(rng, mu=1), still=2, lost=1))[0]
    said = " ".join(result.bound.caveats)
    assert "Rounds with canaries that changed no weight: 2." in said
    assert "Weights that were not finite were skipped: 1." in said
    with pytest.raises(InvalidArgument, match="Expected participation to be one of"):
        measure(seen(rng, mu=1), participation="equal")


@pytest.mark.parametrize(
    ("took", "words"),
    [((1, 1), "took part, once each"), ((3, 3), "3 times each"), ((1, 2), "1 to 2 times each")],
)
def test_how_often_canaries_took_part_is_told(
    rng: np.random.Generator, took: tuple[int, int], words: str
) -> None:
    result = measure(replace(seen(rng, mu=1), took=np.repeat(took, 150)))[0]
    assert words in " ".join(result.bound.caveats)
