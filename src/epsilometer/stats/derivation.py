"""Explain a bound by its formula: what was counted, and why it holds.

Every method has its own function for this, next to the method; here is what they share. The
numbers come from the bound's ``basis``, so that a reader can put them into the formula.
"""

import functools
import math
import re
import tomllib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

from epsilometer.core.bound import Basis, EpsilonEstimate, EpsilonLowerBound
from epsilometer.stats import binomial

_DIGITS = 8  # significant ones, enough for a reader to compute the same ε


@dataclass(frozen=True, kw_only=True)
class Derivation:
    """From counts to ε.

    Attributes:
        counted: What was counted, in sentences.
        formula: Which formula turned it into ε, in lines, with the numbers put in.
        holds: Why the confidence holds, or that it does not, in sentences.
    """

    counted: tuple[str, ...]
    formula: tuple[str, ...]
    holds: tuple[str, ...]


Derive: TypeAlias = Callable[[EpsilonLowerBound], Derivation]
DeriveEstimate: TypeAlias = Callable[[EpsilonEstimate], Derivation]
_KNOWN_ONLY = re.compile("⟦(.*?)⟧")  # what can be said only where a result has a basis


@functools.cache
def read_texts() -> dict[str, Any]:
    """Read the sentences of ``derivations.toml``, which computing a bound does not need."""
    return tomllib.loads(Path(__file__).with_name("derivations.toml").read_text("utf-8"))


class _Number(float):
    """A number that fills a template: with all its digits, or as a count."""

    def __format__(self, spec: str) -> str:
        return count(self) if spec == "," else shown(float(self))


def fill_lines(
    lines: Iterable[str], result: EpsilonLowerBound | EpsilonEstimate, **more: float | str
) -> tuple[str, ...]:
    """Put the numbers of a result, and ``more``, into templates of ``derivations.toml``."""
    has = known(result.basis)
    fields = {name: getattr(result, name) for name in result.__struct_fields__}
    inverses = {f"1/{name}": 1 / value for name, value in has.items() if value}
    values = {
        name: _Number(value) if isinstance(value, (int, float)) else value
        for name, value in {**fields, **has, **inverses, **more}.items()
    }
    filled: list[str] = []
    for line in lines:
        if line == "@caveats":
            filled += result.caveats
        elif line.startswith("@"):
            filled += fill_lines(read_texts()["lines"][line[1:]], result, **more)
        else:
            text = _KNOWN_ONLY.sub(r"\1" if has else "", line)
            places = map(_Number, has.values())  # {0} is the first number of the basis
            filled.append(
                text.format(*places, **values) if text else read_texts()["lines"]["not_kept"][0]
            )
    return tuple(filled)


def known(basis: Basis) -> dict[str, float]:
    """Return the numbers of a basis by their names."""
    return dict(basis)


def shown(value: float) -> str:
    """Format a number as it stands in a formula."""
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    return f"{value:.{_DIGITS}g}"


def count(value: float) -> str:
    """Format a count for a sentence."""
    return f"{int(value):,}"


def rule_of(bound: EpsilonLowerBound) -> str:
    """Return the name of the rule by which a threshold was chosen."""
    return bound.threshold_rule.partition("(")[0]


def paid(bound: EpsilonLowerBound) -> str:
    """Explain what choosing the threshold cost, where errors are counted at it."""
    return str(read_texts()["paid"].get(rule_of(bound), f"Thresholds: {bound.threshold_rule}."))


def two_rates(kind: Literal["clopper_pearson", "jeffreys"]) -> Derive:
    """Return the derivation of methods that limit both error rates, by (ε, δ)-DP."""

    def derive(bound: EpsilonLowerBound) -> Derivation:
        has = known(bound.basis)
        if "level" in has:
            return _at_rank(bound, has, "e^ε·F + δ", f"p({shown(bound.epsilon)})")
        lines, (fpr, fnr) = limits(bound, kind)
        gains, losses = ("1 − δ − FNR⁺", "1 − δ − FPR⁺"), ("FPR⁺", "FNR⁺")
        row = int(bound.direction == "absent→present")
        numbers = ""
        if has:
            rates = (fnr, fpr)[row], (fpr, fnr)[row]
            inner = f"(1 − {shown(bound.delta)} − {shown(rates[0])}) / {shown(rates[1])}"
            numbers = f" = max(0, ln({inner})) = {shown(bound.epsilon)}"
        return Derivation(
            counted=count_errors_at(bound),
            formula=(
                "(ε, δ)-DP allows every attack TPR ≤ e^ε·FPR + δ, and 1 − FPR ≤ e^ε·FNR + δ.",
                *lines,
                f"ε = max(0, ln(({gains[row]}) / {losses[row]})){numbers}",
            ),
            holds=(paid(bound),),
        )

    return derive


def gaussian_dp(bound: EpsilonLowerBound) -> Derivation:
    """Derive a bound of the method that takes the trade-off curve for Gaussian."""
    has = known(bound.basis)
    last = epsilon_of_mu(bound)
    if "pairs won" in has or (rule_of(bound) == "RankSum" and not has):
        tied = ["@pairs_tied"] if has.get("ties broken") else []
        return Derivation(
            counted=fill_lines(["@pairs", *tied], bound),
            formula=(*fill_lines(["@law_of_pairs"], bound), *last),
            holds=fill_lines(["@pairs_hold"], bound),
        )
    if "level" in has:
        at = _at_rank(bound, has, "Φ(Φ⁻¹(F) + μ)", f"p({shown(has['μ'])})", merit="μ")
        return Derivation(counted=at.counted, formula=(*at.formula, *last), holds=at.holds)
    lines, (fpr, fnr) = limits(bound, "clopper_pearson")
    numbers = (
        f" = max(0, −Φ⁻¹({shown(fpr)}) − Φ⁻¹({shown(fnr)})) = {shown(has['μ'])}" if has else ""
    )
    return Derivation(
        counted=count_errors_at(bound),
        formula=(*lines, f"μ = max(0, −Φ⁻¹(FPR⁺) − Φ⁻¹(FNR⁺)){numbers}", *last),
        holds=(paid(bound),),
    )


def epsilon_of_mu(result: EpsilonLowerBound | EpsilonEstimate) -> tuple[str, ...]:
    """Return the line from μ of Gaussian DP to ε at δ (Balle and Wang 2018)."""
    return fill_lines(["@epsilon_of_mu"], result)


def count_errors_at(bound: EpsilonLowerBound) -> tuple[str, ...]:
    """Say how many errors the attack makes at its threshold."""
    has = known(bound.basis)
    every = (has.get("scores inside"), has.get("scores outside")) == (bound.n_in, bound.n_out)
    return fill_lines(["@errors" if every or not has else "@errors_of_part"], bound)


def limits(
    bound: EpsilonLowerBound, kind: Literal["clopper_pearson", "jeffreys"]
) -> tuple[tuple[str, ...], tuple[float, float]]:
    """Return the lines of both rates' upper limits, and the limits."""
    has = known(bound.basis)
    sides = (
        ("FPR", "false positives", "scores outside"),
        ("FNR", "false negatives", "scores inside"),
    )
    exact = kind == "clopper_pearson"
    lines, found = [], []
    for rate, errors, of in sides:
        line = f"{rate}⁺ = Beta⁻¹(1 − α′; {'k + 1, n − k' if exact else 'k + ½, n − k + ½'})"
        if has:
            k, n, level = has[errors], has[of], has[f"level of the {rate}"]
            limit = float(binomial.upper_limit(k, n, alpha=level, kind=kind)[0])
            a, b = (k + 1, n - k) if exact else (k + 0.5, n - k + 0.5)
            numbers = (
                "1: all were errors"
                if k == n
                else (f"Beta⁻¹(1 − {shown(level)}; {shown(a)}, {shown(b)}) = {shown(limit)}")
            )
            line = f"{line} = {numbers}"
            found.append(limit)
        lines.append(f"{line}    (k {errors} of n {of})")
    return tuple(lines), (found[0], found[1]) if has else (math.nan, math.nan)


def _at_rank(
    bound: EpsilonLowerBound,
    has: dict[str, float],
    allows: str,
    at: str,
    *,
    merit: str = "ε",
) -> Derivation:
    """Derive the exact test at a rank, where one error rate has a known distribution."""
    out = "rank outside" in has
    ranked, other = ("outside", "inside") if out else ("inside", "outside")
    k, n = has[f"rank {ranked}"], has[f"scores {ranked}"]
    x, m = has[f"{other} beyond"], has[f"scores {other}"]
    numbers = {"k": k, "n": n, "x": x, "m": m, "rest": n - k + 1, "rest_beyond": m - x + 1}
    words = {
        "ranked": ranked,
        "other": other,
        "place": "highest" if out else "lowest",
        "rate": "false positive rate" if out else "false negative rate",
        "hits": "TPR" if out else "1 − FPR",
        "allows": allows,
        "merit": merit,
        "at": at,
    }
    last = "@nothing_at_rank" if bound.epsilon == 0 else "@level_at_rank"
    return Derivation(
        counted=fill_lines(["@rank"], bound, **numbers, **words),
        formula=fill_lines(["@test_at_rank", last], bound, **numbers, **words),
        holds=(paid(bound),),
    )
