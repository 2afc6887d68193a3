"""Run the audit of a classifier.

Its parts (leaving records out, shadows, dropping records, variation) are the units of a run: each
is kept when it is finished, and inside the longer ones the engine keeps smaller units.
"""

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from epsilometer._files import write_whole
from epsilometer.audits.classifier.attacks.estimators import FitEstimator
from epsilometer.audits.classifier.attacks.membership import mismatch
from epsilometer.audits.classifier.attacks.shadows import ShadowPool, shadow_pool
from epsilometer.audits.classifier.finding import RECORDS, PartResults
from epsilometer.audits.classifier.leave_one_out.pdtp import Pdtp, pdtp
from epsilometer.audits.classifier.remedies import sawtooth, shown_advantages
from epsilometer.audits.classifier.subject import ATTACKS, Classifier, ClassifierTask, prepare_task
from epsilometer.core.audit import Audit
from epsilometer.engine.engines import Call, Engine, Local, Outcome, Outcomes
from epsilometer.engine.events import Listener
from epsilometer.engine.fingerprints import fingerprint, name_of
from epsilometer.engine.plan import Plan
from epsilometer.engine.request import Request
from epsilometer.engine.run import Done, Unwatched, Watch
from epsilometer.engine.shards import Arrays, check_arrays
from epsilometer.types import BoolArray, FloatArray, IntArray

SUBJECTS = (Classifier,)
_SCORES = 10_000  # of attacks, for which enough targets are attacked


def run_audit(subject: Classifier, request: Request) -> Audit:
    """Measure the risk of records and what attacks find, and apply the rules to it."""
    own = _CallerProcess()
    return request.execute(make_job(subject, request), usual=own, engine=own, listen=())


def make_job(subject: Classifier, request: Request) -> "ClassifierJob":
    """Return the work of an audit; its engine executes what the parts are made of."""
    task = prepare_task(subject, request)
    plan = request.make_plan(
        subject,
        units=len(task.parts),
        inputs=_fingerprint_inputs(task),
        estimator=name_of(type(subject.estimator)),
        parts=list(task.parts),
        removal=task.removal,
    )
    return ClassifierJob(
        plan=plan,
        task=task,
        directory=None if request.recompute else request.out,  # which writes nothing
        engine=request.engine or Local(),
        listen=request.listen,
    )


def _fingerprint_inputs(task: ClassifierTask) -> dict[str, str]:
    """Return the hashes of the files that were read, and of all data that were given."""
    subject = task.subject
    given = {
        field.name: getattr(subject, field.name)
        for field in dataclasses.fields(subject)
        if field.metadata.get("data") and getattr(subject, field.name) is not None
    }
    given["y"] = task.classes, task.data.codes
    # Texts as arrays: one by one they would be looked for among files, which takes long.
    for name in {"feature_names", "record_names"} & set(given):
        given[name] = np.asarray(given[name], np.str_)
    if "groups" in given:
        given["groups"] = dict(task.groups)
    files = {} if subject.source is None else dict(subject.source.fingerprints())
    return {**files, **{name: fingerprint(value) for name, value in given.items()}}


@dataclass(frozen=True, eq=False, kw_only=True)
class ClassifierJob:
    """The parts of an audit of a classifier, each a unit.

    Attributes:
        plan: Everything that determines the result.
        task: What is to be measured.
        directory: Where longer parts keep their own units; nowhere where None.
        engine: What executes these.
        listen: Who is told what happens.
    """

    plan: Plan
    task: ClassifierTask
    directory: Path | None
    engine: Engine
    listen: Sequence[Listener]

    def unit(self, index: int) -> Arrays:
        """Compute one part of the work."""
        work = {
            "leave-one-out": self._leave_out,
            "attacks": self._attack,
            "removal": self._remove,
            "variation": self._vary,
        }
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
        results = PartResults(task=self.task, found=found)
        if self.directory is not None:
            write_whole(self.directory / RECORDS, results.list_records().encode("utf-8"))
        return results.make_audit(done.provenance)

    def _measure(self, X: Any, y: Any, *, where: str, every: bool = False) -> Pdtp:  # noqa: N803
        subject = self.task.subject
        chosen = subject.records
        return pdtp(
            subject.estimator,
            X,
            y,
            records=None if every else chosen if isinstance(chosen, str) else _rows(chosen),
            preprocessing=subject.preprocessing,
            seed=self.task.seed,
            engine=self.engine,
            directory=self._folder(where),
            patience=subject.patience,
        )

    def _leave_out(self) -> Arrays:
        subject = self.task.subject
        found = self._measure(subject.X, subject.y, where="leave-one-out")
        null = found.null
        if null is None or found.floor is None or not found.floor.any():
            null = np.zeros((0, found.classes.size))  # another seed changes nothing: not random
        return {
            "records": found.records,
            "full": found.full,
            "without": found.without,
            "null": null,
            "drawn": np.array(found.unseen is not None),
            "path": np.array(found.path),
            "caveats": np.array(found.caveats, np.str_),
        }

    def _attack(self) -> Arrays:
        subject = self.task.subject
        pool = shadow_pool(
            subject.estimator,
            subject.X,
            subject.y,
            models=subject.shadows,
            seed=self.task.seed,
            engine=self.engine,
            directory=self._folder("shadows"),
            listen=self.listen,
        )
        targets, member, unlike = self._choose_targets(pool)
        own = np.exp(pool.own.astype(np.float64))
        arrays: dict[str, NDArray[Any]] = {
            "member": member,
            "mismatch": np.array(unlike, np.str_),
            "advantages": shown_advantages(pool),
            "spread": own.std(axis=0),
            "accuracy": np.array([pool.train_accuracy.mean(), pool.test_accuracy.mean()]),
        }
        for place, name in enumerate(subject.attack_names):
            scores = [
                ATTACKS[name](pool, target, self._stream(place, number))
                for number, target in enumerate(targets)
            ]
            arrays[f"scores {name}"] = np.stack([score.values for score in scores])
            arrays[f"named {name}"] = np.array(scores[0].attack)
            arrays[f"cites {name}"] = np.array(scores[0].cites, np.str_)
            arrays[f"cut {name}"] = np.array([score.threshold for score in scores])
        return arrays

    def _choose_targets(
        self, pool: ShadowPool
    ) -> tuple[list[int | FloatArray], BoolArray, tuple[str, ...]]:
        """Return what is attacked, who was in it, and how it differs from its shadows."""
        if self.task.target is not None:
            log_proba, member = self.task.target
            return [log_proba], member[None], mismatch(pool, log_proba, member)
        enough = min(pool.models // 2, max(1, -(-_SCORES // pool.records)))
        targets = range(0, 2 * enough, 2)  # one of each pair
        return [*targets], pool.member[targets], ()

    def _remove(self) -> Arrays:
        subject = self.task.subject
        found = sawtooth(
            lambda X, y: self._measure(X, y, where=f"removal-{len(y)}", every=True),  # noqa: N803
            subject.X,
            subject.y,
            limit=subject.limit,
            decimals=subject.decimals,
            steps=self.task.removal,
        )
        return {
            "dropped": found.dropped,
            "removed": found.removed,
            "largest": found.largest,
            "exposed": found.exposed,
            "accuracy": found.accuracy,
        }

    def _vary(self) -> Arrays:
        data = self.task.data
        fit = FitEstimator(data.estimator, self.task.classes)
        rng = self._stream(len(ATTACKS), 0)
        own = []
        for seed in rng.integers(2**31, size=self.task.subject.variation).tolist():
            log_proba = fit(data.X, data.codes, seed)(data.X)
            own.append(np.exp(log_proba[np.arange(data.codes.size), data.codes]))
        return {"spread": np.std(own, axis=0)}

    def _folder(self, name: str) -> Path | None:
        return None if self.directory is None else self.directory / name

    def _stream(self, *key: int) -> np.random.Generator:
        return np.random.default_rng(np.random.SeedSequence(self.task.seed, spawn_key=(2, *key)))


def _rows(records: Sequence[int] | IntArray | None) -> IntArray | None:
    return None if records is None else np.asarray(records)


@dataclass(frozen=True)
class _CallerProcess:
    """Runs one part after the other in this process; what one raises is the caller's to see."""

    @property
    def workers(self) -> int:
        """One."""
        return 1

    def outcomes(self, call: Call, units: Iterable[int]) -> Outcomes:
        """Yield outcomes in the order of ``units``; none of them failed."""
        for unit in units:
            with threadpool_limits(1):  # sums in one order, on any machine
                arrays = check_arrays(call(unit))
            yield Outcome(unit=unit, arrays=arrays, error="", seconds=0.0)
