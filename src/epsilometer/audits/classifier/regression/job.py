"""Run the audit of a regressor: leave records out, attack models of halves, search the file."""

import dataclasses
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from epsilometer._files import write_whole
from epsilometer.audits.classifier.advice import RECORDS
from epsilometer.audits.classifier.attacks.shadow_attacks import ATTACKS
from epsilometer.audits.classifier.attacks.shadows import train_halves
from epsilometer.audits.classifier.job import CallerProcess
from epsilometer.audits.classifier.leaks import Leak, write_leaks
from epsilometer.audits.classifier.model_file import search_model
from epsilometer.audits.classifier.model_state import walk_state
from epsilometer.audits.classifier.regression.finding import RegressorResults
from epsilometer.audits.classifier.regression.leaving import leave_out
from epsilometer.audits.classifier.regression.residuals import (
    RegressorHalves,
    make_pool,
    show_predictions,
)
from epsilometer.audits.classifier.regression.subject import Regressor, RegressorTask
from epsilometer.audits.classifier.regression.targets import FitRegressor, Targets
from epsilometer.core.audit import Audit
from epsilometer.engine.engines import Engine, Local
from epsilometer.engine.events import Listener
from epsilometer.engine.fingerprints import fingerprint, name_of
from epsilometer.engine.plan import Plan
from epsilometer.engine.request import Request
from epsilometer.engine.run import Done, Unwatched, Watch
from epsilometer.engine.shards import Arrays

SUBJECTS = (Regressor,)
_SHOWN = 9  # number of the random stream of an API's noise


def run_audit(subject: Regressor, request: Request) -> Audit:
    """Measure changes of predictions and what attacks find, and apply the rules to it."""
    task = RegressorTask(subject, request)
    plan = request.make_plan(
        subject,
        units=len(task.parts),
        inputs=_fingerprint_inputs(task),
        estimator=name_of(type(subject.estimator)),
        parts=list(task.parts),
    )
    job = RegressorJob(
        plan=plan,
        task=task,
        directory=None if request.recompute else request.out,  # which writes nothing
        engine=request.engine or Local(),
        listen=request.listen,
    )
    own = CallerProcess()
    return request.execute(job, usual=own, engine=own, listen=())


def _fingerprint_inputs(task: RegressorTask) -> dict[str, str]:
    """Return the hashes of the files that were read, and of all data that were given."""
    subject = task.subject
    given: dict[str, Any] = {
        each.name: getattr(subject, each.name)
        for each in dataclasses.fields(subject)
        if each.metadata.get("data") and getattr(subject, each.name) is not None
    }
    given["y"] = task.targets.values
    for name in {"feature_names", "record_names"} & set(given):
        given[name] = np.asarray(given[name], np.str_)
    if task.content is not None:
        given["model_file"] = task.content
    if "groups" in given:
        given["groups"] = task.groups
    files = {} if subject.source is None else dict(subject.source.fingerprints())
    return {**files, **{name: fingerprint(value) for name, value in given.items()}}


@dataclass(frozen=True, eq=False, kw_only=True)
class RegressorJob:
    """The parts of an audit of a regressor, each a unit.

    Attributes:
        plan: Everything that determines the result.
        task: What is to be measured.
        directory: Where longer parts keep their own units; nowhere where None.
        engine: What executes these.
        listen: Callbacks that receive events.
    """

    plan: Plan
    task: RegressorTask
    directory: Path | None
    engine: Engine
    listen: Sequence[Listener]

    def unit(self, index: int) -> Arrays:
        """Compute one part of the work."""
        work = {"leave-one-out": self._leave_out, "attacks": self._attack, "file": self._search}
        return work[self.task.parts[index]]()

    def missing(self, index: int) -> Arrays:
        """Return nothing. It is never asked: what a part raises reaches the caller."""
        return {}

    def watch(self) -> Watch:
        """Return a watch that says nothing before the parts are there."""
        return Unwatched()

    def result(self, units: Iterable[Arrays], done: Done) -> Audit:
        """Return all parts together, with the rules applied to them."""
        found = dict(zip(self.task.parts, units, strict=True))
        results = RegressorResults(task=self.task, found=found)
        if self.directory is not None:
            write_whole(self.directory / RECORDS, results.list_records().encode("utf-8"))
        return results.make_audit(done.provenance)

    @property
    def _fit(self) -> FitRegressor:
        subject = self.task.subject
        features = subject.X if hasattr(subject.X, "shape") else np.asarray(subject.X)
        return FitRegressor(subject.estimator, features, self.task.targets)

    def _leave_out(self) -> Arrays:
        subject = self.task.subject
        records: Any = subject.records
        if not isinstance(records, (str, type(None))):
            records = np.asarray(records)
        left = leave_out(
            subject.estimator,
            self._fit.features,
            self.task.targets,
            records=records,
            preprocessing=subject.preprocessing,
            seed=self.task.seed,
            engine=self.engine,
            directory=self._folder("leave-one-out"),
            patience=subject.patience,
        )
        random = not np.array_equal(left.full, left.null)
        return {
            "records": left.records,
            "full": left.full,
            "without": left.without,
            "null": left.null if random else left.null[:0],
            "drawn": np.array(left.drawn),
            "path": np.array(left.path),
            "caveats": np.array(left.caveats, np.str_),
        }

    def _attack(self) -> Arrays:
        """Attack every model of the pool by all others."""
        subject, targets = self.task.subject, self.task.targets
        halves = RegressorHalves(records=targets.records, seed=self.task.seed, fit=self._fit)
        models = subject.shadows // 2 * 2  # whole pairs: every record is in half of them
        said = train_halves(
            halves, models, self._folder("shadows"), engine=self.engine, listen=self.listen
        )
        predictions = show_predictions(
            np.stack([arrays["predictions"] for arrays in said]),
            rounding=subject.rounding,
            noise=subject.noise,
            rng=self.task.stream(_SHOWN),
        )
        member = np.stack([halves.members(model) for model in range(models)])
        pool = make_pool(predictions, member, targets.values)
        errors = np.abs(predictions - targets.values).mean(axis=2)
        arrays: dict[str, NDArray[Any]] = {
            "member": member,
            "errors": np.array([errors[member].mean(), errors[~member].mean()]),
        }
        for place, name in enumerate(subject.attack_names):
            scores = [
                ATTACKS[name](pool, target, self.task.stream(place, target))
                for target in range(models)
            ]
            arrays[f"scores {name}"] = np.stack([score.values for score in scores])
            arrays[f"named {name}"] = np.array(scores[0].attack)
            arrays[f"cites {name}"] = np.array(scores[0].cites, np.str_)
            arrays[f"cut {name}"] = np.array([score.threshold for score in scores])
        return arrays

    def _search(self) -> Arrays:
        task = self.task
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the same as with each record left out, said there
            model = self._fit.fit(slice(None), seed=task.seed, overwrite=False)
        targets = task.targets
        flat = targets.values[:, 0] if targets.outputs == 1 else targets.values
        leaks = search_model(
            model,
            task.subject.X,
            np.zeros(targets.records, np.int64),
            content=task.content,
            targets=flat if targets.times is None else None,
            seed=task.seed,
        )
        leaks = (*find_targets(model, targets), *leaks)
        return write_leaks(leaks)

    def _folder(self, name: str) -> Path | None:
        return None if self.directory is None else self.directory / name


def find_targets(model: Any, targets: Targets) -> tuple[Leak, ...]:
    """Return where a fitted model holds the numbers of all its records."""
    values = targets.values if targets.times is None else targets.times[:, None]
    if np.unique(values).size < values.size / 2:
        return ()  # of few different numbers, an array of as many is met by chance
    ordered = np.sort(values, axis=None)
    for where, part in walk_state(model):
        numbers = isinstance(part, np.ndarray) and part.dtype.kind in "fiu"
        if not numbers or part.size != values.size:
            continue
        if np.allclose(np.sort(part, axis=None), ordered, rtol=1e-6, atol=0.0):
            text = f"{where} holds the numbers of {targets.records:,} training records."
            return (Leak(kind="rows", records=targets.records, finding=text),)
    return ()
