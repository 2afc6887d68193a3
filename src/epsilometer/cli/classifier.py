"""``epsilometer classifier``."""

from pathlib import Path
from typing import Any

import click

from epsilometer.audits.classifier.attacks.shadow_attacks import ATTACKS
from epsilometer.audits.classifier.release import PdtpAtMost
from epsilometer.audits.classifier.subject import Classifier, list_usual_rules
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
from epsilometer.integrations.sklearn import MODELS, TableModel

_LIMITS: Limits = {
    "pdtp_limit": (PdtpAtMost, "limit", "Set the largest PDTP allowed for a record."),
    "share": (PdtpAtMost, "share", "Allow this fraction of records above --pdtp-limit."),
    **ATTACK_LIMITS,
}


@click.command()
@click.argument("file", metavar="[TABLE]", required=False)
@field_options(
    TableModel,
    {
        "label": "Predict this column.",
        "model": f"Train one of {', '.join(MODELS)}; or module:factory.",
        "drop": "Leave out this column; may be repeated.",
        "group": "Compare the groups of this column; may be repeated.",
        "encoding": "Set the text encoding, if detection fails.",
        "delimiter": "Set the delimiter of cells, if detection fails.",
        "decimal": "Set the decimal point or comma of numbers.",
        "query": "Run this SQL query; the result file records it.",
        "rows": "Audit a model trained on N randomly drawn records.",
    },
    into="source",
    special={"model": Suggested(*MODELS)},
    repeated=("drop", "group"),
)
@field_options(
    Classifier,
    {
        "published_as": "State what is published: model file, API, or labels only (required).",
        "model_file": "Also search this model file; it is never loaded.",
        "attacks": "Run these attacks, separated by commas; all or none.",
        "shadows": "Set the number of shadow models.",
        "threats": "Measure attribute:COLUMN, range, structure or usage; separated by commas.",
        "precision": "Attack more models until confidence limits are this close.",
        "skip_trend": "Skip the attacks on smaller models that show the trend with size.",
        "records": "Leave out these records: all, sample:500 or screen:500.",
        "preprocessing": "Refit scaling without each record, or hold it fixed.",
        "patience": "Limit the time for refits to N seconds.",
        "decimals": "Round the probabilities of an API to N decimals.",
        "remedies": "Try at most N remedies that train new models.",
        "removal": "Plan the removal of records in at most N steps.",
        "variation": "Train N models with different seeds to measure variation.",
        "show_records": "Write row numbers of the riskiest records.",
    },
    into="settings",
    special={"attacks": Listed(Suggested(*ATTACKS)), "threats": Listed(click.STRING)},
    defaults={"published_as": None},  # whoever types the command has to say it
)
@limit_options(_LIMITS)
@policy_option
@audit_options(config=True, claim=False, units=True, home="epsilometer-classifier")
def classifier(
    file: str | None,
    source: dict[str, Any],
    settings: dict[str, Any],
    options: Options,
    policy: Path | None,
    **limits: float | None,
) -> None:
    """Judge whether a classifier trained on TABLE may be published.

    TABLE is a .csv, .tsv, .xlsx, .parquet or .arrow file with a header; cells may be empty. Or it
    is the URL of a database without a password, such as sqlite:///people.db.

    No content of a record is written: records are named by their rank of risk, and with
    --show-records by their row. records.csv in the run directory maps ranks to rows. A model given
    as module:factory is imported from this folder and called without arguments.

    Exit code 1 if it should not be released, 4 if that is unclear.

    --published-as states what others receive: the model file, which is searched for records; an API
    that shows probabilities; or predicted labels only.

    Example: epsilometer classifier people.csv --label income --published-as file
    """
    limits, options = apply_policy(policy, "classifier", limits, options)
    if (file is None) == (options.config is None):
        raise InvalidArgument("Expected TABLE or --config FILE.toml, got neither or both.")
    if file is not None:
        if "label" not in source:
            raise InvalidArgument("Expected --label, the column that is predicted, got none.")
        if "published_as" not in settings:
            raise InvalidArgument(
                "Expected --published-as file, api or labels, got none: what a model shows of "
                "people depends on what of it others are given."
            )
        source = {"type": "table-model", "file": file, **source}
    if ":" in source.get("model", ""):
        source["model"] = import_function(source["model"])  # typed by the user, so trusted
    if settings.get("attacks") == ("all",):
        settings["attacks"] = "all"
    rules = make_rules(
        _LIMITS,
        limits,
        list_usual_rules(
            settings.get("published_as", "file"),
            settings.get("attacks", "all"),
            settings.get("threats", ()),
        ),
    )
    if rules:
        settings["rules"] = rules
    call = make_call("Classifier", settings, options, source=source, seeded=True)
    end_audit(run_call(call, options), options)
