"""``epsilometer regressor``."""

from pathlib import Path
from typing import Any

import click

from epsilometer.audits.classifier.regression.subject import (
    ATTACKS,
    Regressor,
    list_usual_rules,
)
from epsilometer.audits.classifier.release import ChangeAtMost
from epsilometer.cli.audit import end_audit, import_function, make_call, run_call
from epsilometer.cli.limits import ATTACK_LIMITS, Limits, limit_options, make_rules
from epsilometer.cli.options import (
    Listed,
    Options,
    Suggested,
    audit_options,
    field_options,
    policy_option,
)
from epsilometer.cli.policy import apply_policy
from epsilometer.errors import InvalidArgument
from epsilometer.integrations.sklearn import REGRESSORS, TableRegressor

_LIMITS: Limits = {
    "change_limit": (
        ChangeAtMost,
        "limit",
        "Set the largest change allowed for a prediction, in units.",
    ),
    "share": (ChangeAtMost, "share", "Allow this fraction of records above --change-limit."),
    **ATTACK_LIMITS,
}


@click.command()
@click.argument("file", metavar="[TABLE]", required=False)
@field_options(
    TableRegressor,
    {
        "label": "Predict this column.",
        "model": f"Train one of {', '.join(REGRESSORS)}; or module:factory.",
        "drop": "Ignore this column; may be repeated.",
        "group": "Compare the groups of this column; may be repeated.",
        "encoding": "Set the text encoding, if detection fails.",
        "delimiter": "Set the delimiter of cells, if detection fails.",
        "decimal": "Set the decimal point or comma of numbers.",
        "query": "Run this SQL query; the result file records it.",
        "rows": "Audit a model trained on N randomly drawn records.",
    },
    into="source",
    special={"model": Suggested(*REGRESSORS)},
    repeated=("drop", "group"),
)
@field_options(
    Regressor,
    {
        "published_as": "State what is published: model file or API (required).",
        "model_file": "Also search this model file; it is never loaded.",
        "rounding": "Round the predictions of an API to multiples of this.",
        "noise": "Add normal noise with this standard deviation to an API's answers.",
        "attacks": "Run these attacks, separated by commas; all or none.",
        "shadows": "Set the number of shadow models.",
        "records": "Leave out only some records: sample:500.",
        "preprocessing": "Refit scaling without each record, or hold it fixed.",
        "patience": "Limit the time for refits to N seconds.",
        "show_records": "Write row numbers of the riskiest records.",
    },
    into="settings",
    special={"attacks": Listed(Suggested(*ATTACKS))},
    defaults={"published_as": None},  # whoever types the command has to say it
)
@limit_options(_LIMITS)
@policy_option
@audit_options(config=True, claim=False, units=True, home="epsilometer-regressor")
def regressor(
    file: str | None,
    source: dict[str, Any],
    settings: dict[str, Any],
    options: Options,
    policy: Path | None,
    **limits: float | None,
) -> None:
    """Judge whether a regressor trained on TABLE may be published.

    TABLE is read as by epsilometer classifier; --label is a column of numbers. Changes of
    predictions are counted in units of --noise, else of --rounding, else of the model's median
    error on records outside training.

    Exit code 1 if it should not be released, 4 if that is unclear.

    Example: epsilometer regressor homes.csv --label price --published-as api --rounding 1000
    """
    limits, options = apply_policy(policy, "regressor", limits, options)
    if (file is None) == (options.config is None):
        raise InvalidArgument("Expected TABLE or --config FILE.toml, got neither or both.")
    if file is not None:
        if "label" not in source:
            raise InvalidArgument("Expected --label, the column that is predicted, got none.")
        if "published_as" not in settings:
            raise InvalidArgument(
                "Expected --published-as file or api, got none: what a model reveals about "
                "people depends on what others receive."
            )
        source = {"type": "table-regressor", "file": file, **source}
    if ":" in source.get("model", ""):
        source["model"] = import_function(source["model"])  # typed by the user, so trusted
    if settings.get("attacks") == ("all",):
        settings["attacks"] = "all"
    attacked = settings.get("attacks", "all") != ()
    usual = list_usual_rules(settings.get("published_as", "file"), attacked)
    rules = make_rules(_LIMITS, limits, usual)
    if rules:
        settings["rules"] = rules
    call = make_call("Regressor", settings, options, source=source, seeded=True)
    end_audit(run_call(call, options), options)
