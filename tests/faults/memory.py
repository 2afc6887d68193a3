"""How much a run holds: ``python -m tests.faults.memory UNITS MEGABYTES`` prints peaks in MB.

Unit 0 ends last, so that all others wait for it. The second number is the peak before the run.
With a third argument, ``threads`` or ``dask``, units are executed there instead, and none waits.
"""

import resource
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from epsilometer.core.audit import Audit
from epsilometer.engine.engines import Dask, Engine, Local
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
    waits: bool = True

    def unit(self, index: int) -> Arrays:
        while self.waits and index == 0 and len(list(self.folder.iterdir())) < self.plan.units - 1:
            time.sleep(0.01)
        if self.waits:
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


@contextmanager
def find_engine(kind: str) -> Iterator[Engine]:
    if kind != "dask":
        yield Local(count=2, kind=kind)  # type: ignore[arg-type]
        return
    from distributed import LocalCluster

    with LocalCluster(  # type: ignore[no-untyped-call]
        n_workers=1, threads_per_worker=1, dashboard_address=None
    ) as cluster:
        yield Dask(cluster.scheduler_address)


if __name__ == "__main__":
    count, size, kind = int(sys.argv[1]), int(sys.argv[2]), "".join(sys.argv[3:]) or "processes"
    with tempfile.TemporaryDirectory() as place, find_engine(kind) as engine:
        marks = Path(place) / "marks"
        marks.mkdir()
        before = peak()
        job = Large(a_plan(count), size, marks, waits=kind == "processes")
        run(job, Path(place) / "run", engine=engine)
        print(peak(), before)
