"""Compare two audits: which settings and bounds differ, and what may be concluded.

A lower bound has no upper end, so two of them never show whose ε is larger. What can be compared
are the observations: two bands of error rates, or two intervals.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from epsilometer.core.audit import Audit
from epsilometer.core.bound import EpsilonEstimate
from epsilometer.core.findings import EpsilonFinding, Evidence, MembershipFinding
from epsilometer.core.plain import to_plain
from epsilometer.core.serialisation import load
from epsilometer.files.history.entries import Entry, list_entries

_OF_A_BOUND = (
    "delta",
    "confidence",
    "method",
    "threshold_rule",
    "adjacency",
    "adversary",
    "n_in",
    "n_out",
)
_LONGEST = 60


@dataclass(frozen=True, kw_only=True)
class Compared:
    """Hold one view in both audits, or two audits without views.

    Attributes:
        first: The view in the first audit.
        second: The same in the second.
        difference: Second ε minus first; None if there is no such number.
        told_apart: Whether observations differ by more than random variation.
        meaning: What may be concluded, in sentences.
    """

    first: Entry
    second: Entry
    difference: float | None
    told_apart: bool
    meaning: str


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Hold the comparison of two audits.

    Attributes:
        settings: (name, in the first, in the second) of settings that differ.
        audits: Views in both audits, by subject.
        only_first: Subjects that the second audit does not have.
        only_second: Subjects that the first does not have.
    """

    settings: tuple[tuple[str, str, str], ...]
    audits: tuple[Compared, ...]
    only_first: tuple[str, ...]
    only_second: tuple[str, ...]


def compare(first: Path, second: Path) -> Comparison:
    """Compare the audits in two files or directories of runs.

    Guarantee: a reported difference is real, with the confidence that ``meaning`` states.
    Assumption: observations of an audit are independent, as its band of error rates assumes.

    Raises:
        UnreadableFile: One of them is missing, damaged or of another format.
    """
    return compare_audits(load(first), load(second), places=(str(first), str(second)))


def compare_audits(
    first: Audit, second: Audit, *, places: tuple[str, str] = ("", "")
) -> Comparison:
    """Compare two audits, as :func:`compare` does.

    Args:
        first: One of them.
        second: The other.
        places: Where they were read from.
    """
    audits = (first, second)
    entries = [list_entries(audit, path=at) for audit, at in zip(audits, places, strict=True)]
    pairs = _pair_entries(*entries)
    settings = _list_differences(_list_settings(first), _list_settings(second))
    known = {name for name, *_ in settings}
    for i, j in pairs:
        if first.views and second.views:
            of = f" of {entries[0][i].subject}" if len(pairs) > 1 else ""
            settings += [
                (f"{name}{of}", a, b)
                for name, a, b in _list_differences(
                    _describe_bound(first.views[i]), _describe_bound(second.views[j])
                )
                if name not in known
            ]
    alone = [
        tuple(
            entry.subject for k, entry in enumerate(side) if k not in {pair[at] for pair in pairs}
        )
        for at, side in enumerate(entries)
    ]
    return Comparison(
        settings=tuple(settings),
        audits=tuple(_compare_pair(audits, entries[0][i], entries[1][j]) for i, j in pairs),
        only_first=alone[0],
        only_second=alone[1],
    )


def _pair_entries(first: list[Entry], second: list[Entry]) -> list[tuple[int, int]]:
    """Pair views of one subject, in the order of the first; two lone ones are always a pair."""
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


def _compare_pair(audits: tuple[Audit, Audit], first: Entry, second: Entry) -> Compared:
    difference = (
        None
        if first.epsilon is None or second.epsilon is None or first.epsilon == second.epsilon
        else second.epsilon - first.epsilon
    )
    one, other = (
        audit.views[entry.part - 1] if audit.views else None
        for audit, entry in zip(audits, (first, second), strict=True)
    )
    if one is not None and other is not None:
        told, meaning = _compare_views(one, other, first, second)
    elif one is None and other is None:
        told, meaning = _compare_attacks(*audits)
    else:
        told, meaning = False, "The audits are of different kinds and cannot be compared."
    return Compared(
        first=first, second=second, difference=difference, told_apart=told, meaning=meaning
    )


def _compare_views(
    one: EpsilonFinding, other: EpsilonFinding, first: Entry, second: Entry
) -> tuple[bool, str]:
    if first.delta != second.delta:
        return False, "Bounds at different δ cannot be compared."
    if one.computed is not None and other.computed is not None:
        return _compare_computed(one.computed, other.computed)
    if first.epsilon == second.epsilon:
        said = "Both prove the same ε."
    elif not (first.valid and second.valid):
        said = "A bound that is not valid proves nothing about the other."
    else:
        said = "Both are lower bounds: a smaller bound does not mean a smaller ε."
    bands = (one.evidence, other.evidence)
    if not all(band.fpr for band in bands):
        return False, f"{said} Without error rates there is nothing more to compare."
    sure = bands[0].band_confidence + bands[1].band_confidence - 1
    if sure <= 0:
        return False, said
    for band, reference, who in ((bands[1], bands[0], "second"), (bands[0], bands[1], "first")):
        point = find_beyond(band, reference)
        if point is not None:
            return True, (
                f"{said} But the attack did better in the {who}: there it has an FPR of at most "
                f"{point[0]:.3g} with an FNR of at most {point[1]:.3g}, which it has at no "
                f"threshold in the other ({sure:.3g} confidence). If the settings are the same, "
                "what was attacked differs."
            )
    return False, f"{said} Error rates differ by no more than random variation."


def find_beyond(band: Evidence, reference: Evidence) -> tuple[float, float] | None:
    """Return error rates (FPR, FNR) that an attack achieves and the reference cannot.

    Along a curve FPR rises and FNR falls. Between two of its points, so at every threshold, the
    reference has at least the FPR of the one before and the FNR of the one after. The rates
    returned are upper limits of the attack's, those compared with are lower limits.
    """
    before = [0.0, *reference.fpr_low]
    after = [*reference.fnr_low, 0.0]
    gaps = list(zip(before, after, strict=True))
    for fpr, fnr in zip(band.fpr_high, band.fnr_high, strict=True):
        if all(fpr < low_fpr or fnr < low_fnr for low_fpr, low_fnr in gaps):
            return fpr, fnr
    return None


def _compare_computed(one: EpsilonEstimate, other: EpsilonEstimate) -> tuple[bool, str]:
    """Compare two ε that were computed without sampling, by their numerical errors."""
    if one.high < other.low or other.high < one.low:
        return True, "Both ε were computed, and differ by more than their numerical errors."
    return False, "Both ε were computed, and differ by no more than their numerical errors."


def _compare_attacks(one: Audit, other: Audit) -> tuple[bool, str]:
    """Compare attacks on both classifiers by their confidence limits, which share the error."""
    ours = {attack.attack: attack for attack in one.find(MembershipFinding)}
    both = [(ours[a.attack], a) for a in other.find(MembershipFinding) if a.attack in ours]
    apart = [
        a.attack
        for a, b in both
        if b.advantage_low > a.advantage_high or a.advantage_low > b.advantage_high
    ]
    if not both:
        return False, "No attack was run on both."
    wrong = sum(2 - a.confidence - b.confidence for a, b in both)
    if apart and wrong < 1:
        return True, (
            f"TPR − FPR differs beyond its limits: {', '.join(apart)} ({1 - wrong:.3g} confidence)."
        )
    return False, "TPR − FPR of every attack differs by no more than its limits."


def _list_settings(audit: Audit) -> dict[str, Any]:
    """Return the subject and settings of an audit, by dotted names."""
    source = audit.provenance
    asked = {"claim": audit.claim and to_plain(audit.claim), "until": source.until}
    return {
        "audit": source.subject,
        **_flatten(source.settings),
        **_flatten({name: value for name, value in asked.items() if value is not None}),
        "delta": source.delta,
        "confidence": source.confidence,
        "seed": source.seed,
        "units": source.units,
        **{f"version of {name}": number for name, number in source.versions},
        **{f"shape of {name}": shape for name, shape in source.shapes},
    }


def _flatten(settings: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """Return nested settings by dotted names, such as ``source.path``."""
    found: dict[str, Any] = {}
    for name, value in settings.items():
        if isinstance(value, Mapping) and value:
            found |= _flatten(value, f"{before}{name}.")
        else:
            found[f"{before}{name}"] = value
    return found


def _describe_bound(view: EpsilonFinding) -> dict[str, Any]:
    return {name: getattr(view.bound, name) for name in _OF_A_BOUND}


def _list_differences(first: dict[str, Any], second: dict[str, Any]) -> list[tuple[str, str, str]]:
    names = [*first, *(name for name in second if name not in first)]
    return [
        (name, _shorten(first.get(name)), _shorten(second.get(name)))
        for name in names
        if first.get(name) != second.get(name)
    ]


def _shorten(value: Any) -> str:
    if value is None:
        return "–"
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"
