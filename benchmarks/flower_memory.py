"""Measure the peak memory of a Flower run with canaries: two rounds, 10⁶ weights, 10 clients.

python benchmarks/flower_memory.py                     # all rows, each in a process of its own
python benchmarks/flower_memory.py fedavg 400          # one row
python benchmarks/flower_memory.py fedavg 1000 4000000 1  # one row of another size, one round
"""

import logging
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "examples" / "flower_bugs"))
from bugs import client_app, server_app
from flwr.serverapp.strategy import (
    DifferentialPrivacyServerSideFixedClipping,
    FedAvg,
    Strategy,
)
from sizes import ARGUMENTS, TINY, choose_size

from epsilometer.integrations.flower import audit_server_app, run_in_process

WEIGHTS, CLIENTS, ROUNDS = choose_size((10**6, 10, 2), (100, 2, 1))
ROWS = (("fedavg", 0), ("fedavg", 100), ("fedavg", 400), ("wrapped", 0), ("wrapped", 100))


def measure(kind: str, canaries: int, weights: int = WEIGHTS, rounds: int = ROUNDS) -> None:
    """Print one row of the table."""
    logging.getLogger("flwr").setLevel(logging.ERROR)
    strategy: Strategy = FedAvg(fraction_evaluate=0.0)
    if kind == "wrapped":
        nodes = canaries + CLIENTS
        strategy = DifferentialPrivacyServerSideFixedClipping(strategy, 1.0, 1.0, nodes)
    app = server_app(strategy, weights=weights, rounds=rounds)
    start = time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        if canaries:
            app = audit_server_app(
                app,
                canaries=canaries,
                mode="virtual",
                out=Path(folder) / "run",
                delta=1e-5,
                clip_norm=1.0,
                seed=1,
            )
        run_in_process(app, client_app, nodes=CLIENTS)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    print(f"| {kind} | {canaries} | {time.process_time() - start:.1f} | {peak} |")


if __name__ == "__main__":
    if ARGUMENTS:
        measure(ARGUMENTS[0], *map(int, ARGUMENTS[1:]))
    elif TINY:
        measure("fedavg", 10)
    else:
        print("| strategy | canaries | CPU s | peak MB |\n|---|---|---|---|", flush=True)
        for kind, canaries in ROWS:
            subprocess.run([sys.executable, __file__, kind, str(canaries)], check=True)
