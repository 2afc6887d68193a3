"""Check programs of the zoo with this package, at default settings; other tools can replace it."""

import logging
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from epsilometer.audits.step.subject import check_step
from epsilometer.core import judge
from epsilometer.core.findings import ConformanceFinding
from epsilometer.core.serialisation import load
from epsilometer.zoo.program import Program

DELTA = 1e-5


@dataclass(frozen=True, kw_only=True)
class Alarm:
    """Hold one alarm of a tool about a program.

    Attributes:
        check: Name of the check.
        steps: Steps of the program until the alarm.
        call: Function of the tool that was called, if it has several.
    """

    check: str
    steps: int = 0
    call: str = ""


@dataclass(frozen=True, kw_only=True)
class Report:
    """Hold what a tool reports about a program.

    Attributes:
        alarms: Its alarms, if any.
        untested: Names of checks that it could not make.
    """

    alarms: tuple[Alarm, ...] = ()
    untested: tuple[str, ...] = ()


Tool: TypeAlias = Callable[[Program, int], Report | None]


def check_program(program: Program, seed: int) -> Report:
    """Check a program as its author would: a step by ``epsilometer.Step``, training by all calls.

    A federated run is audited by ``audit_server_app``. Training is watched by ``audited``, and ends
    at the first alarm. If there is none, its loader and books are compared by ``check``, one of its
    steps is repeated by ``replay``, and its set-up by ``replay_setup``.
    """
    if program.kind == "step":
        return report_finding(check_step(program.make(seed), seed=seed), call="Step")
    return (_check_server if program.kind == "flower" else _check_training)(program, seed)


def report_finding(
    finding: ConformanceFinding | None, *, call: str, steps: int | None = None
) -> Report:
    """Return a finding as a report: violated checks in order of their steps.

    Args:
        finding: The finding.
        call: Function of this package that was called.
        steps: Steps after which all checks were made, if not made step by step.
    """
    assert finding is not None  # what every call here is for
    ordered = sorted(finding.find(judge.VIOLATED), key=lambda check: check.steps)
    return Report(
        alarms=tuple(
            Alarm(check=check.name, steps=check.steps if steps is None else steps, call=call)
            for check in ordered
        ),
        untested=tuple(check.name for check in finding.find(judge.NOT_TESTED)),
    )


@contextmanager
def isolate_torch() -> Iterator[None]:
    """Isolate the caller from torch's random state, and from warnings of torch and Opacus."""
    import torch

    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _check_training(program: Program, seed: int) -> Report:
    training = program.make(seed)
    untested: tuple[str, ...] = ()
    for call in (_watch, _compare, _replay, _replay_setup):
        report = call(training, seed)
        if report.alarms:
            return report
        untested += report.untested
    return Report(untested=untested)


def _check_server(program: Program, seed: int) -> Report:
    """Run a federated run in this process, audited with a few virtual canaries."""
    from epsilometer.integrations.flower import audit_server_app, run_in_process
    from epsilometer.zoo.flower_rounds import CANARIES

    run, log = program.make(seed), logging.getLogger("flwr")
    level = log.level
    log.setLevel(logging.CRITICAL)  # it has a line for every reply
    random = np.random.get_state()
    with tempfile.TemporaryDirectory() as folder:
        app = audit_server_app(
            run.server_app,
            delta=DELTA,
            mode="virtual",
            canaries=CANARIES,
            seed=seed,
            out=Path(folder) / "run",
            **run.settings,
        )
        try:
            run_in_process(app, run.client_app, nodes=run.clients)
        finally:
            log.setLevel(level)
            np.random.set_state(random)
        audit = load(Path(folder) / "run")
    return report_finding(audit.conformance, call="audit_server_app")


def _compare(training: Any, seed: int) -> Report:
    """Compare the loader and the books, after the training."""
    from epsilometer.integrations.opacus import check

    compared = check(
        training.engine, training.optimizer, loader=training.loader, delta=DELTA, seed=seed
    )
    alarm = Alarm(check="sampler and books", steps=_count_steps(training), call="check")
    return Report(alarms=() if compared.agrees else (alarm,))


def _replay(training: Any, seed: int) -> Report:
    """Repeat a step on neighbouring batches, at the end of training."""
    from epsilometer.integrations.opacus import replay

    training.model.train()
    audit = replay(
        training.engine,
        training.model,
        training.optimizer,
        training.compute_loss,
        training.take_batch(),
        seed=seed,
    )
    return report_finding(audit.conformance, call="replay", steps=_count_steps(training))


def _replay_setup(training: Any, seed: int) -> Report:
    """Set up training on datasets with one record less and one more."""
    from epsilometer.integrations.opacus import replay_setup

    own = training.own_loss
    audit = replay_setup(
        training.set_up,
        training.loader.dataset,
        own and (lambda model, batch: own(model, *batch)),
        seed=seed,
    )
    return report_finding(audit.conformance, call="replay_setup", steps=0)


def _count_steps(training: Any) -> int:
    return sum(int(steps) for _, _, steps in training.engine.accountant.history)


class _ViolatedError(Exception):
    """Ends training that is already violated."""


def _watch(training: Any, seed: int) -> Report:
    """Run training under ``audited``, queried after 1, 2, 4, 8, … updates and at the end."""
    from torch.optim.optimizer import register_optimizer_step_post_hook

    from epsilometer.integrations.opacus import audited

    updates = 0

    def ask(*_: Any) -> None:
        nonlocal updates
        updates += 1
        asked = updates & (updates - 1) == 0
        if asked and audit.conformance.verdict == judge.VIOLATED:
            raise _ViolatedError

    with audited(training.engine, training.optimizer, training.loader, seed=seed) as audit:
        hook = register_optimizer_step_post_hook(ask)
        try:
            training.run()
        except _ViolatedError:
            pass
        finally:
            hook.remove()
        return report_finding(audit.conformance, call="audited")
