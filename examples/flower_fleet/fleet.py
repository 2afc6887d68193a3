"""Measure what the audit of a fleet of 100,000 phones costs; 1,000 of them are canaries.

    python examples/flower_fleet/fleet.py

Every round samples 1,000 phones, and only those run, as calls in this process. The script prints
CPU time with the audit and without it, memory, and the findings.
"""

import logging
import random
import resource
import tempfile
import time
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, FedAvg

import epsilometer as em
from epsilometer.integrations.flower import audit_server_app, run_in_process

PHONES, SAMPLED, CANARIES, WEIGHTS, ROUNDS = 100_000, 1_000, 1_000, 20_000, 30
server_app = ServerApp()


@server_app.main()
def main(grid: Grid, context: Context) -> None:
    """Run rounds of DP-FedAvg, each with a hundredth of the phones."""
    inner = FedAvg(fraction_train=SAMPLED / PHONES, fraction_evaluate=0.0)
    strategy = DifferentialPrivacyServerSideFixedClipping(inner, 0.6, 1.0, SAMPLED)
    start = ArrayRecord({"model": Array(np.zeros(WEIGHTS, np.float32))})
    strategy.start(grid=grid, initial_arrays=start, num_rounds=ROUNDS)


def phone(message: Message, context: Context) -> Message:
    """Return the reply of a phone, an update of norm 1."""
    model = message.content["arrays"]["model"].numpy()
    step = np.random.default_rng(context.node_id).standard_normal(WEIGHTS, dtype=np.float32)
    arrays = ArrayRecord({"model": Array(model + step / np.linalg.norm(step))})
    metrics = MetricRecord({"num-examples": 10})
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)


def timed(app: ServerApp) -> float:
    """Return the CPU seconds of a run."""
    random.seed(0)
    np.random.seed(0)
    start = time.process_time()
    run_in_process(app, phone, nodes=PHONES)
    return time.process_time() - start


def megabytes() -> float:
    """Return the peak memory so far, in megabytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def report() -> None:
    """Run the fleet without the audit, and with it."""
    logging.getLogger("flwr").setLevel(logging.ERROR)
    plain, before = timed(server_app), megabytes()
    print(f"{PHONES:,} phones, {SAMPLED:,} a round, {ROUNDS} rounds, {WEIGHTS:,} weights")
    print(f"without the audit: {plain:.1f} s of CPU, {before:.0f} MB")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run"
        app = audit_server_app(
            server_app, delta=1e-6, canaries=CANARIES, seed=0, out=path, participation="known"
        )
        spent = timed(app)
        audit = em.load(path)
        took = np.load(path / "cosines.npz")["took"]
    print(f"with it: {spent:.1f} s of CPU, {megabytes():.0f} MB")
    print(f"{np.sum(took > 0)} of {CANARIES} canaries took part, {took.sum()} times in all")
    for view in audit.views:
        print(f"{view.bound.adversary}: {view.bound}; {view.estimates[0]}")


if __name__ == "__main__":
    report()
