"""Put the parts of a regressor's audit together: rules, groups, records, advice."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, partial

import msgspec
import numpy as np

from epsilometer.audits.classifier.advice import RECORDS
from epsilometer.audits.classifier.attacks.evaluation import RecordScores, bound_one_run
from epsilometer.audits.classifier.groups import GroupedRisk, compare_groups
from epsilometer.audits.classifier.leaks import Leak, read_leaks
from epsilometer.audits.classifier.regression.residuals import show_predictions
from epsilometer.audits.classifier.regression.subject import RegressorTask
from epsilometer.audits.classifier.release import (
    Attacked,
    Measured,
    apply_rules,
    share_exposed,
    weigh_rule,
)
from epsilometer.core import judge
from epsilometer.core.audit import Audit, Provenance
from epsilometer.core.findings import (
    GroupRisk,
    MembershipFinding,
    PredictionChange,
    RecordRisk,
    RuleFinding,
)
from epsilometer.core.printing import to_csv_text
from epsilometer.engine.shards import Arrays
from epsilometer.stats import clusters
from epsilometer.stats.score_finding import round_threshold
from epsilometer.types import BoolArray, FloatArray, IntArray

_LISTED = 1000  # records in a result
_CITES = ("clopper1934",)


@dataclass(frozen=True, eq=False, kw_only=True)
class RegressorResults:
    """What the parts of an audit found, on its way to a result.

    Attributes:
        task: What was to be measured.
        found: What each part returned.
    """

    task: RegressorTask
    found: Mapping[str, Arrays]

    def make_audit(self, provenance: Provenance) -> Audit:
        """Return the audit: what the rules say, with all that it rests on."""
        subject, size = self.task.subject, self.task.targets.records
        rules, attacks = self._apply_rules()
        kinds = [leak.kind for leak in self._leaks or ()]
        grave = {rule: weigh_rule(rule, size, kinds) for rule in rules if rule.outcome == "fail"}
        rules = tuple(sorted(rules, key=lambda rule: -grave.get(rule, 0.0)))
        attacks = tuple(map(self._add_bound, subject.attack_names, attacks))
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
            cites=self._cites(),
            provenance=provenance,
        )
        return msgspec.structs.replace(result, advice=tuple(self._advise(result)))

    def list_records(self) -> str:
        """Return which records are at risk, as CSV: for the run's directory alone."""
        task, records = self.task, self.found["leave-one-out"]["records"]
        names = task.subject.record_names
        rows = [
            (
                rank,
                int(records[index]) + task.first_row,
                "" if names is None else names[records[index]],
                float(self._risk[index]),
                "" if self._attacked is None else float(self._attacked[records[index]]),
            )
            for rank, index in enumerate(self._order.tolist(), start=1)
        ]
        return to_csv_text(("rank", "row", "name", "risk", "attacked"), rows)

    @cached_property
    def _units(self) -> tuple[FloatArray, str]:
        """Return the unit of each output, and what it is in words."""
        subject, outputs = self.task.subject, self.task.targets.outputs
        if subject.noise is not None:
            return np.full(outputs, subject.noise), "the standard deviation of the API's noise"
        if subject.rounding is not None:
            return np.full(outputs, subject.rounding), "the API's rounding"
        found = self.found["leave-one-out"]
        errors = np.abs(found["without"] - self.task.targets.values[found["records"]])
        usual = np.median(errors, axis=0)
        # Where most are predicted exactly, the mean error is no unit of 0
        usual = np.where(usual > 0, usual, errors.mean(axis=0))
        spread = self.task.targets.values.std(axis=0)
        units = np.where(usual > 0, usual, np.where(spread > 0, spread, 1.0))
        return units, "the model's median error on records outside training"

    def _measure(self, other: str) -> FloatArray:
        """Return the largest change over outputs, in units, seen and at full precision both."""
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
    def _risk(self) -> FloatArray:
        return self._measure("without")

    @cached_property
    def _floor(self) -> FloatArray | None:
        return self._measure("null") if self.found["leave-one-out"]["null"].size else None

    @property
    def _leaks(self) -> list[Leak] | None:
        """What the model's file tells; None where it was not searched."""
        return read_leaks(self.found.get("file"))

    def _apply_rules(self) -> tuple[tuple[RuleFinding, ...], tuple[MembershipFinding, ...]]:
        return apply_rules(
            Measured(
                risk=self._risk,
                floor=self._floor,
                of=self.task.targets.records,
                drawn=bool(self.found["leave-one-out"]["drawn"]),
                attacks=[
                    Attacked(name=self._name(name), scores=self._split(name))
                    for name in self.task.subject.attack_names
                ],
                leaks=self._leaks,
            ),
            self.task.subject.deciding_rules,
            confidence=self.task.confidence,
        )

    def _name(self, name: str) -> str:
        return str(self.found["attacks"][f"named {name}"])

    def _split(self, name: str, at: BoolArray | slice = slice(None)) -> clusters.Observed:
        found = self.found["attacks"]
        values, member = found[f"scores {name}"][:, at], found["member"][:, at]
        return clusters.ScoresByRecord.from_models(values, member)

    def _add_bound(self, name: str, finding: MembershipFinding) -> MembershipFinding:
        """Add the bound of the first model that was attacked: one run, one bound."""
        found = self.found["attacks"]
        scores = RecordScores(
            attack=self._name(name),
            values=found[f"scores {name}"][0],
            threshold=float(found[f"cut {name}"][0]),
            convention="",
        )
        bound = bound_one_run(
            scores,
            found["member"][0],
            coins=True,
            delta=self.task.delta,
            confidence=self.task.confidence,
        )
        return msgspec.structs.replace(finding, bound=round_threshold(bound))

    def _summarise(self) -> PredictionChange:
        found, confidence = self.found["leave-one-out"], self.task.confidence
        risk, floor, limit = self._risk, self._floor, self.task.subject.limit
        of, values = self.task.targets.records, self.task.targets.values
        coverage = ""
        if risk.size < of and bool(found["drawn"]):
            share = share_exposed(risk > limit, None, of, confidence=confidence)
            coverage = (
                f"of all {of:,} records {share.low:.2%} to {share.high:.2%} are above {limit:g}, "
                f"with {confidence:g} confidence"
            )
        errors = np.abs(found["without"] - values[found["records"]]).mean(axis=0)
        blind = np.abs(values - np.median(values, axis=0)).mean(axis=0)
        skill = 1 - np.mean(errors / np.where(blind > 0, blind, 1.0))
        return PredictionChange(
            path=str(found["path"]),
            measured=risk.size,
            of=of,
            unit=self._units[1],
            limit=limit,
            exposed=int(np.sum(risk > limit)),
            median=float(np.median(risk)),
            largest=float(risk.max()),
            median_floor=None if floor is None else float(np.median(floor)),
            largest_floor=None if floor is None else float(floor.max()),
            coverage=coverage,
            skill=float(skill),
        )

    @cached_property
    def _attacked(self) -> FloatArray | None:
        """How often the strongest attack is right about each record, over the attacked models."""
        names = self.task.subject.attack_names
        if not names:
            return None
        found = self.found["attacks"]

        def measure(name: str) -> FloatArray:
            said = found[f"scores {name}"] > found[f"cut {name}"][:, None]
            right: FloatArray = (said == found["member"]).mean(axis=0)
            return right

        return max(map(measure, names), key=lambda right: float(right.mean()))

    @cached_property
    def _order(self) -> IntArray:
        """Places of measured records by risk, the riskiest first."""
        return np.argsort(-self._risk, kind="stable")

    def _record_risks(self) -> tuple[RecordRisk, ...]:
        task, floor = self.task, self._floor
        records = self.found["leave-one-out"]["records"]
        return tuple(
            RecordRisk(
                rank=place + 1,
                row=int(records[index]) + task.first_row if task.subject.show_records else None,
                risk=float(self._risk[index]),
                measure=f"change in units of {self._units[1]}",
                note="",
                shown=float(self._risk[index]),
                unbinned=float(self._risk[index]),
                floor=None if floor is None else float(floor[index]),
                attacked=None if self._attacked is None else float(self._attacked[records[index]]),
            )
            for place, index in enumerate(self._order[:_LISTED].tolist())
        )

    def _group_risks(self, attacks: tuple[MembershipFinding, ...]) -> tuple[GroupRisk, ...]:
        names = self.task.subject.attack_names
        strongest = max(zip(attacks, names, strict=True), key=lambda p: p[0].auc, default=None)
        return compare_groups(
            GroupedRisk(
                columns=self.task.groups,
                records=self.found["leave-one-out"]["records"],
                risk=self._risk,
                limit=self.task.subject.limit,
                scores=None if strongest is None else partial(self._split, strongest[1]),
                member=None if strongest is None else self.found["attacks"]["member"][0],
                confidence=self.task.confidence,
            )
        )

    def _caveats(self) -> tuple[str, ...]:
        subject = self.task.subject
        left = map(str, self.found["leave-one-out"]["caveats"].tolist())
        caveats = [*subject.caveats, *left]
        if self.task.targets.times is not None:
            caveats.append(
                "Predictions of this survival model are the hazards that records have gathered "
                "when their times end; residuals are martingale residuals."
            )
        caveats += [leak.finding for leak in self._leaks or () if leak.kind == "statistics"]
        if subject.noise is not None:
            caveats.append(
                "Every answer has noise of its own: whoever asks k times averages it out, and sees "
                "changes √k times as clearly."
            )
        if "attacks" in self.found:
            inside, outside = self.found["attacks"]["errors"].tolist()
            caveats.append(
                f"Attacks were made on {len(self.found['attacks']['member'])} models trained on "
                f"halves of the records, whose mean error is {inside:.3g} on records they were "
                f"trained on and {outside:.3g} on the others. Limits hold for records like these."
            )
        return tuple(caveats)

    def _cites(self) -> tuple[str, ...]:
        attacks = self.task.subject.attack_names
        cited = [self.found["attacks"][f"cites {name}"].tolist() for name in attacks]
        if attacks:
            cited.append(["waudbysmith2024", "steinke2023"])
        return tuple(dict.fromkeys([*_CITES, *(str(key) for keys in cited for key in keys)]))

    def _advise(self, result: Audit) -> Iterator[str]:
        change = result.one(PredictionChange)
        if change is not None and change.exposed:
            yield (
                f"Look at the riskiest records: {RECORDS} in the run's directory says which they "
                "are. What makes them stand out may be a mistake in the data."
            )
        if result.verdict == judge.DO_NOT_RELEASE and self.task.subject.published_as == "file":
            yield "Audit an API in place of the file, with predictions rounded or with noise."
        if result.verdict == judge.CANNOT_TELL:
            yield "To be able to tell, measure more: all records, more shadows, more records."
        if result.verdict == judge.RELEASE:
            yield (
                "Publish what was audited: this model, trained on these records in this way. After "
                "any change, audit again."
            )
