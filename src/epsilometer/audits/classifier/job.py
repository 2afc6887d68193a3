"""Run the audit of a classifier.

Its parts (leaving records out, shadows, dropping records, variation) are the units of a run: each
is kept when it is finished, and inside the longer ones the engine keeps smaller units.
"""

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from epsilometer._files import write_whole
from epsilometer.audits.classifier.attacks.evaluation import find_mismatch
from epsilometer.audits.classifier.attacks.shadow_attacks import ATTACKS
from epsilometer.audits.classifier.attacks.shadows import ShadowPool, shadow_pool
from epsilometer.audits.classifier.finding import RECORDS, PartResults
from epsilometer.audits.classifier.leave_one_out.pdtp import (
    SHOWN,
    Pdtp,
    measure_changes,
    pdtp,
    predict_class,
    show,
)
from epsilometer.audits.classifier.sklearn_models import FitEstimator, take_rows
from epsilometer.audits.classifier.subject import (
    MOST_BYTES,
    Classifier,
    ClassifierTask,
    count_bytes,
)
from epsilometer.core.audit import Audit
from epsilometer.core.scores import Scores
from epsilometer.engine.code import find_code
from epsilometer.engine.engines import Call, Engine, Local, Outcome, Outcomes
from epsilometer.engine.events import Listener
from epsilometer.engine.fingerprints import fingerprint, name_of
from epsilometer.engine.plan import Plan
from epsilometer.engine.request import Request
from epsilometer.engine.run import Done, Unwatched, Watch
from epsilometer.engine.shards import Arrays, check_arrays
from epsilometer.stats.tradeoff import tradeoff_curve
from epsilometer.types import BoolArray, FloatArray

SUBJECTS = (Classifier,)
_MOST_MODELS = 1024  # that are trained for precision
_WORTH = 0.9  # twice the models must narrow limits to so much of their width
_PARTS = (2, 4)  # in which the records are cut to train on fewer
_FEWER = 16  # models of each part
_SIZES = 8  # number of the random stream that cuts records into parts
_VARIATION = 7  # number of the random stream that varies training; attacks have the others
_PATIENCE = 5  # measurements of a removal plan without a new best
_SHARE = 10  # of the exposed records, one in so many is dropped at a time


def run_audit(subject: Classifier, request: Request) -> Audit:
    """Measure the risk of records and what attacks find, and apply the rules to it."""
    own = _CallerProcess()
    return request.execute(make_job(subject, request), usual=own, engine=own, listen=())


def make_job(subject: Classifier, request: Request) -> "ClassifierJob":
    """Return the work of an audit; its engine executes what the parts are made of."""
    task = ClassifierTask(subject, request)
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
    given["y"] = task.classes, task.codes
    # Texts as arrays: one by one they would be looked for among files, which takes long.
    for name in {"feature_names", "record_names"} & set(given):
        given[name] = np.asarray(given[name], np.str_)
    if "groups" in given:
        given["groups"] = task.groups
    # An attack from elsewhere is known to the plan by its code: settings have its name alone.
    for name in subject.attack_names:
        if not name_of(ATTACKS[name]).startswith("epsilometer."):
            given[f"attack {name}"] = find_code(ATTACKS[name]).digests
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
            "sizes": self._attack_parts,
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
        records: Any = None if every else subject.records
        if not isinstance(records, (str, type(None))):
            records = np.asarray(records)
        return pdtp(
            subject.estimator,
            X,
            y,
            records=records,
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
        """Attack as many models as the precision asks for."""
        subject, models = self.task.subject, self.task.subject.shadows
        found = self._attack_models(models)
        if subject.precision is None or self.task.target is not None:
            return found
        width = PartResults(task=self.task, found={"attacks": found}).measure_width()
        most = MOST_BYTES // count_bytes(self.task.classes.size, self.task.codes.size, 1)
        while width > subject.precision and 2 * models <= min(_MOST_MODELS, most):
            models, before = 2 * models, width
            found = self._attack_models(models)
            width = PartResults(task=self.task, found={"attacks": found}).measure_width()
            if width > _WORTH * before:
                break
        return found

    def _attack_models(self, models: int) -> Arrays:
        subject = self.task.subject
        pool = shadow_pool(
            subject.estimator,
            subject.X,
            subject.y,
            models=models,
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
            "advantages": measure_shown(pool),
            "spread": own.std(axis=0),
            "accuracy": np.array([pool.train_accuracy.mean(), pool.test_accuracy.mean()]),
        }
        for place, name in enumerate(subject.attack_names):
            scores = [
                ATTACKS[name](pool, target, self._stream(place + 2 * (place >= _VARIATION), number))
                for number, target in enumerate(targets)
            ]
            arrays[f"scores {name}"] = np.stack([score.values for score in scores])
            arrays[f"named {name}"] = np.array(scores[0].attack)
            arrays[f"cites {name}"] = np.array(scores[0].cites, np.str_)
            arrays[f"cut {name}"] = np.array([score.threshold for score in scores])
        return arrays

    def _attack_parts(self) -> Arrays:
        """Attack models of a quarter, and of an eighth, of the records: all records, in parts."""
        subject = self.task.subject
        order = self._stream(_SIZES).permutation(self.task.codes.size)
        arrays: dict[str, NDArray[Any]] = {}
        for parts in _PARTS:
            member: list[BoolArray] = []
            scores: dict[str, list[FloatArray]] = {name: [] for name in subject.attack_names}
            for number, rows in enumerate(np.array_split(order, parts)):
                pool = shadow_pool(
                    subject.estimator,
                    take_rows(subject.X, rows),
                    np.asarray(subject.y)[rows],
                    models=_FEWER,
                    seed=self.task.seed,
                    engine=self.engine,
                    directory=self._folder(f"shadows-{parts}-{number}"),
                    listen=self.listen,
                )
                member.append(pool.member)
                for place, name in enumerate(subject.attack_names):
                    streams = (_SIZES, parts, number, place)
                    found = [
                        ATTACKS[name](pool, target, self._stream(*streams, target)).values
                        for target in range(_FEWER)
                    ]
                    scores[name].append(np.stack(found))
            arrays[f"member {parts}"] = np.concatenate(member, axis=1)
            for name in subject.attack_names:
                arrays[f"scores {parts} {name}"] = np.concatenate(scores[name], axis=1)
        return arrays

    def _choose_targets(
        self, pool: ShadowPool
    ) -> tuple[list[int | FloatArray], BoolArray, tuple[str, ...]]:
        """Return what is attacked, who was in it, and how it differs from its shadows."""
        if self.task.target is not None:
            log_proba, member = self.task.target
            return [log_proba], member[None], find_mismatch(pool, log_proba, member)
        targets = range(pool.models // 2 * 2)  # whole pairs: every record is in half of them
        return [*targets], pool.member[targets], ()

    def _remove(self) -> Arrays:
        subject = self.task.subject
        return plan_removal(
            lambda X, y: self._measure(X, y, where=f"removal-{len(y)}", every=True),  # noqa: N803
            subject.X,
            subject.y,
            limit=subject.limit,
            decimals=subject.decimals,
            steps=self.task.removal,
        )

    def _vary(self) -> Arrays:
        subject, codes = self.task.subject, self.task.codes
        fit = FitEstimator(subject.estimator, self.task.classes)
        own = []
        for seed in self._stream(_VARIATION, 0).integers(2**31, size=subject.variation).tolist():
            log_proba = fit(subject.X, codes, seed)(subject.X)
            own.append(np.exp(log_proba[np.arange(codes.size), codes]))
        return {"spread": np.std(own, axis=0)}

    def _folder(self, name: str) -> Path | None:
        return None if self.directory is None else self.directory / name

    def _stream(self, *key: int) -> np.random.Generator:
        return np.random.default_rng(np.random.SeedSequence(self.task.seed, spawn_key=(2, *key)))


def plan_removal(
    measure: Callable[[Any, Any], Pdtp],
    X: Any,  # noqa: N803 - as in scikit-learn
    y: Any,
    *,
    limit: float,
    decimals: int | None,
    steps: int,
) -> Arrays:
    """Drop the riskiest tenth of those above the limit, measure all again, and so on.

    It ends where none is above the limit, where five measurements brought no new best, where a
    class would vanish, or after ``steps`` measurements.

    Args:
        measure: PDTP of all records of given features and labels.
        X: Features.
        y: Labels.
        limit: Above which a record is exposed.
        decimals: With how many decimals probabilities are shown.
        steps: Measurements at most, the first not counted.

    Returns:
        ``dropped``: row numbers, in the order they were dropped. At each measurement ``removed``:
        how many had been dropped; ``largest``: the largest risk; ``exposed``: records above the
        limit; ``accuracy``: share of those left that were predicted rightly.
    """
    labels = np.asarray(y)
    left = np.arange(labels.size)
    dropped: list[int] = []
    removed, largest, exposed, accuracy = [], [], [], []
    while True:
        found = measure(take_rows(X, left), labels[left])
        risk = measure_changes(found.full, found.without, decimals=decimals).risk
        above = int(np.sum(risk > limit))
        right = found.classes[predict_class(found.full)] == labels[left]
        removed.append(len(dropped))
        largest.append(float(risk.max()))
        exposed.append(above)
        accuracy.append(float(right.mean()))
        stalled = len(exposed) - 1 - int(np.argmin(exposed)) >= _PATIENCE
        if not above or len(removed) > steps or stalled:
            break
        worst = np.argsort(-risk, kind="stable")[: max(1, above // _SHARE)]
        after = np.delete(left, worst)
        if np.unique(labels[after]).size < np.unique(labels[left]).size:
            break
        dropped += left[worst].tolist()
        left = after
    return {
        "dropped": np.array(dropped, np.int64),
        "removed": np.array(removed, np.int64),
        "largest": np.array(largest),
        "exposed": np.array(exposed, np.int64),
        "accuracy": np.array(accuracy),
    }


def measure_shown(pool: ShadowPool) -> FloatArray:
    """Return TPR − FPR of a threshold on the own class's shown probability, for ``SHOWN``.

    The simplest attack, on what is left of probabilities: the best threshold over all models of
    the pool, so that these numbers are to be compared with each other, not with a limit.
    """
    advantages = []
    for decimals in SHOWN:
        values = []
        for each in pool.log_proba:
            log_proba = each.astype(np.float64)
            if decimals == -1:
                values.append((predict_class(log_proba) == pool.labels).astype(np.float64))
            else:
                own = show(log_proba, decimals)[np.arange(pool.records), pool.labels]
                values.append(own)
        scores = np.stack(values)
        curve = tradeoff_curve(Scores(scores[pool.member], scores[~pool.member]))
        advantages.append(float(np.max(1 - curve.fnr - curve.fpr)))
    return np.array(advantages)


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
