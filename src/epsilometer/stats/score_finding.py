"""Bound ε from attack scores, and judge a claim by them."""

import functools
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import NamedTuple

import msgspec
import numpy as np

from epsilometer.core.bound import EpsilonEstimate, EpsilonLowerBound
from epsilometer.core.claim import Claim
from epsilometer.core.findings import AttackSummary, Curve, EpsilonFinding, Evidence
from epsilometer.core.scores import Design, ScoreCounts, Scores
from epsilometer.errors import EpsilometerWarning
from epsilometer.stats.estimators import REGISTRY, choose_rule, epsilon_lower_bound
from epsilometer.stats.reach import (
    Bound,
    Outside,
    compute_power,
    compute_reach,
    describe_outside,
)
from epsilometer.stats.thresholds import (
    AllRanks,
    Bonferroni,
    Fixed,
    HoldOut,
    Observed,
    RankGrid,
    RankSum,
    ThresholdRule,
)
from epsilometer.stats.tradeoff import TradeoffCurve, tradeoff_curve
from epsilometer.types import FloatArray, IntArray

_LOW_FPR = (0.001, 0.01, 0.1)
# Rules whose power does not depend on the scale of the scores.
_KNOWN_RULES: tuple[ThresholdRule, ...] = (
    AllRanks(),
    RankGrid(),
    RankSum(),
    HoldOut(),
    Bonferroni(),
)
_BINS = 60
_FEWEST = 50  # observations of either kind below which a part proves nothing worth a point
_POINTS = 8


def measure_scores(
    scores: Observed,
    *,
    delta: float,
    claim: Claim | None,
    confidence: float,
    seed: int,
    curves: Sequence[Curve] = (),
    units: int = 1,
    used: int = 1,
    failed: int = 0,
) -> EpsilonFinding:
    """Return the finding of scores, by the method and rule that they name.

    Args:
        scores: Scores with the record and without it.
        delta: δ of the bound.
        claim: The claim; None without one.
        confidence: One-sided confidence of the bound.
        seed: Seed for rules that split at random.
        curves: Trade-off curves to draw with the attack's, where more is known than (ε, δ).
        units: Planned units of work.
        used: Units that produced the scores.
        failed: Units that failed.
    """
    method, rule = choose_rule(scores.method, scores.rule, scores.design, scores)

    def bound(part: Observed, name: str = method) -> EpsilonLowerBound:
        return epsilon_lower_bound(
            part,
            delta=delta,
            confidence=confidence,
            method=name,
            rule=rule if name == method else scores.rule,
            seed=seed,
            adjacency="unstated" if claim is None else claim.adjacency,
            adversary=scores.adversary,
        )

    def prove(part: Observed) -> float:
        if part is scores:
            return bounds[0].epsilon
        with _silence_warnings():
            return bound(part).epsilon

    bounds = [bound(scores, name) for name in (method, *scores.also)]
    reach = max(bounds[0].epsilon, compute_reach(prove, scores))
    power = None
    if claim is not None and bounds[0].valid and claim.epsilon < reach:
        power = _compute_power(
            _Question(
                method, rule, claim.epsilon, delta, confidence, scores.design, scores.inclusion
            ),
            scores.n_in,
            scores.n_out,
            _describe_outside(scores, rule),
        )
    return make_finding(
        scores,
        bounds,
        prove=prove,
        claim=claim,
        subject=scores.title,
        growth=measure_growth(scores, prove, seed=seed, in_order=method == "anytime"),
        curves=curves,
        reach=reach,
        power=power,
        units=units,
        used=used,
        failed=failed,
    )


class _Question(NamedTuple):
    """What decides, and what it is to refute."""

    method: str
    rule: ThresholdRule
    claim: float
    delta: float
    confidence: float
    design: Design
    inclusion: float


@functools.lru_cache(maxsize=1_000)
def _compute_power(asked: _Question, n_in: int, n_out: int, outside: Outside) -> float:
    """Compute the power of a method; views of as many scores share it."""

    def prove(part: Observed) -> float:
        with _silence_warnings():
            return epsilon_lower_bound(
                replace(part, design=asked.design, inclusion=asked.inclusion),
                delta=asked.delta,
                confidence=asked.confidence,
                method=asked.method,
                rule=asked.rule,
            ).epsilon

    return compute_power(
        prove,
        claim=asked.claim,
        delta=asked.delta,
        n_in=n_in,
        n_out=n_out,
        # Other rules, bets on pairs, and pairs of canaries need the scores one by one.
        counted=isinstance(asked.rule, (AllRanks, RankGrid, RankSum))
        and asked.method != "anytime"
        and asked.design != "paired",
        outside=outside,
    )


@contextmanager
def _silence_warnings() -> Iterator[None]:
    """Bound parts and simulated scores in silence: users are warned only of their own scores."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", EpsilometerWarning)
        yield


def recompute_power(view: EpsilonFinding, claim: Claim) -> float | None:
    """Compute the power of a finished view against a claim other than the audited one.

    Returns:
        None where more than the finding would be needed: thresholds fixed by their value, or a
        method outside the registry.
    """
    bound = view.bound
    rule = next((rule for rule in _KNOWN_RULES if repr(rule) == bound.threshold_rule), None)
    if rule is None or bound.method not in REGISTRY or not bound.valid or view.reach is None:
        return None
    if claim.epsilon >= view.reach:
        return math.inf
    asked = _Question(
        bound.method,
        rule,
        claim.epsilon,
        bound.delta,
        bound.confidence,
        REGISTRY[bound.method].designs[0] if bound.design == "unstated" else bound.design,
        bound.inclusion,
    )
    return _compute_power(asked, bound.n_in, bound.n_out, Outside())


def _describe_outside(scores: Observed, rule: ThresholdRule) -> Outside:
    """Describe the scores without the record, where what is proved depends on their scale."""
    if isinstance(scores, ScoreCounts) or isinstance(rule, Fixed):
        return describe_outside(scores)
    return Outside()


def round_threshold(bound: EpsilonLowerBound) -> EpsilonLowerBound:
    """Return a bound with six digits of its threshold: all of them would be one record's score."""
    return msgspec.structs.replace(bound, threshold=float(f"{bound.threshold:.6g}"))


def make_finding(
    scores: Observed,
    bounds: Sequence[EpsilonLowerBound],
    *,
    prove: Bound,
    claim: Claim | None,
    subject: str,
    growth: Sequence[tuple[int, float]],
    estimates: Sequence[EpsilonEstimate] = (),
    curves: Sequence[Curve] = (),
    reach: float | None = None,
    power: float | None = None,
    counted: bool = True,
    units: int = 1,
    used: int = 1,
    failed: int = 0,
) -> EpsilonFinding:
    """Return bounds and the scores they rest on as a finding; the first bound decides.

    Args:
        scores: The observations.
        bounds: Their bounds; the first decides.
        prove: The ε that other observations would prove, by the method that decides. Reach and
            power are computed with it, unless they are given.
        claim: The claim; None without one.
        subject: What was attacked, in words.
        growth: (observations, bound) pairs to draw.
        estimates: ε by theory.
        curves: Trade-off curves to draw with the attack's.
        reach: As in :class:`~epsilometer.core.findings.EpsilonFinding`, if known.
        power: Likewise.
        counted: Whether ``prove`` accepts scores that are counted at thresholds.
        units: Planned units of work.
        used: Units that produced the scores.
        failed: Units that failed.
    """
    bounds = [round_threshold(bound) for bound in bounds]
    decides = bounds[0]
    if reach is None:
        reach = max(decides.epsilon, compute_reach(prove, scores))
    computed = [e for e in estimates if e.confidence == 1 and e.role == "lower"]
    if claim is not None and power is None:
        if computed:  # every larger ε is refuted, by computation
            power = claim.epsilon
        elif claim.epsilon >= reach or not decides.valid:  # it refutes nothing
            power = float("inf")
        else:
            power = compute_power(
                lambda part: prove(replace(part, design=scores.design, inclusion=scores.inclusion)),
                claim=claim.epsilon,
                delta=decides.delta,
                n_in=scores.n_in,
                n_out=scores.n_out,
                counted=counted,
                outside=describe_outside(scores),
            )
    curve = tradeoff_curve(scores)
    rates = curve.tpr_at(_LOW_FPR)
    return EpsilonFinding(
        subject=subject,
        bound=decides,
        also=tuple(bounds[1:]),
        estimates=tuple(estimates),
        attack=AttackSummary(
            auc=curve.auc,
            tpr_at_fpr=tuple(zip(_LOW_FPR, map(float, rates), strict=True)),
            n_in=scores.n_in,
            n_out=scores.n_out,
        ),
        evidence=condense_evidence(
            scores, curve, confidence=decides.confidence, growth=growth, curves=curves
        ),
        reach=reach,
        power=None if claim is None else power,
        units=units,
        used=used,
        failed=failed,
    )


def name_scores(scores: Scores, *, title: str, adversary: str, **options: object) -> Scores:
    """Return the scores with what they are, in words, and how they are bounded."""
    return replace(scores, title=title, adversary=adversary, **options)  # type: ignore[arg-type]


def condense_evidence(
    scores: Observed,
    curve: TradeoffCurve,
    *,
    confidence: float,
    growth: Sequence[tuple[int, float]] = (),
    curves: Sequence[Curve] = (),
) -> Evidence:
    """Thin the curve and bin the scores; ``confidence`` is that of the band."""
    thin = curve.thin()
    fpr_low, fpr_high, fnr_low, fnr_high = thin.band(confidence)
    edges, inside_bins, outside_bins = _bin_scores(scores)
    return Evidence(
        fpr=_round_digits(thin.fpr),
        fnr=_round_digits(thin.fnr),
        fpr_low=_round_digits(fpr_low),
        fpr_high=_round_digits(fpr_high),
        fnr_low=_round_digits(fnr_low),
        fnr_high=_round_digits(fnr_high),
        band_confidence=confidence,
        edges=_round_digits(edges),
        inside_bins=tuple(inside_bins.tolist()),
        outside_bins=tuple(outside_bins.tolist()),
        growth=tuple(growth),
        curves=tuple(curves),
    )


def measure_growth(
    scores: Observed, bound: Callable[[Scores], float], *, seed: int, in_order: bool
) -> tuple[tuple[int, float], ...]:
    """Return what halves, quarters, … of the observations prove; nothing for counts.

    Args:
        scores: All observations.
        bound: The ε that a part proves.
        seed: Seed of the random order in which parts are taken.
        in_order: Take them in the order given instead, for methods that bet on it.
    """
    if isinstance(scores, ScoreCounts):
        return ()
    inside, outside = scores.inside, scores.outside
    stream = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(1,)))
    if scores.design == "paired":
        order = stream.permutation(inside.size)
        inside, outside = inside[order], outside[order]
    elif not in_order:
        inside, outside = stream.permutation(inside), stream.permutation(outside)
    points = []
    for halvings in range(_POINTS):
        n_in, n_out = inside.size >> halvings, outside.size >> halvings
        if halvings and min(n_in, n_out) < _FEWEST:
            break
        part = replace(scores, inside=inside[:n_in], outside=outside[:n_out])
        part = scores if halvings == 0 else part
        points.append((n_in + n_out, bound(part)))
    return tuple(reversed(points))


def _bin_scores(scores: Observed) -> tuple[FloatArray, IntArray, IntArray]:
    if isinstance(scores, ScoreCounts):
        return _merge_bins(scores)
    every = np.concatenate([scores.inside, scores.outside]).astype(np.float64)
    finite = every[np.isfinite(every)]
    low, high = np.quantile(finite, [0.001, 0.999]) if finite.size else (0.0, 0.0)
    if low == high:
        low, high = low - 0.5, high + 0.5
    edges = np.linspace(low, high, _BINS + 1)
    inside_bins, outside_bins = (
        np.histogram(np.clip(part, low, high), edges)[0] for part in (scores.inside, scores.outside)
    )
    return edges, inside_bins, outside_bins


def _merge_bins(counts: ScoreCounts) -> tuple[FloatArray, IntArray, IntArray]:
    """Merge neighbouring bins of counts until they are few enough to draw."""
    thresholds = counts.thresholds
    step = float(np.mean(np.diff(thresholds))) if thresholds.size > 1 else 1.0
    edges = np.concatenate([[thresholds[0] - step], thresholds, [thresholds[-1] + step]])
    starts = np.arange(0, edges.size - 1, -(-edges.size // _BINS))
    inside_bins, outside_bins = (
        np.add.reduceat(bins, starts) for bins in (counts.inside_bins, counts.outside_bins)
    )
    return np.append(edges[starts], edges[-1]), inside_bins, outside_bins


def _round_digits(values: FloatArray) -> tuple[float, ...]:
    """Round to six digits: enough to draw, and half the size."""
    return tuple(float(f"{value:.6g}") for value in values)
