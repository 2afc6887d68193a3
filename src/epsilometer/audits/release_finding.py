"""The parts of a classifier's audit put together: summaries, groups, records, advice."""

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.special
from numpy.typing import NDArray

from epsilometer.attacks.membership import RecordScores, evaluate
from epsilometer.audits.cures import Sawtooth, removal_plan, rounding_steps
from epsilometer.audits.release import Measured, judged
from epsilometer.audits.standing_out import explained, features_of
from epsilometer.engine.run import Done
from epsilometer.engine.shards import Arrays
from epsilometer.leave_one_out.rounding import Seen, predicted, seen
from epsilometer.observations import Scores
from epsilometer.core.audit import ReleaseAudit
from epsilometer.core.findings import GroupRisk, LeaveOneOut, MembershipFinding, RecordRisk, RemovalPlan, Variation
from epsilometer.stats import membership
from epsilometer.stats.gaussians import gaussian_sigma
from epsilometer.types import BoolArray, FloatArray

if TYPE_CHECKING:
    from epsilometer.audits.classifier_job import ClassifierJob

SMALLEST = 20  # records of a group that is shown by itself
_LISTED = 1000  # records in a result
_EXPLAINED = 20  # of them with what makes them stand out
_EDGES = np.geomspace(1e-5, 10.0, 49)
_CITES = ("long2017", "clopper1934")
_DELTA = 1e-5  # at which noise is named


@dataclass(frozen=True, eq=False, kw_only=True)
class Finding:
    """What the parts found, on its way to a result.

    Attributes:
        job: What was asked.
        found: What each part returned.
        done: What was done of the plan.
    """

    job: "ClassifierJob"
    found: Mapping[str, Arrays]
    done: Done

    def audit(self) -> ReleaseAudit:
        """The verdict with all that it rests on."""
        asked, leaving = self.job.questions, self.found["leaving"]
        at = seen(leaving["full"], leaving["without"], decimals=asked.decimals)
        floor = self._floor()
        reasons, findings = judged(
            Measured(
                risk=at.risk,
                floor=floor,
                of=self.job.data.codes.size,
                drawn=bool(leaving["drawn"]),
                attacks=[(self._named(name), self._scores(name)) for name in asked.attacks],
                mismatch=" ".join(self._mismatch()),
            ),
            asked.rules,
            confidence=asked.confidence,
        )
        findings = tuple(map(self._bounded, asked.attacks, findings))
        codes = self.job.data.codes[leaving["records"]]
        rounding = rounding_steps(
            leaving["full"],
            leaving["without"],
            codes,
            limit=asked.limit,
            advantages=self.found["attacks"]["advantages"] if asked.attacks else None,
        )
        removal = self._removed()
        summary = self._leaving(at, floor)
        result = ReleaseAudit(
            subject=self.job.subject,
            reasons=reasons,
            confidence=asked.confidence,
            leaving=summary,
            attacks=findings,
            groups=self._group_risks(at.risk, findings),
            records=self._exposed(at, floor),
            removal=removal,
            rounding=rounding,
            variation=self._variations(),
            accuracy=float(np.mean(predicted(leaving["full"]) == codes)),
            advice=(),
            caveats=self._caveats(),
            seed=self.job.plan.seed,
            cites=self._cites(),
            provenance=self.done.provenance(range(len(asked.parts))),
        )
        return replace(result, advice=_advice(result))

    def _floor(self) -> FloatArray | None:
        """What another seed alone changes, seen through as many decimals."""
        leaving = self.found["leaving"]
        if not leaving["null"].size:
            return None
        decimals = self.job.questions.decimals
        return seen(leaving["full"], leaving["null"], decimals=decimals).risk

    def _mismatch(self) -> list[str]:
        """How the target differs from its shadows."""
        asked = self.job.questions.attacks
        return [str(line) for line in self.found["attacks"]["mismatch"]] if asked else []

    def _named(self, name: str) -> str:
        """The attack as it calls itself."""
        return str(self.found["attacks"][f"named {name}"])

    def _scores(self, name: str) -> Scores:
        """Of all attacked models together."""
        found = self.found["attacks"]
        values, member = found[f"scores {name}"], found["member"]
        return Scores(inside=values[member], outside=values[~member])

    def _bounded(self, name: str, finding: MembershipFinding) -> MembershipFinding:
        """The finding with the bound of the first model that was attacked: one run, one bound."""
        found = self.found["attacks"]
        scores = RecordScores(
            attack=self._named(name),
            values=found[f"scores {name}"][0],
            threshold=float(found[f"cut {name}"][0]),
            convention="",
        )
        coins = self.job.target is None  # of a target from elsewhere nobody knows
        bound = evaluate(scores, found["member"][0], coins=coins).bound
        return replace(finding, bound=bound)

    def _leaving(self, at: Seen, floor: FloatArray | None) -> LeaveOneOut:
        asked, arrays = self.job.questions, self.found["leaving"]
        limit, of = asked.limit, self.job.data.codes.size
        above = at.risk > limit
        measured = at.risk.size
        coverage = ""
        if measured < of and bool(arrays["drawn"]):
            share = membership.share_above(
                int(above.sum()), measured, of, confidence=asked.confidence
            )
            coverage = (
                f"of all {of:,} records {share.low:.2%} to {share.high:.2%} are above {limit:g}, "
                f"with {asked.confidence:g} confidence"
            )
        return LeaveOneOut(
            path=str(arrays["path"]),
            measured=measured,
            of=of,
            decimals=asked.decimals,
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

    def _exposed(self, at: Seen, floor: FloatArray | None) -> tuple[RecordRisk, ...]:
        asked, job = self.job.questions, self.job
        records = self.found["leaving"]["records"]
        order = np.argsort(-at.risk, kind="stable")[:_LISTED]
        worst = order[:_EXPLAINED]
        notes = explained(job.data, records[worst], decimals=asked.decimals, seed=job.plan.seed)
        measure = "PDTP" if asked.decimals is None else f"PDTP, {asked.decimals} decimals"
        listed = []
        for place, index in enumerate(order.tolist()):
            record = int(records[index])
            note = [notes[place]] if place < len(notes) and notes[place] else []
            edge_only = bool(at.shown[index] > asked.limit >= at.risk[index])
            if edge_only:
                note.append("above the limit through the edge of a bin alone")
            if np.isinf(at.unbinned[index]):
                note.append("a class is possible with it and impossible without, or the reverse")
            if job.show_records and place < _EXPLAINED:
                note.append(features_of(job.data.X, record, job.data.names, job.words))
            listed.append(
                RecordRisk(
                    record=job.names[record],
                    risk=at.risk[index],
                    measure=measure,
                    group=str(job.classes[job.data.codes[record]]),
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
        for name in self.job.questions.attacks:
            found = self.found["attacks"]
            inside = found["member"][:, record]
            if inside.any():
                score = float(found[f"scores {name}"][inside, record].mean())
                told.append((self._named(name), score))
        return tuple(told)

    def _group_risks(
        self, risk: FloatArray, findings: tuple[MembershipFinding, ...]
    ) -> tuple[GroupRisk, ...]:
        job, limit = self.job, self.job.questions.limit
        records = self.found["leaving"]["records"]
        strongest = max(
            zip(findings, job.questions.attacks, strict=True),
            key=lambda pair: pair[0].auc,
            default=None,
        )
        told = []
        labels = np.asarray(job.classes[job.data.codes]).astype(np.str_)
        for column, values in (("class", labels), *job.groups):
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
        return membership.auc(scores, confidence=self.job.questions.confidence)

    def _removed(self) -> RemovalPlan | None:
        if "removal" not in self.found:
            return None
        found = Sawtooth(**self.found["removal"])
        return removal_plan(found, self.job.names) if found.exposed[0] else None

    def _variations(self) -> tuple[Variation, ...]:
        asked, told = self.job.questions, []
        if "variation" in self.found:
            spread = self.found["variation"]["spread"]
            told.append(_variation("initialisation", asked.variation, spread))
        if asked.attacks and asked.variation:
            spread = self.found["attacks"]["spread"]
            told.append(_variation("which half of the records is drawn", asked.shadows, spread))
        return tuple(told)

    def _caveats(self) -> tuple[str, ...]:
        told = [*self.job.caveats, *map(str, self.found["leaving"]["caveats"].tolist())]
        if self.job.questions.attacks:
            found = self.found["attacks"]
            train, test = found["accuracy"].tolist()
            halves = f"{len(found['member'])} models trained on halves of the records"
            told.append(
                f"Attacks were made on {halves if self.job.target is None else 'the target'}; "
                f"shadows are right on {train:.1%} of the records they were trained on and on "
                f"{test:.1%} of the others. Limits take scores for independent, and hold for "
                "models and records like these."
            )
            told += self._mismatch()
        return tuple(told)

    def _cites(self) -> tuple[str, ...]:
        attacks = self.job.questions.attacks
        cited = [self.found["attacks"][f"cites {name}"].tolist() for name in attacks]
        if self.found["leaving"]["null"].size:
            cited.append(["mann1947"])
        if attacks:
            cited.append(["massart1990", "steinke2023"])
        return tuple(dict.fromkeys([*_CITES, *(str(key) for keys in cited for key in keys)]))


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


def _advice(result: ReleaseAudit) -> tuple[str, ...]:
    """What to do, most useful first."""
    told = []
    leaving = result.leaving
    if leaving is not None and leaving.exposed:
        told.append(
            "Look at the riskiest records below: what makes them stand out may be a mistake in the "
            "data, or a person who must not be in it."
        )
        told += _rounding_advice(result, leaving)
        if result.removal is not None:
            told.append(result.removal.ended)
    if result.verdict == "cannot tell":
        told.append("To be able to tell, measure more: all records, more shadows, more records.")
    if result.verdict != "release" and leaving is not None and leaving.limit > 0:
        noise = gaussian_sigma(leaving.limit, _DELTA)
        told.append(
            "Differentially private training limits what anything published shows of any record. "
            f"With ε = {leaving.limit:g} at δ = {_DELTA:g}, a single step on all records needs "
            f"noise of {noise:.3g} times the clipping norm; the command epsilometer dpsgd says "
            "what your settings of DP-SGD keep."
        )
    if result.verdict == "release":
        told.append(
            "Publish what was audited: this model, trained on these records in this way. After "
            "any change, audit again."
        )
    if leaving is not None and leaving.decimals is not None and leaving.hidden:
        told.append(
            f"Show no more than {leaving.decimals} decimals, and do not give the model itself "
            f"away: at full precision {_more(leaving.hidden)} exposed."
        )
    return tuple(told)


def _more(count: int) -> str:
    return "1 more record is" if count == 1 else f"{count:,} more records are"


def _rounding_advice(result: ReleaseAudit, leaving: LeaveOneOut) -> Iterator[str]:
    """The most decimals with which no record is exposed."""
    for step in result.rounding:
        if step.exposed == 0:
            shown = "the class alone" if step.decimals == -1 else f"{step.decimals} decimals"
            yield (
                f"Showing {shown} exposes no record; what is shown then names the right class in "
                f"{step.accuracy:.1%} of records."
            )
            return
    fewest = min(result.rounding, key=lambda step: step.exposed)
    yield (
        f"Showing fewer decimals is not enough: {fewest.exposed:,} of {leaving.measured:,} records "
        "are exposed at best."
    )
