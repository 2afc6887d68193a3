"""The work of judging a classifier.

Its parts (leaving records out, shadows, dropping records, variation) are the units of a run: each
is kept when it is finished, and inside the longer ones the engine keeps smaller units.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from epsilometer.attacks.distance import distance
from epsilometer.attacks.estimators import FitEstimator
from epsilometer.attacks.frequency import frequency
from epsilometer.attacks.lira import lira
from epsilometer.attacks.membership import RecordScores, mismatch
from epsilometer.attacks.rmia import rmia
from epsilometer.attacks.shadows import ShadowPool, shadow_pool
from epsilometer.attacks.threshold import threshold
from epsilometer.attacks.untargeted import untargeted
from epsilometer.audits.cures import sawtooth, shown_advantages
from epsilometer.audits.release import PdtpAtMost, ReleaseRule
from epsilometer.audits.release_finding import Finding
from epsilometer.audits.standing_out import Data
from epsilometer.engine.engines import Call, Engine, Local, Outcome, Outcomes
from epsilometer.engine.events import Listener
from epsilometer.engine.plan import Plan
from epsilometer.engine.run import Done, Unwatched, Watch, run
from epsilometer.engine.shards import Arrays, checked
from epsilometer.leave_one_out.pdtp import Pdtp, pdtp
from epsilometer.leave_one_out.pipelines import Preprocessing
from epsilometer.core.audit import ReleaseAudit
from epsilometer.types import BoolArray, FloatArray, IntArray

Attack: TypeAlias = Callable[[ShadowPool, int | FloatArray, np.random.Generator], RecordScores]
ATTACKS: MappingProxyType[str, Attack] = MappingProxyType(
    {
        "loss": lambda pool, target, rng: threshold(pool, target),
        "lira": lambda pool, target, rng: lira(pool, target),
        "rmia": lambda pool, target, rng: rmia(pool, target),
        "lira-offline": lambda pool, target, rng: lira(pool, target, online=False),
        "distance": lambda pool, target, rng: distance(pool, target),
        "frequency": lambda pool, target, rng: frequency(pool, target),
        "untargeted": lambda pool, target, rng: untargeted(pool, target, rng=rng),
    }
)
PARTS = ("leaving", "attacks", "removal", "variation")
_SCORES = 10_000  # of attacks, for which enough targets are attacked
_STEPS = 25  # measurements of a removal plan


@dataclass(frozen=True, eq=False, kw_only=True)
class Questions:
    """What is to be measured, and how it is judged.

    Attributes:
        records: Which are left out: row numbers, ``"sample:500"``, or None for all.
        preprocessing: Whether a pipeline's earlier steps are refitted without the record.
        patience: Seconds that refits may take.
        attacks: Names of ``ATTACKS``.
        shadows: Models in the pool.
        decimals: With how many decimals probabilities are shown; None: all.
        rules: By which it is judged.
        confidence: Of the verdict.
        removal: Measurements of the removal plan; None: 25 where they cost nothing, else 0.
        variation: Models trained on all records with other seeds; 0: none.
    """

    records: IntArray | str | None
    preprocessing: Preprocessing
    patience: float
    attacks: tuple[str, ...]
    shadows: int
    decimals: int | None
    rules: tuple[ReleaseRule, ...]
    confidence: float
    removal: int | None
    variation: int

    @property
    def limit(self) -> float:
        """Above which a record is exposed."""
        return next((rule.limit for rule in self.rules if isinstance(rule, PdtpAtMost)), 1.0)

    @property
    def parts(self) -> tuple[str, ...]:
        """The parts of the work, in order."""
        wanted = {
            "leaving": True,
            "attacks": bool(self.attacks),
            "removal": self.removal != 0,
            "variation": self.variation > 0,
        }
        return tuple(part for part in PARTS if wanted[part])


@dataclass(frozen=True, eq=False, kw_only=True)
class ClassifierJob:
    """The parts of an audit of a classifier, each a unit.

    Attributes:
        plan: Everything that determines the result.
        data: The records, and what is trained on them.
        classes: The labels, in order.
        questions: What is to be measured.
        groups: (column, group of each record) pairs.
        names: Of the records.
        words: What the values of each feature stand for; only where records are to be shown.
        show_records: Whether features of exposed records are written into the result.
        subject: What is audited, in words.
        caveats: What a reader must know beforehand.
        target: ln p of a model that is there already, and who was in it; None: models of the pool.
        directory: Where longer parts keep their own units; nowhere where None.
        engine: What executes these.
        listen: Who is told what happens.
    """

    plan: Plan
    data: Data
    classes: NDArray[Any]
    questions: Questions
    groups: tuple[tuple[str, NDArray[Any]], ...]
    names: Sequence[str]
    words: Sequence[Sequence[str] | None]
    show_records: bool
    subject: str
    caveats: tuple[str, ...]
    target: tuple[FloatArray, BoolArray] | None = None
    directory: Path | None = None
    engine: Engine = field(default_factory=Local)
    listen: Sequence[Listener] = ()

    def unit(self, index: int) -> Arrays:
        """One part of the work."""
        part = self.questions.parts[index]
        work = {
            "leaving": self._leaving,
            "attacks": self._attacks,
            "removal": self._removal,
            "variation": self._variation,
        }
        return work[part]()

    def missing(self, index: int) -> Arrays:
        """Never asked: what a part raises reaches the caller."""
        return {}

    def watch(self) -> Watch:
        """Nothing can be said before the parts are there."""
        return Unwatched()

    def result(self, units: Iterable[Arrays], done: Done) -> ReleaseAudit:
        """All parts together, judged."""
        found = dict(zip(self.questions.parts, units, strict=True))
        return Finding(job=self, found=found, done=done).audit()

    def _measure(self, X: Any, y: Any, *, where: str, every: bool = False) -> Pdtp:  # noqa: N803
        asked = self.questions
        return pdtp(
            self.data.estimator,
            X,
            y,
            records=None if every else asked.records,
            preprocessing=asked.preprocessing,
            seed=self.plan.seed,
            engine=self.engine,
            directory=self._folder(where),
            patience=asked.patience,
        )

    def _leaving(self) -> Arrays:
        found = self._measure(self.data.X, self.data.y, where="leave-one-out")
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

    def _attacks(self) -> Arrays:
        asked = self.questions
        pool = shadow_pool(
            self.data.estimator,
            self.data.X,
            self.data.y,
            models=asked.shadows,
            seed=self.plan.seed,
            engine=self.engine,
            directory=self._folder("shadows"),
            listen=self.listen,
        )
        targets, member, unlike = self._targets(pool)
        own = np.exp(pool.own.astype(np.float64))
        arrays: dict[str, NDArray[Any]] = {
            "member": member,
            "mismatch": np.array(unlike, np.str_),
            "advantages": shown_advantages(pool),
            "spread": own.std(axis=0),
            "accuracy": np.array([pool.train_accuracy.mean(), pool.test_accuracy.mean()]),
        }
        for place, name in enumerate(asked.attacks):
            scores = [
                ATTACKS[name](pool, target, self._stream(place, number))
                for number, target in enumerate(targets)
            ]
            arrays[f"scores {name}"] = np.stack([score.values for score in scores])
            arrays[f"named {name}"] = np.array(scores[0].attack)
            arrays[f"cites {name}"] = np.array(scores[0].cites, np.str_)
            arrays[f"cut {name}"] = np.array([score.threshold for score in scores])
        return arrays

    def _targets(
        self, pool: ShadowPool
    ) -> tuple[list[int | FloatArray], BoolArray, tuple[str, ...]]:
        """What is attacked, who was in it, and how it differs from its shadows."""
        if self.target is not None:
            log_proba, member = self.target
            return [log_proba], member[None], mismatch(pool, log_proba, member)
        enough = min(pool.models // 2, max(1, -(-_SCORES // pool.records)))
        targets = range(0, 2 * enough, 2)  # one of each pair
        return [*targets], pool.member[targets], ()

    def _removal(self) -> Arrays:
        asked = self.questions
        found = sawtooth(
            lambda X, y: self._measure(X, y, where=f"removal-{len(y)}", every=True),  # noqa: N803
            self.data.X,
            self.data.y,
            limit=asked.limit,
            decimals=asked.decimals,
            steps=_STEPS if asked.removal is None else asked.removal,
        )
        return {
            "dropped": found.dropped,
            "removed": found.removed,
            "largest": found.largest,
            "exposed": found.exposed,
            "accuracy": found.accuracy,
        }

    def _variation(self) -> Arrays:
        fit = FitEstimator(self.data.estimator, self.classes)
        rng = self._stream(len(ATTACKS), 0)
        own = []
        for seed in rng.integers(2**31, size=self.questions.variation).tolist():
            log_proba = fit(self.data.X, self.data.codes, seed)(self.data.X)
            own.append(np.exp(log_proba[np.arange(self.data.codes.size), self.data.codes]))
        return {"spread": np.std(own, axis=0)}

    def _folder(self, name: str) -> Path | None:
        return None if self.directory is None else self.directory / name

    def _stream(self, *key: int) -> np.random.Generator:
        return np.random.default_rng(np.random.SeedSequence(self.plan.seed, spawn_key=(2, *key)))


@dataclass(frozen=True)
class _Here:
    """One part after the other in this process; what one raises is the caller's to see."""

    @property
    def workers(self) -> int:
        """One."""
        return 1

    def outcomes(self, call: Call, units: Iterable[int]) -> Outcomes:
        """Yields outcomes in the order of ``units``; none of them failed."""
        for unit in units:
            with threadpool_limits(1):  # sums in one order, on any machine
                arrays = checked(call(unit))
            yield Outcome(unit=unit, arrays=arrays, error="", seconds=0.0)


def run_classifier(
    job: ClassifierJob,
    directory: Path | None = None,
    *,
    engine: Engine | None = None,
    listen: Sequence[Listener] = (),
) -> ReleaseAudit:
    """Finishes the run of a job, or begins it; the engine executes what the parts are made of."""
    placed = replace(job, directory=directory, engine=engine or Local(), listen=listen)
    result = run(placed, directory, engine=_Here())
    assert isinstance(result, ReleaseAudit)  # as the job returns
    return result
