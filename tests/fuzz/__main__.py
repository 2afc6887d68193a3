"""Tries every reader with edited files: ``python -m tests.fuzz --minutes 10 --reader scores-csv``.

Prints a line a reader, and what was found with the number of its input; ``--show NUMBER`` writes
that input to the standard output.
"""

import argparse
import resource
import sys

from tests.fuzz.readers import READERS
from tests.fuzz.trying import input_of, tried

_MEMORY = 4 << 30  # bytes of address space beside what is there already


def main() -> None:
    asked = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    asked.add_argument("--reader", choices=list(READERS), help="One reader; all by default.")
    asked.add_argument("--minutes", type=float, default=0.0, help="For each reader.")
    asked.add_argument("--inputs", type=int, default=0, help="At least, for each reader.")
    asked.add_argument("--first", type=int, default=0, help="Number of the first input.")
    asked.add_argument("--seed", type=int, default=0)
    asked.add_argument("--show", type=int, metavar="NUMBER", help="Write that input, read nothing.")
    asked.add_argument("--list", action="store_true", help="Print the names of all readers.")
    given = asked.parse_args()
    if given.list:
        print("\n".join(READERS))
        return
    if given.show is not None:
        sys.stdout.buffer.write(input_of(given.reader, given.show, seed=given.seed))
        return
    _limit_memory()
    wrong = 0
    for name in [given.reader] if given.reader else READERS:
        tally = tried(
            name, seed=given.seed, first=given.first, inputs=given.inputs, minutes=given.minutes
        )
        print(f"{tally}; at most {_peak():,} MiB", flush=True)
        wrong += tally.wrong
    raise SystemExit(1 if wrong else 0)


def _limit_memory() -> None:
    """So that a file that blows up is an error here, and no trouble for the machine."""
    with open("/proc/self/statm", encoding="ascii") as file:
        now = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + _MEMORY, now + _MEMORY))


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


main()
