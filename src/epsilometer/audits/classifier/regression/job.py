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
from epsilometer.audits.classifier.extraction import compute_from_numbers
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
from epsilometer.audits.classifier.sklearn_models import identify
from epsilometer.core.audit import Audit
from epsilometer.engine.request import Request
from epsilometer.engine.shards import Arrays
from epsilometer.types import FloatArray

SUBJECTS = (Regressor,)
_SHOWN = 9  # number of the random stream of an API's noise
_NOT_TRIED = "Whether records follow from the mean of many answers was not tested."


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
        """The function that computes each part."""
        return {
            "leave-one-out": self._leave_out,
            "attacks": self._attack,
            "file": self._search,
            "extraction": self._search_answers,
        }

    def collect(self, found: Mapping[str, Arrays]) -> RegressorResults:
        """Return the results of the parts, to be combined."""
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
        """Attack every model of the pool with the others as shadows."""
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

    def _fit_published(self) -> tuple[Any, FloatArray]:
        """Return the model to publish, and the targets it was fitted to."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the same as with each record left out, said there
            model = self._fit.fit(slice(None), seed=self.task.seed, overwrite=False)
        targets = self.task.targets
        return model, targets.values[:, 0] if targets.outputs == 1 else targets.values

    def _search_answers(self) -> Arrays:
        """Compute records from answers as they are shown, if these have no noise."""
        subject = self.task.subject
        if subject.noise is not None or self.task.targets.times is not None:
            return write_leaks([Leak(kind="statistics", records=0, finding=_NOT_TRIED)])
        model, flat = self._fit_published()
        said = show_predictions(
            np.asarray(model.predict(self._fit.features), np.float64),
            rounding=subject.rounding,
            noise=None,
            rng=self.task.stream(_SHOWN),
        )
        inner, flat, said = unwrap_target(model, flat, said)
        return write_leaks(compute_from_numbers(inner, subject.X, flat, said, seed=self.task.seed))

    def _search(self) -> Arrays:
        task = self.task
        model, flat = self._fit_published()
        targets = task.targets
        leaks = self._search_model(model, flat if targets.times is None else None, task.content)
        inner, flat, _ = unwrap_target(model, flat, flat)
        if inner is not model:  # it was fitted to transformed targets
            known = self._search_model(inner, flat, None)
            leaks = (*(leak for leak in known if leak.kind == "rebuilt"), *leaks)
        leaks = (*find_targets(model, targets), *leaks)
        return write_leaks(leaks)

    def _search_model(
        self, model: Any, targets: FloatArray | None, content: bytes | None
    ) -> tuple[Leak, ...]:
        return search_model(
            model,
            self.task.subject.X,
            np.zeros(self.task.size, np.int64),
            content=content,
            targets=targets,
            seed=self.task.seed,
        )


def unwrap_target(
    model: Any, targets: FloatArray, answers: FloatArray
) -> tuple[Any, FloatArray, FloatArray]:
    """Return the model inside a ``TransformedTargetRegressor``, with the transformed targets."""
    if identify(model) != "sklearn.TransformedTargetRegressor":
        return model, targets, answers
    found = [
        np.asarray(model.transformer_.transform(each.reshape(len(each), -1)), np.float64)
        for each in (targets, answers)
    ]
    known, said = (each[:, 0] if each.shape[1] == 1 else each for each in found)
    return model.regressor_, known, said


def find_targets(model: Any, targets: Targets) -> tuple[Leak, ...]:
    """Return where a fitted model holds the targets of all its records."""
    values = targets.values if targets.times is None else targets.times[:, None]
    if np.unique(values).size < values.size / 2:
        return ()  # few distinct numbers match by chance
    ordered = np.sort(values, axis=None)
    for where, part in walk_state(model):
        numbers = isinstance(part, np.ndarray) and part.dtype.kind in "fiu"
        if not numbers or part.size != values.size:
            continue
        if np.allclose(np.sort(part, axis=None), ordered, rtol=1e-6, atol=0.0):
            text = f"{where} holds the numbers of {targets.records:,} training records."
            return (Leak(kind="rows", records=targets.records, finding=text),)
    return ()
