"""Save the state of an audit after every round, so that a killed server resumes."""

import io
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from epsilometer._files import OWNER_FOLDER, check_plain, read_plain, write_whole
from epsilometer.core.audit import Audit
from epsilometer.core.findings import ConformanceFinding
from epsilometer.core.serialisation import from_json, to_json
from epsilometer.engine.store import is_busy, lock
from epsilometer.errors import EpsilometerError, InvalidArgument

_STATE, _START, _CHECKS = "watch.npz", "start.npy", "checks.json"
_META = ("seed", "nodes", "part", "odd", "everybody", "said", "most", "effects")
_ENDED = "notes.txt"  # written when a run ends


@dataclass(frozen=True, eq=False, kw_only=True)
class Kept:
    """Hold what was saved of the rounds before a server was killed.

    Attributes:
        seed: Seed of the canaries.
        nodes: Which nodes are canaries, in their order.
        watch: Their measurements, from ``CosineWatch.export``.
        part: Number of starts of the run, including this one.
        odd: Caveats.
        everybody: Whether all nodes were asked in every round.
        said: What clients reported as planted, from ``Commitments.export``.
        most: Numbers of canaries and replies in the round with the largest share of canaries.
        effects: Effects of canaries on the weights, round by round.
        checks: Checks of the released weights until then.
    """

    seed: int
    nodes: tuple[int, ...]
    watch: Mapping[str, NDArray[Any]] = field(repr=False)
    part: int
    odd: tuple[str, ...] = ()
    everybody: bool = True
    said: dict[str, Any]
    most: tuple[int, int] = (0, 1)
    effects: tuple[float, ...] = ()
    checks: ConformanceFinding | None


@contextmanager
def hold_folder(out: str | Path, call: Mapping[str, Any]) -> Iterator[tuple[Path, Kept | None]]:
    """Hold the directory of a killed run, or a new one.

    Args:
        out: Path; a number is appended if it contains a finished, running or different run.
        call: The call, by which a run is recognised.
    """
    for folder in _list_folders(out):
        kept = None
        if not _make(folder):
            kept = _read(folder, call)
            if kept is None:
                continue
        with lock(folder):
            yield folder, kept
        return


def make_folder(out: str | Path) -> Path:
    """Make a new directory, with a number appended if the name exists."""
    return next(folder for folder in _list_folders(out) if _make(folder))


def _list_folders(out: str | Path) -> Iterator[Path]:
    wanted, most = Path(out), 10**6
    yield wanted
    for number in range(2, most):
        yield wanted.with_name(f"{wanted.name}-{number}")
    raise InvalidArgument(
        f"Expected at most {most:,} runs next to {str(out)!r}, found more. Give another out=DIR."
    )


def _make(folder: Path) -> bool:
    """Make a directory for its owner only; return False if it exists."""
    try:
        folder.mkdir(mode=OWNER_FOLDER, parents=True)
    except FileExistsError:
        return False
    folder.chmod(OWNER_FOLDER)  # whatever the umask took away
    return True


def keep_round(
    folder: Path,
    call: Mapping[str, Any],
    kept: Kept,
    checks: Audit,
) -> None:
    """Save the state so far; the initial weights of a run are written once."""
    watch: dict[str, Any] = dict(kept.watch)
    start = watch.pop("start")
    if not (folder / _START).exists():
        write_whole(folder / _START, _pack(start))
    meta = {"call": call, **{name: getattr(kept, name) for name in _META}}
    packed = io.BytesIO()
    np.savez(packed, meta=np.array(json.dumps(meta)), **watch)
    write_whole(folder / _CHECKS, to_json(checks).encode("utf-8"))
    write_whole(folder / _STATE, packed.getvalue())  # last: it completes the state


def _read(folder: Path, call: Mapping[str, Any]) -> Kept | None:
    """Return the saved state of a killed run with the same settings; None otherwise."""
    if not (folder / _STATE).is_file() or (folder / _ENDED).exists() or is_busy(folder):
        return None
    try:
        with np.load(_open(folder / _STATE)) as packed:
            state = {name: packed[name] for name in packed.files}
        meta = json.loads(str(state.pop("meta")))
        state["start"] = np.load(_open(folder / _START))
        checks = from_json(read_plain(folder / _CHECKS)).conformance
        if meta["call"] != json.loads(json.dumps(call)):
            return None
        return Kept(
            seed=int(meta["seed"]),
            nodes=tuple(map(int, meta["nodes"])),
            watch=state,
            part=int(meta["part"]) + 1,
            odd=tuple(map(str, meta["odd"])),
            everybody=bool(meta["everybody"]),
            said=dict(meta["said"]),
            most=(int(meta["most"][0]), int(meta["most"][1])),
            effects=tuple(map(float, meta["effects"])),
            checks=checks,
        )
    except (OSError, ValueError, KeyError, EpsilometerError):  # damaged, or older: left unchanged
        return None


def _open(path: Path) -> io.BytesIO:
    """Read a plain file; numpy then reads no objects from it."""
    return io.BytesIO(read_plain(path, largest=check_plain(path).st_size))


def _pack(array: NDArray[Any]) -> bytes:
    packed = io.BytesIO()
    np.save(packed, array)
    return packed.getvalue()
