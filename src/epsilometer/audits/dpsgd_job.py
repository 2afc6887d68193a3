"""The work of an audit of DP-SGD: blocks of runs, perhaps one run more, and what they prove."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np

from epsilometer.audits.diverged import lost_scores, told_of_lost
from epsilometer.audits.dpsgd_one_run import OneRun
from epsilometer.audits.runs import RunsJob, View
from epsilometer.canaries.gradient import TargetCanary
from epsilometer.core.claim import Adjacency
from epsilometer.engine.plan import Plan
from epsilometer.engine.run import Done, Watch
from epsilometer.engine.shards import Arrays
from epsilometer.core.audit import AuditGroup, AuditResult


@dataclass(frozen=True, kw_only=True)
class DpsgdJob:
    """Blocks of runs with one canary and, as the last unit, one run with many.

    Attributes:
        runs: The many runs.
        one: The one run; None if there is none.
        adjacency: What training without the target is.
        unproven: Why a gradient canary's bounds are not valid; nothing where they are.
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
        """Trains one block."""
        if index < self._many:
            return self.runs.unit(index)
        assert self.one is not None
        return self.one.play(self.plan.stream(index))

    def missing(self, index: int) -> Arrays:
        """Runs that failed, scored as if each had spoken against the attack."""
        if index < self._many:
            return self.runs.missing(index)
        assert self.one is not None
        return self.one.missing()

    def watch(self) -> Watch:
        """What watches any runs; it does not look at the one run."""
        return _Watching(self.runs.watch(), self._many)

    def result(self, units: Iterable[Arrays], done: Done) -> AuditResult | AuditGroup:
        """An audit for each view of the runs, and for the one run."""
        every = iter(units)
        programs, blocks = self.runs.programs, self.runs.blocks
        lost = {(n, view.name): np.zeros(2, np.int64) for n, view in self._looks}

        def counted() -> Iterator[Arrays]:
            for index, arrays in enumerate(islice(every, self._many)):
                if index not in done.failed:
                    for view in programs[index // blocks].looks:
                        lost[index // blocks, view.name] += lost_scores(arrays, view.name)
                yield arrays

        found = self.runs.result(counted(), done).audits
        audits = [
            told_of_lost(audit, lost[n, view.name], "runs" if view.bound is None else "steps")
            for audit, (n, view) in zip(found, self._looks, strict=True)
        ]
        audits = [replace(a, bound=replace(a.bound, adjacency=self.adjacency)) for a in audits]
        if self.unproven:
            audits = [
                audit if view.name == "loss" else _not_valid(audit, self.unproven)
                for audit, (_, view) in zip(audits, self._looks, strict=True)
            ]
        if self.one is not None:
            audits.append(self.one.audit(next(every), done, range(self._many, self.plan.units)))
        if len(audits) == 1:
            return audits[0]
        return AuditGroup(subject=self.runs.subject, results=tuple(audits))

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


def _not_valid(audit: AuditResult, why: str) -> AuditResult:
    return replace(
        audit, bound=replace(audit.bound, valid=False, caveats=(*audit.bound.caveats, why))
    )


def unproven(target: TargetCanary) -> str:
    """Why what she inserts may be more than any pair of neighbours does."""
    by_place = target.adversary in ("partially_informed", "worst_case")
    if target.adjacency != "add_remove" or not target.displaces or not by_place:
        return ""
    return (
        "Not a valid bound: a record less moves others from batch to batch, and no pair of "
        f"datasets is known that does just what {target.adversary} inserts. Take "
        "adjacency='zero_out', or adversary='target_canary'."
    )
