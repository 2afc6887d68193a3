"""How every kind of bound and estimate came about: the rows of the registry, and those beside it.

A method of the registry says it beside itself. Rows here belong to bounds and estimates that come
from elsewhere: cosines of canaries, accountants (whose room is above this one), fitted laws.
"""

import math
from collections.abc import Callable
from types import MappingProxyType
from typing import Any, Literal

from epsilometer.core.bound import EpsilonEstimate, EpsilonLowerBound
from epsilometer.errors import InvalidArgument
from epsilometer.stats import binomial
from epsilometer.stats.derivation import (
    Derivation,
    Derive,
    DeriveEstimate,
    count,
    counted_at,
    epsilon_of_mu,
    known,
    shown,
)
from epsilometer.stats.estimators import REGISTRY
from epsilometer.stats.sphere import cosine_cdf, cosine_logsf

_NOT_KEPT = "This result does not say what was counted: it was made before results did, or by hand."
_COMPUTED = (
    "Nothing was sampled: the two ends are numerical error. A claim below the lower end is false "
    "of this mechanism, by computation."
)
_NO_BOUND = (
    "It does not: an estimate is no bound. Its interval tells how much it scatters, and it never "
    "refutes a claim."
)
_ADDED_UP = (
    "L = ln P(o)/Q(o): the loss of what is seen, o, with the record (P) and without it (Q); "
    "independent parts add up",
    "δ(ε) = E_P[max(0, 1 − e^(ε − L))], and the same with P and Q exchanged; the larger counts",
)


def _cosines(bound: EpsilonLowerBound) -> Derivation:
    return _of_cosines(bound, exact=True)


def _one_shot(bound: EpsilonLowerBound) -> Derivation:
    return _of_cosines(bound, exact=False)


def _of_cosines(bound: EpsilonLowerBound, *, exact: bool) -> Derivation:
    """Of bounds whose FPR is known exactly: only one rate is limited."""
    has, row = known(bound.basis), int(bound.direction == "absent→present")
    if not has:
        return Derivation(
            counted=(_NOT_KEPT,), formula=_known_null(row, "", ""), holds=(_null_paid(exact),)
        )
    k, level, d = has["cosines"], has["level"], has["dimension"]
    missed = has.get("cosines that miss it", k - has.get("cosines that reach it", 0))
    t = bound.threshold
    kind: Literal["clopper_pearson", "jeffreys"] = "clopper_pearson" if exact else "jeffreys"
    if exact and row == 0:
        hits = k - missed
        rate = float(binomial.clopper_pearson_lower(hits, k, alpha=level))
        if hits == 1:
            rate = min(rate, level / k)  # Hoeffding's comparison begins at two hits
        limit = f"TPR⁻ = Beta⁻¹({shown(level)}; {shown(hits)}, {shown(k - hits + 1)})"
        limit += f", at most {shown(level)}/{shown(k)} for one hit" if hits == 1 else ""
        sure = rate
    else:
        fnr, tpr = (float(side) for side in binomial.upper_limit(missed, k, alpha=level, kind=kind))
        a, b = (missed + 1, k - missed) if exact else (missed + 0.5, k - missed + 0.5)
        limit = f"FNR⁺ = Beta⁻¹(1 − {shown(level)}; {shown(a)}, {shown(b)})"
        rate = fnr
        sure = tpr
    if row == 0:
        log_fpr = float(cosine_logsf(t, int(d)))
        put_in = f"ln({shown(sure)} − {shown(bound.delta)}) − ({shown(log_fpr)})"
        null = f"ln FPR = ln Pr[cosine ≥ {shown(t)}] = {shown(log_fpr)}"
    else:
        tnr = float(cosine_cdf(t, int(d)))
        put_in = f"ln({shown(tnr)} − {shown(bound.delta)}) − ln({shown(rate)})"
        null = f"TNR = Pr[cosine < {shown(t)}] = {shown(tnr)}"
    return Derivation(
        counted=(
            f"{count(k - missed)} of the cosines of {count(k)} canaries that took part are at "
            f"least {shown(t)}, {count(missed)} are not.",
        ),
        formula=(
            f"{limit} = {shown(rate)}",
            f"{null}    (a canary that took no part, in {count(d)} dimensions: exact)",
            *_known_null(
                row, "TPR⁻" if exact else "1 − FNR⁺", f"{put_in}) = {shown(bound.epsilon)}"
            ),
        ),
        holds=(_null_paid(exact),),
    )


def _known_null(row: int, rate: str, numbers: str) -> tuple[str, ...]:
    formula = f"ln({rate or 'TPR⁻'} − δ) − ln FPR" if row == 0 else "ln(TNR − δ) − ln FNR⁺"
    return (f"ε = max(0, {formula})" + (f" = max(0, {numbers}" if numbers else ""),)


def _null_paid(exact: bool) -> str:
    if not exact:
        return (
            "It does not: every cosine was tried as threshold at no cost, and Jeffreys' limit "
            "holds on average over rates only."
        )
    return (
        "The law of a canary that took no part is known, so only one rate has a limit that may "
        "fail. Thresholds at ranks have a known law whatever that of the cosines; those at "
        "quantiles were fixed beforehand. All of them, in both directions, share "
        "α = 1 − confidence."
    )


def _mean_cosine(bound: EpsilonLowerBound) -> Derivation:
    has = known(bound.basis)
    formula, counted = "μ = max(0, √d·(c̄ − q/√k))", _NOT_KEPT
    if has:
        mean, k, d, q = (has[n] for n in ("mean cosine", "cosines", "dimension", "quantile"))
        counted = (
            f"The cosines of {count(k)} canaries have the mean {shown(mean)}, in {count(d)} "
            "dimensions."
        )
        inner = f"√{shown(d)}·({shown(mean)} − {shown(q)}/√{shown(k)})"
        formula += f" = max(0, {inner}) = {shown(has['μ'])}"
    return Derivation(
        counted=(counted,),
        formula=(
            f"{formula}    (q: quantile of a cosine that took no part)",
            *epsilon_of_mu(bound),
        ),
        holds=(
            "√k times the mean is the cosine with one direction, whose law is known: it falls "
            "below c̄ − q/√k with chance at most 1 − confidence. No threshold is chosen, so none "
            "is paid for.",
        ),
    )


def _joint_raw(bound: EpsilonLowerBound) -> Derivation:
    """Of joint thresholds as a paper has them: rates as counted, floored at one run."""
    has, row = known(bound.basis), int(bound.direction == "absent→present")
    floor = has["rates floored at"]
    fpr = max(has["false positives"] / has["scores outside"], floor)
    fnr = max(has["false negatives"] / has["scores inside"], floor)
    worths = [
        (math.log(max(1 - bound.delta - a, 1e-300) / b), a, b) for a, b in ((fnr, fpr), (fpr, fnr))
    ]
    row = int(worths[1][0] > worths[0][0])
    _, a, b = worths[row]
    names = (("FNR", "FPR"), ("FPR", "FNR"))[row]
    put_in = f"(1 − {shown(bound.delta)} − {shown(a)}) / {shown(b)}"
    return Derivation(
        counted=counted_at(bound),
        formula=(
            f"FPR = {shown(fpr)}, FNR = {shown(fnr)}: shares as counted, at least {shown(floor)}",
            f"ε = max(0, ln((1 − δ − {names[0]}) / {names[1]})) = max(0, ln({put_in})) = "
            f"{shown(bound.epsilon)}",
        ),
        holds=(
            "It does not: thresholds were chosen on the very runs they are used on, and rates "
            "have no limits. It is above 0 also where nothing leaks.",
        ),
    )


def _poisson_family(bound: EpsilonLowerBound) -> Derivation:
    has = known(bound.basis)
    counted, at = "", ""
    if has:
        s, q, steps = (has[n] for n in ("noise multiplier at most", "sampling rate", "steps"))
        counted = f" They say that the noise multiplier is at most s⁺ = {shown(s)}."
        at = (
            f": with s⁺ = {shown(s)}, rate q = {shown(q)}, T = {count(steps)} steps and "
            f"δ = {shown(bound.delta)}, ε = {shown(bound.epsilon)}"
        )
    return Derivation(
        counted=(
            f"{count(bound.n_in)} scores with the canary, {count(bound.n_out)} without it, by "
            f"{bound.threshold_rule}.{counted}",
        ),
        formula=(
            "Noise s allows at FPR F a TPR of g_s(F) at most; who does better than g_s refutes all "
            "noise of s or more",
            "s⁺ is the largest noise that the scores do not refute at level α = 1 − confidence",
            *_ADDED_UP,
            f"ε solves δ(ε) = δ for DP-SGD by Poisson sampling with noise s⁺{at}",
        ),
        holds=(
            "Only how much noise there is must be inferred. Rank sums have no threshold, and the "
            "rank among simulated ones is an exact p-value for any number of simulations (Barnard "
            "1963); ranks share α. What is rounded is rounded so that ε gets no larger.",
        ),
    )


def _exact(estimate: EpsilonEstimate) -> Derivation:
    return Derivation(
        counted=(_setting(estimate), "Nothing was counted: the law of all steps is computed."),
        formula=(
            *_ADDED_UP,
            "An epoch whose target's batch has mean a + 1 with the record and a without it, noise "
            "σ: L = −(2a + 1)/(2σ²) + ln Σₜ vₜ^(a+1) − ln Σₜ vₜ^a, vₜ = exp(xₜ/σ²)",
            "L > τ says Σₜ g(vₜ/K) > 0, a sum of independent terms: its tails are convolution "
            "powers of one law, taken by FFT; epochs add",
            f"ε solves δ(ε) = {shown(estimate.delta)}: ε = {shown(estimate.epsilon)}, between "
            f"{shown(estimate.low)} and {shown(estimate.high)}",
        ),
        holds=(_COMPUTED,),
    )


def _pld(estimate: EpsilonEstimate) -> Derivation:
    return Derivation(
        counted=(_setting(estimate), "Nothing was counted: the law of the loss is computed."),
        formula=(
            *_ADDED_UP,
            "A step by Poisson sampling: P = (1 − q)·N(0, s²) + q·N(1, s²), Q = N(0, s²)",
            f"ε solves δ(ε) = {shown(estimate.delta)}: ε = {shown(estimate.epsilon)}",
        ),
        holds=("Nothing was sampled. Losses are rounded up, so that ε is no smaller than it is.",),
    )


def _known_batches(estimate: EpsilonEstimate) -> Derivation:
    has = known(estimate.basis)
    mu = f" = {shown(1 / has['noise multiplier'])}" if has else ""
    return Derivation(
        counted=(_setting(estimate), "Nothing was counted: an upper bound for all data."),
        formula=(
            "Given the batches, an epoch moves one sum by at most the clipping norm; E epochs are "
            f"together a Gaussian pair, N(μ, 1) against N(0, 1), μ = √E/σ{mu}",
            "Secret batches leak no more: D(Σ p P_b, Σ p Q_b) ≤ Σ p D(P_b, Q_b)",
            f"δ(ε) = Φ(μ/2 − ε/μ) − e^ε·Φ(−μ/2 − ε/μ) = {shown(estimate.delta)}: "
            f"ε = {shown(estimate.epsilon)}",
        ),
        holds=("Nothing was sampled. ε is rounded up.",),
    )


def _gaussian_mechanism(estimate: EpsilonEstimate) -> Derivation:
    return Derivation(
        counted=("Nothing was counted: ε of the mechanism itself, for comparison.",),
        formula=(
            "A record of norm 1 moves a sum with noise σ: N(μ, 1) against N(0, 1), μ = 1/σ",
            f"δ(ε) = Φ(μ/2 − ε/μ) − e^ε·Φ(−μ/2 − ε/μ) = {shown(estimate.delta)}: "
            f"ε = {shown(estimate.epsilon)}",
        ),
        holds=("Nothing was sampled. It is shown beside the bound and decides nothing.",),
    )


def _accounting(estimate: EpsilonEstimate) -> Derivation:
    return Derivation(
        counted=(f"Nothing was counted: ε of {estimate.subject}, by its accountant.",),
        formula=(
            "Rounds in which the client takes part are composed by the accountant named above",
            f"ε solves δ(ε) = {shown(estimate.delta)}: ε = {shown(estimate.epsilon)}",
        ),
        holds=("Nothing was sampled. It is shown beside the bound and decides nothing.",),
    )


def _monte_carlo(estimate: EpsilonEstimate) -> Derivation:
    has = known(estimate.basis)
    drawn = f" {count(has['draws'])} of them were drawn." if has else ""
    width = f" (standard error {shown(has['standard error'])})" if has else ""
    return Derivation(
        counted=(f"{_setting(estimate)} Losses are drawn and not computed.{drawn}",),
        formula=(
            *_ADDED_UP,
            "the mean over P is that of losses drawn where they matter, each weighed by how much "
            "rarer it is under P (importance sampling)",
            f"ε solves δ(ε) = {shown(estimate.delta)}: ε = {shown(estimate.epsilon)}, "
            f"{shown(estimate.low)} to {shown(estimate.high)}{width}",
        ),
        holds=(_NO_BOUND,),
    )


def _normal_laws(estimate: EpsilonEstimate) -> Derivation:
    has = known(estimate.basis)
    laws, counted = "", _NOT_KEPT
    if has:
        present, absent = (
            f"N({shown(has[f'mean {world}'])}, {shown(has[f'spread {world}'])}²)"
            for world in ("present", "absent")
        )
        laws = f": P = {present}, Q = {absent}"
        counted = (
            f"Canaries that took part have cosines of mean {shown(has['mean present'])} and spread "
            f"{shown(has['spread present'])}; without it they are {shown(has['mean absent'])} and "
            f"{shown(has['spread absent'])}."
        )
    return Derivation(
        counted=(counted,),
        formula=(
            f"P and Q are taken to be normal{laws}",
            "δ(ε) = max over attacks of Pr_P[in] − e^ε·Pr_Q[in], and with P and Q exchanged",
            f"ε solves δ(ε) = {shown(estimate.delta)}: ε = {shown(estimate.epsilon)}; resampled "
            f"canaries give {shown(estimate.low)} to {shown(estimate.high)}",
        ),
        holds=(_NO_BOUND,),
    )


def _largest_round(estimate: EpsilonEstimate) -> Derivation:
    has = known(estimate.basis)
    counted, laws = _NOT_KEPT, ""
    if has:
        counted = (
            f"The largest cosines look like those of {shown(has['rounds'])} rounds, one of them "
            f"shifted by {shown(has['shift'])} standard deviations."
        )
        laws = f" (n = {shown(has['rounds'])}, μ = {shown(has['shift'])})"
    return Derivation(
        counted=(counted,),
        formula=(
            f"P(t) = Φ(t)^(n−1)·Φ(t − μ), Q(t) = Φ(t)^n: laws of the largest of n rounds{laws}",
            "δ(ε) = max over thresholds of Pr_P[≥ t] − e^ε·Pr_Q[≥ t], and with P and Q exchanged",
            f"ε solves δ(ε) = {shown(estimate.delta)}: ε = {shown(estimate.epsilon)}; resampled "
            f"canaries give {shown(estimate.low)} to {shown(estimate.high)}",
        ),
        holds=(_NO_BOUND,),
    )


def _canife(estimate: EpsilonEstimate) -> Derivation:
    has = known(estimate.basis)
    counted = _NOT_KEPT
    if has:
        counted = (
            f"{count(has['rounds audited'])} of {count(has['rounds'])} rounds were attacked with a "
            "crafted example; each gave the noise that its scores look like."
        )
    return Derivation(
        counted=(counted,),
        formula=(
            "noise of a round = the s at which N(1, s²) against N(0, s²) has the ε of its scores",
            f"rounds are composed as Poisson sampling by RDP: ε = {shown(estimate.epsilon)}",
        ),
        holds=("It does not: neither a lower nor an upper bound.",),
    )


def _setting(estimate: EpsilonEstimate) -> str:
    return f"Whose ε it is: {estimate.subject}."


def _noise_of_run(bound: EpsilonLowerBound) -> Derivation:
    has, said, at = known(bound.basis), "", ""
    if has:
        least, share, _, level = has.values()
        at = f" at level α = {shown(level)}"
        said = (
            f" They say that the noise multiplier is at most s⁺ = {shown(least)}, {shown(share)} "
            "of the booked one."
        )
    return Derivation(
        counted=(
            f"Residuals of {count(bound.n_in)} steps: what was released less the sum before noise, "
            f"in units of the booked noise.{said}",
        ),
        formula=(
            "s⁺ is the least upper limit on the noise of a tensor, or of all, over what one record "
            f"adds; all limits hold together{at}, at every step",
            "ε solves δ(ε) = δ for noise s⁺, by an accountant that rounds down: "
            f"{shown(bound.epsilon)}",
        ),
        holds=(
            "A limit is exceeded at any step with probability α at most (Ville 1939).",
            *bound.caveats,
        ),
    )


BOUNDS: MappingProxyType[str, Derive] = MappingProxyType(
    {
        **{name: method.derive for name, method in REGISTRY.items()},
        "cosines": _cosines,
        "mean_cosine": _mean_cosine,
        "poisson_family": _poisson_family,
        "noise_of_run": _noise_of_run,
    }
)
# By how the name of their method begins: some names hold numbers.
ESTIMATES: MappingProxyType[str, DeriveEstimate] = MappingProxyType(
    {
        "exact": _exact,
        "PLD": _pld,
        "known batches": _known_batches,
        "Gaussian mechanism": _gaussian_mechanism,
        "accounting": _accounting,
        "monte_carlo": _monte_carlo,
        "normal law": _normal_laws,
        "law of the largest": _largest_round,
        "CANIFE": _canife,
    }
)


def derivation_of(result: EpsilonLowerBound | EpsilonEstimate) -> Derivation:
    """How a bound or an estimate came about.

    Guarantees: numbers are those of the result, so that the formula gives its ε.
    Assumes: its method is one of ours; else ``InvalidArgument``.

    Example:
        >>> from epsilometer.core.scores import Scores
        >>> from epsilometer.stats.estimators import epsilon_lower_bound
        >>> from epsilometer.stats.thresholds import Fixed
        >>> scores = Scores(inside=[1.0] * 50, outside=[0.0] * 50)
        >>> bound = epsilon_lower_bound(scores, delta=0.0, rule=Fixed(0.5))
        >>> print(derivation_of(bound).formula[-1].rpartition(" = max")[2])
        (0, ln((1 − 0 − 0.071121736) / 0.071121736)) = 2.5695847
    """
    try:
        return _row(result)(result)
    except (ArithmeticError, LookupError, ValueError) as error:
        if isinstance(error, InvalidArgument):
            raise
        raise InvalidArgument(
            f"Expected the basis of a result of {result.method!r} that epsilometer wrote, got "
            f"{str(result.basis)[:60]}."
        ) from error


def _row(result: EpsilonLowerBound | EpsilonEstimate) -> Callable[[Any], Derivation]:
    """Who says how such a result came about."""
    if isinstance(result, EpsilonEstimate):
        for begun, derive in ESTIMATES.items():
            if result.method.startswith(begun):
                return derive
    elif "rates floored at" in known(result.basis):
        return _joint_raw
    elif result.method == "jeffreys" and result.n_out == 0:
        return _one_shot
    elif result.method in BOUNDS:
        return BOUNDS[result.method]
    raise InvalidArgument(
        f"Expected a result of a method that epsilometer knows, got one of {result.method!r}."
    )
