"""Two results side by side: which settings differ, which bounds, and whether that means anything.

A lower bound has no upper end, so two of them never say whose ε is larger. What can be told apart
is what was observed: two bands of error rates, two intervals.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from epsilometer.errors import InvalidArgument, UnreadableFile
from epsilometer.history.entries import Entry, bound_of, entries_of, parts_of
from epsilometer.history.index import read_plain

_OF_A_BOUND = (
    "delta",
    "confidence",
    "method",
    "threshold_rule",
    "adjacency",
    "adversary",
    "seed",
    "n_in",
    "n_out",
)
_LONGEST = 60


@dataclass(frozen=True, kw_only=True)
class Compared:
    """One audit in both results.

    Attributes:
        first: The audit in the first result.
        second: The same in the second.
        difference: Of ε, second less first; None where there is none to take.
        told_apart: Whether what was observed differs by more than chance explains.
        meaning: What may be concluded, in sentences.
    """

    first: Entry
    second: Entry
    difference: float | None
    told_apart: bool
    meaning: str


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Two results.

    Attributes:
        settings: (name, in the first, in the second) where they differ.
        audits: Audits that are in both, by their subjects.
        only_first: Subjects that the second result does not have.
        only_second: Subjects that the first does not have.
    """

    settings: tuple[tuple[str, str, str], ...]
    audits: tuple[Compared, ...]
    only_first: tuple[str, ...]
    only_second: tuple[str, ...]


def compare(first: Path, second: Path) -> Comparison:
    """Compares the results in two files or directories of runs.

    Guarantees: audits that are called different are, with the confidence that ``meaning`` names.
    Assumes: observations of an audit are independent, as its band of error rates does.
    """
    try:
        return _comparison(first, second)
    except InvalidArgument as error:
        raise UnreadableFile(str(error)) from error
    except (ArithmeticError, KeyError, TypeError, ValueError) as error:
        raise UnreadableFile(
            f"Expected results of epsilometer's in {str(first)!r} and {str(second)!r}; one of them "
            f"is damaged ({type(error).__name__}: {error})."
        ) from error


def _comparison(first: Path, second: Path) -> Comparison:
    plains = [read_plain(path) for path in (first, second)]
    places = [str(path) for path in (first, second)]
    parts = [parts_of(plain) for plain in plains]
    entries = [entries_of(plain, path=at) for plain, at in zip(plains, places, strict=True)]
    pairs = _pairs(*entries)
    audits = tuple(
        _compared(entries[0][i], entries[1][j], parts[0][i], parts[1][j]) for i, j in pairs
    )
    alone = [
        tuple(
            entry.subject for k, entry in enumerate(side) if k not in {pair[at] for pair in pairs}
        )
        for at, side in enumerate(entries)
    ]
    plans = [_plan(path) for path in (first, second)]
    settings = _differing(
        *({**_shared(plain), **plan} for plain, plan in zip(plains, plans, strict=True))
    )
    for i, j in pairs:
        name = f" of {entries[0][i].subject}" if len(pairs) > 1 else ""
        settings += [
            (f"{key}{name}", a, b)
            for key, a, b in _differing(_of_part(parts[0][i]), _of_part(parts[1][j]))
        ]
    return Comparison(
        settings=tuple(settings), audits=audits, only_first=alone[0], only_second=alone[1]
    )


def _pairs(first: list[Entry], second: list[Entry]) -> list[tuple[int, int]]:
    """Audits of one subject, in the order of the first; two lone audits are a pair in any case."""
    if len(first) == len(second) == 1:
        return [(0, 0)]
    free = list(range(len(second)))
    pairs = []
    for i, entry in enumerate(first):
        same = [j for j in free if second[j].subject == entry.subject]
        if same:
            free.remove(same[0])
            pairs.append((i, same[0]))
    return pairs


def _compared(first: Entry, second: Entry, one: dict[str, Any], other: dict[str, Any]) -> Compared:
    difference = (
        None
        if first.epsilon is None or second.epsilon is None or first.epsilon == second.epsilon
        else second.epsilon - first.epsilon
    )
    if first.kind != second.kind:
        told, meaning = False, "They are results of different kinds, which say different things."
    elif first.kind == "EpsilonEstimate":
        told, meaning = _intervals(
            "ε", _ends(one, "low", "high"), _ends(other, "low", "high"), first, second
        )
    elif first.kind == "ReleaseAudit":
        told, meaning = _attacks(one, other)
    else:
        told, meaning = _bounds(one, other, first, second)
    return Compared(
        first=first, second=second, difference=difference, told_apart=told, meaning=meaning
    )


def _bounds(
    one: dict[str, Any], other: dict[str, Any], first: Entry, second: Entry
) -> tuple[bool, str]:
    if first.delta != second.delta:
        return False, "Bounds at different δ cannot be compared."
    if first.epsilon == second.epsilon:
        said = "Both prove the same."
    elif not (first.valid and second.valid):
        said = "A bound that is not valid proves nothing about the other."
    else:
        said = "Both are lower bounds: the smaller one does not say that its ε is smaller."
    bands: tuple[dict[str, Any], ...] = (one.get("evidence") or {}, other.get("evidence") or {})
    if not all(band.get("fpr") for band in bands):
        return False, f"{said} Without error rates there is nothing more to compare."
    sure = bands[0]["band_confidence"] + bands[1]["band_confidence"] - 1
    if sure <= 0:
        return False, said
    for band, reference, who in ((bands[1], bands[0], "second"), (bands[0], bands[1], "first")):
        point = beyond(band, reference)
        if point is not None:
            return True, (
                f"{said} But the attack did better in the {who}: there it has an FPR of at most "
                f"{point[0]:.3g} with an FNR of at most {point[1]:.3g}, which it has at no "
                f"threshold in the other ({sure:.3g} confidence). Where settings are the same, "
                "that is a difference of what was attacked."
            )
    return False, f"{said} Error rates differ by no more than chance explains."


def beyond(band: dict[str, Any], reference: dict[str, Any]) -> tuple[float, float] | None:
    """Error rates (FPR, FNR) that an attack keeps and the reference has at no threshold.

    Along a curve FPR rises and FNR falls. Between two of its points, so at every threshold, the
    reference has at least the FPR of the one before and the FNR of the one after. The rates
    returned are upper limits of the attack's, those compared with are lower limits.
    """
    before = [0.0, *reference["fpr_low"]]
    after = [*reference["fnr_low"], 0.0]
    gaps = list(zip(before, after, strict=True))
    for fpr, fnr in zip(band["fpr_high"], band["fnr_high"], strict=True):
        if all(fpr < low_fpr or fnr < low_fnr for low_fpr, low_fnr in gaps):
            return float(fpr), float(fnr)
    return None


def _attacks(one: dict[str, Any], other: dict[str, Any]) -> tuple[bool, str]:
    """Attacks that both classifiers were put to, each by its interval; they share the error."""
    ours = {attack["attack"]: attack for attack in one.get("attacks") or ()}
    both = [(ours[a["attack"]], a) for a in other.get("attacks") or () if a["attack"] in ours]
    apart = [
        a["attack"]
        for a, b in both
        if b["advantage_low"] > a["advantage_high"] or a["advantage_low"] > b["advantage_high"]
    ]
    if not both:
        return False, "No attack was run on both."
    wrong = sum(2 - a["confidence"] - b["confidence"] for a, b in both)
    if apart and wrong < 1:
        return True, (
            f"TPR − FPR differs beyond its limits: {', '.join(apart)} ({1 - wrong:.3g} confidence)."
        )
    return False, "TPR − FPR of every attack differs by no more than its limits."


def _ends(part: dict[str, Any], low: str, high: str) -> tuple[float, float]:
    return float(part[low]), float(part[high])


def _intervals(
    what: str, one: tuple[float, float], other: tuple[float, float], first: Entry, second: Entry
) -> tuple[bool, str]:
    if first.delta != second.delta:
        return False, "Estimates at different δ cannot be compared."
    sure = (first.confidence or 0.0) + (second.confidence or 0.0) - 1
    if (one[1] < other[0] or other[1] < one[0]) and sure > 0:
        return True, f"The intervals of {what} lie apart ({sure:.3g} confidence)."
    return False, f"The intervals of {what} overlap."


def _shared(plain: dict[str, Any]) -> dict[str, Any]:
    source = plain.get("provenance") or (parts_of(plain)[0].get("provenance") or {})
    return {
        "kind": plain["kind"],
        "command": source.get("command", ""),
        "units": source.get("units"),
        **{f"version of {name}": number for name, number in source.get("versions") or ()},
        **{f"input {name}": total for name, total in source.get("inputs") or ()},
    }


def _of_part(part: dict[str, Any]) -> dict[str, Any]:
    bound, claim = bound_of(part), part.get("claim") or {}
    found = {name: bound[name] for name in _OF_A_BOUND if name in bound}
    found |= {f"claimed {name}": value for name, value in claim.items()}
    return found if bound else {"seed": part.get("seed"), "confidence": part.get("confidence")}


def _plan(path: Path) -> dict[str, Any]:
    """Parameters of a run's plan, where there is one."""
    try:
        plain = json.loads((path / "plan.json").read_text("utf-8"))
        return {f"parameter {name}": value for name, value in plain["parameters"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return {}


def _differing(first: dict[str, Any], second: dict[str, Any]) -> list[tuple[str, str, str]]:
    names = [*first, *(name for name in second if name not in first)]
    return [
        (name, _short(first.get(name)), _short(second.get(name)))
        for name in names
        if first.get(name) != second.get(name)
    ]


def _short(value: Any) -> str:
    if value is None:
        return "–"
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"
