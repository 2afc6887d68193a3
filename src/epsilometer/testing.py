"""Audit inside tests, so that a library that claims privacy can try to refute its own claims.

Nothing here needs pytest. With pytest, the fixture ``assert_private`` of
``epsilometer.integrations.pytest`` is the same function, with command-line options.
"""

import math
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from numpy.typing import ArrayLike

from epsilometer import _validate
from epsilometer._dispatch import audit
from epsilometer.audits.training.subject import Score, Train, TrainFunction
from epsilometer.core import judge, words
from epsilometer.core.audit import Audit
from epsilometer.core.claim import Adjacency, Claim, as_claim
from epsilometer.core.stopping import UntilRefuted
from epsilometer.engine.leases import Call, Outcome, Outcomes
from epsilometer.engine.runs import bound_perfect_attack, compute_watched_power
from epsilometer.errors import InvalidArgument
from epsilometer.stats.gaussians import gaussian_sigma

RUNS = 1_000
# One true claim in a million is refuted: a thousand such tests, each changed a hundred times, fail
# wrongly in one of ten such projects. This takes two to three times as many runs as a confidence
# of 0.95.
CONFIDENCE = 1 - 1e-6
_MOST_RUNS = 2**24


class ClaimRefuted(AssertionError):
    """The claim was refuted; ``audit`` is the audit that did it."""

    def __init__(self, message: str, audit: Audit) -> None:
        super().__init__(message)
        self.audit = audit


@dataclass(frozen=True, kw_only=True)
class Reach:
    """What an audit with a given number of runs can detect; computed without training.

    Attributes:
        reach: No attack, however good, refutes a claim above this ε in this many runs.
        power: The smallest ε of an additive mechanism (Gaussian noise; Laplace where δ = 0) whose
            best attack refutes the claim 4 times in 5. Infinite where none does.
        noise: Noise of that mechanism, as a share of what the claim needs.
    """

    reach: float
    power: float
    noise: float


def assert_private(
    claim: Claim | float,
    train: Train,
    *,
    delta: float | None = None,
    data: tuple[ArrayLike, ArrayLike] | None = None,
    canary: Any = None,
    with_record: Any = None,
    without_record: Any = None,
    score: Score | None = None,
    adjacency: Adjacency | None = None,
    replaced: int | None = None,
    runs: int = RUNS,
    confidence: float = CONFIDENCE,
    seed: int = 0,
) -> Audit:
    """Train with a record and without it until the claim is refuted, or all runs are used.

    Guarantee: of claims that are true, at most a share ``1 - confidence`` is ever refuted, although
        every pair of runs is checked. The same arguments give the same outcome, that of
        ``epsilometer.audit`` with ``TrainFunction`` and ``until=UntilRefuted()``. It never passes
        if it could not have failed: if a run raises or scores nan, or with too few runs for the
        claim.
    Assumption: ``train`` draws all its randomness from its seed, so that runs are independent: each
        gets its own seed. The record was not chosen from the results of this audit.

    Args:
        claim: The claimed ε, or a ``Claim``.
        train: ``train(data, seed)`` trains once and returns a score (a number, higher where the
            record was in) or a model.
        delta: δ, with a claim that is a number.
        data: Features and labels, as ``TrainFunction`` takes them.
        canary: The ``Record`` that is added to ``data``, or the object passed to ``score``.
        with_record: Instead of ``data``: any argument for ``train``, with the record.
        without_record: Its neighbour, without the record.
        score: ``score(model, record)``, if ``train`` returns a model.
        adjacency: The neighbouring relation; the claim's by default.
        replaced: The record of ``data`` that the canary replaces.
        runs: Largest number of runs with the record, and of runs without it.
        confidence: One-sided.
        seed: Seed from which the seeds of all runs are derived.

    Returns:
        The audit, if the claim is not refuted; ``summary`` says what it could have detected.

    Raises:
        ClaimRefuted: The claim is refuted. An ``AssertionError`` with the audit as ``audit``.
        InvalidArgument: The call is wrong, there are too few runs to refute the claim, or scores
            are all equal, the same on both sides, or lower with the record.

    Example:
        >>> import numpy as np
        >>> def noisy_sum(numbers, seed):
        ...     return sum(numbers) + np.random.default_rng(seed).normal(0, 0.5)
        >>> # ε = 1 needs a noise of 3.73
        >>> assert_private(1.0, noisy_sum, delta=1e-5, with_record=[1, 1], without_record=[1])
        Traceback (most recent call last):
            ...
        epsilometer.testing.ClaimRefuted: ε = 1 at δ = 1e-05 was claimed; refuted after...
    """
    claimed = as_claim(claim, delta=delta)
    if claimed is None:
        raise InvalidArgument("Expected a claim to refute, a number or a Claim, got None.")
    _validate.whole(2, runs=runs)
    _validate.open_unit(confidence=confidence)
    _check_runs(claimed, runs=runs, confidence=confidence)
    subject = TrainFunction(
        train,
        data,
        canary,
        runs=runs,
        with_record=with_record,
        without_record=without_record,
        score=score,
        adjacency=adjacency,
        replaced=replaced,
    )
    found = audit(
        subject, claimed, confidence=confidence, seed=seed, until=UntilRefuted(), engine=_Here()
    )
    if found.verdict in judge.UNCLEAR:
        raise InvalidArgument(f"Expected scores that could refute. {found.judgement.reason}")
    if found.verdict != judge.NOT_REFUTED:  # nothing else passes; runs that cannot refute are gone
        raise ClaimRefuted(summary(found), found)
    return found


def summary(found: Audit) -> str:
    """Say what an audit of ``assert_private`` found and what it could have found."""
    claim, bound, runs = found.claim, found.bounds[0], found.provenance
    assert claim is not None  # there is none without
    said = f"ε = {words.claimed(claim.epsilon)} at δ = {claim.delta:g} was claimed"
    if found.verdict in judge.BAD:
        return (
            f"{said}; refuted after {runs.used:,} of {runs.units:,} pairs of runs: the attack "
            f"proves ε ≥ {words.number(bound.epsilon)}. At most {1 - bound.confidence:.1g} of true "
            f"claims are refuted. To repeat: seed={bound.seed}, runs={runs.units}."
        )
    assert found.power is not None  # there is a claim
    share = _share_of_noise(claim, found.power)
    law = "Gaussian" if claim.delta else "Laplace"
    needed = f" That is {law} noise of {share:.0%} of what the claim needs." if share else ""
    return (
        f"{said}; {found.verdict}: {runs.used:,} pairs of runs prove "
        f"ε ≥ {words.number(bound.epsilon)}. {words.word_reach(found)}{needed}"
    )


def reach(claim: Claim, *, runs: int = RUNS, confidence: float = CONFIDENCE) -> Reach:
    """Compute what ``assert_private`` can detect with this many runs, without running any.

    Guarantee: ``reach`` is exact.
    Assumption: ``power`` comes from simulated audits, accurate to a few per cent.

    Example:
        >>> for epsilon, delta in [(1.0, 1e-5), (1.16, 0.1)]:
        ...     print(f"{reach(Claim(epsilon=epsilon, delta=delta)).noise:.0%}")
        23%
        63%
    """
    _validate.whole(2, runs=runs)
    _validate.open_unit(confidence=confidence)
    most = bound_perfect_attack(runs, claim.delta, confidence)
    power = compute_watched_power(claim, pairs=runs, confidence=confidence, reach=most)
    return Reach(reach=most, power=power, noise=_share_of_noise(claim, power))


def _share_of_noise(claim: Claim, power: float) -> float:
    """Return the noise of a mechanism with ε = ``power``, as a share of what the claim needs."""
    if math.isinf(power):
        return 0.0
    if claim.delta == 0:
        return claim.epsilon / power
    return gaussian_sigma(power, claim.delta) / gaussian_sigma(claim.epsilon, claim.delta)


@dataclass(frozen=True)
class _Here:
    """An engine that runs units in order in this thread; exceptions propagate to the test."""

    workers: int = 1

    def outcomes(self, call: Call, units: Iterable[int]) -> Outcomes:
        for unit in units:
            start = time.perf_counter()
            arrays = call(unit)
            if arrays["nan"].any():
                raise InvalidArgument(
                    "Expected a score of every run, got nan. A run that diverged is an observation "
                    "too: score it by a number, or ±inf."
                )
            yield Outcome(unit=unit, arrays=arrays, error="", seconds=time.perf_counter() - start)


def _check_runs(claim: Claim, *, runs: int, confidence: float) -> None:
    """Refuse an audit that would pass whatever ``train`` does."""
    here = bound_perfect_attack(runs, claim.delta, confidence)
    if here > claim.epsilon:
        return
    enough = runs
    while (
        enough <= _MOST_RUNS
        and bound_perfect_attack(enough, claim.delta, confidence) <= claim.epsilon
    ):
        enough *= 2
    advice = f"Give runs={enough}" if enough <= _MOST_RUNS else "Too many would be needed"
    raise InvalidArgument(
        f"Expected runs that can refute ε = {words.claimed(claim.epsilon)}, got runs={runs}: even "
        f"an attack that never errs proves only ε ≥ {words.number(here)} by so many, at confidence "
        f"1 - {1 - confidence:.1g}. {advice}; or test what is claimed at a larger δ, or with "
        "more noise: there ε is smaller."
    )
