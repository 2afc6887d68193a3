"""``epsilometer demo``."""

from typing import Any

import click

from epsilometer._dispatch import Call
from epsilometer.audits.training.demo import CLAIM, Demo
from epsilometer.cli.calls import run_call
from epsilometer.cli.options import Options, audit_options, field_options, seed_option
from epsilometer.cli.output import end_audit
from epsilometer.core.settings import from_settings


@click.command()
@field_options(Demo, {"runs": "Train so often with the record, and without it."}, into="settings")
@seed_option
@audit_options(asks=False, units=True, home="epsilometer-demo")
def demo(settings: dict[str, Any], options: Options) -> None:
    """Audit DP training on real data, right and with a mistake.

    Trains softmax regression on handwritten digits thousands of times, with a mislabelled image and
    without it, and attacks every run. The exit code is 0 although the claim is refuted.

    Example: epsilometer demo --runs 500 --out demo-run
    """
    subject = from_settings(Demo, {"source": {"type": "digits"}, **settings})
    call = Call(subject=subject, claim=CLAIM, seed=options.seed or 0)
    end_audit(run_call(call, options), options, code=False)
