"""A run to be killed: ``python -m tests.faults.program DIRECTORY ENGINE [WORKERS]``."""

import sys
import time
from pathlib import Path

from epsilometer.engine.engines import Engine, InProcess, Local
from epsilometer.engine.run import run
from tests.engine.jobs import Digest, a_plan

UNITS, SECONDS = 60, 0.01


def work(unit: int) -> None:
    time.sleep(SECONDS)


def job() -> Digest:
    return Digest(plan=a_plan(UNITS), act=work)


def engine(name: str, workers: int) -> Engine:
    if name == "in-process":
        return InProcess()
    return Local(count=workers, kind="threads" if name == "threads" else "processes")


if __name__ == "__main__":
    run(job(), Path(sys.argv[1]), engine=engine(sys.argv[2], int(sys.argv[3])))
