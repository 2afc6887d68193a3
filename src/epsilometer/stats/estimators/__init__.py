"""Register methods that turn observations into a lower bound on ε, one file per method."""

import numpy as np

from epsilometer import _validate
from epsilometer.core.bound import EpsilonLowerBound
from epsilometer.core.claim import DEFAULT_CONFIDENCE, Adjacency
from epsilometer.core.registry import Registry
from epsilometer.core.scores import CANARIES, Design, ScoreCounts, Scores, describe_design
from epsilometer.errors import InvalidArgument
from epsilometer.stats.designs import inspect_observations, refuse_canaries
from epsilometer.stats.estimators import (
    anytime,
    calibrated,
    clopper_pearson,
    gdp,
    jeffreys,
    joint_beta,
    one_run,
    one_run_fdp,
)
from epsilometer.stats.estimators.method import Method
from epsilometer.stats.thresholds import (
    UNPAID,
    AllRanks,
    Observed,
    Published,
    ThresholdRule,
)

REGISTRY: Registry[Method] = Registry(
    "estimators",
    {
        "calibrated": calibrated.METHOD,
        "clopper_pearson": clopper_pearson.METHOD,
        "jeffreys": jeffreys.METHOD,
        "joint_beta": joint_beta.METHOD,
        "gdp": gdp.METHOD,
        "one_run": one_run.METHOD,
        "one_run_fdp": one_run_fdp.METHOD,
        "anytime": anytime.METHOD,
    },
)
DEFAULT = "calibrated"


def choose_rule(
    method: str | None,
    rule: ThresholdRule | None,
    design: Design = "runs",
    observed: Observed | None = None,
) -> tuple[str, ThresholdRule]:
    """Return a compatible method and rule; fill in those that were not named."""
    if method is None and design in CANARIES:
        method = "one_run"
    if method is None:
        named = DEFAULT if rule is None else "clopper_pearson"
        method = "calibrated" if isinstance(rule, AllRanks) else named
    if rule is None:
        chosen = REGISTRY.find(method, label="method")
        if chosen.choose_rule is not None and observed is not None:
            rule = chosen.choose_rule(observed)
        else:
            rule = chosen.rules[0]()
    return method, rule


def epsilon_lower_bound(
    scores: Observed,
    *,
    delta: float,
    confidence: float = DEFAULT_CONFIDENCE,
    method: str | None = None,
    rule: ThresholdRule | None = None,
    seed: int = 0,
    adjacency: Adjacency = "unstated",
    adversary: str = "unstated",
) -> EpsilonLowerBound:
    """Bound ε from below, from the scores of an attack.

    Guarantee: with the default method and rule, the bound exceeds the true ε in at most ``1 -
        confidence`` of audits. The attack and the distribution of the scores do not matter. Each
        method and rule says what it guarantees; ``valid`` is false if nothing is guaranteed.
    Assumption: the scores were drawn as their design says. Those of runs are independent of each
        other, and those without the record are identically distributed.

    Args:
        scores: ``Scores``, or ``ScoreCounts`` if there are too many to keep.
        delta: δ at which ε is bounded.
        confidence: One-sided.
        method: A key of ``REGISTRY``; by default ``calibrated`` for runs, or ``clopper_pearson``
            with a rule that chooses one threshold, and ``one_run`` for canaries.
        rule: How thresholds are chosen, and so what the choice costs. By default the first that the
            method accepts: ``AllRanks()`` for ``calibrated`` and ``one_run``, ``RankSum()`` for
            ``gdp``, ``HoldOut()`` for ``one_run_fdp`` of 200 canaries or more that are not
            counted, otherwise ``RankGrid()``.
        seed: Seed for ties, which are broken at random, and rules that split at random. Same seed,
            same bound.
        adjacency: The neighbouring relation of the scores; copied to the bound.
        adversary: Whose view the scores are computed from, in words; copied to the bound.

    Example:
        >>> from epsilometer import Scores
        >>> rng = np.random.default_rng(0)
        >>> scores = Scores(inside=rng.normal(1, 1, 10_000), outside=rng.normal(0, 1, 10_000))
        >>> bound = epsilon_lower_bound(scores, delta=1e-5)  # the truth is 4.377
        >>> round(bound.epsilon, 2), bound.valid
        (2.19, True)
    """
    _validate.probability(delta=delta)
    _validate.open_unit(confidence=confidence)
    _validate.open_unit(**{"1 - confidence": 1 - confidence})  # what rounds to 1 is none
    _validate.whole(0, seed=seed)
    if not isinstance(scores, (Scores, ScoreCounts)):
        raise InvalidArgument(
            f"Expected Scores(inside, outside) or ScoreCounts, got {type(scores).__name__}."
        )
    if min(scores.n_in, scores.n_out) == 0:
        raise InvalidArgument(
            f"Expected scores inside and outside, got {scores.n_in} and {scores.n_out}."
        )
    method, rule = choose_rule(method, rule, scores.design, scores)
    chosen = _method(method, rule)
    check_design(scores, method)
    remarks = inspect_observations(scores)
    replaced = chosen.find_replaced if adjacency == "replace" else None
    found = (replaced or chosen.find)(
        scores,
        delta=delta,
        alpha=1 - confidence,
        rule=rule,
        rng=np.random.default_rng(seed),
    )
    return EpsilonLowerBound(
        epsilon=found.epsilon,
        delta=delta,
        confidence=confidence,
        method=method,
        threshold_rule=repr(rule),
        valid=chosen.exact and not isinstance(rule, UNPAID),
        direction=found.direction,
        threshold=found.threshold,
        n_in=scores.n_in,
        n_out=scores.n_out,
        design=scores.design,
        inclusion=scores.inclusion,
        adjacency=adjacency,
        adversary=adversary,
        seed=seed,
        cites=chosen.cites,
        caveats=(*_caveats(chosen, rule), *remarks, *found.caveats),
        basis=found.basis,
    )


def check_design(scores: Observed, method: str) -> None:
    """Refuse scores of a design that the method is not valid for."""
    designs = REGISTRY[method].designs
    if scores.design in designs:
        return
    if "runs" in designs:
        refuse_canaries(scores, method)
    raise InvalidArgument(
        f"Expected canaries of one run for {method}, got "
        f"{describe_design(scores.design, scores.inclusion)} (design = {scores.design!r}). State "
        f"how the canaries were put in, by design: {', '.join(designs)}. Runs are bounded by "
        f"{DEFAULT}, canaries of all designs by one_run."
    )


def _method(name: str, rule: ThresholdRule) -> Method:
    chosen = REGISTRY.find(name, label="method")
    if not isinstance(rule, chosen.rules):
        known = ", ".join(kind.__name__ for kind in chosen.rules)
        raise InvalidArgument(f"Expected rule for {name} to be one of {known}, got {rule!r}.")
    return chosen


def _caveats(method: Method, rule: ThresholdRule) -> tuple[str, ...]:
    caveats = []
    if not method.exact:
        caveats.append(f"Not a valid bound. {method.guarantees}")
    if isinstance(rule, UNPAID):
        caveats.append(
            "Not a valid bound: the threshold was chosen on the scores it is used on, at no cost."
        )
    if isinstance(rule, Published):
        caveats.append("Each of the two limits spends the whole error, as it was published.")
    return tuple(caveats)
