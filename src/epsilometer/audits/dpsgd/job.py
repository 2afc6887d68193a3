"""Do the work of an audit of DP-SGD: blocks of runs, perhaps one run more, and what they prove."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

import numpy as np
from msgspec.structs import replace

from epsilometer.audits.dpsgd.canaries import TargetCanary
from epsilometer.audits.dpsgd.one_run import OneRun
from epsilometer.core.audit import Audit
from epsilometer.core.claim import Adjacency
from epsilometer.core.findings import EpsilonFinding
from epsilometer.engine.plan import Plan
from epsilometer.engine.run import Done, Watch
from epsilometer.engine.runs import RunsJob, View, lost_scores, told_of_lost
from epsilometer.engine.shards import Arrays
from epsilometer.types import IntArray


@dataclass(frozen=True, kw_only=True)
class DpsgdJob:
    """Blocks of runs with one canary and, as the last unit, one run with many.

    Attributes:
        runs: The many runs.
        one: The one run; None if there is none.
        adjacency: What training without the target is.
        unproven: Why a gradient canary's bounds are not valid; empty where they are.
    """

    runs: RunsJob
    one: OneRun | None
    adjacency: Adjacency
    unproven: str = ""

    @property
    def plan(self) -> Plan:
        """Everything that determines the result."""
        return self.runs.plan

    def unit(self, index: int) -> Arrays:
        """Train one block."""
        if index < self._many:
            return self.runs.unit(index)
        assert self.one is not None
        return self.one.play(self.plan.stream(index))

    def missing(self, index: int) -> Arrays:
        """Return runs that failed, scored as if each had spoken against the attack."""
        if index < self._many:
            return self.runs.missing(index)
        assert self.one is not None
        return self.one.missing()

    def watch(self) -> Watch:
        """Return what watches any runs; it does not look at the one run."""
        return _Watching(self.runs.watch(), self._many)

    def result(self, units: Iterable[Arrays], done: Done) -> Audit:
        """Return the audit: one finding per view of the runs, and one of the one run."""
        every = iter(units)
        programs, blocks = self.runs.programs, self.runs.blocks
        lost = {(n, view.name): np.zeros(2, np.int64) for n, view in self._looks}

        def counted() -> Iterator[Arrays]:
            for index, arrays in enumerate(islice(every, self._many)):
                if index not in done.failed:
                    for view in programs[index // blocks].looks:
                        lost[index // blocks, view.name] += lost_scores(arrays, view.name)
                yield arrays

        found = [
            self._finish(view, finding, lost[n, view.name])
            for finding, (n, view) in zip(
                self.runs.findings(counted(), done), self._looks, strict=True
            )
        ]
        if self.one is not None:
            found.append(self.one.find(next(every), done, range(self._many, self.plan.units)))
        return Audit(
            subject=self.runs.subject,
            claim=self.runs.claim,
            findings=tuple(found),
            provenance=done.provenance,
        )

    def _finish(self, view: View, finding: EpsilonFinding, lost: IntArray) -> EpsilonFinding:
        """Add what a reader must know of a view: its adjacency, lost runs, whether it is proved."""
        finding = told_of_lost(finding, lost, "runs" if view.bound is None else "steps")
        bound = replace(finding.bound, adjacency=self.adjacency)
        if not self.unproven or view.name == "loss":
            return replace(finding, bound=bound)
        return replace(
            finding,
            bound=replace(bound, valid=False, caveats=(*bound.caveats, self.unproven)),
            power=None if self.runs.claim is None else float("inf"),  # it refutes nothing
        )

    @property
    def _looks(self) -> list[tuple[int, View]]:
        """All views, each with the number of its program."""
        return [(n, view) for n, each in enumerate(self.runs.programs) for view in each.looks]

    @property
    def _many(self) -> int:
        return len(self.runs.programs) * self.runs.blocks


class _Watching:
    """Shows the many runs to their watch, and no more."""

    def __init__(self, watch: Watch, units: int) -> None:
        self._watch, self._left = watch, units

    def see(self, arrays: Arrays) -> None:
        if self._left:
            self._left -= 1
            self._watch.see(arrays)

    def epsilon(self) -> float | None:
        return self._watch.epsilon()

    def enough(self) -> str:
        return self._watch.enough()


def explain_unproven(target: TargetCanary) -> str:
    """Say why what she inserts may be more than any pair of neighbours does; empty if it is not."""
    by_place = target.adversary in ("partially_informed", "worst_case")
    if target.adjacency != "add_remove" or not target.displaces or not by_place:
        return ""
    return (
        "Not a valid bound: a record less moves others from batch to batch, and no pair of "
        f"datasets is known that does just what {target.adversary} inserts. Take "
        "adjacency='zero_out', or adversary='target_canary'."
    )
