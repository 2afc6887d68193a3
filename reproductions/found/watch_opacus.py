"""Run somebody's Opacus script as it is, and check and audit every training in it.

    python reproductions/found/watch_opacus.py [--delta 1e-5] SCRIPT.py [its own arguments]

The script is not changed: ``PrivacyEngine.make_private`` is wrapped while it runs, so that each
training is audited by ``epsilometer.integrations.opacus.audited`` and its loader compared with the
accountant by ``check``. Exit code 1 if anything is violated or refuted.
"""

import argparse
import functools
import runpy
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from opacus import PrivacyEngine

from epsilometer.core import judge
from epsilometer.errors import EpsilometerError
from epsilometer.integrations.opacus import audited, check


@dataclass(frozen=True, eq=False, kw_only=True)
class Watched:
    """One training that a script began: its engine, what it was given, and its audit."""

    engine: Any
    optimizer: Any
    loader: Any
    audit: Any
    refused: str = ""


@contextmanager
def watch_engines(*, canaries: int) -> Iterator[list[Watched]]:
    """Wrap ``make_private`` so that every training is audited; restore it afterwards."""
    original = PrivacyEngine.make_private
    found: list[Watched] = []

    @functools.wraps(original)
    def make_private(engine: Any, **given: Any) -> Any:
        made = original(engine, **given)
        optimizer, loader = made[1], made[-1]  # ghost clipping puts its loss between them
        try:
            audit, refused = audited(engine, optimizer, loader, canaries=canaries, seed=0), ""
        except EpsilometerError as error:
            audit, refused = None, str(error)
        found.append(
            Watched(engine=engine, optimizer=optimizer, loader=loader, audit=audit, refused=refused)
        )
        return made

    PrivacyEngine.make_private = make_private
    try:
        yield found
    finally:
        PrivacyEngine.make_private = original


def report_training(watched: Watched, *, delta: float) -> bool:
    """Print what the checks say of one training; return whether it stands."""
    sampler = check(watched.engine, watched.optimizer, loader=watched.loader, delta=delta)
    sys.stdout.write(f"\nloader: {sampler}\n")
    if watched.audit is None:
        sys.stdout.write(f"audit: refused. {watched.refused}\n")
        return bool(sampler.agrees)
    audit = watched.audit.result(delta=delta)
    sys.stdout.write(f"audit: {audit.verdict}\n")
    finding = audit.conformance
    for one in finding.checks if finding is not None else ():
        sys.stdout.write(f"  {one.outcome}: {one.name} ({one.seen})\n")
    return bool(sampler.agrees) and audit.verdict not in (judge.VIOLATED, judge.REFUTED)


def run_script(script: Path, arguments: list[str], *, canaries: int) -> list[Watched]:
    """Run a script as ``python SCRIPT ARGUMENTS`` does, and return the trainings in it."""
    sys.argv = [str(script), *arguments]
    sys.path.insert(0, str(script.resolve().parent))
    with watch_engines(canaries=canaries) as found:
        try:
            runpy.run_path(str(script), run_name="__main__")
        except SystemExit as stopped:
            if stopped.code:
                raise
    return found


def main() -> int:
    """Watch the script of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--delta", type=float, default=1e-5, help="δ of all ε.")
    parser.add_argument("--canaries", type=int, default=500, help="Canaries of each audit.")
    parser.add_argument("script", type=Path)
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    given = parser.parse_args()
    found = run_script(given.script, given.arguments, canaries=given.canaries)
    if not found:
        sys.stdout.write("No training by Opacus was begun: nothing was checked.\n")
        return 4
    stand = [report_training(watched, delta=given.delta) for watched in found]
    return 0 if all(stand) else 1


if __name__ == "__main__":
    sys.exit(main())
