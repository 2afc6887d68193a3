"""The results as a page of Markdown: the machine in words, one table, and what it is about."""

import os
import platform
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

_INTRO = """# Speed, side by side

Written by `make speed`; do not edit. Each line asks the same of both tools: the scores are equal
(inside from N(1, 1), outside from N(0, 1), float64, one seed), each question has a process of its
own after a warm-up call on tiny data, and what is counted is the CPU time of the call, of all
threads: the median of three calls, or one call for the tables. Peers are pinned in
`benchmarks/peers/`.

Measured on {machine}.
"""

_NOTES = """
Memory is how much the peak of the process grew, in sizes of the scores: first since before the
scores were made (so the scores themselves are 1), then, in brackets, since they were there.

The tools do not compute the same bound. The default bound is one test of all ranks, whose chance of
error is computed; what depends on no score is kept from the first call on
([fresh sizes](bound.md)). jax-privacy looks at every corner of the convex hull and divides the
error by their number; Best pays nothing, and is not a valid bound. Both one-run bounds are for
δ = 1e-6, all others for δ = 1e-5, at a confidence of 95 %. Only the joint-beta bounds ought to be
equal.
"""


class Row(NamedTuple):
    """A line of the table, as it is printed."""

    question: str
    n: str
    ours: str
    peer: str
    theirs: str
    ratio: str
    target: str
    met: str
    memory_ours: str
    memory_peer: str
    epsilon_ours: str
    epsilon_peer: str


HEADERS = Row(
    question="question",
    n="n a side",
    ours="ours (CPU s)",
    peer="peer",
    theirs="peer (CPU s)",
    ratio="ratio",
    target="target",
    met="met?",
    memory_ours="memory, ours",
    memory_peer="memory, peer",
    epsilon_ours="ε, ours",
    epsilon_peer="ε, peer",
)


def page(rows: list[Row], further: list[str]) -> str:
    """The whole page.

    Args:
        rows: Of the table.
        further: Sentences on targets that are not about seconds.
    """
    lines = [HEADERS, ["---"] * len(HEADERS), *rows]
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    listed = "\n".join(f"- {sentence}" for sentence in further)
    intro = _INTRO.format(machine=machine())
    return f"{intro}\n{table}\n{_NOTES}\nTargets that are not about seconds:\n\n{listed}\n"


def machine() -> str:
    """The machine and the versions that matter, in words."""
    cpu = _proc_value("cpuinfo", "model name")
    gib = int(_proc_value("meminfo", "MemTotal").split()[0]) / 2**20
    versions = ", ".join(f"{name} {metadata.version(name)}" for name in ("numpy", "scipy"))
    return (
        f"{os.cpu_count()} cores of {cpu} with {gib:.0f} GiB of memory, "
        f"Python {platform.python_version()}, {versions}"
    )


def _proc_value(file: str, key: str) -> str:
    for line in Path("/proc", file).read_text().splitlines():
        name, _, value = line.partition(":")
        if name.strip() == key:
            return value.strip()
    return "unknown 0"
