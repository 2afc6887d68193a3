"""Audits inside tests: a library that promises privacy can let its own tests try to refute it.

Nothing here needs pytest. Where pytest is, the fixture ``assert_private`` of
``epsilometer.integrations.pytest`` is the same function, with options of the command line.
"""

import math
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.special
from numpy.typing import ArrayLike, NDArray

from epsilometer import _validate
from epsilometer.audits.runs import UntilRefuted, pilots
from epsilometer.audits.training import Score, Train, audit_training
from epsilometer.core.claim import Adjacency, Claim
from epsilometer.engine.engines import Call, Outcome, Outcomes
from epsilometer.errors import InvalidArgument
from epsilometer.observations import Scores
from epsilometer.report.words import number, promised
from epsilometer.core.audit import AuditResult
from epsilometer.stats import search
from epsilometer.stats.gaussians import gaussian_epsilon, gaussian_sigma
from epsilometer.stats.sequential import ConfidenceSequence
from epsilometer.types import FloatArray

RUNS = 1_000
# One promise in a million that is kept is called broken: a thousand such tests, each changed a
# hundred times, fail wrongly once in ten such projects. It takes two to three times the runs that a
# confidence of 0.95 does.
CONFIDENCE = 1 - 1e-6
_MOST_RUNS = 2**24
_LARGEST_SHIFT = 64.0
_GOLDEN = (math.sqrt(5) - 1) / 2


class PromiseBroken(AssertionError):
    """The claim was refuted; ``result`` is the audit that did it."""

    def __init__(self, message: str, result: AuditResult) -> None:
        super().__init__(message)
        self.result = result


@dataclass(frozen=True, kw_only=True)
class Reach:
    """What an audit of so many runs can notice at all. Computed; nothing is trained.

    Attributes:
        most: No attack, however good, refutes a claim above this ε in so many runs.
        epsilon: ε of an additive mechanism (Gaussian noise; Laplace where δ = 0) whose best attack
            refutes the claim every second time or oftener. Infinite where none does.
        noise: Its noise, as a share of what the claim needs.
    """

    most: float
    epsilon: float
    noise: float


def assert_private(
    claim: Claim,
    train: Train,
    *,
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
) -> AuditResult:
    """Trains with a record and without it until ``claim`` falls, or ``runs`` runs of each are used.

    Guarantees: of promises that are kept, at most a share ``1 - confidence`` is ever called broken,
        although every pair of runs is looked at. The same arguments give the same outcome, which
        is that of ``audit_training`` with ``until=UntilRefuted()``. It never passes where it could
        not have failed: not where a run raises or scores nan, nor with too few runs for the claim.
    Assumes: ``train`` takes all its randomness from its seed; the record was not chosen by looking
        at runs of this audit.

    Args:
        claim: What is promised.
        train: ``train(data, seed)`` trains once and returns a score (a number, higher where the
            record was in) or a model.
        data: Features and labels, as ``audit_training`` takes them.
        canary: The ``Record`` that is added to ``data``, or what ``score`` is to be given.
        with_record: In place of ``data``: whatever ``train`` is to be given, with the record.
        without_record: Its neighbour, without the record.
        score: ``score(model, record)`` where ``train`` returns a model.
        adjacency: The neighbouring relation; the claim's by default.
        replaced: The record of ``data`` that the canary replaces.
        runs: Runs of either kind, at most. A twentieth of them places the attack's thresholds.
        confidence: One-sided.
        seed: From which the seeds of all runs are derived.

    Returns:
        The audit, where the claim stands; ``summary`` says what it could have noticed.

    Raises:
        PromiseBroken: The claim is refuted. An ``AssertionError``, with the audit as ``result``.
        InvalidArgument: The call is wrong, or so few runs could not refute the claim at all.

    Example:
        >>> import numpy as np
        >>> from epsilometer import Claim
        >>> def noisy_sum(numbers, seed):
        ...     return sum(numbers) + np.random.default_rng(seed).normal(0, 0.5)
        >>> claim = Claim(epsilon=1.0, delta=1e-5)  # needs a noise of 3.73
        >>> assert_private(claim, noisy_sum, with_record=[1, 1], without_record=[1])
        Traceback (most recent call last):
            ...
        epsilometer.testing.PromiseBroken: ε = 1 at δ = 1e-05 was promised...
    """
    if not isinstance(claim, Claim):
        raise InvalidArgument(f"Expected a Claim to refute, got {claim!r}.")
    _validate.whole(2, runs=runs)
    _validate.open_unit(confidence=confidence)
    _can_fail(claim, runs=runs, confidence=confidence)
    result = audit_training(
        train,
        runs=runs,
        delta=claim.delta,
        data=data,
        canary=canary,
        with_record=with_record,
        without_record=without_record,
        claim=claim,
        score=score,
        adjacency=adjacency,
        replaced=replaced,
        confidence=confidence,
        until=UntilRefuted(),
        seed=seed,
        engine=_Here(),
    )
    if result.verdict == "refuted":
        raise PromiseBroken(summary(result), result)
    return result


def summary(result: AuditResult) -> str:
    """What an audit of ``assert_private`` found and what it could have found, in sentences."""
    claim, bound, runs = result.claim, result.bound, result.provenance
    assert claim is not None  # there is none without
    promise = f"ε = {promised(claim.epsilon)} at δ = {claim.delta:g}"
    if result.verdict == "refuted":
        return (
            f"{promise} was promised; refuted after {runs.used:,} of {runs.units:,} pairs of "
            f"runs: the attack proves ε ≥ {number(bound.epsilon)}. Of promises that are kept, "
            f"{1 - bound.confidence:.1g} at most are called broken. "
            f"The same again: seed={bound.seed}, runs={runs.units}."
        )
    can = reach(claim, runs=runs.units, confidence=bound.confidence)
    law = "Gaussian" if claim.delta else "Laplace"
    noticed = (
        f"Of {law} mechanisms they notice half or more at ε = {number(can.epsilon)} "
        f"({can.noise:.0%} of the noise)"
        if math.isfinite(can.epsilon)
        else f"Of {law} mechanisms they notice none"
    )
    return (
        f"{promise} stands: {runs.used:,} pairs of runs prove ε ≥ {number(bound.epsilon)}. "
        f"{noticed}; what they prove ends at ε = {number(can.most)}."
    )


def reach(claim: Claim, *, runs: int = RUNS, confidence: float = CONFIDENCE) -> Reach:
    """What ``assert_private`` can notice with so many runs, before any is done.

    Guarantees: ``most`` is exact. ``epsilon`` is where even quantiles of the mechanism's scores,
        in place of random ones, just refute the claim: half of audits or more do there.

    Example:
        >>> for epsilon, delta in [(1.0, 1e-5), (1.16, 0.1)]:
        ...     print(f"{reach(Claim(epsilon=epsilon, delta=delta)).noise:.0%}")
        23%
        61%
    """
    _validate.whole(2, runs=runs)
    _validate.open_unit(confidence=confidence)
    laplace = claim.delta == 0
    quantile = _laplace_quantile if laplace else scipy.special.ndtri
    pilot, pairs = pilots(runs), runs - pilots(runs)
    apart = np.argsort(np.arange(1, pairs + 1) * _GOLDEN % 1)  # pairs as if drawn apart

    def stands(shift: FloatArray) -> NDArray[np.bool_]:
        placing, even = quantile(_even(pilot)), quantile(_even(pairs))
        sequence = ConfidenceSequence.from_pilot(
            Scores(inside=placing + shift, outside=placing),
            delta=claim.delta,
            confidence=confidence,
        )
        sequence.update(even + shift, even[apart])
        return np.asarray(not sequence.refuted(claim))

    most = _most(pairs, delta=claim.delta, confidence=confidence)
    if stands(np.asarray(_LARGEST_SHIFT)):
        return Reach(most=most, epsilon=math.inf, noise=0.0)
    _, shift = search.bisect(stands, 0.0, _LARGEST_SHIFT, relative=1e-4)
    found = float(shift)
    if laplace:
        return Reach(most=most, epsilon=found, noise=claim.epsilon / found)
    return Reach(
        most=most,
        epsilon=gaussian_epsilon(1 / found, claim.delta),
        noise=1 / (found * gaussian_sigma(claim.epsilon, claim.delta)),
    )


@dataclass(frozen=True)
class _Here:
    """One run after the other, in this thread; what one raises is the test's own business."""

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


def _can_fail(claim: Claim, *, runs: int, confidence: float) -> None:
    """Refuses an audit that would pass whatever ``train`` does."""

    def most(runs: int) -> float:
        return _most(runs - pilots(runs), delta=claim.delta, confidence=confidence)

    here = most(runs)
    if here > claim.epsilon:
        return
    enough = runs
    while enough <= _MOST_RUNS and most(enough) <= claim.epsilon:
        enough *= 2
    advice = f"Give runs={enough}" if enough <= _MOST_RUNS else "Too many would be needed"
    raise InvalidArgument(
        f"Expected runs that can refute ε = {promised(claim.epsilon)}, got runs={runs}: even an "
        f"attack that never errs proves only ε ≥ {number(here)} by so many, at confidence "
        f"1 - {1 - confidence:.1g}. {advice}; or test what is promised at a larger δ, or with "
        "more noise: there ε is smaller."
    )


def _most(pairs: int, *, delta: float, confidence: float) -> float:
    """What an attack that never errs proves: the threshold is right from the first pair on."""
    perfect = ConfidenceSequence([0.0], delta=delta, confidence=confidence)
    perfect.update(np.ones(pairs), -np.ones(pairs))
    return perfect.lower_bound().epsilon


def _even(count: int) -> FloatArray:
    return (np.arange(count) + 0.5) / count


def _laplace_quantile(share: FloatArray) -> FloatArray:
    return np.where(share < 0.5, np.log(2 * share), -np.log(2 * (1 - share)))
