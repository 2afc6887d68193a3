"""What an audit of a Flower run leaves behind."""

import io
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

import numpy as np

from epsilometer.audits.federated_run import audit_iterates
from epsilometer.core.claim import Claim
from epsilometer.engine.plan import versions
from epsilometer.engine.store import write_whole
from epsilometer.errors import InvalidArgument
from epsilometer.integrations.flower.planting import Planting
from epsilometer.integrations.flower.settings import Settings
from epsilometer.report.page import page
from epsilometer.core.audit import AuditGroup, Provenance
from epsilometer.core.serialisation import to_json

_MODES = {
    "replace": "designated nodes were answered as canaries, their clients did not train",
    "virtual": "canaries were nodes beside the real ones",
    "mod": "canaries were planted by canary_mod, in the clients",
}
_log = logging.getLogger("flwr")  # so that it stands among Flower's own lines


@contextmanager
def recorded(settings: Settings, call: str) -> Iterator[Planting]:
    """A run; what was seen of its canaries is written when it ends, or fails."""
    planting, ended = Planting(settings), "The app ended with an error; this is what was seen."
    try:
        yield planting
        ended = ""
    finally:
        write(planting, new_folder(settings.directory), call, ended)


def write(planting: Planting, folder: Path, call: str, ended: str = "") -> None:
    """Writes the run directory, and says where; what cannot be judged is told, and kept.

    Args:
        planting: What was seen.
        folder: Where to write; what an earlier round left there is replaced.
        call: The call that does it again.
        ended: What is to be said about the end of the run.
    """
    told = [line for line in (_mode(planting), ended, *_unseen(planting), *planting.told) if line]
    files = {}
    try:
        group = _judged(planting, call, tuple(told))
    except InvalidArgument as problem:
        told = [str(problem), *told]
        _log.warning("epsilometer: nothing to judge. %s", problem)
    else:
        files = {"result.json": to_json(group) + "\n", "report.html": page(group)}
        for audit in group.audits:
            _log.info("epsilometer: %s: %s, %s", audit.bound.adversary, audit.bound, audit.verdict)
    for name, text in {**files, "told.txt": "\n".join(told) + "\n"}.items():
        write_whole(folder / name, text.encode("utf-8"))
    if planting.watch is not None:
        seen, packed = planting.watch.seen(), io.BytesIO()
        np.savez(packed, final=seen.final, largest=seen.largest, took=seen.took)
        write_whole(folder / "cosines.npz", packed.getvalue())
    _log.info("epsilometer: written to %s", folder)


def new_folder(directory: str | Path) -> Path:
    """The directory, with a number added where there is one already."""
    wanted = Path(directory)
    for number in range(1, 10**6):
        folder = wanted if number == 1 else wanted.with_name(f"{wanted.name}-{number}")
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            continue
        return folder
    raise InvalidArgument(
        f"Expected room for another run beside {str(directory)!r}, found {number:,} of them. "
        "Give another directory."
    )


def _judged(planting: Planting, call: str, told: tuple[str, ...]) -> AuditGroup:
    if planting.watch is None or planting.layout is None:
        raise InvalidArgument("Expected weights that are sent to clients, saw none.")
    asked = planting.settings
    names = " of ".join(type(part).__name__ for part in planting.parts)
    return audit_iterates(
        planting.watch.seen(),
        dimension=planting.layout.size,
        delta=asked.delta,
        claim=asked.claim or _promised(planting),
        participation="unseen" if asked.mode == "mod" else asked.participation,
        confidence=asked.confidence,
        seed=asked.seed,
        subject=f"Flower {names or 'ServerApp'}, {asked.canaries:,} canaries",
        told=told,
        provenance=Provenance(command=call, versions=(*versions(), ("flwr", version("flwr")))),
    )


def _promised(planting: Planting) -> Claim | None:
    """What Flower's own accountant reports, where the strategy keeps one at this δ."""
    delta = planting.settings.delta
    for part in planting.parts:
        spent = part.privacy_spent() if hasattr(part, "privacy_spent") else None
        if spent is not None and spent.delta == delta:
            return Claim(
                epsilon=spent.epsilon, delta=delta, adjacency="add_remove", accountant="Flower's"
            )
    return None


def _mode(planting: Planting) -> str:
    mode = planting.settings.mode
    return f"Mode {mode}: {_MODES[mode]}."


def _unseen(planting: Planting) -> Iterator[str]:
    if planting.strategy is None:
        yield (
            "Strategy.start was not called, so that the weights after the last round were seen "
            "only if they crossed the grid."
        )
