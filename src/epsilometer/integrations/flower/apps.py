"""A ServerApp whose run is audited."""

import functools
import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from logging import INFO, WARNING
from pathlib import Path
from typing import Any

import numpy as np

from epsilometer._extras import needs
from epsilometer.audits.federated_run import audit_iterates
from epsilometer.claims import PrivacyClaim
from epsilometer.engine.plan import versions
from epsilometer.engine.store import write_whole
from epsilometer.errors import InvalidArgument
from epsilometer.integrations.flower.grid import CanaryGrid
from epsilometer.integrations.flower.records import decoded
from epsilometer.integrations.flower.settings import (
    STATISTICS,
    Family,
    Mode,
    Participation,
    Settings,
)
from epsilometer.report.page import page
from epsilometer.results import AuditGroup, Provenance, to_json

with needs("flwr", extra="flower"):
    from flwr.app import ArrayRecord, Context
    from flwr.serverapp import Grid, ServerApp
    from flwr.serverapp.strategy import Strategy
    from flwr.supercore import log

_ROBUST = {"FedMedian", "FedTrimmedAvg", "Krum", "MultiKrum", "Bulyan"}
_MODES = {
    "replace": "designated nodes were answered as canaries, their clients did not train",
    "virtual": "canaries were nodes beside the real ones",
    "mod": "canaries were planted by canary_mod, in the clients",
}


def audit_server_app(
    server_app: ServerApp,
    *,
    delta: float,
    canaries: int = 1000,
    mode: Mode = "replace",
    directory: str | Path = "epsilometer-flower",
    claim: PrivacyClaim | None = None,
    seed: int = 0,
    family: Family = "hadamard",
    clip_norm: float | None = None,
    nodes: Sequence[int] | None = None,
    weight: float = 1.0,
    weighted_by_key: str = "num-examples",
    without: Sequence[str] = STATISTICS,
    participation: Participation = "hidden",
    confidence: float = 0.95,
) -> ServerApp:
    """The same ``ServerApp``, whose run is audited: put it into ``pyproject.toml`` in its place.

    A canary is a random direction in the space of the weights. Its node answers every training
    message with the weights that came plus that direction, as long as clipping allows. When the
    app ends, or fails, a run directory with ``result.json`` and ``report.html`` is written.

    Guarantees: those of ``audits.one_shot.audit_cosines``; real clients, strategy and accountant
        are not touched; integer arrays are handed back as they came.
    Assumes: the app trains with a ``Strategy`` of ``flwr.serverapp`` (then the last weights are
        seen too), or sends its weights through the grid by itself.

    Args:
        server_app: The app, with ``@app.main()``.
        delta: δ of the bounds.
        canaries: How many nodes are canaries. Below 300 the estimates say little.
        mode: ``replace``: real nodes, chosen at random, whose clients then do not train: sampling
            and accounting stay as they are. ``virtual``: nodes that do not exist beside the real
            ones. ``mod``: the server only looks, :func:`canary_mod` plants in the clients.
        directory: Where to write; a number is added to the name where there is one already.
        claim: What was promised; by default what the strategy's own accountant reports, where it
            keeps one at this δ.
        seed: Of directions and chosen nodes.
        family: ``hadamard`` (exactly orthogonal, fast) or ``sphere`` (independent).
        clip_norm: Norm of a canary. By default the clipping norm: that of the messages' config
            where clients clip, that of the strategy where the server does, and the median norm of
            the clients' own updates where neither is known. A larger one tests whether the server
            clips, and ruins the model if it does not.
        nodes: In mode ``replace``, the nodes to take: as many as there are canaries.
        weight: Examples of a canary, in medians of the clients of its round.
        weighted_by_key: The metric by which the strategy weights replies.
        without: Patterns of names of arrays that are not trained; integer ones never count.
        participation: ``hidden``: all canaries count, sampled or not, so that a claim may rest on
            amplification by sampling. ``known``: only those that took part, and the claim must
            hold without it.
        confidence: One-sided.
    """
    if not isinstance(server_app, ServerApp):
        raise InvalidArgument(f"Expected a ServerApp of flwr, got {type(server_app).__name__}.")
    settings = Settings(
        canaries=canaries,
        mode=mode,
        directory=Path(directory),
        delta=delta,
        claim=claim,
        seed=seed,
        family=family,
        clip_norm=clip_norm,
        nodes=None if nodes is None else tuple(nodes),
        weight=weight,
        weighted_by_key=weighted_by_key,
        without=tuple(without),
        participation=participation,
        confidence=confidence,
    )
    audited = ServerApp()

    @audited.main()
    def main(grid: Grid, context: Context) -> None:
        if server_app._main is None:
            raise InvalidArgument(
                "Expected a ServerApp with @app.main(), got one of server_fn: Flower's older "
                "strategies, those of flwr.server, cannot be audited this way."
            )
        watched = CanaryGrid(grid, settings)
        finished = False
        try:
            with _watching(watched):
                server_app(watched, context)
            finished = True
        finally:
            _write(watched, settings, finished=finished)

    return audited


@contextmanager
def _watching(canary_grid: CanaryGrid) -> Iterator[None]:
    """Shows the grid what a strategy begins with, and what it makes of every round.

    The weights after the last round cross no grid where nothing is evaluated.
    """
    start = Strategy.start

    @functools.wraps(start)
    def watched(
        self: Strategy, grid: Grid, initial_arrays: ArrayRecord, *rest: Any, **more: Any
    ) -> Any:
        if grid is not canary_grid:
            return start(self, grid, initial_arrays, *rest, **more)
        canary_grid.strategy = self
        canary_grid.see(decoded(initial_arrays))
        aggregate = self.aggregate_train

        def aggregated(*args: Any, **named: Any) -> Any:
            arrays, metrics = aggregate(*args, **named)
            if arrays is not None:
                canary_grid.see(decoded(arrays))
            return arrays, metrics

        before = vars(self).copy()
        self.aggregate_train = aggregated  # type: ignore[method-assign]
        try:
            return start(self, grid, initial_arrays, *rest, **more)
        finally:
            del self.aggregate_train
            if "aggregate_train" in before:  # somebody else watches too
                self.aggregate_train = aggregate  # type: ignore[method-assign]

    Strategy.start = watched  # type: ignore[method-assign]
    try:
        yield
    finally:
        Strategy.start = start  # type: ignore[method-assign]


def _write(grid: CanaryGrid, settings: Settings, *, finished: bool) -> None:
    """Writes the run directory, and says where; what cannot be judged is told, and kept."""
    told, files = list(_caveats(grid, settings, finished)), {}
    try:
        group = _judged(grid, settings, tuple(told))
    except InvalidArgument as problem:
        told = [str(problem), *told]
        log(WARNING, "epsilometer: nothing to judge. %s", problem)
    else:
        files = {"result.json": to_json(group) + "\n", "report.html": page(group)}
        for audit in group.audits:
            log(INFO, "epsilometer: %s: %s, %s", audit.bound.adversary, audit.bound, audit.verdict)
    folder = _new_folder(settings.directory)
    for name, text in {**files, "told.txt": "\n".join(told) + "\n"}.items():
        write_whole(folder / name, text.encode("utf-8"))
    if grid.watch is not None:
        seen, packed = grid.watch.seen(), io.BytesIO()
        np.savez(packed, final=seen.final, largest=seen.largest, took=seen.took)
        write_whole(folder / "cosines.npz", packed.getvalue())
    log(INFO, "epsilometer: written to %s", folder)


def _judged(grid: CanaryGrid, settings: Settings, told: tuple[str, ...]) -> AuditGroup:
    if grid.watch is None or grid.layout is None:
        raise InvalidArgument("Expected weights that cross the grid, saw none.")
    names = " of ".join(type(part).__name__ for part in grid.parts)
    return audit_iterates(
        grid.watch.seen(),
        dimension=grid.layout.size,
        delta=settings.delta,
        claim=settings.claim or _promised(grid, settings.delta),
        participation="unseen" if settings.mode == "mod" else settings.participation,
        confidence=settings.confidence,
        seed=settings.seed,
        subject=f"Flower {names or 'ServerApp'}, {settings.canaries:,} canaries",
        told=told,
        provenance=Provenance(
            command=settings.call, versions=(*versions(), ("flwr", version("flwr")))
        ),
    )


def _promised(grid: CanaryGrid, delta: float) -> PrivacyClaim | None:
    """What Flower's own accountant reports, where the strategy keeps one at this δ."""
    for part in grid.parts:
        spent = part.privacy_spent() if hasattr(part, "privacy_spent") else None
        if spent is not None and spent.delta == delta:
            return PrivacyClaim(
                epsilon=spent.epsilon, delta=delta, adjacency="add_remove", accountant="Flower's"
            )
    return None


def _caveats(grid: CanaryGrid, settings: Settings, finished: bool) -> Iterator[str]:
    yield f"Mode {settings.mode}: {_MODES[settings.mode]}."
    if not finished:
        yield "The app ended with an error; this is what was seen until then."
    if grid.strategy is None:
        yield (
            "Strategy.start was not called, so that the weights after the last round were seen "
            "only if they crossed the grid."
        )
    for name in sorted(_ROBUST & {type(part).__name__ for part in grid.parts}):
        yield (
            f"{name} drops outliers, which canaries are: that little was found says little about "
            "clients that are none."
        )
    yield from grid.told


def _new_folder(directory: Path) -> Path:
    """The directory, with a number added where there is one already."""
    for number in range(1, 10**6):
        folder = directory if number == 1 else directory.with_name(f"{directory.name}-{number}")
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            continue
        return folder
    raise InvalidArgument(f"Expected room for another run beside {str(directory)!r}.")
