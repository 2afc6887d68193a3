"""Inject every kind of fault, count what was survived, and write two pages.

``docs/reliability.md`` has what was lost, ``tests/faults/survived.md`` every kind of fault.

    python docs/reliability.py    # or: make reliability

Runs the tests that inject faults, slow ones too. Each notes the faults that it injected, by kind,
and whether the run then ended in the same bytes with nothing lost that had been acknowledged. Tests
that fail are listed below the table; what they injected is not counted in it.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "reliability.md"
TABLE = ROOT / "tests" / "faults" / "survived.md"
TESTS = (
    "tests/faults/test_power_cuts.py",
    "tests/faults/test_crash_points.py",
    "tests/faults/test_kills.py",
    "tests/faults/test_disks.py",
    "tests/engine/test_store.py",
    "tests/engine/test_leases.py",
    "tests/engine/test_dask.py",
    "tests/engine/test_dask_clusters.py",
    "tests/audits/posterior/test_service.py",
)
TEXT = """# What a run survives

`make reliability` injects faults of {kinds} kinds ([each](../tests/faults/survived.md)):
**{tried} tried, {survived} survived, {lost} lost.** {failed}

*Survived*: nothing acknowledged is lost, no unit is blamed for another, and the run ends in the
same bytes as an undisturbed one, or says in one sentence why it stopped and goes on when called
again. A unit that hangs is survived if it alone fails.

- **Power cuts.** Every change to the disk is recorded. After each call the disk is left with the
  least that it may keep, with all of it, and with random subsets of what was not fsynced, torn or
  zeroed (`tests/faults/disk.py`). A store whose folders are not fsynced is caught by the same test.
- **Crashes and disk errors** at the first, second, … call of `open`, `fsync`, `rename`, `unlink`
  and `mkdir`; a real file system that is full.
- **Kills**: SIGKILL at random moments, of the run, its workers, Dask's workers and scheduler.
- **Damage**: shards cut, overwritten, forged, renamed, or replaced by links and pipes.

## What decides whether a unit is to blame

Units are granted to workers as *leases*. A lease ends with an outcome of each unit, or is lost
because the worker died or took too long; its units are then granted again one by one. Only a unit
that is lost `retries` times with nothing else under way fails. `epsilometer runs status` shows
which are under way, and who is late.

Without `timeout`, a unit may take 30 times the median of finished units, at least a minute, and
four times as long at each further try. While fewer than five are finished, the longest of them
counts, or what was usual when the run was last under way, and the limit is ten times as long;
before any there is none. Units in this process and in threads cannot be ended; they are only
reported.

## Memory

The process that began a run holds at most 128 MB of finished units, beside twice the largest one.
`python -m tests.faults.memory 400 1` prints the peak, in MB, of 400 units of 1 MB that all wait for
the first, and what there was before: 118 and 48. 800 units from threads take 125, 49 before; from a
Dask worker 167 and 67.

## Systems

Linux is supported; all tests run there. macOS and Windows are best effort and not tested: the drive
of a Mac may hold fsynced data in its cache; Windows cannot fsync folders (a power cut may lose the
last names) and sets no modes of files. Network drives without locks are not supported: two
processes could work on one run.
"""
ROWS = """# Faults that were injected

Written by `make reliability`. What *survived* means: [reliability](../../docs/reliability.md).

| fault | tried | survived | lost |
|---|---|---|---|
{rows}

{failed}
"""


def main() -> int:
    """Run the tests, count, write the page; return the exit code."""
    with tempfile.TemporaryDirectory() as folder:
        noted = Path(folder) / "faults"
        noted.touch()
        environment = {**os.environ, "EPSILOMETER_FAULTS": str(noted), "OMP_NUM_THREADS": "1"}
        call = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "-m",
            "",
            "-n",
            "auto",
        ]
        done = subprocess.run(
            [*call, *TESTS, *sys.argv[1:]], cwd=ROOT, env=environment, check=False,
            capture_output=True, text=True,
        )  # fmt: skip
        lines = [json.loads(line) for line in noted.read_text("utf-8").splitlines()]
    tried: Counter[str] = Counter()
    survived: Counter[str] = Counter()
    for line in lines:
        tried[line["kind"]] += line["times"]
        survived[line["kind"]] += line["times"] * line["survived"]
    bad = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    rows = [
        f"| {kind} | {count:,} | {survived[kind]:,} | {count - survived[kind]:,} |"
        for kind, count in sorted(tried.items())
    ]
    whole, kept = tried.total(), survived.total()
    rows.append(f"| **all** | **{whole:,}** | **{kept:,}** | **{whole - kept:,}** |")
    said = done.stdout.strip().splitlines()[-1]
    failed = f"Tests that failed: {len(bad)} ({said})." if bad else "No test failed."
    counts = {"tried": f"{whole:,}", "survived": f"{kept:,}", "lost": f"{whole - kept:,}"}
    PAGE.write_text(TEXT.format(kinds=len(tried), **counts, failed=failed), "utf-8")
    TABLE.write_text(ROWS.format(rows="\n".join(rows), failed=failed), "utf-8")
    print("\n".join([*rows, failed, *bad]), done.stdout if bad else "")
    return 1 if bad or kept != whole else 0


if __name__ == "__main__":
    sys.exit(main())
