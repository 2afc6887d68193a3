"""Measure how simulated federated training grows with clients, weights and canaries.

    python benchmarks/federated_scale.py                 # all rows: writes federated_scale.md
    python benchmarks/federated_scale.py weights:1960    # this row; others stay as measured
    python benchmarks/federated_scale.py missing         # the rows that were never measured
    python benchmarks/federated_scale.py page            # the page again
    python benchmarks/federated_scale.py --tiny          # prints a page of small sizes

Rows are kept in federated_scale.json, and the page is written after each, so that nothing that was
measured is lost. Every row is a process of its own, with one thread: CPU seconds of a further
round, and its peak memory beside that of the clients' records. Flower trains the same clients
without canaries.
"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import json
import resource
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from federation import BATCH, CLASSES, CLIP, FEATURES, RATE, ragged_records
from measurement import watch
from results import machine
from sizes import ARGUMENTS, TINY, choose_size, fit_power, write_page
from torch import nn
from training import profile

from epsilometer.audits.federated.directions import HadamardCanaries
from epsilometer.audits.federated.rounds import FixedClip
from epsilometer.audits.federated.simulation import FederatedTraining
from epsilometer.networks.ensemble import cross_entropy

_PAGE = Path(__file__).resolve().parent / "federated_scale.md"
_CELLS = _PAGE.with_suffix(".json")
_MORE = 2  # rounds that are counted, after the first, with the largest network
_MOST = 40  # with small networks, whose rounds are short beside the start
_TARGET = 20
_STARTS = 1.2  # times as long as one round, at least, that three of Flower's must take
_INTRO = """# Simulated federated training at scale

Written by `python benchmarks/federated_scale.py`; do not edit. CPU seconds of a further round, one
thread; {cohort} clients per round, with 1 to 150 records each, batches of {batch}, a network
64–w–w–10. Memory is what the process held at most, less what it held when the clients' records
were made. Exponents are those of a power law, fitted to the rows. A dash is a row that was
not measured, or a simulation that did not end or told no difference from its start.

Measured on {machine}.

"""


@dataclass(frozen=True, kw_only=True)
class Case:
    """One row: clients there are, width of the network, canaries, members of a round."""

    clients: int
    width: int
    canaries: int
    cohort: int


BASE = choose_size(
    Case(clients=1000, width=1960, canaries=1000, cohort=20),
    Case(clients=8, width=8, canaries=4, cohort=4),
)
CLIENTS = choose_size((10**3, 10**4, 3 * 10**4, 10**5), (8, 16))
WIDTHS = choose_size((40, 170, 600, 1960), (8, 16))
COUNTS = choose_size((10, 100, 1000, 10_000), (2, 4))


def make_training(case: Case, clients: Any, rounds: int) -> FederatedTraining:
    """Return the training of a row."""
    torch.manual_seed(0)
    w = case.width
    module = nn.Sequential(
        nn.Linear(FEATURES, w), nn.ReLU(), nn.Linear(w, w), nn.ReLU(), nn.Linear(w, CLASSES)
    )
    return FederatedTraining(
        module,
        cross_entropy,
        clients=clients,
        rounds=rounds,
        cohort=case.cohort,
        noise_multiplier=0.5,
        learning_rate=RATE,
        batch_size=BATCH,
        clip=FixedClip(CLIP),
    )


def count_rounds(width: int) -> int:
    """Return how many rounds are counted, after the first."""
    return min(_MOST, _MORE * max(1, BASE.width // width) ** 2)


def measure_row(case: Case) -> dict[str, float]:
    """Return weights, seconds of a round, and bytes beside those of the records."""
    clients = ragged_records(case.clients)
    held, spent, more = _read_held(), [], count_rounds(case.width)
    for rounds in (1, 1 + more):
        training = make_training(case, clients, rounds)
        canaries = HadamardCanaries(count=2 * case.canaries, dimension=training.size, key=1)
        start = time.process_time()
        training.train(
            rng=np.random.default_rng(0),
            canaries=canaries,
            planted=case.canaries,
            repetitions=1,
        )
        spent.append(time.process_time() - start)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {
        "weights": training.size,
        "seconds": max(1e-9, spent[1] - spent[0]) / more,
        "bytes": peak - held,
        "records": float(sum(x.nbytes + y.nbytes for x, y in clients)),
    }


def main() -> None:
    """Measure what is asked for, and write the page after each row."""
    if ARGUMENTS and ARGUMENTS[0].startswith("{"):
        print(json.dumps(measure_row(Case(**json.loads(ARGUMENTS[0])))))
        return
    cells = {} if TINY or not _CELLS.exists() else json.loads(_CELLS.read_text("utf-8"))
    wanted = {
        **{f"clients:{count}": replace(BASE, clients=count) for count in CLIENTS},
        **{f"weights:{width}": replace(BASE, width=width) for width in WIDTHS},
        **{f"canaries:{count}": replace(BASE, canaries=count) for count in COUNTS},
    }
    if ARGUMENTS == ["missing"]:
        wanted = {name: case for name, case in wanted.items() if name not in cells}
    elif ARGUMENTS:
        wanted = {name: wanted[name] for name in ARGUMENTS if name != "page"}
    for name, case in wanted.items():
        cells[name] = {**_ask(case), "machine": machine()}
        _keep(cells)
        if name.startswith("weights"):
            if case == BASE:
                cells[name]["shares"] = _profile()
            cells[name]["flower"] = None if TINY else _ask_flower(case.width)
            _keep(cells)
    if TINY or not wanted:
        write_page(_PAGE, make_page(cells))


def _keep(cells: dict[str, Any]) -> None:
    if not TINY:
        _CELLS.write_text(json.dumps(cells, indent=1, sort_keys=True) + "\n", "utf-8")
        write_page(_PAGE, make_page(cells))


def make_page(cells: dict[str, Any]) -> str:
    """Return the page of the rows that were measured."""
    clients, weights, counts = (
        {int(name.partition(":")[2]): row for name, row in cells.items() if name.startswith(kind)}
        for kind in ("clients", "weights", "canaries")
    )
    machines = "; ".join(sorted({row["machine"] for row in cells.values()}))
    intro = _INTRO.format(cohort=BASE.cohort, batch=BATCH, machine=machines)
    shown = (_show_clients, clients), (_show_weights, weights), (_show_counts, counts)
    return intro + "\n".join(show(found) for show, found in shown if found)


def _show_clients(found: dict[int, dict[str, Any]]) -> str:
    rows = [
        f"| {count:,} | {row['records'] / 2**20:.0f} | {row['seconds']:.2f} "
        f"| {row['bytes'] / 2**20:.0f} |"
        for count, row in sorted(found.items())
    ]
    head = (
        "| clients | their records, MiB | a round, s | memory beside them, MiB |\n|---|---|---|---|"
    )
    return (
        f"## Clients\n\nNetwork {FEATURES}–{BASE.width}–{BASE.width}–{CLASSES}, "
        f"{BASE.canaries:,} canaries. {_grow('clients', found)}\n\n{head}\n"
        + "\n".join(rows)
        + "\n"
    )


def _show_weights(found: dict[int, dict[str, Any]]) -> str:
    rows = [
        f"| {row['weights']:,} | {row['seconds']:.3f} "
        + (
            f"| {row['flower']:.2f} | {row['flower'] / row['seconds']:.1f} |"
            if row.get("flower")
            else "| – | – |"
        )
        for _, row in sorted(found.items())
    ]
    head = "| weights | a round, s | Flower, s | ratio |\n|---|---|---|---|"
    sized = {row["weights"]: row for row in found.values()}
    shares = "".join(row.get("shares", "") for row in found.values())
    return (
        f"## Weights\n\n{BASE.clients:,} clients, {BASE.canaries:,} canaries; Flower on Ray, with "
        f"{BASE.cohort} clients that all take part, and no canaries, CPU seconds of all its "
        f"processes. {_judge(found)}{_grow('weights', sized)}\n\n{head}\n"
        + "\n".join(rows)
        + (f"\n\n{shares}" if shares else "\n")
    )


def _judge(found: dict[int, dict[str, Any]]) -> str:
    """Say whether the largest network whose ratio is known reaches the target."""
    known = [width for width, row in found.items() if row.get("flower")]
    if not known:
        return ""
    largest = found[max(known)]
    met = "met" if largest["flower"] / largest["seconds"] >= _TARGET else "missed"
    return f"Target: at least {_TARGET} times with the largest network that has a ratio, {met}. "


def _show_counts(found: dict[int, dict[str, Any]]) -> str:
    rows = [
        f"| {count:,} | {row['seconds']:.2f} | {row['bytes'] / 2**20:.0f} |"
        for count, row in sorted(found.items())
    ]
    head = "| canaries | a round, s | memory beside records, MiB |\n|---|---|---|"
    return (
        f"## Canaries\n\n{BASE.clients:,} clients, the largest network. "
        f"{_grow('canaries', found)}\n\n{head}\n" + "\n".join(rows) + "\n"
    )


def _grow(what: str, found: dict[int, dict[str, Any]]) -> str:
    if len(found) < 3:
        return "Too few rows were measured to tell the growth."
    power = fit_power([*found], [row["seconds"] for row in found.values()])
    return f"Seconds grow as {what} to the power {power:.2f}."


def _profile() -> str:
    """Say where the time of the largest model goes."""
    training = make_training(BASE, ragged_records(BASE.clients), 1 + _MORE)
    shares = profile(lambda: training.train(rng=np.random.default_rng(0), iterates="none"))
    return f"Of {BASE.width}–{BASE.width} a round is spent in {shares}.\n"


def _ask(case: Case) -> dict[str, float]:
    if TINY:
        return measure_row(case)
    command = [sys.executable, __file__, json.dumps(asdict(case))]
    printed = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    row: dict[str, float] = json.loads(printed.splitlines()[-1])
    return row


def _ask_flower(width: int) -> float | None:
    """CPU seconds of a further round of Flower's simulation; None where that cannot be told.

    It may not end; and where a round takes less than the start varies, the difference says nothing.
    """
    more = count_rounds(width)
    try:
        short, long = (
            float(watch("flower", "sized", f"{rounds} {BASE.cohort} {width} wide")["cpu_seconds"])
            for rounds in (1, 1 + more)
        )
    except RuntimeError:
        return None
    return (long - short) / more if long > _STARTS * short else None


def _read_held() -> int:
    """Return the bytes that this process holds now."""
    with open("/proc/self/statm", encoding="ascii") as numbers:
        return int(numbers.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


if __name__ == "__main__":
    main()
