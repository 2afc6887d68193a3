"""Run the audit of a classifier that was fitted elsewhere: attack its losses, search its file."""

import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from epsilometer.audits.classifier.attacks.shadows import show_logs
from epsilometer.audits.classifier.extraction import compute_from_answers
from epsilometer.audits.classifier.fitted.subject import (
    FittedClassifier,
    FittedTask,
    predict_shown,
)
from epsilometer.audits.classifier.leaks import Leak, read_leaks, write_leaks
from epsilometer.audits.classifier.leave_one_out.pdtp import predict_class
from epsilometer.audits.classifier.model_file import search_model
from epsilometer.audits.classifier.published import CallerProcess
from epsilometer.audits.classifier.release import Attacked, Measured, apply_rules, weigh_rule
from epsilometer.audits.classifier.sklearn_models import take_rows
from epsilometer.core import judge
from epsilometer.core.audit import Audit
from epsilometer.core.findings import AccuracyFinding
from epsilometer.core.scores import Scores
from epsilometer.engine.fingerprints import fingerprint, name_of
from epsilometer.engine.plan import Plan
from epsilometer.engine.request import Request
from epsilometer.engine.run import Done, Unwatched, Watch
from epsilometer.engine.shards import Arrays
from epsilometer.types import IntArray

SUBJECTS = (FittedClassifier,)
_LOSSES = (
    "only its losses were attacked: without a recipe no reference models can be trained, and "
    "attacks with them find more people."
)
_NOT_TRIED = "Whether records follow from the file's parameters was not tested: unknown estimator."


def run_audit(subject: FittedClassifier, request: Request) -> Audit:
    """Attack the model's losses, search its file, and apply the rules to what is found."""
    task = FittedTask(subject, request)
    given: dict[str, Any] = {"X": subject.X, "y": (task.classes, task.codes), "in": task.member}
    given["model"] = subject.model if task.content is None else task.content
    files = {} if subject.source is None else dict(subject.source.fingerprints())
    plan = request.make_plan(
        subject,
        units=len(task.parts),
        inputs={**files, **{name: fingerprint(value) for name, value in given.items()}},
        estimator=name_of(type(subject.model)),
        parts=list(task.parts),
    )
    own = CallerProcess()
    return request.execute(FittedJob(plan=plan, task=task), usual=own, engine=own, listen=())


@dataclass(frozen=True, eq=False, kw_only=True)
class FittedJob:
    """The parts of an audit of a fitted classifier, each a unit.

    Attributes:
        plan: Everything that determines the result.
        task: What is to be measured.
    """

    plan: Plan
    task: FittedTask

    def unit(self, index: int) -> Arrays:
        """Compute one part of the work."""
        ways = {"attacks": self._attack, "file": self._search, "extraction": self._search_answers}
        return ways[self.task.parts[index]]()

    def missing(self, index: int) -> Arrays:
        """Return nothing. It is never called: errors of a part reach the caller."""
        return {}

    def watch(self) -> Watch:
        """Return a watch that never reports: rules need all parts."""
        return Unwatched()

    def result(self, units: Iterable[Arrays], done: Done) -> Audit:
        """Return the audit of all parts, with the rules applied."""
        task, found = self.task, dict(zip(self.task.parts, units, strict=True))
        measured = self._measure(found)
        rules, attacks = apply_rules(
            measured, task.subject.deciding_rules, confidence=task.confidence
        )
        kinds = [leak.kind for leak in measured.leaks or ()]
        grave = {rule: weigh_rule(rule, measured.of, kinds) for rule in rules}
        failed = [rule for rule in rules if rule.outcome == "fail"]
        others = [rule for rule in rules if rule.outcome != "fail"]
        accuracy = [
            AccuracyFinding(accuracy=float(part["accuracy"]))
            for name, part in found.items()
            if name == "attacks"
        ]
        how = "attacked by its losses only" if attacks else "not attacked"
        audit = Audit(
            subject=f"{task.subject.title or type(task.subject.model).__name__}, {how}",
            claim=None,
            findings=(
                *sorted(failed, key=lambda rule: -grave[rule]),
                *others,
                *attacks,
                *accuracy,
            ),
            caveats=(*task.subject.caveats, *self._list_caveats(measured)),
            cites=("yeom2018", "waudbysmith2024") if attacks else (),
            provenance=done.provenance,
        )
        return msgspec.structs.replace(audit, advice=tuple(_advise(audit)))

    def _attack(self) -> Arrays:
        task, subject = self.task, self.task.subject
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about feature names
            logs = predict_shown(subject.model, subject.X, task.classes, labels=subject.shown == -1)
        right = predict_class(logs) == task.codes
        shown = show_logs(logs, subject.shown)
        return {
            "loss": shown[np.arange(task.codes.size), task.codes],
            "accuracy": np.array(right[~task.member].mean()),
        }

    def _search(self) -> Arrays:
        task = self.task
        leaks = search_model(*self._published, content=task.content, seed=task.seed)
        if not hasattr(task.subject.model, "fit"):
            leaks = (*leaks, Leak(kind="unread", records=0, finding=_NOT_TRIED))
        return write_leaks(leaks)

    def _search_answers(self) -> Arrays:
        task = self.task
        decimals, seed = task.subject.shown, task.seed
        leaks = compute_from_answers(*self._published, task.classes, decimals=decimals, seed=seed)
        return write_leaks(leaks)

    @property
    def _published(self) -> tuple[Any, Any, IntArray]:
        """The model, and the records that it was trained on."""
        task, subject = self.task, self.task.subject
        return subject.model, take_rows(subject.X, task.member), task.codes[task.member]

    def _measure(self, found: Mapping[str, Arrays]) -> Measured:
        member, attacks = self.task.member, []
        if "attacks" in found:
            loss = found["attacks"]["loss"]
            attacks = [Attacked(name="loss", scores=Scores(loss[member], loss[~member]))]
        return Measured(
            risk=None,
            floor=None,
            of=int(member.sum()),
            drawn=False,
            attacks=attacks,
            mismatch=_LOSSES,
            leaks=read_leaks(found.get("file")),
            answers=read_leaks(found.get("extraction")),
        )

    def _list_caveats(self, measured: Measured) -> Iterator[str]:
        inside, n = measured.of, self.task.member.size
        yield (
            "No recipe of the model is known: it was attacked by its losses only, without "
            "reference models, and no record was left out of it."
        )
        if measured.attacks:
            yield (
                f"The model itself was attacked, which was trained on {inside:,} of these {n:,} "
                "records. Limits hold for records drawn independently from the same population."
            )
        else:
            yield (
                "All records are assumed to be training records. Attacks also need records "
                "outside: name the training records by member or --member COLUMN."
            )
        yield from (leak.finding for leak in measured.leaks or () if leak.kind == "statistics")


def _advise(audit: Audit) -> Iterator[str]:
    if audit.verdict == judge.DO_NOT_RELEASE:
        yield (
            "Do not publish the model. Remedies can only be measured if the recipe is known: "
            "--recipe own, or Classifier(fitted=…)."
        )
    else:
        yield (
            "To decide, give the recipe: --recipe own trains reference models with the "
            "settings of the fitted one, --recipe module:factory by a function of yours."
        )
