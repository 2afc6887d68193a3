"""A run to be killed: ``python -m tests.faults.program FOLDER ENGINE WORKERS [UNITS SECONDS]``."""

import sys
import time
from dataclasses import dataclass
from pathlib import Path

from epsilometer.engine.engines import Engine, InProcess, Local
from epsilometer.engine.run import run
from tests.engine.jobs import Digest, a_plan

UNITS, SECONDS = 60, 0.01


@dataclass(frozen=True)
class Work:
    """Takes its time."""

    seconds: float

    def __call__(self, unit: int) -> None:
        time.sleep(self.seconds)


def job(units: int = UNITS, seconds: float = SECONDS) -> Digest:
    return Digest(plan=a_plan(units), act=Work(seconds))


def engine(name: str, workers: int) -> Engine:
    if name == "in-process":
        return InProcess()
    return Local(count=workers, kind="threads" if name == "threads" else "processes")


if __name__ == "__main__":
    where, name, workers, *size = sys.argv[1:]
    asked = job(int(size[0]), float(size[1])) if size else job()
    run(asked, Path(where), engine=engine(name, int(workers)))
