"""Audit Flower's own central differential privacy: five settings, one claim of ε = 8.

Each setting is a Flower app as its documentation has it: a strategy inside
``DifferentialPrivacyServerSide…Clipping``, whose noise multiplier is that of ε = 8 for one round.
The audit finds where the noise added is not the noise that was accounted for.

    python examples/flower_bugs/bugs.py            # all of them, in this process, without Ray
    python examples/flower_bugs/bugs.py fedadam    # one of them
"""

import logging
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import (
    DifferentialPrivacyServerSideAdaptiveClipping,
    DifferentialPrivacyServerSideFixedClipping,
    FedAdam,
    FedAvg,
    FedAvgM,
    Strategy,
)

import epsilometer as em
from epsilometer.integrations.flower import audit_server_app, run_in_process

EPSILON, DELTA = 8.0, 1e-5
NOISE = em.gaussian_sigma(EPSILON, DELTA)  # for one round in which everybody takes part
CLIP = 1.0


@dataclass(frozen=True)
class Scale:
    """Set the size of a demonstration."""

    canaries: int = 1000
    clients: int = 100
    weights: int = 100_000
    seed: int = 0


client_app = ClientApp()


@client_app.train()
def train(message: Message, context: Context) -> Message:
    """Return an update of norm ½: what a client learns does not matter here."""
    arrays = message.content["arrays"]["model"].numpy()
    step = np.random.default_rng(context.node_id).standard_normal(arrays.size, dtype=np.float32)
    moved = arrays + 0.5 * step / np.linalg.norm(step)
    content = RecordDict(
        {
            "arrays": ArrayRecord({"model": Array(moved)}),
            "metrics": MetricRecord({"num-examples": 100}),
        }
    )
    return Message(content, reply_to=message)


def server_app(strategy: Strategy, *, weights: int, rounds: int = 1) -> ServerApp:
    """Return an app that trains with a strategy, as in Flower's tutorial."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        start = ArrayRecord({"model": Array(np.zeros(weights, np.float32))})
        strategy.start(grid=grid, initial_arrays=start, num_rounds=rounds)

    return app


def fixed(strategy: Strategy, scale: Scale) -> Strategy:
    """Return the strategy with Flower's clipping and noise."""
    return DifferentialPrivacyServerSideFixedClipping(
        strategy, NOISE, CLIP, scale.canaries + scale.clients
    )


def audited(
    strategy: Strategy, scale: Scale, *, weight: float = 1, clip_norm: float | None = None
) -> em.Audit:
    """Audit a strategy against an adversary who sees the weights before and after one round."""
    with tempfile.TemporaryDirectory() as folder:
        app = audit_server_app(
            server_app(strategy, weights=scale.weights),
            canaries=scale.canaries,
            mode="virtual",
            out=Path(folder) / "run",
            claim=em.Claim(EPSILON, delta=DELTA, adjacency="zero_out", unit="client"),
            weight=weight,
            clip_norm=clip_norm,
            seed=scale.seed,
        )
        np.random.seed(scale.seed)  # Flower's noise comes from NumPy's global generator
        run_in_process(app, client_app, nodes=scale.clients)
        return em.load(Path(folder) / "run")


def equal_weights(scale: Scale) -> em.Audit:
    """Audit FedAvg where all clients have equally many examples: as claimed."""
    return audited(fixed(FedAvg(fraction_evaluate=0.0), scale), scale)


def unequal_weights(scale: Scale) -> em.Audit:
    """Audit FedAvg weighted by examples, with noise that ignores weights: large clients leak."""
    return audited(fixed(FedAvg(fraction_evaluate=0.0), scale), scale, weight=10)


def server_learning_rate(scale: Scale) -> em.Audit:
    """Audit FedAvgM, which doubles the update before noise for the undoubled one is added."""
    inner = FedAvgM(fraction_evaluate=0.0, server_learning_rate=2.0)
    return audited(fixed(inner, scale), scale)


def fedadam(scale: Scale) -> em.Audit:
    """Audit FedAdam, which rescales the update before noise for the unscaled one is added."""
    return audited(fixed(FedAdam(fraction_evaluate=0.0), scale), scale)


def adaptive_clipping(scale: Scale, *, clip_norm_lr: float = 1.0) -> em.Audit:
    """Audit adaptive clipping, which adapts the norm after clipping and before adding noise.

    All updates are clipped, so the norm should grow. The sign of the change is wrong: the norm, and
    the noise with it, shrinks to exp(-½) of what was clipped to. This is the same in every round,
    so more rounds, with noise for as many, show no more than one does.
    """
    strategy = DifferentialPrivacyServerSideAdaptiveClipping(
        FedAvg(fraction_evaluate=0.0),
        NOISE,
        scale.canaries + scale.clients,
        initial_clipping_norm=0.1,
        clip_norm_lr=clip_norm_lr,
    )
    return audited(strategy, scale, clip_norm=1.0)


def clipping_norms(rounds: int, *, start: float, clients: int = 50) -> list[float]:
    """Return the clipping norm after every round: it diverges from ½, the norm of all updates."""
    strategy = DifferentialPrivacyServerSideAdaptiveClipping(
        FedAvg(fraction_evaluate=0.0), 0.1, clients, initial_clipping_norm=start
    )
    norms = []
    aggregate = strategy.aggregate_train

    def noted(server_round: int, replies: list[Message]):  # type: ignore[no-untyped-def]
        found = aggregate(server_round, replies)
        norms.append(strategy.clipping_norm)
        return found

    strategy.aggregate_train = noted  # type: ignore[assignment,method-assign]
    np.random.seed(0)
    run_in_process(server_app(strategy, weights=100, rounds=rounds), client_app, nodes=clients)
    return norms


DEMOS: dict[str, Callable[[Scale], em.Audit]] = {
    "equal_weights": equal_weights,
    "unequal_weights": unequal_weights,
    "server_learning_rate": server_learning_rate,
    "fedadam": fedadam,
    "adaptive_clipping": adaptive_clipping,
}
# Weights differ only where those of canaries are few among the others.
SCALES = {"unequal_weights": Scale(canaries=500, clients=2000, weights=40_000)}


def main(names: list[str]) -> None:
    """Print claim, bound and estimate of the demonstrations."""
    logging.getLogger("flwr").setLevel(logging.ERROR)
    columns = "claimed ε | by canaries | equal participation | by noise | estimated ε | verdict"
    print(f"| setting | {columns} |")
    print("|---|---|---|---|---|---|---|")
    for name in names or DEMOS:
        found = DEMOS[name](SCALES.get(name, Scale()))
        estimate = found.estimates[0]
        (view,) = found.views
        bounds = (view.bound, *view.also)
        equal = next(bound for bound in bounds if bound.method == "mean_cosine")
        noise = None if found.conformance is None else found.conformance.bound
        print(
            f"| {name} | {EPSILON:g} | {view.bound.epsilon:.1f} | {equal.epsilon:.1f} "
            f"| {'–' if noise is None else f'{noise.epsilon:.1f}'} "
            f"| {estimate.epsilon:.1f} ({estimate.low:.1f} to {estimate.high:.1f}) "
            f"| {found.verdict} |"
        )
    if not names:
        for start in (1.5, 0.4):
            last = clipping_norms(60, start=start)[-1]
            print(f"Adaptive clipping norm, all updates of norm 0.5: from {start} to {last:.3g}.")


if __name__ == "__main__":
    main(sys.argv[1:])
