"""A release audit as one HTML file."""

from dataclasses import replace

from epsilometer.errors import InvalidArgument
from epsilometer.core.audit import ReleaseAudit
from epsilometer.core.findings import Variation
from epsilometer.report import release_words, words
from epsilometer.report.explaining import explained
from epsilometer.report.fitting import cut
from epsilometer.report.frame import FIRST_RECORDS, LARGEST, framed
from epsilometer.report.release_figures import release_figures

# How much is kept, until the page is small enough: records, and whether figures are drawn.
_ATTEMPTS = ((1_000, True), (100, True), (0, True), (0, False))
_LONGEST_OF_RECORD = 300
_ATTACK_HEAD = ("attack", "AUC", "TPR − FPR (limits)", "caught (limits)", "ε")
_GROUP_HEAD = ("group", "records", "share exposed", "median risk", "AUC (limits)")
_ROUNDING_HEAD = ("shown", "exposed", "largest risk", "accuracy", "TPR − FPR")
_VARIATION_HEAD = ("cause", "models", "median spread of p(own class)", "of a tenth, at least")


def release_page(result: ReleaseAudit) -> str:
    """The audit as one HTML page of at most 1.5 MB; the same audit gives the same bytes."""
    for records, drawn in _ATTEMPTS:
        if drawn and len(result.records) <= records < _ATTEMPTS[0][0]:
            continue  # would change nothing
        text = _page(result, records=records, drawn=drawn)
        if len(text.encode()) <= LARGEST:
            return text
    raise InvalidArgument(f"Expected a result whose page fits into {LARGEST:,} bytes.")


def _page(result: ReleaseAudit, *, records: int, drawn: bool) -> str:
    kept = fitted(result, records=records)
    figures = release_figures(kept) if drawn else ()
    return framed(
        "release.html",
        title=kept.subject,
        plain=kept.to_dict(),
        figures=figures,
        cites=(*kept.cites, *(key for figure in figures for key in figure.cites)),
        is_cut=kept != result,
        drawn=drawn,
        verdict=kept.verdict,
        finding=release_words.finding(kept),
        meaning=release_words.meaning(kept),
        notes=words.run_notes(kept.provenance),
        reasons=[(reason, release_words.reason_confidence(reason)) for reason in kept.reasons],
        advice=kept.advice,
        leaving=[] if kept.leaving is None else release_words.leaving_rows(kept.leaving),
        accuracy=f"{kept.accuracy:.1%}",
        attacks=[release_words.attack_row(attack) for attack in kept.attacks],
        attack_head=_ATTACK_HEAD,
        groups=[release_words.group_row(group) for group in kept.groups],
        group_head=_GROUP_HEAD,
        rounding=[release_words.rounding_row(step) for step in kept.rounding],
        rounding_head=_ROUNDING_HEAD,
        removal="" if kept.removal is None else kept.removal.ended,
        variation=[_variation_row(variation) for variation in kept.variation],
        variation_head=_VARIATION_HEAD,
        first_records=kept.records[:FIRST_RECORDS],
        records_kept=len(kept.records),
        records_found=len(result.records),
        shows_records=any("features: " in record.note for record in kept.records),
        explanation=explained(kept),
        seed=kept.seed,
        provenance=kept.provenance,
    )


def fitted(result: ReleaseAudit, *, records: int) -> ReleaseAudit:
    """The audit with its first ``records`` and no text longer than a reader takes."""
    kept = tuple(cut(record, _LONGEST_OF_RECORD) for record in result.records[:records])
    return replace(cut(replace(result, records=())), records=kept)


def _variation_row(variation: Variation) -> tuple[str, ...]:
    middle, last = len(variation.deciles) // 2, variation.deciles[-2]
    return (
        variation.cause,
        f"{variation.models:,}",
        f"{variation.deciles[middle]:.3g}",
        f"{last:.3g}",
    )
