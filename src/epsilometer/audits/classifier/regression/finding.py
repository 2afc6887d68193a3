"""Put the parts of a regressor's audit together: rules, groups, records, advice."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import msgspec
import numpy as np

from epsilometer.audits.classifier.advice import RECORDS
from epsilometer.audits.classifier.leaks import read_leaks
from epsilometer.audits.classifier.published import LISTED, PublishedResults
from epsilometer.audits.classifier.regression.residuals import show_predictions
from epsilometer.audits.classifier.regression.subject import RegressorTask
from epsilometer.audits.classifier.release import Attacked, Measured
from epsilometer.core import judge
from epsilometer.core.audit import Audit, Provenance
from epsilometer.core.findings import PredictionChange, RecordRisk
from epsilometer.types import FloatArray


@dataclass(frozen=True, eq=False, kw_only=True)
class RegressorResults(PublishedResults):
    """Results of the parts of a regressor's audit, to be combined into one audit."""

    task: RegressorTask

    def make_audit(self, provenance: Provenance) -> Audit:
        """Return the audit: the outcomes of the rules, and their evidence."""
        subject = self.task.subject
        rules, attacks = self._judge()
        result = Audit(
            subject=subject.title or type(subject.estimator).__name__,
            claim=None,
            findings=(
                *rules,
                self._summarise(),
                *attacks,
                *self._group_risks(attacks),
                *self._record_risks(),
            ),
            caveats=self._caveats(),
            cites=self._list_cites(("clopper1934",)),
            provenance=provenance,
        )
        return msgspec.structs.replace(result, advice=tuple(self._advise(result)))

    @cached_property
    def _units(self) -> tuple[FloatArray, str]:
        """Return the unit of each output, and its description."""
        subject, outputs = self.task.subject, self.task.targets.outputs
        if subject.noise is not None:
            return np.full(outputs, subject.noise), "the standard deviation of the API's noise"
        if subject.rounding is not None:
            return np.full(outputs, subject.rounding), "the API's rounding"
        found = self.found["leave-one-out"]
        errors = np.abs(found["without"] - self.task.targets.values[found["records"]])
        medians = np.median(errors, axis=0)
        # If most are predicted exactly, the median error is 0: use the mean error
        usual = np.where(medians > 0, medians, errors.mean(axis=0))
        values = self.task.targets.values
        spread = values.std(axis=0)
        # The errors of a model worse than a constant would make any change seem small
        blind = np.median(np.abs(values - np.median(values, axis=0)), axis=0)
        usual = np.where(blind > 0, np.minimum(usual, blind), usual)
        units = np.where(usual > 0, usual, np.where(spread > 0, spread, 1.0))
        if np.array_equal(units, medians):
            return units, "the model's median error on records outside training"
        return units, "the usual error of the model or of a constant prediction"

    def _measure(self, other: str) -> FloatArray:
        """Return the largest change over outputs, in units: the smaller of shown and unrounded."""
        found, rounding = self.found["leave-one-out"], self.task.subject.rounding
        units, _ = self._units
        exact = np.abs(found["full"] - found[other]) / units
        if rounding is None:
            return np.asarray(exact.max(axis=1))
        shown = [
            show_predictions(found[name], rounding=rounding, noise=None, rng=self.task.stream())
            for name in ("full", other)
        ]
        seen = np.abs(shown[0] - shown[1]) / units
        return np.asarray(np.minimum(exact, seen).max(axis=1))

    @cached_property
    def risk(self) -> FloatArray:
        """The change of each measured record's prediction, in units."""
        return self._measure("without")

    @cached_property
    def _floor(self) -> FloatArray | None:
        return self._measure("null") if self.found["leave-one-out"]["null"].size else None

    @property
    def measured(self) -> Measured:
        """The quantities that rules use."""
        return Measured(
            risk=self.risk,
            floor=self._floor,
            of=self.task.size,
            drawn=bool(self.found["leave-one-out"]["drawn"]),
            attacks=[
                Attacked(name=self._name(name), scores=self._split(name))
                for name in self.task.subject.attack_names
            ],
            leaks=self.leaks,
            answers=read_leaks(self.found.get("extraction")),
        )

    def _summarise(self) -> PredictionChange:
        found, values = self.found["leave-one-out"], self.task.targets.values
        risk, floor, limit = self.risk, self._floor, self.task.subject.limit
        errors = np.abs(found["without"] - values[found["records"]]).mean(axis=0)
        blind = np.abs(values - np.median(values, axis=0)).mean(axis=0)
        skill = 1 - np.mean(errors / np.where(blind > 0, blind, 1.0))
        return PredictionChange(
            path=str(found["path"]),
            measured=risk.size,
            of=self.task.size,
            unit=self._units[1],
            limit=limit,
            exposed=int(np.sum(risk > limit)),
            median=float(np.median(risk)),
            largest=float(risk.max()),
            median_floor=None if floor is None else float(np.median(floor)),
            largest_floor=None if floor is None else float(floor.max()),
            coverage=self._describe_coverage(risk),
            skill=float(skill),
        )

    def _record_risks(self) -> tuple[RecordRisk, ...]:
        task, floor = self.task, self._floor
        records = self.found["leave-one-out"]["records"]
        return tuple(
            RecordRisk(
                rank=place + 1,
                row=int(records[index]) + task.first_row if task.subject.show_records else None,
                risk=float(self.risk[index]),
                measure=f"change in units of {self._units[1]}",
                note="",
                shown=float(self.risk[index]),
                unbinned=float(self.risk[index]),
                floor=None if floor is None else float(floor[index]),
                attacked=self.rate_attack(int(records[index])),
            )
            for place, index in enumerate(self.order[:LISTED].tolist())
        )

    def _caveats(self) -> tuple[str, ...]:
        subject = self.task.subject
        left = map(str, self.found["leave-one-out"]["caveats"].tolist())
        caveats = [*subject.caveats, *left, *self._describe_groups()]
        if self.task.targets.times is not None:
            caveats.append(
                "Predictions of this survival model are cumulative hazards at the time of each "
                "record; residuals are martingale residuals."
            )
        caveats += [leak.finding for leak in self.leaks or () if leak.kind == "statistics"]
        if subject.noise is not None:
            caveats.append(
                "Every answer has fresh noise: averaging k answers reduces it by a factor of √k."
            )
        if "attacks" in self.found:
            inside, outside = self.found["attacks"]["errors"].tolist()
            caveats.append(
                f"Attacks were run on {len(self.found['attacks']['member'])} models trained on "
                f"halves of the records, whose mean error is {inside:.3g} on records they were "
                f"trained on and {outside:.3g} on the others. Limits hold for records like these."
            )
        return tuple(caveats)

    def _advise(self, result: Audit) -> Iterator[str]:
        change = result.one(PredictionChange)
        if change is not None and change.exposed:
            yield (
                f"Look up the riskiest records: {RECORDS} in the run directory lists their rows. "
                "They may be mistakes in the data."
            )
        if result.verdict == judge.DO_NOT_RELEASE and self.task.subject.published_as == "file":
            yield (
                "Audit an API instead of the file, with noise; rounding suffices if the model is "
                "not linear."
            )
        if result.verdict == judge.CANNOT_TELL:
            yield "To decide, measure more: all records, more shadow models, more data."
        if result.verdict == judge.RELEASE:
            yield (
                "Publish what was audited: this model, trained on these records. After any "
                "change, audit again."
            )
