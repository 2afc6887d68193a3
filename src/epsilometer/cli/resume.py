"""``epsilometer resume``."""

from collections.abc import Callable
from pathlib import Path
from types import MappingProxyType

import click

from epsilometer.audits.classifier_job import run_classifier
from epsilometer.audits.demo import demo_job
from epsilometer.cli import classifier, dpsgd, federated, posterior
from epsilometer.cli.completing import run_directory
from epsilometer.cli.running import Finish, refuted, running
from epsilometer.engine.plan import Plan
from epsilometer.engine.run import Job, run
from epsilometer.engine.store import Store
from epsilometer.errors import InvalidArgument
from epsilometer.integrations.sklearn import digits


@click.command()
@click.argument(
    "directory", metavar="RUN", type=click.Path(path_type=Path), shell_complete=run_directory
)
@running
def resume(
    directory: Path,
    finish: Finish,
) -> None:
    """Finish the run in directory RUN, to the same bytes as if it had never stopped.

    Units that failed are tried again. The engine and the number of workers may be others than
    before. Exit code 1 if a claim is refuted.

    Example: epsilometer resume demo-run
    """
    plan = Store.open(directory).plan
    by = run_classifier if plan.audit == "classifier" else run
    result = finish(_job(plan, directory), directory, by=by)
    if refuted(result):
        raise SystemExit(1)


def _demo(plan: Plan) -> Job:
    return demo_job(*digits(), runs=plan.parameters["runs"], seed=plan.seed)


# By name, so that a plan from elsewhere cannot make us import or call anything else.
_JOBS: MappingProxyType[str, Callable[[Plan], Job]] = MappingProxyType(
    {
        "classifier": classifier.resumed,
        "demo": _demo,
        "dpsgd": dpsgd.resumed,
        "federated": federated.resumed,
        "posterior": posterior.resumed,
    }
)


def _job(plan: Plan, directory: Path) -> Job:
    if plan.audit not in _JOBS:
        raise InvalidArgument(
            f"Expected a run of {', '.join(_JOBS)}, got one of {plan.audit!r}. It was begun from "
            f"Python: make the same call again with directory={str(directory)!r}, and it goes on. "
            f"It was: {plan.command}"
        )
    return _JOBS[plan.audit](plan)
