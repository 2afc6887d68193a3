"""Put the parts of a classifier's audit together: rules, groups, records, advice."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray
from scipy import special

from epsilometer.audits.classifier.advice import PartSummary, advise, rank_remedy
from epsilometer.audits.classifier.file_rules import IN_FILE
from epsilometer.audits.classifier.leaks import read_leaks
from epsilometer.audits.classifier.leave_one_out.pdtp import (
    SHOWN,
    Changes,
    measure_changes,
    predict_class,
    show,
)
from epsilometer.audits.classifier.leave_one_out.screens import CITES
from epsilometer.audits.classifier.outliers import explain_records
from epsilometer.audits.classifier.published import LISTED, PublishedResults
from epsilometer.audits.classifier.release import (
    Attacked,
    Measured,
    measure_width,
    share_confidence,
)
from epsilometer.audits.classifier.seeds import find_hidden, take_odds
from epsilometer.audits.classifier.subject import ClassifierTask
from epsilometer.audits.classifier.threats.measuring import list_threats
from epsilometer.core.audit import Audit, Provenance
from epsilometer.core.findings import (
    AccuracyFinding,
    LeaveOneOut,
    MembershipFinding,
    RecordRisk,
    RemedyFinding,
    RemovalPlan,
    RoundingStep,
    ThreatFinding,
    Variation,
)
from epsilometer.stats import clusters, membership
from epsilometer.types import FloatArray, IntArray

_EXPLAINED = 20  # records with an explanation of what makes them stand out
_EDGES = np.geomspace(1e-5, 10.0, 49)
_CITES = ("long2017", "clopper1934")
_CHANCE = 0.05  # probability that some record is ranked by guesses that were right by chance


@dataclass(frozen=True, eq=False, kw_only=True)
class PartResults(PublishedResults):
    """Results of the parts of a classifier's audit, to be combined into one audit."""

    task: ClassifierTask

    def make_audit(self, provenance: Provenance) -> Audit:
        """Return the audit: the outcomes of the rules, and their evidence."""
        subject, arrays = self.task.subject, self.found["leave-one-out"]
        at, floor = self._changes(), self._floor()
        rules, attacks = self._judge()
        codes = self.task.codes[arrays["records"]]
        rounding = list_rounding_steps(
            arrays["full"],
            arrays["without"],
            codes,
            limit=subject.limit,
            advantages=self.found["attacks"]["advantages"] if attacks else None,
        )
        result = Audit(
            subject=(subject.title or type(subject.estimator).__name__) + self._describe_attack(),
            claim=None,
            findings=(
                *rules,
                self._summarise_risk(at, floor),
                *attacks,
                *self._measure_threats(),
                *self._group_risks(attacks),
                *self._record_risks(at, floor),
                *self._removal(),
                *rounding,
                *self._remedies(),
                *self._variations(),
                AccuracyFinding(accuracy=float(np.mean(predict_class(arrays["without"]) == codes))),
            ),
            caveats=self._caveats(),
            cites=self._cites(),
            provenance=provenance,
        )
        advice = advise(result, unmeasured=self._list_unmeasured())
        return msgspec.structs.replace(result, advice=tuple(advice))

    def _describe_attack(self) -> str:
        """Return how a model that was fitted elsewhere was attacked, for the title."""
        if self.task.subject.fitted is None:
            return ""
        if "attacks" not in self.found:
            return ", not attacked"
        if self.task.target is None:
            return ", attacked through models of its recipe"
        return ", attacked with reference models"

    @property
    def measured(self) -> Measured:
        """The quantities that rules use."""
        left_out = self.found["leave-one-out"]
        return Measured(
            risk=self._count_hidden()[0],
            floor=self._floor(),
            of=self.task.size,
            drawn=bool(left_out["drawn"]),
            screened=left_out["screened"],
            attacks=self._list_attacks(),
            mismatch=" ".join(self._mismatch),
            leaks=self.leaks,
            answers=read_leaks(self.found.get("extraction")),
            doubt=" ".join(map(str, left_out["doubts"])),
            threats=list_threats(self.found.get("threats", {}), self._threats),
        )

    @property
    def _threats(self) -> tuple[str, ...]:
        """The threats that were measured: none for a remedy."""
        return tuple(self.task.subject.threats) if "threats" in self.found else ()

    def _measure_threats(self) -> tuple[ThreatFinding, ...]:
        measured = self.measured
        each = share_confidence(measured, self.task.subject.deciding_rules, self.task.confidence)
        return tuple(threat.measure(confidence=each) for threat in measured.threats)

    def _count_hidden(self) -> tuple[FloatArray, int]:
        """Return risks, and how many were above the limit and are hidden by random training.

        If the seed is secret, what counts is whether models with the record can be distinguished
        from models without it. The shift is measured with the same seed, the spread with others.
        """
        at, limit = self._changes(), self.task.subject.limit
        arrays = self.found["leave-one-out"]
        if not arrays["spread"].size:
            return at.risk, 0
        codes = self.task.codes[arrays["records"]]
        shift = take_odds(arrays["full"], codes) - take_odds(arrays["without"], codes)
        hidden = (at.risk > limit) & find_hidden(shift, arrays["spread"], limit=limit)
        return np.where(hidden, limit, at.risk), int(hidden.sum())

    @property
    def riskiest(self) -> IntArray:
        """Rows of measured records, the riskiest first."""
        order: IntArray = self.found["leave-one-out"]["records"][self.order]
        return order

    @property
    def risk(self) -> FloatArray:
        """PDTP of each measured record, as probabilities are shown."""
        return self._changes().risk

    @property
    def classes(self) -> NDArray[np.str_]:
        """The class of each record, as a text."""
        return np.asarray(self.task.classes[self.task.codes]).astype(np.str_)

    @cached_property
    def order(self) -> NDArray[np.int64]:
        """Positions of measured records: first those attacks find beyond chance, then by risk."""
        risk = self._changes().risk
        if self.attacked is None:
            return np.argsort(-risk, kind="stable")
        attacked = np.nan_to_num(self.attacked[self.found["leave-one-out"]["records"]])
        models = len(self.found["attacks"]["member"])
        # Guesses about any record are right this often by chance in at most 5 % of audits.
        chance = special.bdtrc(np.round(attacked * models) - 1, models, 0.5)
        return np.lexsort((-risk, -np.where(chance <= _CHANCE / attacked.size, attacked, 0.0)))

    @property
    def is_whole(self) -> bool:
        """Whether all records were left out once."""
        return self.found["leave-one-out"]["records"].size == self.task.codes.size

    @property
    def exposed(self) -> int:
        """How many records are above the limit."""
        return int(np.sum(self._changes().risk > self.task.subject.limit))

    def measure_width(self) -> float:
        """Return the width of the widest limits on attacks that a rule uses."""
        subject = self.task.subject
        return measure_width(
            self._list_attacks(), subject.deciding_rules, confidence=self.task.confidence
        )

    def _list_attacks(self) -> list[Attacked]:
        return [
            Attacked(name=self._name(name), scores=self._split(name), smaller=self._smaller(name))
            for name in self.task.subject.attack_names
        ]

    def _smaller(self, name: str) -> tuple[clusters.Observed, ...]:
        """Return scores from models of an eighth and a quarter of the records."""
        if not self.found.get("sizes"):
            return ()
        found = self.found["sizes"]
        return tuple(
            clusters.ScoresByRecord.from_models(
                found[f"scores {parts} {name}"], found[f"member {parts}"]
            )
            for parts in (4, 2)
        )

    def _changes(self, other: str = "without") -> Changes:
        """Return the risk of each measured record, as probabilities are shown."""
        arrays, decimals = self.found["leave-one-out"], self.task.subject.shown
        return measure_changes(arrays["full"], arrays[other], decimals=decimals)

    def _floor(self) -> FloatArray | None:
        """Return the change from another seed alone, at as many decimals."""
        return self._changes("null").risk if self.found["leave-one-out"]["null"].size else None

    @property
    def _mismatch(self) -> list[str]:
        """Differences between the target and its shadows."""
        return [str(line) for line in self.found.get("attacks", {}).get("mismatch", ())]

    def _add_bound(
        self, name: str, finding: MembershipFinding, *, coins: bool = True
    ) -> MembershipFinding:
        """Add the bound; it is not valid for a target from elsewhere, without coin tosses."""
        return super()._add_bound(name, finding, coins=coins and self.task.target is None)

    def _summarise_risk(self, at: Changes, floor: FloatArray | None) -> LeaveOneOut:
        arrays, limit = self.found["leave-one-out"], self.task.subject.limit
        above = at.risk > limit
        return LeaveOneOut(
            path=str(arrays["path"]),
            measured=at.risk.size,
            of=self.task.size,
            decimals=self.task.subject.shown,
            limit=limit,
            exposed=int(above.sum()),
            hidden=int(np.sum((at.unbinned > limit) & ~above)),
            edge_only=int(np.sum((at.shown > limit) & ~above)),
            infinite=int(np.isinf(at.unbinned).sum()),
            median=float(np.median(at.risk)),
            largest=float(at.risk.max()),
            median_floor=None if floor is None else float(np.median(floor)),
            largest_floor=None if floor is None else float(floor.max()),
            separation=None if floor is None else membership.rank_sum_pvalue(at.risk, floor),
            coverage=self._describe_coverage(at.risk, arrays["screened"]),
            edges=tuple(float(f"{edge:.6g}") for edge in _EDGES),
            bins=_count_bins(at.risk),
            floor_bins=() if floor is None else _count_bins(floor),
        )

    def _record_risks(self, at: Changes, floor: FloatArray | None) -> tuple[RecordRisk, ...]:
        task, subject = self.task, self.task.subject
        records = self.found["leave-one-out"]["records"]
        order = self.order[:LISTED]
        worst = order[:_EXPLAINED]
        notes = explain_records(task, records[worst])
        seen = {None: "", -1: ", class alone"}.get(subject.shown, f", {subject.shown} decimals")
        measure = f"PDTP{seen}"
        listed = []
        for place, index in enumerate(order.tolist()):
            record = int(records[index])
            note = [notes[place]] if place < len(notes) and notes[place] else []
            edge_only = bool(at.shown[index] > subject.limit >= at.risk[index])
            if edge_only:
                note.append("above the limit only because of rounding at a bin edge")
            if np.isinf(at.unbinned[index]):
                note.append("a class has probability 0 with it or without it, but not both")
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
                    attacked=self.rate_attack(record),
                )
            )
        return tuple(listed)

    def _scores_of(self, record: int) -> tuple[tuple[str, float], ...]:
        """Return each attack's mean score of the record over the models trained on it."""
        if "attacks" not in self.found:
            return ()
        found = self.found["attacks"]
        place = record
        if self.task.asked is not None:
            if record not in self.task.asked:
                return ()
            place = int(np.searchsorted(self.task.asked, record))
        inside = found["member"][:, place]
        return tuple(
            (self._name(name), float(found[f"scores {name}"][inside, place].mean()))
            for name in self.task.subject.attack_names
            if inside.any()
        )

    def _removal(self) -> tuple[RemovalPlan, ...]:
        if "removal" not in self.found:
            return ()
        found = self.found["removal"]
        if not found["exposed"][0]:
            return ()
        ranks = {record: place for place, record in enumerate(self.riskiest.tolist(), start=1)}
        return (describe_removal(found, ranks),)

    def _remedies(self) -> tuple[RemedyFinding, ...]:
        """Return the remedies that were tried: first the unchanged model, then the best."""
        if "remedies" not in self.found or not self.found["remedies"]["action"].size:
            return ()
        found = self.found["remedies"]
        rows = [
            PartSummary(*(found[name][place].item() for name in PartSummary._fields))
            for place in range(found["action"].size)
        ]
        base, *tried = rows
        return tuple(row.to_finding(base) for row in (base, *sorted(tried, key=rank_remedy)))

    def _variations(self) -> tuple[Variation, ...]:
        subject, causes = self.task.subject, []
        if "variation" in self.found:
            causes.append(("initialisation", subject.variation, "variation"))
        if subject.attack_names and subject.variation:
            models = len(self.found["attacks"]["member"])
            causes.append(("which half of the records is drawn", models, "attacks"))
        return tuple(
            Variation(
                cause=cause,
                models=models,
                deciles=tuple(
                    np.quantile(self.found[part]["spread"], np.linspace(0, 1, 11)).tolist()
                ),
            )
            for cause, models, part in causes
        )

    def _list_unmeasured(self) -> list[str]:
        """Return what was not examined because rules or attacks differ from the defaults."""
        said = []
        if self.task.subject.published_as == "file" and "file" not in self.found:
            said.append("The model's file was not searched: it may hold training records.")
        if "attacks" not in self.found:
            said.append(
                "No attack was run: attacks may identify people whose leave-one-out risk is low."
            )
        return said

    def _caveats(self) -> tuple[str, ...]:
        found = self.found["leave-one-out"]
        caveats = [*self.task.subject.caveats, *map(str, found["caveats"].tolist())]
        caveats += [*self._list_unmeasured(), *self._describe_groups()]
        if hidden := self._count_hidden()[1]:
            caveats.append(
                f"Training is random: {hidden:,} records above the limit change predictions less "
                "than another seed does, so are not counted. Anyone with the seed detects them."
            )
        for part in ("file", "extraction"):
            leaks = read_leaks(self.found.get(part)) or ()
            caveats += [leak.finding for leak in leaks if leak.kind == "statistics"]
        if self._remedies():
            usual = np.bincount(self.task.codes).max() / self.task.codes.size
            caveats.append(
                f"Always predicting the most common class is right for {usual:.1%} of records: a "
                "remedy should be more accurate."
            )
        if "attacks" in self.found:
            found = self.found["attacks"]
            train, test = found["accuracy"].tolist()
            halves = f"{len(found['member'])} models trained on halves of the records"
            caveats.append(
                f"Attacks were run on {halves if self.task.target is None else 'the target'}; "
                f"shadow models are right on {train:.1%} of their training records and on "
                f"{test:.1%} of the others. Limits hold for records drawn independently from the "
                "same population, and assigned to models by fair coin tosses."
            )
            if self.task.asked is not None:
                caveats.append(
                    f"Attacks queried models at {self.task.asked.size:,} of {self.task.size:,} "
                    "records, drawn at random, as each query searches all neighbours."
                )
            if self.found.get("sizes", True) == {}:
                caveats.append("Smaller models could not be trained: there is no trend with size.")
            precision = self.task.subject.precision
            if precision is not None and (width := self.measure_width()) > precision:
                caveats.append(
                    f"The widest limits on attacks are {width:.3f} apart; {precision:g} was "
                    "requested. More models would hardly narrow them; more records would."
                )
            caveats += self._mismatch
            if self.task.subject.remedies is None and not self.task.remedies:
                caveats.append(
                    f"Remedies that train new models were not tried on {self.task.codes.size:,} "
                    "records: remedies=9 tries them."
                )
        return tuple(caveats)

    def _cites(self) -> tuple[str, ...]:
        found = self.found["leave-one-out"]
        floor = ("mann1947",) if found["null"].size else ()
        screened = (CITES["subsamples"],) if found["screened"].any() else ()
        return self._list_cites(_CITES, *floor, *screened)


def sum_up_parts(results: PartResults, action: str = "") -> PartSummary:
    """Return the rules' outcome for measured parts, in numbers."""
    rules, attacks = results.apply_rules()
    files = [rule for rule in rules if rule.rule == IN_FILE]
    return PartSummary(
        action=action,
        caught=max(attack.tpr for attack in attacks),
        advantage=max(attack.advantage for attack in attacks),
        accuracy=float(results.found["attacks"]["held out"]),
        exposed=results.exposed if results.is_whole else -1,
        in_file=int(files[0].value) if files else -1,
        failed=sum(rule.outcome == "fail" for rule in rules),
        unclear=sum(rule.outcome == "unclear" for rule in rules),
    )


def _count_bins(values: FloatArray) -> tuple[int, ...]:
    counts = np.histogram(np.clip(values, _EDGES[0], _EDGES[-1]), _EDGES)[0]
    return tuple(counts.tolist())


def describe_removal(found: Mapping[str, Any], ranks: Mapping[int, int]) -> RemovalPlan:
    """Return the removal plan and its outcome; ``ranks`` maps rows of records to their ranks."""
    best = int(np.argmin(found["exposed"]))
    dropped, first = int(found["removed"][best]), int(found["exposed"][0])
    fewest, last = int(found["exposed"][best]), int(found["removed"][-1])
    lost = float(found["accuracy"][0] - found["accuracy"][best])
    if not dropped:
        ended = f"Dropping {last:,} of the riskiest did not help: {first:,} were exposed, no fewer."
    elif fewest:
        ended = (
            f"Dropping {dropped:,} brings {first:,} exposed records down to {fewest:,}, not to "
            f"none; {last:,} were tried. Removing the riskiest records exposes others."
        )
    else:
        word = "falls" if lost >= 0 else "rises"
        ended = (
            f"After dropping {dropped:,} no record is exposed; accuracy {word} by {abs(lost):.3f}."
        )
    curves = ("removed", "largest", "exposed", "accuracy")
    return RemovalPlan(
        **{name: tuple(found[name].tolist()) for name in curves},
        ranks=tuple(ranks.get(record, 0) for record in found["dropped"].tolist()),
        best=dropped,
        ended=ended,
    )


def list_rounding_steps(
    full: FloatArray,
    without: FloatArray,
    codes: IntArray,
    *,
    limit: float,
    advantages: FloatArray | None,
) -> tuple[RoundingStep, ...]:
    """Return risk and leave-one-out accuracy with fewer decimals, down to the class alone.

    Args:
        full: ln p of the model trained on all, shape ``(records, classes)``.
        without: ln p without the record.
        codes: Position of each record's label.
        limit: Limit above which a record is exposed.
        advantages: Advantages of an attack on what is shown, one for each of ``SHOWN``.
    """
    steps = []
    for place, decimals in enumerate(SHOWN):
        risk = measure_changes(full, without, decimals=decimals).risk
        shown = without if decimals == -1 else show(without, decimals)
        right = predict_class(shown) == codes
        steps.append(
            RoundingStep(
                decimals=decimals,
                exposed=int(np.sum(risk > limit)),
                largest=float(risk.max()),
                accuracy=float(right.mean()),
                advantage=None if advantages is None else float(advantages[place]),
            )
        )
    return tuple(steps)
