"""``epsilometer classifier``."""

import os
import sys
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray

from epsilometer.audits.classifier import USUAL, classifier_job
from epsilometer.audits.classifier_job import ATTACKS, ClassifierJob, run_classifier
from epsilometer.audits.release import AdvantageAtMost, CaughtAtMost, PdtpAtMost, ReleaseRule
from epsilometer.cli.completing import one_of
from epsilometer.cli.running import (
    Finish,
    call_again,
    in_directory,
    kept,
    refuted,
    running,
    unchanged,
)
from epsilometer.engine.plan import Plan
from epsilometer.errors import InvalidArgument
from epsilometer.integrations.sklearn import MODELS, Prepared, prepared, with_preprocessing
from epsilometer.tables import Column, Table, at_quantiles, read_table

_QUARTILES = 4
_FEW = 10  # different numbers of a column that are groups as they are


@click.command()
@click.argument("data", type=click.Path(path_type=Path))
@click.option("--label", required=True, help="Column that is predicted.")
@click.option(
    "--model",
    default="naive-bayes",
    show_default=True,
    help=f"One of {', '.join(MODELS)}; or module:factory, called without arguments.",
    shell_complete=one_of(MODELS),
)
@click.option("--drop", multiple=True, metavar="COLUMN", help="Leave out; may be repeated.")
@click.option("--group", multiple=True, metavar="COLUMN", help="Compare its groups; repeatable.")
@click.option(
    "--attacks",
    default=",".join(USUAL),
    show_default=True,
    help=f"all, none, or some of {', '.join(ATTACKS)}.",
)
@click.option("--shadows", type=click.IntRange(min=4), default=32, show_default=True)
@click.option("--records", help="sample:500 to leave out only so many; by default all.")
@click.option(
    "--preprocessing",
    type=click.Choice(["refit", "fixed"]),
    default="refit",
    show_default=True,
    help="Whether scaling and the like is fitted again without each record.",
)
@click.option(
    "--patience", type=float, default=3600.0, show_default=True, help="Seconds of refits."
)
@click.option(
    "--decimals", default="all", show_default=True, help="Shown of probabilities, if fewer."
)
@click.option("--pdtp-limit", type=float, default=1.0, show_default=True, help="DTP-1 is 1.")
@click.option("--share", type=float, default=0.0, help="Of records that may be above it.")
@click.option("--advantage-limit", type=float, default=0.1, show_default=True, help="TPR − FPR.")
@click.option("--caught-limit", type=float, default=0.05, show_default=True, help="At 1 % FPR.")
@click.option("--confidence", type=float, default=0.95, show_default=True)
@click.option("--removal", type=click.IntRange(min=0), help="Steps of the plan to drop records.")
@click.option("--variation", type=click.IntRange(min=0), default=0, help="Models of other seeds.")
@click.option("--show-records", is_flag=True, help="Print the features of the riskiest records.")
@click.option(
    "--claim",
    type=click.Choice(["release"]),
    help="That it may be published: a verdict of 'cannot tell' is then exit code 2.",
)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True)
@in_directory("epsilometer-classifier")
@running
def classifier(
    directory: Path,
    claim: str | None,
    finish: Finish,
    **given: Any,
) -> None:
    """Say whether a classifier trained on the table DATA may be published, and who is at risk.

    DATA is .csv, .csv.gz or .parquet, with a line of names; cells may be empty. Nothing of what is
    in a record is printed, unless --show-records. Exit code 1 if it should not be released.

    Example: epsilometer classifier people.csv --label income --run people-run
    """
    settings = {**given, "data": str(given["data"])}
    result = finish(_job(settings), directory, by=run_classifier)
    if refuted(result):
        raise SystemExit(1)
    if claim is not None and any(audit.verdict != "release" for audit in result.audits):
        raise InvalidArgument(
            "The claim that it may be released can be neither kept nor refuted: the verdict is "
            "'cannot tell', and the report says what is missing."
        )


def resumed(plan: Plan) -> ClassifierJob:
    """The job of a plan, on the same records as before."""
    settings = kept(plan, "settings")
    if ":" in settings["model"]:  # a plan from elsewhere must not make us import anything
        raise InvalidArgument(
            f"Expected a run of {', '.join(MODELS)}, got one of {settings['model']!r}. Give the "
            f"command again, and it goes on: {plan.command}"
        )
    job = _job(dict(settings))
    unchanged(job, plan, settings["data"])
    return job


def _job(settings: dict[str, Any]) -> ClassifierJob:
    table = read_table(settings["data"])
    y = _labels(table.column(settings["label"]))
    features = table.without(settings["label"], *settings["drop"])
    ready = _prepared(settings["model"], features, settings["seed"])
    attacks = settings["attacks"]
    options = {name: value for name, value in settings.items() if name != "data"}
    return classifier_job(
        ready.estimator,
        ready.X,
        y,
        records=settings["records"],
        preprocessing=settings["preprocessing"],
        patience=settings["patience"],
        attacks=attacks if attacks == "all" else _names(attacks),
        shadows=settings["shadows"],
        groups={name: _groups(table.column(name)) for name in settings["group"]} or None,
        rules=_rules(settings, attacked=attacks != "none"),
        decimals=_decimals(settings["decimals"]),
        confidence=settings["confidence"],
        removal=settings["removal"],
        variation=settings["variation"],
        feature_names=ready.names,
        categorical=ready.categorical,
        words=ready.words,
        record_names=[f"row {i}" for i in range(1, len(y) + 1)],
        show_records=settings["show_records"],
        seed=settings["seed"],
        subject=f"{settings['model']} on {Path(settings['data']).name}",
        caveats=ready.caveats,
        name="classifier",
        parameters={"settings": settings},
        command=call_again("classifier", options, settings["data"]),
    )


def _labels(column: Column) -> NDArray[Any]:
    if column.words is not None:
        if "" in column.words:
            blanks = int(np.sum(column.values == column.words.index("")))
            raise InvalidArgument(
                f"Expected a label in every row, {blanks:,} have none in {column.name!r}. Leave "
                "those records out."
            )
        return _words(column)
    if np.isnan(column.values).any():
        raise InvalidArgument(
            f"Expected a label in every row, {int(np.isnan(column.values).sum()):,} have none in "
            f"{column.name!r}. Leave those records out."
        )
    return np.array([f"{value:g}" for value in column.values.tolist()])


def _prepared(model: str, features: Table, seed: int) -> Prepared:
    if ":" not in model:
        return prepared(model, features, seed=seed)
    module, _, name = model.partition(":")
    here = os.getcwd()
    if here not in sys.path:  # as ``python -m`` has it; workers are told of it too
        sys.path.insert(0, here)
    try:
        made = getattr(import_module(module), name)()
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise InvalidArgument(
            f"Expected --model module:factory that can be imported and called without arguments, "
            f"got {model!r}: {error}."
        ) from error
    return with_preprocessing(made, features)


def _groups(column: Column) -> NDArray[Any]:
    """The group of each record: its word, its number, or the quarter in which its number lies."""
    if column.words is None and np.unique(column.values).size <= _FEW:
        return np.array([f"{value:g}" for value in column.values.tolist()])
    return _words(at_quantiles(column, _QUARTILES))


def _words(column: Column) -> NDArray[Any]:
    found: NDArray[Any] = np.array(column.words)[column.values]
    return found


def _names(text: str) -> tuple[str, ...]:
    return () if text == "none" else tuple(part.strip() for part in text.split(","))


def _decimals(text: str) -> int | None:
    if text == "all":
        return None
    if not text.isdecimal():
        raise InvalidArgument(f"Expected --decimals as a whole number or 'all', got {text!r}.")
    return int(text)


def _rules(settings: Mapping[str, Any], *, attacked: bool) -> tuple[ReleaseRule, ...]:
    risk = PdtpAtMost(limit=settings["pdtp_limit"], share=settings["share"])
    if not attacked:
        return (risk,)
    return (
        risk,
        AdvantageAtMost(settings["advantage_limit"]),
        CaughtAtMost(settings["caught_limit"]),
    )
