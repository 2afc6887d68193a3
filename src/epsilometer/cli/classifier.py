"""``epsilometer classifier``."""

from pathlib import Path
from typing import Any

import click

from epsilometer.audits.classifier.attacks.shadow_attacks import ATTACKS
from epsilometer.audits.classifier.release import (
    AdvantageAtMost,
    CaughtAtMost,
    PdtpAtMost,
    ReleaseRule,
)
from epsilometer.audits.classifier.subject import Classifier
from epsilometer.cli.audit import import_function, make_call, run_call
from epsilometer.cli.options import (
    Listed,
    Options,
    Suggested,
    audit_options,
    field_options,
    option,
)
from epsilometer.cli.output import end_audit
from epsilometer.errors import InvalidArgument
from epsilometer.integrations.sklearn import MODELS, TableModel


@click.command()
@click.argument("file", metavar="[TABLE]", type=click.Path(path_type=Path), required=False)
@field_options(
    TableModel,
    {
        "label": "Predict this column.",
        "model": f"Train one of {', '.join(MODELS)}; or module:factory.",
        "drop": "Leave out this column; may be repeated.",
        "group": "Compare the groups of this column; may be repeated.",
    },
    into="source",
    special={"model": Suggested(*MODELS)},
    repeated=("drop", "group"),
)
@field_options(
    Classifier,
    {
        "attacks": "Run these attacks, separated by commas; all or none.",
        "shadows": "Train so many shadow models.",
        "records": "Leave out only a sample of records: sample:500.",
        "preprocessing": "Refit scaling without each record, or hold it fixed.",
        "patience": "Allow refits so many seconds.",
        "decimals": "Show probabilities with so many decimals.",
        "removal": "Plan the removal of records in so many steps.",
        "variation": "Train so many models with other seeds.",
        "show_records": "Write row numbers of the riskiest records.",
    },
    into="settings",
    special={"attacks": Listed(Suggested(*ATTACKS))},
)
@option(
    "--pdtp-limit",
    type=float,
    show_default=f"{PdtpAtMost.limit:g}",
    help="Allow records this PDTP at most.",
)
@option(
    "--share",
    type=float,
    show_default=f"{PdtpAtMost.share:g}",
    help="Allow this fraction of records above --pdtp-limit.",
)
@option(
    "--advantage-limit",
    type=float,
    show_default=f"{AdvantageAtMost.limit:g}",
    help="Allow attacks this TPR − FPR.",
)
@option(
    "--caught-limit",
    type=float,
    show_default=f"{CaughtAtMost.limit:g}",
    help="Allow attacks this TPR at 1 % FPR.",
)
@audit_options(config=True, claim=False, units=True, home="epsilometer-classifier")
def classifier(
    file: Path | None,
    source: dict[str, Any],
    settings: dict[str, Any],
    options: Options,
    **limits: float | None,
) -> None:
    """Judge whether a classifier trained on TABLE may be published.

    TABLE is .csv, .csv.gz or .parquet, with a line of names; cells may be empty. Nothing of what
    is in a record is written: records are named by their rank of risk, and with --show-records by
    their row. Which rows they are stands in records.csv of the run's directory alone. A model as
    module:factory is imported from this folder, and called without arguments.

    Exit code 1 if it should not be released, 4 if that cannot be told.

    Example: epsilometer classifier people.csv --label income --out people-run
    """
    if (file is None) == (options.config is None):
        raise InvalidArgument("Expected TABLE or --config FILE.toml, got neither or both.")
    if file is not None:
        if "label" not in source:
            raise InvalidArgument("Expected --label, the column that is predicted, got none.")
        source = {"type": "table-model", "file": str(file), **source}
    if ":" in source.get("model", ""):
        source["model"] = import_function(source["model"])  # typed by the user, so trusted
    if settings.get("attacks") == ("all",):
        settings["attacks"] = "all"
    rules = _make_rules(limits, attacks=settings.get("attacks", "all") != ())
    if rules:
        settings["rules"] = rules
    call = make_call("Classifier", settings, options, source=source, seeded=True)
    end_audit(run_call(call, options), options)


def _make_rules(limits: dict[str, float | None], *, attacks: bool) -> tuple[ReleaseRule, ...]:
    """Return the rules with the limits that were given; none where the usual ones are meant."""
    given = {name: value for name, value in limits.items() if value is not None}
    if not given:
        return ()

    def take(**names: str) -> dict[str, float]:
        return {field: given[name] for field, name in names.items() if name in given}

    pdtp = PdtpAtMost(**take(limit="pdtp_limit", share="share"))
    if not attacks:
        return (pdtp,)
    return (
        pdtp,
        AdvantageAtMost(**take(limit="advantage_limit")),
        CaughtAtMost(**take(limit="caught_limit")),
    )
