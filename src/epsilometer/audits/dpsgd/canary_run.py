"""Bound ε by one training run with many planted gradients."""

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from epsilometer import _validate
from epsilometer.audits.dpsgd.canary_steps import CanarySteps, Views, blind_views, known_views
from epsilometer.core.bound import EpsilonEstimate, EpsilonLowerBound
from epsilometer.core.claim import Claim
from epsilometer.core.findings import EpsilonFinding
from epsilometer.core.scores import Scores
from epsilometer.errors import EpsilometerWarning, InvalidArgument
from epsilometer.stats.estimators import epsilon_lower_bound
from epsilometer.stats.gaussians import gdp_epsilon
from epsilometer.stats.score_finding import make_finding, measure_growth
from epsilometer.stats.thresholds import HoldOut, Observed, RankGrid, ThresholdRule
from epsilometer.types import FloatArray

METHODS = ("one_run", "one_run_fdp")
# Where many guesses count, paying for fifteen ranks costs more than a third of the canaries:
# at half the noise and 2,000 canaries, 1.25-GDP claimed falls in 20 of 20 runs, against 4 of 20.
_RULES: dict[str, ThresholdRule] = {"one_run": RankGrid(), "one_run_fdp": HoldOut()}
_NOT_GAUSSIAN = (
    "Not a valid bound: it assumes a Gaussian trade-off curve, which sampling does not leave."
)


@dataclass(frozen=True, eq=False, kw_only=True)
class CanaryRun:
    """One run, and what it showed of its canaries.

    Attributes:
        included: Which canaries were planted, each by its own fair coin, shape ``(m,)``.
        steps: What every step showed of them.
        weights: What the trained weights show of them, higher means in, shape ``(m,)``.
        public_order: Whether everybody knows which records are in a batch: no shuffling at all.
        subject: What was trained, in words.
        caveats: What a reader must know before quoting a bound.
        seed: Of coins, batches and directions.
    """

    included: NDArray[np.bool_]
    steps: CanarySteps
    weights: FloatArray
    public_order: bool
    subject: str
    caveats: tuple[str, ...]
    seed: int

    @property
    def unsampled(self) -> bool:
        """Whether everybody knows who is in a batch, so that trade-off curves are Gaussian."""
        return self.public_order or bool(np.all(self.steps.chance == 1))


def measure_gradients(
    run: CanaryRun,
    *,
    delta: float,
    claim: Claim | None,
    confidence: float,
    spent: float = 0.0,
    method: str = "one_run",
    estimates: Sequence[EpsilonEstimate] = (),
) -> EpsilonFinding:
    """Return what is proved by who sees every noisy gradient and does not know the batches.

    Guarantee: refutes a true claim in at most ``1 - confidence`` of audits, together with another
        bound that is wrong in ``spent`` of them.
    Assumption: none with ``one_run``; a Gaussian trade-off curve with ``one_run_fdp``, which is
        therefore refused where batches are sampled.
    """
    if method not in METHODS:
        raise InvalidArgument(f"Expected method to be one of {', '.join(METHODS)}, got {method!r}.")
    if method == "one_run_fdp" and not run.unsampled:
        raise InvalidArgument(
            "Expected method one_run where batches are sampled, got one_run_fdp: it assumes a "
            "Gaussian trade-off curve, which sampling does not leave. Where batches are known it "
            "decides: see measure_steps."
        )
    known = ", and the order of the records" if run.public_order else ", but not the batches"
    return _measure(
        run,
        known_views(run.steps) if run.public_order else blind_views(run.steps),
        np.ones(run.included.size, np.bool_),
        claim=claim,
        delta=delta,
        confidence=confidence,
        spent=spent,
        methods=(method, *(other for other in METHODS if other != method)),
        subject=f"{run.subject}: every noisy gradient seen",
        adversary="sees every noisy gradient and knows all other records" + known,
        gaussian=run.unsampled,
        estimates=estimates,
    )


def claim_of_steps(run: CanaryRun, *, delta: float) -> Claim:
    """Return what clipping and noise claim to one who also knows the canaries' batches.

    Sampling hides nothing from this adversary, so the claim is that of a Gaussian mechanism taken
    as often as a canary took part. Canaries that took part much more often than others are left
    out, so that a few of them do not set the claim for the rest.
    """
    _validate.open_unit(delta=delta)
    return Claim(
        epsilon=gdp_epsilon(math.sqrt(_worth_most(run.steps.exposure)), delta),
        delta=delta,
        adjacency="add_remove",
        sampler="known to the adversary",
        accountant="Gaussian mechanism",
    )


def measure_steps(
    run: CanaryRun, *, claim: Claim, confidence: float, spent: float = 0.0
) -> EpsilonFinding:
    """Return what is proved of clipping and noise, by who also knows the canaries' batches.

    Guarantee: refutes the claim of :func:`claim_of_steps` in at most ``1 - confidence`` of audits
        where the optimiser clips and adds noise as it says: its trade-off curve is Gaussian, as
        ``one_run_fdp`` assumes.
    """
    exposure = run.steps.exposure
    return _measure(
        run,
        known_views(run.steps),
        (exposure > 0) & (exposure <= _worth_most(exposure)),
        claim=claim,
        delta=claim.delta,
        confidence=confidence,
        spent=spent,
        methods=("one_run_fdp", "one_run"),
        subject=f"{run.subject}: batches known too",
        adversary="sees every noisy gradient, knows all other records and all batches",
        gaussian=True,
    )


def _worth_most(exposure: FloatArray) -> float:
    """Return the exposure up to which canaries count: many, as exposed as the claim allows.

    Chosen by the batches alone, never by what was seen, so that it costs nothing.
    """
    rising = np.sort(exposure[exposure > 0])
    if not rising.size:
        return 0.0
    count = np.arange(1, rising.size + 1)
    last = np.append(rising[1:] > rising[:-1], True)  # equally exposed ones stay together
    worth = np.where(last, count * (np.cumsum(rising) / count / rising) ** 2, 0.0)
    return float(rising[np.argmax(worth)])


def measure_weights(
    run: CanaryRun,
    *,
    delta: float,
    claim: Claim | None,
    confidence: float,
    spent: float = 0.0,
    estimates: Sequence[EpsilonEstimate] = (),
) -> EpsilonFinding:
    """Return what is proved by who sees the first and the last weights, and no gradient.

    Guarantee: refutes a true claim in at most ``1 - confidence`` of audits.
    """
    return _measure(
        run,
        {"weights": run.weights},
        np.ones(run.included.size, np.bool_),
        claim=claim,
        delta=delta,
        confidence=confidence,
        spent=spent,
        methods=METHODS,
        subject=f"{run.subject}: weights before and after seen",
        adversary="sees the weights before and after training, and no gradient",
        gaussian=run.unsampled,
        estimates=estimates,
    )


def _measure(
    run: CanaryRun,
    views: Views,
    kept: NDArray[np.bool_],
    *,
    claim: Claim | None,
    delta: float,
    confidence: float,
    spent: float,
    methods: tuple[str, ...],
    subject: str,
    adversary: str,
    gaussian: bool,
    estimates: Sequence[EpsilonEstimate] = (),
) -> EpsilonFinding:
    _validate.open_unit(delta=delta, confidence=confidence)
    inside, outside = kept & run.included, kept & ~run.included
    if not (inside.any() and outside.any()):
        raise InvalidArgument(
            f"Expected canaries that were in and canaries that were out, got {inside.sum()} and "
            f"{outside.sum()} that took part. Plant more, or train longer."
        )
    observed = {name: Scores(view[inside], view[outside]) for name, view in views.items()}
    paid = 1 - (1 - confidence - spent) / len(views)

    def bound(scores: Observed, method: str) -> EpsilonLowerBound:
        with warnings.catch_warnings():  # what they say is in the caveats too
            warnings.simplefilter("ignore", EpsilometerWarning)
            return epsilon_lower_bound(
                scores,
                delta=delta,
                confidence=paid,
                method=method,
                rule=_RULES[method],
                seed=run.seed,
                adjacency="add_remove",
                adversary=adversary,
            )

    def prove(scores: Observed) -> float:
        return bound(scores, methods[0]).epsilon

    found = []
    for method in methods:
        every = {name: bound(scores, method) for name, scores in observed.items()}
        best = max(every, key=lambda name: every[name].epsilon)
        chosen = _pay_for_views(every[best], views, best, confidence, run.caveats)
        if method == "one_run_fdp" and not gaussian:
            chosen = replace(chosen, valid=False, caveats=(_NOT_GAUSSIAN, *chosen.caveats))
        found.append((best, chosen))
    decisive = observed[found[0][0]]
    return make_finding(
        decisive,
        [chosen for _, chosen in found],
        prove=prove,
        claim=claim,
        subject=subject,
        growth=measure_growth(decisive, prove, seed=run.seed, in_order=False),
        estimates=estimates,
        counted=False,  # a hold-out needs scores one by one
    )


def _pay_for_views(
    bound: EpsilonLowerBound,
    views: Views,
    best: str,
    confidence: float,
    caveats: tuple[str, ...],
) -> EpsilonLowerBound:
    """Return the best of several views, each of which had its share of what may go wrong."""
    if len(views) > 1:
        looked = f"{len(views)} views shared 1 − confidence ({', '.join(views)}); best was {best}."
        caveats = (looked, *caveats)
    return replace(
        bound,
        confidence=confidence,
        threshold_rule=f"{bound.threshold_rule}, best of {len(views)} views",
        caveats=(*bound.caveats, *caveats),
    )
