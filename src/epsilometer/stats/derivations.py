"""Explain every kind of bound and estimate: how it was computed, with its numbers.

A method of the registry explains its own bounds. Rows of ``derivations.toml`` belong to
bounds and estimates from elsewhere: accountants, fitted distributions, noise that was measured.
"""

import functools
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
    count_errors_at,
    fill_lines,
    known,
    read_texts,
    shown,
)
from epsilometer.stats.estimators import REGISTRY
from epsilometer.stats.sphere import cosine_logsf, cosine_sf


def _derive_cosines(bound: EpsilonLowerBound, *, exact: bool) -> Derivation:
    """Derive bounds whose FPR is known exactly, so that only one rate is limited."""
    has, row = known(bound.basis), int(bound.direction == "absent→present")
    if not has:
        return Derivation(
            counted=count_errors_at(bound),
            formula=_write_known_null(row, "", ""),
            holds=(_explain_null_cost(exact),),
        )
    k, level, d = has["cosines"], has["level"], has["dimension"]
    missed = has.get("cosines that miss it", k - has.get("cosines that reach it", 0))
    t, rounds = bound.threshold, has.get("rounds", 1)
    some = f" in one of {count(rounds)} rounds" if rounds > 1 else ""
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
        log_fpr = min(float(cosine_logsf(t, int(d))) + math.log(rounds), 0.0)
        put_in = f"ln({shown(sure)} − {shown(bound.delta)}) − ({shown(log_fpr)})"
        chance = f"{'' if rounds == 1 else f'{count(rounds)}·'}Pr[cosine ≥ {shown(t)}]"
        null = f"ln FPR = ln {chance} = {shown(log_fpr)}"
    else:
        tnr = 1 - rounds * float(cosine_sf(t, int(d)))
        put_in = f"ln({shown(tnr)} − {shown(bound.delta)}) − ln({shown(rate)})"
        missed_by = "" if rounds == 1 else f"1 − {count(rounds)}·Pr[cosine ≥ {shown(t)}] = "
        null = f"TNR = {missed_by or f'Pr[cosine < {shown(t)}] = '}{shown(tnr)}"
    return Derivation(
        counted=(
            f"{count(k - missed)} of the cosines of {count(k)} canaries that took part are at "
            f"least {shown(t)}{some}, {count(missed)} are not.",
        ),
        formula=(
            f"{limit} = {shown(rate)}",
            f"{null}    (a canary that took no part, in {count(d)} dimensions: exact)",
            *_write_known_null(
                row, "TPR⁻" if exact else "1 − FNR⁺", f"{put_in}) = {shown(bound.epsilon)}"
            ),
        ),
        holds=(_explain_null_cost(exact),),
    )


def _write_known_null(row: int, rate: str, numbers: str) -> tuple[str, ...]:
    formula = f"ln({rate or 'TPR⁻'} − δ) − ln FPR" if row == 0 else "ln(TNR − δ) − ln FNR⁺"
    return (f"ε = max(0, {formula})" + (f" = max(0, {numbers}" if numbers else ""),)


def _explain_null_cost(exact: bool) -> str:
    if not exact:
        return (
            "It does not: every cosine was tried as threshold at no cost, and Jeffreys' limit "
            "holds on average over rates only."
        )
    return (
        "The distribution of a canary that took no part is known, so only one rate has a limit "
        "that may fail. Thresholds at ranks have a known distribution whatever that of the "
        "cosines; those at quantiles were fixed beforehand. All of them, in both directions, "
        "share α = 1 − confidence."
    )


def _derive_joint(bound: EpsilonLowerBound) -> Derivation:
    """Derive bounds of joint thresholds as a paper has them: rates floored at one run."""
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
        counted=count_errors_at(bound),
        formula=(
            f"FPR = {shown(fpr)}, FNR = {shown(fnr)}: shares as counted, at least {shown(floor)}",
            f"ε = max(0, ln((1 − δ − {names[0]}) / {names[1]})) = max(0, ln({put_in})) = "
            f"{shown(bound.epsilon)}",
        ),
        holds=(
            "It does not: thresholds were chosen on the runs they are used on, and rates have "
            "no limits. It exceeds 0 even if nothing leaks.",
        ),
    )


def _fill_row(row: dict[str, list[str]], result: EpsilonLowerBound | EpsilonEstimate) -> Derivation:
    return Derivation(**{part: fill_lines(lines, result) for part, lines in row.items()})


def _fill_table(name: str) -> dict[str, Any]:
    return {method: functools.partial(_fill_row, row) for method, row in read_texts()[name].items()}


BOUNDS: MappingProxyType[str, Derive] = MappingProxyType(
    {
        **{name: method.derive for name, method in REGISTRY.items()},
        "cosines": functools.partial(_derive_cosines, exact=True),
        **_fill_table("bounds"),
    }
)
# By how the name of their method begins: some names hold numbers.
ESTIMATES: MappingProxyType[str, DeriveEstimate] = MappingProxyType(_fill_table("estimates"))


def derivation_of(result: EpsilonLowerBound | EpsilonEstimate) -> Derivation:
    """Explain how a bound or an estimate was computed.

    Guarantee: numbers are those of the result, so that the formula gives its ε.
    Assumption: its method is one of ours; else ``InvalidArgument``.

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
        return _find_row(result)(result)
    except (ArithmeticError, LookupError, ValueError) as error:
        if isinstance(error, InvalidArgument):
            raise
        raise InvalidArgument(
            f"Expected the basis of a result of {result.method!r} that epsilometer wrote, got "
            f"{str(result.basis)[:60]}."
        ) from error


def _find_row(result: EpsilonLowerBound | EpsilonEstimate) -> Callable[[Any], Derivation]:
    """Return what explains results of this method."""
    if isinstance(result, EpsilonEstimate):
        for begun, derive in ESTIMATES.items():
            if result.method.startswith(begun):
                return derive
    elif "rates floored at" in known(result.basis):
        return _derive_joint
    elif result.method == "jeffreys" and result.n_out == 0:
        return functools.partial(_derive_cosines, exact=False)
    elif result.method in BOUNDS:
        return BOUNDS[result.method]
    raise InvalidArgument(
        f"Expected a result of a method that epsilometer knows, got one of {result.method!r}."
    )
