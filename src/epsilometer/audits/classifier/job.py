"""Run the audit of a classifier.

Its parts (leaving records out, shadows, dropping records, variation) are the units of a run: each
is kept when it is finished, and inside the longer ones the engine keeps smaller units.
"""

import dataclasses
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from epsilometer.audits.classifier.advice import (
    PartSummary,
    list_outcomes,
    rank_remedy,
)
from epsilometer.audits.classifier.answers import LabelsOnly, compare_answers
from epsilometer.audits.classifier.attacks.evaluation import RecordScores, find_mismatch
from epsilometer.audits.classifier.attacks.shadow_attacks import ATTACKS
from epsilometer.audits.classifier.attacks.shadows import (
    ShadowPool,
    hide_digits,
    shadow_pool,
    show_logs,
)
from epsilometer.audits.classifier.attacks.shown import measure_held_out, measure_shown
from epsilometer.audits.classifier.doubts import find_doubts
from epsilometer.audits.classifier.extraction import compute_from_answers
from epsilometer.audits.classifier.finding import PartResults, sum_up_parts
from epsilometer.audits.classifier.leaks import Leak, write_leaks
from epsilometer.audits.classifier.leave_one_out.pdtp import (
    Pdtp,
    measure_changes,
    pdtp,
)
from epsilometer.audits.classifier.leave_one_out.screens import screen_pool
from epsilometer.audits.classifier.model_file import search_model
from epsilometer.audits.classifier.published import (
    CallerProcess,
    PublishedJob,
    make_parts,
    write_scores,
)
from epsilometer.audits.classifier.remedies import Remedy, list_remedies
from epsilometer.audits.classifier.removal import plan_removal
from epsilometer.audits.classifier.seeds import find_hidden, measure_spread, take_odds
from epsilometer.audits.classifier.sklearn_models import (
    FitEstimator,
    clone_with_seed,
    has_fixed_seed,
    predict_logs,
    seed_globals,
    take_rows,
)
from epsilometer.audits.classifier.subject import (
    MOST_BYTES,
    Classifier,
    ClassifierTask,
    count_bytes,
    leaves_exactly,
)
from epsilometer.audits.classifier.threats.measuring import measure_threats
from epsilometer.core.audit import Audit
from epsilometer.engine.request import Request
from epsilometer.engine.shards import Arrays
from epsilometer.errors import EpsilometerError
from epsilometer.types import BoolArray, FloatArray, IntArray

SUBJECTS = (Classifier,)
_MOST_MODELS = 1024  # largest number of models trained for precision
_SCORES = 2**18  # scores of one attack, beyond which fewer models are attacked
_FEWEST_TARGETS = 8
_WORTH = 0.9  # doubling the models must narrow limits to this share of their width
_PARTS = (2, 4)  # numbers of parts into which the records are cut to train on fewer
_FEWER = 16  # models per part
_SIZES = 8  # number of the random stream that cuts records into parts
_JUDGED = ("leave-one-out", "attacks", "file", "extraction")  # parts that rules use
_SEEDS = 20  # models that show how far predictions vary with the seed alone
_FIRST = 5  # the first of them, after which it may be clear that no record is hidden
_GENEROUS = 3.0  # times the spread of these exceeds the spread of all
_VARIATION = 7  # number of the random stream that varies training; attacks have the others
_UNLIKE = 0.05  # total variation distance above which a model is unlike its recipe's
_SAME = 1e-3  # the same where training is not random: solvers and rounding differ by less
_CLOSER = 1000  # records up to which all are left out of the best remedy


def run_audit(subject: Classifier, request: Request) -> Audit:
    """Measure the risk of records and what attacks find, and apply the rules to it."""
    own = CallerProcess()
    return request.execute(make_job(subject, request), usual=own, engine=own, listen=())


def make_job(subject: Classifier, request: Request) -> "ClassifierJob":
    """Return the job of an audit; its engine executes the units inside the longer parts."""
    task = ClassifierTask(subject, request)
    parts = make_parts(task, (task.classes, task.codes), removal=task.removal)
    return ClassifierJob(**parts)


@dataclass(frozen=True, eq=False, kw_only=True)
class ClassifierJob(PublishedJob):
    """The parts of an audit of a classifier, each a unit.

    Attributes:
        kept: Results of parts, and the pool of shadows, for parts that need them.
    """

    task: ClassifierTask
    kept: dict[str, Any] = field(default_factory=dict)

    @property
    def work(self) -> Mapping[str, Callable[[], Arrays]]:
        """The function that computes each part."""
        return {
            "file": self._search_file,
            "extraction": self._search_answers,
            "leave-one-out": self._leave_out,
            "attacks": self._attack,
            "sizes": self._attack_sizes,
            "threats": self._measure_threats,
            "removal": self._remove,
            "variation": self._vary,
            "remedies": self._try_remedies,
        }

    def unit(self, index: int) -> Arrays:
        """Compute one part of the work, and keep it for those that need it."""
        found = self.kept[self.task.parts[index]] = super().unit(index)
        return found

    def collect(self, found: Mapping[str, Arrays]) -> PartResults:
        """Return the results of the parts, to be combined."""
        return PartResults(task=self.task, found=found)

    def _measure(
        self,
        X: Any,  # noqa: N803
        y: Any,
        *,
        where: str,
        records: IntArray | str | None = None,
        ranked: FloatArray | None = None,
    ) -> Pdtp:
        subject = self.task.subject
        return pdtp(
            self._shown_estimator,
            X,
            y,
            records=records,
            ranked=ranked,
            preprocessing=subject.preprocessing,
            seed=self.task.seed,
            engine=self.engine,
            directory=self._folder(where),
            patience=subject.patience,
        )

    def _find_published(self) -> tuple[Any, Any, IntArray]:
        """Return the model to publish, and the records that it was trained on."""
        subject, task = self.task.subject, self.task
        model, rows = subject.fitted, np.ones(task.codes.size, bool)
        if model is None or not hasattr(model, "fit"):  # ONNX models are bytes only
            model = clone_with_seed(subject.estimator, task.seed, overwrite=False)
            with seed_globals(task.seed), warnings.catch_warnings():
                warnings.simplefilter("ignore")  # the same as with each record left out, said there
                model.fit(subject.X, task.classes[task.codes])
        elif task.target is not None:
            rows = task.target[1]
        return model, take_rows(subject.X, rows), task.codes[rows]

    def _search_file(self) -> Arrays:
        task = self.task
        leaks = search_model(*self._find_published(), content=task.content, seed=task.seed)
        return write_leaks([*leaks, *self._doubt_search()])

    def _search_answers(self) -> Arrays:
        task = self.task
        decimals, seed = task.subject.shown, task.seed
        published = self._find_published()
        leaks = compute_from_answers(*published, task.classes, decimals=decimals, seed=seed)
        return write_leaks([*leaks, *self._doubt_search()])

    def _leave_out(self) -> Arrays:
        subject, records = self.task.subject, self.task.records
        ranked = None
        if isinstance(records, str) and records.startswith("screen") and subject.attack_names:
            ranked = np.full(self.task.codes.size, -np.inf)  # records no attack queries are last
            ranked[self.task.attacked] = screen_pool(self._train_pool(subject.shadows))
        found = self._measure(
            subject.X, subject.y, where="leave-one-out", records=records, ranked=ranked
        )
        null = found.null
        if null is None or found.floor is None or not found.floor.any():
            null = np.zeros((0, found.classes.size))  # another seed changes nothing: not random
        spread = null[:0]
        above = measure_changes(found.full, found.without, decimals=None).risk > subject.limit
        if null.size and above.any() and not has_fixed_seed(subject.estimator):
            spread = self._measure_spread(found, above)
        labels, seed = (self.task.classes, self.task.codes), self.task.seed
        doubts, remarks = find_doubts(subject.estimator, subject.X, *labels, seed=seed)
        return {
            "records": found.records,
            "full": found.full,
            "without": found.without,
            "null": null,
            "spread": spread,
            "drawn": np.array(found.unseen is not None),
            "screened": found.screened,
            "path": np.array(found.path),
            "caveats": np.array([*found.caveats, *remarks], np.str_),
            "doubts": np.array(doubts, np.str_),
        }

    def _measure_spread(self, found: Pdtp, above: BoolArray) -> FloatArray:
        """Return a lower limit on how much log-odds of models of all records vary with the seed.

        It is measured only at records above the limit, since no others can be hidden. It is 0 if a
        few seeds show that none is.
        """
        subject, records = self.task.subject, found.records[above]
        fit = FitEstimator(self._shown_estimator, self.task.classes)
        asked, codes = take_rows(subject.X, records), self.task.codes[records]
        shift = take_odds(found.full[above], codes) - take_odds(found.without[above], codes)
        spread = np.zeros((above.size, shift.shape[1]))
        drawn = self.task.stream(_VARIATION, 1).integers(2**31, size=_SEEDS).tolist()
        odds = np.empty((0, *shift.shape))
        for seeds in (drawn[:_FIRST], drawn[_FIRST:]):
            logs = np.stack([fit(subject.X, self.task.codes, seed)(asked) for seed in seeds])
            odds = np.concatenate([odds, take_odds(logs, codes)])
            most = _GENEROUS * odds.std(axis=0, ddof=1)
            if not find_hidden(shift, most, limit=subject.limit).any():
                return spread
        spread[above] = measure_spread(odds, shift)
        return spread

    @property
    def _answers(self) -> tuple[int, bool]:
        """Number of records where ``predict`` differs, and whether its labels reveal more."""
        subject, task = self.task.subject, self.task
        if "answers" not in self.kept:
            other, more = compare_answers(
                subject.estimator, subject.X, task.classes, task.codes, seed=task.seed
            )
            self.kept["answers"] = int(other.sum()), more
        answers: tuple[int, bool] = self.kept["answers"]
        return answers

    @property
    def _shown_estimator(self) -> Any:
        """The estimator to train: wrapped by ``LabelsOnly`` if shown labels need ``predict``."""
        estimator = self.task.subject.estimator
        if self.task.subject.shown != -1 or not self._answers[0]:
            return estimator
        return LabelsOnly(estimator)

    def _describe_answers(self) -> tuple[str, ...]:
        """Return a caveat if ``predict`` differs from the probabilities."""
        count, more = self._answers
        if self.task.subject.shown == -1 or not more:
            return ()
        return (
            f"predict disagrees with the most probable class at {count:,} of "
            f"{self.task.codes.size:,} records, and these attacks used only probabilities. Also "
            "audit published_as='labels'.",
        )

    def _train_pool(self, models: int) -> ShadowPool:
        """Return a pool of at least this many models; an existing larger one is reused."""
        subject = self.task.subject
        if "pool" not in self.kept or self.kept["pool"].models < models:
            self.kept["pool"] = shadow_pool(
                self._shown_estimator,
                subject.X,
                subject.y,
                models=models,
                asked=self.task.asked,
                seed=self.task.seed,
                engine=self.engine,
                directory=self._folder("shadows"),
                listen=self.listen,
            )
        pool: ShadowPool = self.kept["pool"]
        return pool

    def _attack(self) -> Arrays:
        """Attack as many models as the precision requires."""
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
        pool = self._train_pool(models)
        advantages = measure_shown(pool)
        pool = hide_digits(pool, subject.shown)
        targets, member, unlike = self._choose_targets(pool)
        own = np.exp(pool.own.astype(np.float64))
        arrays: dict[str, NDArray[Any]] = {
            "member": member,
            "mismatch": np.array([*unlike, *self._describe_answers()], np.str_),
            "advantages": advantages,
            "spread": own.std(axis=0),
            "accuracy": np.array([pool.train_accuracy.mean(), pool.test_accuracy.mean()]),
            "held out": np.array(measure_held_out(pool)),
        }

        def score(place: int, name: str) -> list[RecordScores]:
            streams = place + 2 * (place >= _VARIATION)
            return [
                ATTACKS[name](pool, target, self.task.stream(streams, number))
                for number, target in enumerate(targets)
            ]

        arrays |= write_scores(subject.attack_names, score)
        return arrays

    def _attack_sizes(self) -> Arrays:
        """Attack models of a quarter and an eighth of the records; nothing if training fails."""
        arrays: dict[str, NDArray[Any]] = {}
        try:
            for parts in _PARTS:
                arrays |= self._attack_parts(parts)
        except EpsilometerError:  # for example, 300 neighbours among fewer records
            return {}
        return arrays

    def _attack_parts(self, parts: int) -> Arrays:
        """Attack models trained on half of each part of the records."""
        subject = self.task.subject
        order = self.task.stream(_SIZES).permutation(self.task.codes.size)
        member: list[BoolArray] = []
        scores: dict[str, list[FloatArray]] = {name: [] for name in subject.attack_names}
        for number, rows in enumerate(np.array_split(order, parts)):
            pool = shadow_pool(
                self._shown_estimator,
                take_rows(subject.X, rows),
                np.asarray(subject.y)[rows],
                models=_FEWER,
                asked=None if self.task.asked is None else np.arange(self.task.asked.size // parts),
                seed=self.task.seed,
                engine=self.engine,
                directory=self._folder(f"shadows-{parts}-{number}"),
                listen=self.listen,
            )
            pool = hide_digits(pool, subject.shown)
            member.append(pool.member)
            for place, name in enumerate(subject.attack_names):
                streams = (_SIZES, parts, number, place)
                found = [
                    ATTACKS[name](pool, target, self.task.stream(*streams, target)).values
                    for target in range(_FEWER)
                ]
                scores[name].append(np.stack(found))
        joint = {f"scores {parts} {name}": np.hstack(found) for name, found in scores.items()}
        return {f"member {parts}": np.hstack(member), **joint}

    def _choose_targets(
        self, pool: ShadowPool
    ) -> tuple[list[int | FloatArray], BoolArray, tuple[str, ...]]:
        """Return the targets, their members, and how they differ from their shadows."""
        if self.task.target is not None:
            log_proba, member = (each[self.task.attacked] for each in self.task.target)
            log_proba = show_logs(log_proba, self.task.subject.shown)
            unlike = find_mismatch(pool, log_proba, member)
            return [log_proba], member[None], (*unlike, *self._compare_fitted())
        # Whole pairs: every record is in half of them. For 32,768 records, limits on TPR − FPR are
        # 0.02 wide with 8 targets, 0.013 with 32. Each target costs attacks on all records.
        most = pool.models // 2 * 2
        if self.task.subject.precision is None:
            most = min(most, max(_FEWEST_TARGETS, _SCORES // pool.records // 2 * 2))
        targets = range(most)
        return [*targets], pool.member[targets], self._compare_fitted()

    def _compare_fitted(self) -> tuple[str, ...]:
        """Return a caveat if a model fitted elsewhere is unlike one trained here on its records."""
        subject, task = self.task.subject, self.task
        if subject.fitted is None:
            return ()
        if "unlike" not in self.kept:
            rows = slice(None) if task.target is None else np.flatnonzero(task.target[1])
            own = take_rows(subject.X, rows), task.codes[rows]
            fit = FitEstimator(subject.estimator, task.classes)
            one, other = (fit(*own, task.seed + more)(subject.X) for more in (0, 1))
            fitted = predict_logs(subject.fitted, subject.X, classes=task.classes)
            self.kept["unlike"] = _measure_difference(one, fitted), _measure_difference(one, other)
        found, usual = self.kept["unlike"]
        if found <= usual + min(_UNLIKE, _SAME + 2 * usual):
            return ()
        return (
            "The fitted model's probabilities differ from those of its recipe on the same "
            f"records: by {found:.1%} on average, and by {usual:.1%} with another seed. So it was "
            "trained differently or on other records, and the measured risk may be too low.",
        )

    def _doubt_search(self) -> tuple[Leak, ...]:
        """Return a leak "unread" if the fitted model is unlike one trained on these records."""
        return tuple(
            Leak(kind="unread", records=self.task.size, finding=unlike)
            for unlike in self._compare_fitted()
        )

    def _measure_threats(self) -> Arrays:
        subject, task = self.task.subject, self.task
        return measure_threats(
            subject.estimator,
            subject.X,
            task.codes,
            task.classes,
            tuple(subject.threats),
            names=subject.feature_names,
            categorical=task.categorical,
            decimals=subject.shown,
            has_file=subject.published_as == "file",
            confidence=task.confidence,
            seed=task.seed,
            engine=self.engine,
            directory=self._folder("threats"),
            listen=self.listen,
        )

    def _remove(self) -> Arrays:
        subject = self.task.subject
        return plan_removal(
            lambda X, y: self._measure(X, y, where=f"removal-{len(y)}"),  # noqa: N803
            subject.X,
            subject.y,
            limit=subject.limit,
            decimals=subject.shown,
            steps=self.task.removal,
        )

    def _try_remedies(self) -> Arrays:
        """Try remedies, and measure them by the same attacks; nothing if all rules pass.

        Remedies that fail to train are skipped.
        """
        base = {part: self._find_part(part) for part in self.task.parts if part in _JUDGED}
        rows = [sum_up_parts(PartResults(task=self.task, found=base))]
        results = PartResults(task=self.task, found=base)
        if rows[0].failed == rows[0].unclear == 0:
            return list_outcomes([])
        self._train_pool(self.task.subject.shadows)
        left = self.task.remedies
        tried = {}
        for place, remedy in enumerate(
            list_remedies(self.task.subject, results.riskiest, exposed=results.exposed)
        ):
            if remedy.retrains and left == 0:
                continue
            left -= remedy.retrains
            try:
                found = self._carry_out(remedy, place, base)
            except EpsilometerError:
                continue
            rows.append(sum_up_parts(found, action=remedy.action))
            tried[remedy.action] = remedy, place, found
        if len(rows) > 1:
            best = min(range(1, len(rows)), key=lambda at: rank_remedy(rows[at]))
            rows[best] = self._look_closer(rows[best], *tried[rows[best].action])
        return list_outcomes(rows)

    def _look_closer(
        self, row: PartSummary, remedy: Remedy, place: int, found: PartResults
    ) -> PartSummary:
        """Leave all records out of the best remedy, if few, instead of the riskiest alone.

        The remedy that is advised first should be known to pass if it does.
        """
        if row.failed or not row.unclear or found.is_whole or self.task.codes.size > _CLOSER:
            return row
        job = dataclasses.replace(
            self,
            task=ClassifierTask(remedy.subject, self.task.request),
            directory=self._folder(f"remedy-{place}-whole"),
            kept={},
        )
        try:
            left_out = job._leave_out()
        except EpsilometerError:  # for example, it would take too long
            return row
        whole = {**found.found, "leave-one-out": left_out}
        return sum_up_parts(PartResults(task=job.task, found=whole), action=row.action)

    def _find_part(self, part: str) -> Arrays:
        """Return a part as it was computed here, or compute it again if it was read from disk."""
        return self.kept[part] if part in self.kept else self.unit(self.task.parts.index(part))

    def _carry_out(self, remedy: Remedy, place: int, base: Mapping[str, Arrays]) -> PartResults:
        subject = remedy.subject
        if subject.shown == -1 and self._answers[0]:  # probabilities do not give these labels
            remedy = dataclasses.replace(remedy, retrains=True)
        if remedy.retrains and not leaves_exactly(subject):  # check those that were riskiest
            subject = dataclasses.replace(subject, records=remedy.watched)
        task = ClassifierTask(subject, self.task.request)
        same = () if remedy.retrains else ("pool", "answers")  # from the unchanged model
        kept = {name: self.kept[name] for name in same if name in self.kept}
        job = dataclasses.replace(
            self, task=task, directory=self._folder(f"remedy-{place}"), kept=kept
        )
        found = {"attacks": job._attack_models(subject.shadows)}
        if "file" in task.parts:
            found["file"] = job._search_file()
        if "extraction" in task.parts:
            found["extraction"] = job._search_answers()
        if not remedy.retrains:
            found["leave-one-out"] = base["leave-one-out"]
        else:
            found["leave-one-out"] = job._leave_out()
        return PartResults(task=task, found=found)

    def _vary(self) -> Arrays:
        subject, codes = self.task.subject, self.task.codes
        fit = FitEstimator(self._shown_estimator, self.task.classes)
        own = []
        for seed in (
            self.task.stream(_VARIATION, 0).integers(2**31, size=subject.variation).tolist()
        ):
            log_proba = fit(subject.X, codes, seed)(subject.X)
            own.append(np.exp(log_proba[np.arange(codes.size), codes]))
        return {"spread": np.std(own, axis=0)}


def _measure_difference(one: FloatArray, other: FloatArray) -> float:
    """Return the total variation distance of two models' predictions, averaged over records."""
    return float(np.abs(np.exp(one) - np.exp(other)).sum(axis=1).mean() / 2)
