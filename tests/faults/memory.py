"""How much a run holds: ``python -m tests.faults.memory UNITS MEGABYTES`` prints peaks in MB.

Unit 0 ends last, so that all others wait for it. The second number is the peak before the run.
"""

import resource
import sys
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from epsilometer.core.audit import Audit
from epsilometer.engine.engines import Local
from epsilometer.engine.plan import Plan
from epsilometer.engine.run import Done, Unwatched, run
from epsilometer.engine.shards import Arrays
from tests.engine.jobs import a_plan
from tests.examples import an_audit


@dataclass(frozen=True)
class Large:
    """Units of a size; the first waits until the others are finished."""

    plan: Plan
    megabytes: int
    folder: Path

    def unit(self, index: int) -> Arrays:
        while index == 0 and len(list(self.folder.iterdir())) < self.plan.units - 1:
            time.sleep(0.01)
        (self.folder / str(index)).touch()
        return {"x": np.full(self.megabytes * 2**17, float(index))}

    def missing(self, index: int) -> Arrays:
        raise NotImplementedError

    def watch(self) -> Unwatched:
        return Unwatched()

    def result(self, units: Iterable[Arrays], done: Done) -> Audit:
        assert [int(arrays["x"][-1]) for arrays in units] == list(range(self.plan.units))
        return an_audit(provenance=done.provenance)


def peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


if __name__ == "__main__":
    count, size = int(sys.argv[1]), int(sys.argv[2])
    with tempfile.TemporaryDirectory() as place:
        marks = Path(place) / "marks"
        marks.mkdir()
        before = peak()
        run(Large(a_plan(count), size, marks), Path(place) / "run", engine=Local(count=2))
        print(peak(), before)
