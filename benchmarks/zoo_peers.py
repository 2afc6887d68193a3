"""Put the zoo to other tools, and count the wrong programs found and the right ones spared.

    python benchmarks/zoo_peers.py                       # every tool that PyPI has, and the page
    python benchmarks/zoo_peers.py jax_privacy           # this one again, others as they stand
    python benchmarks/zoo_peers.py --python dp_sniper=ENV/bin/python dp_sniper
    python benchmarks/zoo_peers.py page                  # the page again, nothing measured

Each tool is plugged in by one function, as ``run_zoo(tool=…)`` takes it. It is given what a test of
black boxes is given: numbers released with one record and without it, and the claimed (ε, δ) of one
Gaussian step. Tools of PyPI have environments of their own (``peers/zoo``); for others, give an
interpreter that can import them.
"""

import argparse
import copy
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import comparison
import comparison_page
import environments
import numpy as np
import zoo_peers_page
from results import machine

from epsilometer import gaussian_epsilon
from epsilometer.audits.step.subject import Step
from epsilometer.types import FloatArray
from epsilometer.zoo.program import Program
from epsilometer.zoo.programs import list_programs
from epsilometer.zoo.runner import Outcome, run_zoo
from epsilometer.zoo.tool import Alarm, Report, Tool

_HERE = Path(__file__).resolve().parent
RUNS = 4000  # with the record, and as many without it
SEED = 18
_RECORDS, _FACTORS = 8, (1.0, 10.0, 1000.0)  # neighbours among which the most telling is taken


def main() -> None:
    """Measure what is asked for, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tools", nargs="*", help="Tools, or page.")
    parser.add_argument("--python", action="append", default=[], metavar="TOOL=PATH")
    given = parser.parse_args()
    pythons = dict(each.split("=", 1) for each in given.python)
    known = zoo_peers_page.TOOLS
    wanted = given.tools or [name for name, tool in known.items() if tool.pinned or name in pythons]
    if wanted != ["page"]:
        measure(wanted, pythons)
    comparison_page.write_page(json.loads(comparison.RAW.read_text("utf-8")))


def measure(wanted: list[str], pythons: dict[str, str], *, runs: int = RUNS) -> None:
    """Ask the tools and keep what they said beside what is kept of others."""
    kept: dict[str, Any] = {"tools": {}}
    if zoo_peers_page.RAW.exists():
        kept = json.loads(zoo_peers_page.RAW.read_text("utf-8"))
    programs = list_programs("step")
    kept["programs"] = {each.id: [each.title, each.breaks] for each in programs}
    drawn: dict[str, tuple[FloatArray, FloatArray]] = {}
    if wanted != ["checks"]:  # which runs programs itself
        start = time.process_time()
        drawn = {program.id: draw_view(program, runs=runs) for program in programs}
        seconds = (time.process_time() - start) / len(programs)
        kept |= {"machine": machine(), "runs": runs, "drawing_seconds": round(seconds, 3)}
    for name in wanted:
        sys.stderr.write(f"{name}\n")
        kept["tools"][name] = _ask_and_count(name, programs, drawn, python=pythons.get(name))
        lines = json.dumps(kept, ensure_ascii=False, indent=1)
        zoo_peers_page.RAW.write_text(lines + "\n", "utf-8")  # as soon as a tool has answered


def _ask_and_count(
    name: str,
    programs: tuple[Program, ...],
    drawn: dict[str, tuple[FloatArray, FloatArray]],
    *,
    python: str | None,
) -> dict[str, Any]:
    if name == "checks":
        return _keep(run_zoo(programs), version="")
    said = ask(name, programs, drawn, python=python)
    outcomes = run_zoo(programs, tool=plug_in(programs, said["answers"]))
    return _keep(outcomes, version=said["version"], seconds=said["cpu_seconds"])


def draw_view(program: Program, *, runs: int, seed: int = SEED) -> tuple[FloatArray, FloatArray]:
    """Draw what is released with a record and without it, as one number per run.

    Every run begins anew, as tests of black boxes assume. The record, and the direction on which
    releases are projected, are those with the largest change under the same randomness: all tools
    are given the view that tells most of a shift.
    """
    subject: Step = program.make(seed)
    streams = np.random.SeedSequence(seed).spawn(3)
    present, absent, change = _choose_pair(subject, streams[0])
    norm = float(np.linalg.norm(change))
    direction = change / norm if norm > 0 else np.ones_like(change) / np.sqrt(change.size)
    inside, outside = (
        np.array([_release(subject, batch, rng) @ direction for _ in range(runs)])
        for batch, rng in (
            (present, np.random.default_rng(streams[1])),
            (absent, np.random.default_rng(streams[2])),
        )
    )
    return inside, outside


def _choose_pair(subject: Step, seed: np.random.SeedSequence) -> tuple[Any, Any, FloatArray]:
    """Return a batch, the same without one record, and the change of the release."""
    features, labels = subject.batch
    best: tuple[Any, Any, FloatArray] | None = None
    for place in range(_RECORDS):
        absent = np.delete(features, place, axis=0), np.delete(labels, place, axis=0)
        for factor in _FACTORS:
            changed = features.copy()
            changed[place] *= factor
            present = changed, labels
            pair = [
                _release(subject, batch, np.random.default_rng(seed)) for batch in (present, absent)
            ]
            change = pair[0] - pair[1]
            if best is None or np.linalg.norm(change) > np.linalg.norm(best[2]):
                best = present, absent, change
    assert best is not None
    return best


def _release(subject: Step, batch: Any, rng: np.random.Generator) -> FloatArray:
    value = copy.deepcopy(subject.step)(batch, rng)
    parts = value.values() if isinstance(value, dict) else value
    return np.concatenate([np.ravel(np.asarray(part, np.float64)) for part in parts])


def ask(
    name: str,
    programs: Iterable[Program],
    drawn: dict[str, tuple[FloatArray, FloatArray]],
    *,
    python: str | None,
) -> dict[str, Any]:
    """Return what a tool says of every program, in its own environment."""
    tool = zoo_peers_page.TOOLS[name]
    own = sys.executable if tool.ours else None
    interpreter = python or own or str(environments.python_of(tool.pinned))
    claims = [claimed_epsilon(program, tool.delta) for program in programs]
    path = f"{_HERE}{os.pathsep}{_HERE / 'peers' / 'zoo'}"
    alone = {"OMP_NUM_THREADS": "1", "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "zoo.npz"
        inside, outside = zip(*drawn.values(), strict=True)
        np.savez(file, inside=inside, outside=outside, epsilon=claims, delta=tool.delta)
        script = _HERE / "peers" / "zoo" / f"ask_{tool.script}.py"
        printed = subprocess.run(
            [interpreter, "-W", "ignore", str(script), str(file)],
            env={**os.environ, **alone},
            cwd=folder,
            check=True,
            stdout=subprocess.PIPE,
            text=True,
        ).stdout
    said: dict[str, Any] = json.loads(printed.splitlines()[-1])
    return said


def claimed_epsilon(program: Program, delta: float) -> float:
    """Return the ε of one Gaussian step by the program's own σ: what is accounted for."""
    subject: Step = program.make(SEED)
    return float(gaussian_epsilon(subject.noise_multiplier, delta))


def plug_in(programs: Iterable[Program], answers: Iterable[dict[str, Any]]) -> Tool:
    """Return the answers of another tool as the function that ``run_zoo`` takes."""
    said = {program.id: answer for program, answer in zip(programs, answers, strict=True)}

    def tool(program: Program, _: int) -> Report:
        accused = said[program.id]["accused"]
        return Report(alarms=(Alarm(check="ε of one step", steps=1),) if accused else ())

    return tool


def _keep(
    outcomes: Iterable[Outcome], *, version: str, seconds: float | None = None
) -> dict[str, Any]:
    every = list(outcomes)
    mean = sum(each.seconds for each in every) / len(every) if seconds is None else seconds
    return {
        "version": version,
        "cpu_seconds": round(mean, 4),
        "accused": [each.program.id for each in every if each.accused],
    }


if __name__ == "__main__":
    main()
