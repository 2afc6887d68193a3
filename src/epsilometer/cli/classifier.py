"""``epsilometer classifier``."""

from pathlib import Path
from typing import Any

import click

from epsilometer.audits.classifier.attacks.shadow_attacks import ATTACKS
from epsilometer.audits.classifier.release import (
    AdvantageAtMost,
    CaughtAtMost,
    NoRecordInFile,
    PdtpAtMost,
    ReleaseRule,
)
from epsilometer.audits.classifier.subject import Classifier
from epsilometer.cli.audit import end_audit, import_function, make_call, run_call
from epsilometer.cli.options import (
    Listed,
    Options,
    Suggested,
    audit_options,
    field_options,
    option,
    policy_option,
)
from epsilometer.cli.policy import apply_policy
from epsilometer.errors import InvalidArgument
from epsilometer.integrations.sklearn import MODELS, TableModel

# Option → the rule and its field that it sets, and its help.
_LIMITS: dict[str, tuple[type[ReleaseRule], str, str]] = {
    "pdtp_limit": (PdtpAtMost, "limit", "Allow records this PDTP at most."),
    "share": (PdtpAtMost, "share", "Allow this fraction of records above --pdtp-limit."),
    "advantage_limit": (AdvantageAtMost, "limit", "Allow attacks this TPR − FPR."),
    "caught_limit": (CaughtAtMost, "limit", "Allow attacks this TPR at 1 % FPR."),
}


def _limit_options(command: Any) -> Any:
    for name, (rule, field, text) in reversed(_LIMITS.items()):
        usual = f"{getattr(rule, field):g}"
        flag = f"--{name.replace('_', '-')}"
        command = option(flag, type=float, show_default=usual, help=text)(command)
    return command


@click.command()
@click.argument("file", metavar="[TABLE]", type=click.Path(path_type=Path), required=False)
@field_options(
    TableModel,
    {
        "label": "Predict this column.",
        "model": f"Train one of {', '.join(MODELS)}; or module:factory.",
        "drop": "Leave out this column; may be repeated.",
        "group": "Compare the groups of this column; may be repeated.",
        "encoding": "Set the text encoding, if detection fails.",
        "delimiter": "Set the delimiter of cells, if detection fails.",
    },
    into="source",
    special={"model": Suggested(*MODELS)},
    repeated=("drop", "group"),
)
@field_options(
    Classifier,
    {
        "published_as": "Publish the model file, an API, or labels alone: required.",
        "model_file": "Search this file of the model too; it is never loaded.",
        "attacks": "Run these attacks, separated by commas; all or none.",
        "shadows": "Set the number of shadow models.",
        "precision": "Attack more models until limits are this close.",
        "skip_trend": "Attack no smaller models, which show the trend with size.",
        "records": "Leave out only some records: sample:500, or screen:500.",
        "preprocessing": "Refit scaling without each record, or hold it fixed.",
        "patience": "Limit refits to N seconds.",
        "decimals": "Round the probabilities of an API to N decimals.",
        "remedies": "Try at most N remedies that train new models.",
        "removal": "Plan the removal of records in N steps.",
        "variation": "Train N models with other seeds.",
        "show_records": "Write row numbers of the riskiest records.",
    },
    into="settings",
    special={"attacks": Listed(Suggested(*ATTACKS))},
    defaults={"published_as": None},  # whoever types the command has to say it
)
@_limit_options
@policy_option
@audit_options(config=True, claim=False, units=True, home="epsilometer-classifier")
def classifier(
    file: Path | None,
    source: dict[str, Any],
    settings: dict[str, Any],
    options: Options,
    policy: Path | None,
    **limits: float | None,
) -> None:
    """Judge whether a classifier trained on TABLE may be published.

    TABLE is .csv, .tsv or .parquet, with a line of names; cells may be empty. Nothing of what
    is in a record is written: records are named by their rank of risk, and with --show-records by
    their row. records.csv in the run's directory maps ranks to rows. A model as
    module:factory is imported from this folder, and called without arguments.

    Exit code 1 if it should not be released, 4 if that is unclear.

    --published-as says what others are given: the model file, which is searched for records; an
    API that shows probabilities; or predicted labels alone.

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
        source = {"type": "table-model", "file": str(file), **source}
    if ":" in source.get("model", ""):
        source["model"] = import_function(source["model"])  # typed by the user, so trusted
    if settings.get("attacks") == ("all",):
        settings["attacks"] = "all"
    rules = _make_rules(
        limits,
        attacks=settings.get("attacks", "all") != (),
        file=settings.get("published_as", "file") == "file",
    )
    if rules:
        settings["rules"] = rules
    call = make_call("Classifier", settings, options, source=source, seeded=True)
    end_audit(run_call(call, options), options)


def _make_rules(
    limits: dict[str, float | None], *, attacks: bool, file: bool
) -> tuple[ReleaseRule, ...]:
    """Return the rules with the limits that were given; none where the usual ones are meant."""
    if all(value is None for value in limits.values()):
        return ()
    fields: dict[type[ReleaseRule], dict[str, Any]] = {}
    for option_name, (rule, field, _) in _LIMITS.items():
        own, value = fields.setdefault(rule, {}), limits[option_name]
        if value is not None:
            own[field] = value
    given = (rule(**own) for rule, own in fields.items() if attacks or rule is PdtpAtMost)
    return (*((NoRecordInFile(),) if file else ()), *given)
