"""Run the audit of a regressor: leave records out, attack models of halves, search the file."""

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from epsilometer.audits.classifier.attacks.evaluation import RecordScores
from epsilometer.audits.classifier.attacks.shadow_attacks import ATTACKS
from epsilometer.audits.classifier.attacks.shadows import train_halves
from epsilometer.audits.classifier.leaks import Leak, write_leaks
from epsilometer.audits.classifier.model_file import search_model
from epsilometer.audits.classifier.model_state import walk_state
from epsilometer.audits.classifier.published import (
    CallerProcess,
    PublishedJob,
    make_parts,
    write_scores,
)
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
from epsilometer.engine.request import Request
from epsilometer.engine.shards import Arrays

SUBJECTS = (Regressor,)
_SHOWN = 9  # number of the random stream of an API's noise


def run_audit(subject: Regressor, request: Request) -> Audit:
    """Measure changes of predictions and what attacks find, and apply the rules to it."""
    task = RegressorTask(subject, request)
    job = RegressorJob(**make_parts(task, task.targets.values))
    own = CallerProcess()
    return request.execute(job, usual=own, engine=own, listen=())


@dataclass(frozen=True, eq=False, kw_only=True)
class RegressorJob(PublishedJob):
    """The parts of an audit of a regressor, each a unit."""

    task: RegressorTask

    @property
    def work(self) -> Mapping[str, Callable[[], Arrays]]:
        """What computes each part."""
        return {"leave-one-out": self._leave_out, "attacks": self._attack, "file": self._search}

    def collect(self, found: Mapping[str, Arrays]) -> RegressorResults:
        """Return what the parts found, on its way to a result."""
        return RegressorResults(task=self.task, found=found)

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

        def score(place: int, name: str) -> list[RecordScores]:
            streams = (self.task.stream(place, target) for target in range(models))
            return [ATTACKS[name](pool, *each) for each in enumerate(streams)]

        arrays |= write_scores(subject.attack_names, score)
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
