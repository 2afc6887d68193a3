"""Put the parts of a classifier's audit together: rules, groups, records, advice."""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import scipy.special
from numpy.typing import NDArray

from epsilometer.audits.classifier.attacks.membership import RecordScores, evaluate
from epsilometer.audits.classifier.leave_one_out.rounding import Seen, predicted, seen
from epsilometer.audits.classifier.outliers import explained
from epsilometer.audits.classifier.release import Measured, apply_rules
from epsilometer.audits.classifier.remedies import Sawtooth, removal_plan, rounding_steps
from epsilometer.audits.classifier.subject import ClassifierTask
from epsilometer.core import judge
from epsilometer.core.audit import Audit, Provenance
from epsilometer.core.findings import (
    AccuracyFinding,
    GroupRisk,
    LeaveOneOut,
    MembershipFinding,
    RecordRisk,
    RemovalPlan,
    RoundingStep,
    Variation,
)
from epsilometer.core.printing import to_csv_text
from epsilometer.core.scores import Scores
from epsilometer.engine.shards import Arrays
from epsilometer.stats import membership
from epsilometer.stats.gaussians import gaussian_sigma
from epsilometer.stats.score_finding import round_threshold
from epsilometer.types import BoolArray, FloatArray

RECORDS = "records.csv"  # in the run's directory: private
SMALLEST = 20  # records of a group that is shown by itself
_LISTED = 1000  # records in a result
_EXPLAINED = 20  # of them with what makes them stand out
_EDGES = np.geomspace(1e-5, 10.0, 49)
_CITES = ("long2017", "clopper1934")
_NOISE_DELTA = 1e-5  # at which advice names noise


@dataclass(frozen=True, eq=False, kw_only=True)
class PartResults:
    """What the parts of an audit found, on its way to a result.

    Attributes:
        task: What was to be measured.
        found: What each part returned.
    """

    task: ClassifierTask
    found: Mapping[str, Arrays]

    def make_audit(self, provenance: Provenance) -> Audit:
        """Return the audit: what the rules say, with all that it rests on."""
        subject, arrays = self.task.subject, self.found["leave-one-out"]
        at, floor = self._seen(), self._floor()
        rules, attacks = apply_rules(
            Measured(
                risk=at.risk,
                floor=floor,
                of=self.task.data.codes.size,
                drawn=bool(arrays["drawn"]),
                attacks=[(self._named(name), self._scores(name)) for name in subject.attack_names],
                mismatch=" ".join(self._mismatch()),
            ),
            subject.deciding_rules,
            confidence=self.task.confidence,
        )
        attacks = tuple(map(self._add_bound, subject.attack_names, attacks))
        codes = self.task.data.codes[arrays["records"]]
        rounding = rounding_steps(
            arrays["full"],
            arrays["without"],
            codes,
            limit=subject.limit,
            advantages=self.found["attacks"]["advantages"] if attacks else None,
        )
        result = Audit(
            subject=subject.title or type(subject.estimator).__name__,
            claim=None,
            findings=(
                *rules,
                self._summarise_risk(at, floor),
                *attacks,
                *self._group_risks(at.risk, attacks),
                *self._record_risks(at, floor),
                *self._removal(),
                *rounding,
                *self._variations(),
                AccuracyFinding(accuracy=float(np.mean(predicted(arrays["full"]) == codes))),
            ),
            caveats=self._caveats(),
            cites=self._cites(),
            provenance=provenance,
        )
        return msgspec.structs.replace(result, advice=tuple(_advise(result)))

    def list_records(self) -> str:
        """Return which records are at risk, as CSV: for the run's directory alone."""
        task, at = self.task, self._seen()
        records = self.found["leave-one-out"]["records"]
        names = task.subject.record_names
        rows = [
            (
                rank,
                int(records[index]) + task.first_row,
                "" if names is None else names[records[index]],
                str(task.classes[task.data.codes[records[index]]]),
                float(at.risk[index]),
            )
            for rank, index in enumerate(_rank(at.risk).tolist(), start=1)
        ]
        return to_csv_text(("rank", "row", "name", "class", "risk"), rows)

    def _seen(self) -> Seen:
        """Return the risk of each measured record, as probabilities are shown."""
        arrays = self.found["leave-one-out"]
        return seen(arrays["full"], arrays["without"], decimals=self.task.subject.decimals)

    def _floor(self) -> FloatArray | None:
        """What another seed alone changes, seen through as many decimals."""
        arrays = self.found["leave-one-out"]
        if not arrays["null"].size:
            return None
        decimals = self.task.subject.decimals
        return seen(arrays["full"], arrays["null"], decimals=decimals).risk

    def _mismatch(self) -> list[str]:
        """How the target differs from its shadows."""
        if "attacks" not in self.found:
            return []
        return [str(line) for line in self.found["attacks"]["mismatch"]]

    def _named(self, name: str) -> str:
        """The attack as it calls itself."""
        return str(self.found["attacks"][f"named {name}"])

    def _scores(self, name: str) -> Scores:
        """Of all attacked models together."""
        found = self.found["attacks"]
        values, member = found[f"scores {name}"], found["member"]
        return Scores(inside=values[member], outside=values[~member])

    def _add_bound(self, name: str, finding: MembershipFinding) -> MembershipFinding:
        """Add the bound of the first model that was attacked: one run, one bound."""
        found = self.found["attacks"]
        scores = RecordScores(
            attack=self._named(name),
            values=found[f"scores {name}"][0],
            threshold=float(found[f"cut {name}"][0]),
            convention="",
        )
        bound = evaluate(
            scores,
            found["member"][0],
            coins=self.task.target is None,  # of a target from elsewhere nobody knows
            delta=self.task.delta,
            confidence=self.task.confidence,
        ).bound
        return msgspec.structs.replace(
            finding, bound=None if bound is None else round_threshold(bound)
        )

    def _summarise_risk(self, at: Seen, floor: FloatArray | None) -> LeaveOneOut:
        arrays, confidence = self.found["leave-one-out"], self.task.confidence
        limit, of = self.task.subject.limit, self.task.data.codes.size
        above = at.risk > limit
        measured = at.risk.size
        coverage = ""
        if measured < of and bool(arrays["drawn"]):
            share = membership.share_above(int(above.sum()), measured, of, confidence=confidence)
            coverage = (
                f"of all {of:,} records {share.low:.2%} to {share.high:.2%} are above {limit:g}, "
                f"with {confidence:g} confidence"
            )
        return LeaveOneOut(
            path=str(arrays["path"]),
            measured=measured,
            of=of,
            decimals=self.task.subject.decimals,
            limit=limit,
            exposed=int(above.sum()),
            hidden=int(np.sum((at.unbinned > limit) & ~above)),
            edge_only=int(np.sum((at.shown > limit) & ~above)),
            infinite=int(np.isinf(at.unbinned).sum()),
            median=float(np.median(at.risk)),
            largest=float(at.risk.max()),
            median_floor=None if floor is None else float(np.median(floor)),
            largest_floor=None if floor is None else float(floor.max()),
            separation=None if floor is None else _separation(at.risk, floor),
            coverage=coverage,
            edges=tuple(float(f"{edge:.6g}") for edge in _EDGES),
            bins=_binned(at.risk),
            floor_bins=() if floor is None else _binned(floor),
        )

    def _record_risks(self, at: Seen, floor: FloatArray | None) -> tuple[RecordRisk, ...]:
        task, subject = self.task, self.task.subject
        records = self.found["leave-one-out"]["records"]
        order = _rank(at.risk)[:_LISTED]
        worst = order[:_EXPLAINED]
        notes = explained(task.data, records[worst], decimals=subject.decimals, seed=task.seed)
        measure = "PDTP" if subject.decimals is None else f"PDTP, {subject.decimals} decimals"
        listed = []
        for place, index in enumerate(order.tolist()):
            record = int(records[index])
            note = [notes[place]] if place < len(notes) and notes[place] else []
            edge_only = bool(at.shown[index] > subject.limit >= at.risk[index])
            if edge_only:
                note.append("above the limit through the edge of a bin alone")
            if np.isinf(at.unbinned[index]):
                note.append("a class is possible with it and impossible without, or the reverse")
            listed.append(
                RecordRisk(
                    rank=place + 1,
                    row=record + task.first_row if subject.show_records else None,
                    risk=at.risk[index],
                    measure=measure,
                    note="; ".join(note),
                    shown=at.shown[index],
                    unbinned=at.unbinned[index],
                    floor=None if floor is None else floor[index],
                    edge_only=edge_only,
                    scores=self._scores_of(record),
                )
            )
        return tuple(listed)

    def _scores_of(self, record: int) -> tuple[tuple[str, float], ...]:
        """Each attack's mean score of the record over the attacked models it was in."""
        told = []
        for name in self.task.subject.attack_names:
            found = self.found["attacks"]
            inside = found["member"][:, record]
            if inside.any():
                score = float(found[f"scores {name}"][inside, record].mean())
                told.append((self._named(name), score))
        return tuple(told)

    def _group_risks(
        self, risk: FloatArray, findings: tuple[MembershipFinding, ...]
    ) -> tuple[GroupRisk, ...]:
        task, limit = self.task, self.task.subject.limit
        records = self.found["leave-one-out"]["records"]
        strongest = max(
            zip(findings, task.subject.attack_names, strict=True),
            key=lambda pair: pair[0].auc,
            default=None,
        )
        told = []
        labels = np.asarray(task.classes[task.data.codes]).astype(np.str_)
        for column, values in (("class", labels), *task.groups):
            for name, at in _cells(values, records):
                inside = at[records]
                auc = self._auc(strongest[1], at) if strongest else None
                told.append(
                    GroupRisk(
                        column=column,
                        name=name,
                        records=int(inside.sum()),
                        exposed=float(np.mean(risk[inside] > limit)),
                        median=float(np.median(risk[inside])),
                        auc=None if auc is None else auc.value,
                        auc_low=None if auc is None else auc.low,
                        auc_high=None if auc is None else auc.high,
                    )
                )
        return tuple(told)

    def _auc(self, name: str, at: BoolArray) -> membership.Limited | None:
        """Of an attack within a group; None where too few of it were inside, or outside."""
        found = self.found["attacks"]
        values, member = found[f"scores {name}"][:, at], found["member"][:, at]
        if min(int(member[0].sum()), int((~member[0]).sum())) < SMALLEST:
            return None
        scores = Scores(inside=values[member], outside=values[~member])
        return membership.auc(scores, confidence=self.task.confidence)

    def _removal(self) -> tuple[RemovalPlan, ...]:
        if "removal" not in self.found:
            return ()
        found = Sawtooth(**self.found["removal"])
        if not found.exposed[0]:
            return ()
        order = self.found["leave-one-out"]["records"][_rank(self._seen().risk)]
        ranks = {record: place for place, record in enumerate(order.tolist(), start=1)}
        return (removal_plan(found, ranks),)

    def _variations(self) -> tuple[Variation, ...]:
        subject, told = self.task.subject, []
        if "variation" in self.found:
            spread = self.found["variation"]["spread"]
            told.append(_variation("initialisation", subject.variation, spread))
        if subject.attack_names and subject.variation:
            spread = self.found["attacks"]["spread"]
            told.append(_variation("which half of the records is drawn", subject.shadows, spread))
        return tuple(told)

    def _caveats(self) -> tuple[str, ...]:
        found = self.found["leave-one-out"]
        told = [*self.task.subject.caveats, *map(str, found["caveats"].tolist())]
        if "attacks" in self.found:
            found = self.found["attacks"]
            train, test = found["accuracy"].tolist()
            halves = f"{len(found['member'])} models trained on halves of the records"
            told.append(
                f"Attacks were made on {halves if self.task.target is None else 'the target'}; "
                f"shadows are right on {train:.1%} of the records they were trained on and on "
                f"{test:.1%} of the others. Limits take scores for independent, and hold for "
                "models and records like these."
            )
            told += self._mismatch()
        return tuple(told)

    def _cites(self) -> tuple[str, ...]:
        attacks = self.task.subject.attack_names
        cited = [self.found["attacks"][f"cites {name}"].tolist() for name in attacks]
        if self.found["leave-one-out"]["null"].size:
            cited.append(["mann1947"])
        if attacks:
            cited.append(["massart1990", "steinke2023"])
        return tuple(dict.fromkeys([*_CITES, *(str(key) for keys in cited for key in keys)]))


def _rank(risk: FloatArray) -> NDArray[np.int64]:
    """Return places of records, the riskiest first."""
    return np.argsort(-risk, kind="stable")


def _cells(values: NDArray[Any], records: NDArray[np.int64]) -> Iterator[tuple[str, BoolArray]]:
    """Groups with who is in them, the small ones together; none where those are few as well."""
    small = np.zeros(values.size, bool)
    measured = values[records]
    for name in sorted(np.unique(values).tolist(), key=_place):
        at = values == name
        if np.sum(measured == name) >= SMALLEST:
            yield name, at
        else:
            small |= at
    if small[records].sum() >= SMALLEST:
        yield f"(fewer than {SMALLEST} each)", small


def _place(name: str) -> tuple[float, str]:
    """Where a group stands: those that begin by a number in its order, all others after them."""
    number = re.match(r"-?\d+(\.\d+)?(e[+-]?\d+)?", name)
    if name.startswith("…"):
        return -math.inf, name
    return (float(number[0]) if number else math.inf), name


def _binned(values: FloatArray) -> tuple[int, ...]:
    counts = np.histogram(np.clip(values, _EDGES[0], _EDGES[-1]), _EDGES)[0]
    return tuple(counts.tolist())


def _separation(values: FloatArray, floor: FloatArray) -> float:
    """One-sided p-value of the rank sum test: are values above their floor?"""
    n, m = values.size, floor.size
    auc = membership.auc(Scores(inside=values, outside=floor)).value
    _, ties = np.unique(np.concatenate([values, floor]), return_counts=True)
    tied = float(np.sum(ties.astype(np.float64) ** 3 - ties)) / ((n + m) * (n + m - 1))
    variance = (n + m + 1 - tied) / (12 * n * m)
    if variance <= 0:  # all are equal
        return 1.0
    return float(scipy.special.ndtr(-(auc - 0.5) / np.sqrt(variance)))


def _variation(cause: str, models: int, spread: FloatArray) -> Variation:
    deciles = np.quantile(spread, np.linspace(0, 1, 11))
    return Variation(cause=cause, models=models, deciles=tuple(deciles.tolist()))


def _advise(result: Audit) -> Iterator[str]:
    """Yield what to do, the most useful first."""
    (risk,) = result.find(LeaveOneOut)
    if risk.exposed:
        yield (
            f"Look at the riskiest records: {RECORDS} in the run's directory says which they are. "
            "What makes them stand out may be a mistake in the data, or a person who must not be "
            "in it."
        )
        yield _advise_rounding(result.find(RoundingStep), risk)
        yield from (plan.ended for plan in result.find(RemovalPlan))
    if result.verdict == judge.CANNOT_TELL:
        yield "To be able to tell, measure more: all records, more shadows, more records."
    if result.verdict != judge.RELEASE and risk.limit > 0:
        noise = gaussian_sigma(risk.limit, _NOISE_DELTA)
        yield (
            "Differentially private training limits what anything published shows of any record. "
            f"With ε = {risk.limit:g} at δ = {_NOISE_DELTA:g}, a single step on all records needs "
            f"noise of {noise:.3g} times the clipping norm; the command epsilometer dpsgd says "
            "what your settings of DP-SGD keep."
        )
    if result.verdict == judge.RELEASE:
        yield (
            "Publish what was audited: this model, trained on these records in this way. After "
            "any change, audit again."
        )
    if risk.decimals is not None and risk.hidden:
        yield (
            f"Show no more than {risk.decimals} decimals, and do not give the model itself "
            f"away: at full precision {_more(risk.hidden)} exposed."
        )


def _more(count: int) -> str:
    return "1 more record is" if count == 1 else f"{count:,} more records are"


def _advise_rounding(steps: Sequence[RoundingStep], risk: LeaveOneOut) -> str:
    """Name the most decimals with which no record is exposed."""
    for step in steps:
        if step.exposed == 0:
            shown = "the class alone" if step.decimals == -1 else f"{step.decimals} decimals"
            return (
                f"Showing {shown} exposes no record; what is shown then names the right class in "
                f"{step.accuracy:.1%} of records."
            )
    fewest = min(steps, key=lambda step: step.exposed)
    return (
        f"Showing fewer decimals is not enough: {fewest.exposed:,} of {risk.measured:,} records "
        "are exposed at best."
    )
