"""Asks epsilometer and its peers the same questions, and counts how often each is wrong.

    python benchmarks/comparison.py                # all, anew; writes comparison.json and the page
    python benchmarks/comparison.py opake sacroml  # these tools again, others as they stand
    python benchmarks/comparison.py page           # the page and its chart again, nothing measured

Each tool answers in its own environment (``peers/``). An audit is put to it twice over: where
nothing can be told (ε = 0), where anything it claims is a false alarm, and where the truth is
known, to count how often it refutes what is false. One call after the other; each is kept as soon
as it has answered, with what was asked together.
"""

import json
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from comparison_page import write_page
from measurement import ask, watch
from questions import QUESTIONS, Ask
from results import machine

from epsilometer import audit
from epsilometer.audits.federated.cosine_audit import Cosines
from epsilometer.core.scores import Scores
from epsilometer.errors import EpsilometerWarning
from epsilometer.stats.estimators import epsilon_lower_bound

_HERE = Path(__file__).resolve().parent
RAW = _HERE / "comparison.json"
SITUATIONS = ("null", "known")
_AUDITS, _CANARIES, _SHIFT = 1000, 1000, {"null": 0.0, "known": 1.0}
_DELTA = 1e-5
_MODELS, _RECORDS = 200, 300


def main() -> None:
    """Measures what is asked for and writes the page."""
    wanted = sys.argv[1:]
    kept = {"runs": [], "rows": []} if not wanted else json.loads(RAW.read_text("utf-8"))
    if wanted != ["page"]:
        _measure(wanted, kept)
    write_page(kept)


def _measure(wanted: list[str], kept: dict[str, Any]) -> None:
    """Asks the tools, all where none is named, and adds what they said to what is kept."""
    run: dict[str, Any] = {"asked": wanted, "minutes": 0.0}
    kept["machine"], start = machine(), time.perf_counter()
    kept["runs"].append(run)
    with tempfile.TemporaryDirectory() as folder:
        for question in QUESTIONS:
            for asked in question.asked:
                if not wanted or asked.tool in wanted:
                    sys.stderr.write(f"{question.name}: {asked.tool}, {asked.name}\n")
                    found = _rows(question.name, asked, Path(folder))
                    run["minutes"] = round((time.perf_counter() - start) / 60, 1)
                    _keep(kept, found)


def draw_scores(situation: str, file: Path) -> None:
    """Scores of 1,000 canaries in each of 1,000 audits, each in or out by its own fair coin."""
    rng = np.random.default_rng([0, SITUATIONS.index(situation)])
    member = rng.random((_AUDITS, _CANARIES)) < 0.5
    np.savez(file, scores=rng.normal(_SHIFT[situation] * member, 1), member=member)


def draw_models(situation: str, file: Path) -> None:
    """Which of 300 digits each of 200 classifiers is trained on, or is said to be."""
    rng = np.random.default_rng([1, SITUATIONS.index(situation)])
    member = rng.random((_MODELS, _RECORDS)) < 0.5
    leaks = np.full(_MODELS, situation == "known")
    np.savez(file, member=member, leaks=leaks, seed=np.arange(_MODELS))


_DRAW: dict[str, Callable[[str, Path], None]] = {"scores": draw_scores, "membership": draw_models}


def _rows(question: str, asked: Ask, folder: Path) -> list[dict[str, Any]]:
    """A row for each number that the tool gives."""
    said = {name: _answers(question, asked, name, folder) for name in SITUATIONS}
    told = said["known"]
    return [
        {
            "question": question,
            "tool": asked.tool,
            "name": asked.name,
            "key": key,
            "version": told["version"],
            "cpu_seconds": told["cpu_seconds"],
            "wall_seconds": told["wall_seconds"],
            "peak_bytes": told["peak_bytes"],
            **{name: [round(one[key], 5) for one in said[name]["answers"]] for name in SITUATIONS},
        }
        for key in asked.rows
    ]


def _answers(question: str, asked: Ask, situation: str, folder: Path) -> dict[str, Any]:
    """Of a file of audits, or of audits that each have processes of their own."""
    if question in _DRAW:
        file = folder / f"{question}-{situation}.npz"
        if not file.exists():
            _DRAW[question](situation, file)
        return ask(asked.tool, asked.name, f"{file}:{asked.audits}")
    told = [watch(asked.tool, asked.name, f"{situation}:{i}") for i in range(asked.audits)]
    middle = sorted(told, key=lambda one: float(one["cpu_seconds"]))[len(told) // 2]
    return {**middle, "answers": [{"bound": _bound(one)} for one in told]}


def _bound(seen: dict[str, Any]) -> float:
    """Ours, of what a training showed: neither Opacus nor Flower has one of its own."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", EpsilometerWarning)  # that canaries are few
        if "cosines" in seen:
            subject = Cosines(seen["cosines"], dimension=seen["dimension"])
            (found,) = audit(subject, delta=_DELTA).bounds
        else:
            found = epsilon_lower_bound(Scores(seen["inside"], seen["outside"]), delta=_DELTA)
    return found.epsilon


def _keep(kept: dict[str, Any], found: list[dict[str, Any]]) -> None:
    """Rows are kept as they come, in place of what the same call found before."""
    new = {_call(row) for row in found}
    kept["rows"] = [row for row in kept["rows"] if _call(row) not in new] + found
    rows = ",\n".join(json.dumps(row, ensure_ascii=False) for row in kept["rows"])
    head = {name: kept[name] for name in ("machine", "runs")}
    text = f'{json.dumps(head, ensure_ascii=False)[:-1]},\n"rows": [\n{rows}\n]}}\n'
    RAW.write_text(text, "utf-8")


def _call(row: dict[str, Any]) -> tuple[str, str, str]:
    return row["question"], row["tool"], row["name"]


if __name__ == "__main__":
    main()
