"""Judge what a model's file, or an API's answers, reveal about single records."""

from collections.abc import Sequence

from epsilometer.audits.classifier.leaks import Leak
from epsilometer.core.findings import Outcome, RuleFinding

IN_FILE = "no record in the model's file"
IN_ANSWERS = "no record computed from answers"
_IN_FILE = {
    "rows": "The model file holds the records of {}.",
    "one person": "The model file has parts that belong to single people: {}.",
    "rebuilt": "Anyone with the model file and all other records computes the records of {}.",
    "statistics": "Anyone with the file's statistics and all other records computes those of {}.",
}
_NAMED = 3  # places in a file that a rule names


def limit_file(leaks: Sequence[Leak] | None, of: int, *, statistics: bool = False) -> RuleFinding:
    """Fail if single records are in the file; the outcome does not depend on samples.

    Args:
        leaks: Leaks found in the file; None if it was not searched.
        of: Total number of records.
        statistics: Whether means of many records count too.
    """
    outcome: Outcome = "unclear"
    records, why = 0, "The model's file was not searched."
    if leaks is not None:
        unread = [leak for leak in leaks if leak.kind == "unread"]
        spared = {"unread"} if statistics else {"unread", "statistics"}
        grave = [leak for leak in leaks if leak.kind not in spared and leak.records]
        worst = [leak.records for leak in grave if leak.kind == grave[0].kind]
        records = max(worst, default=0)
        why = _name_places(grave)
        if grave:
            who = f"{records:,} of {of:,} people"
            outcome, why = "fail", f"{_IN_FILE[grave[0].kind].format(who)} {why}"
        elif unread:
            why = f"Not all of the model could be searched. {_name_places(unread)}"
        else:
            outcome = "pass"
            why = "No training row and no part of a single record was found in the model."
    return RuleFinding(
        rule=IN_FILE,
        outcome=outcome,
        finding=why,
        value=float(records),
        low=float(records),
        high=float(of if outcome == "unclear" else records),
        limit=0.0,
        confidence=1.0,
    )


def limit_answers(leaks: Sequence[Leak] | None, of: int) -> RuleFinding:
    """Fail if records can be computed from answers; the outcome does not depend on samples.

    Args:
        leaks: Leaks found in answers; None if that was not tried.
        of: Total number of records.
    """
    grave = [leak for leak in leaks or () if leak.kind == "rebuilt"]
    records = max((leak.records for leak in grave), default=0)
    unread = [leak for leak in leaks or () if leak.kind == "unread"]
    outcome: Outcome = "fail" if grave else "unclear" if leaks is None or unread else "pass"
    who = f"{records:,} of {of:,} people"
    why = {
        "fail": f"Anyone with access to the API and all other records computes those of {who}. "
        f"{_name_places(grave)}",
        "unclear": _name_places(unread)
        or "Whether records can be computed from answers was not tested.",
        "pass": " ".join(leak.finding for leak in leaks or ())
        or "No record could be computed from coefficients that answers reveal.",
    }
    return RuleFinding(
        rule=IN_ANSWERS,
        outcome=outcome,
        finding=why[outcome],
        value=float(records),
        low=float(records),
        high=float(of if outcome == "unclear" else records),
        limit=0.0,
        confidence=1.0,
    )


def _name_places(leaks: Sequence[Leak]) -> str:
    """Return the first few findings, and how many more there are."""
    named = " ".join(leak.finding for leak in leaks[:_NAMED])
    return f"{named} {len(leaks) - _NAMED} more." if len(leaks) > _NAMED else named
