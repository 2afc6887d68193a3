"""Disks that are full, that may not be written, and that come back."""

import errno
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from epsilometer.engine import store as writer
from epsilometer.engine.engines import Engine, InProcess, Local
from epsilometer.engine.run import run
from epsilometer.engine.store import CannotWrite, Store, is_busy
from tests.engine.jobs import Digest, a_plan, in_order
from tests.faults.counting import count
from tests.faults.processes import Keeper


def pause(unit: int) -> None:
    """Long enough for the disk to keep up: units are written one by one."""
    time.sleep(0.005)


JOB = Digest(plan=a_plan(40), act=pause, size=2000)  # 16 kB a unit, 640 kB in all


@pytest.fixture(autouse=True)
def no_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "_MOMENT", 0.0)


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return in_order(tmp_path_factory.mktemp("expected"), plan=JOB.plan, size=JOB.size)


def mount(*arguments: object) -> bool:
    call = ["mount", *map(str, arguments)]
    return subprocess.run(call, check=False, capture_output=True).returncode == 0


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system of 1 MiB."""
    where = tmp_path / "disk"
    where.mkdir()
    if os.getuid() != 0 or shutil.which("mount") is None:
        pytest.skip("only root can mount a disk")
    if not mount("-t", "tmpfs", "-o", "size=1m", "tmpfs", where):
        pytest.skip("no disk can be mounted here")
    yield where
    subprocess.run(["umount", "-l", str(where)], check=True)


def fill(disk: Path, left: int) -> Path:
    """Leaves so many bytes."""
    free = os.statvfs(disk)
    (disk / "filler").write_bytes(bytes(free.f_bavail * free.f_frsize - left))
    return disk / "filler"


@pytest.mark.parametrize("engine", [InProcess(), Local(count=2)], ids=repr)
@pytest.mark.parametrize("left", [0, 8192, 200_000, 600_000])
def test_a_full_disk_is_told_and_the_run_goes_on_when_there_is_room(
    left: int, engine: Engine, disk: Path, expected: bytes
) -> None:
    filler = fill(disk, left)
    directory = disk / "run"
    with pytest.raises(CannotWrite) as raised:
        run(JOB, directory, engine=engine)
    assert "No space left on device" in str(raised.value)
    assert f"Free some space, then resume with: epsilometer runs resume {directory}" in str(
        raised.value
    )
    finished: frozenset[int] = frozenset()
    if directory.exists():
        keeper = Keeper(directory)
        keeper.look()
        finished = keeper.finished
        assert not is_busy(directory)
    assert finished or left < 100_000
    filler.unlink()
    computed: list[int] = []
    counting = Digest(plan=JOB.plan, size=JOB.size, act=computed.append)
    run(counting, directory, engine=InProcess())
    assert len(computed) == JOB.plan.units - len(finished)  # what was kept is used
    assert (directory / "result.json").read_bytes() == expected
    count("disk full, then room again")


def test_a_disk_that_fills_up_at_the_result_loses_no_unit(disk: Path, expected: bytes) -> None:
    class Late(Digest):
        def result(self, units: Any, done: Any) -> Any:
            made = super().result(units, done)
            fill(disk, 0)
            return made

    directory = disk / "run"
    with pytest.raises(CannotWrite, match="No space left"):
        run(Late(plan=JOB.plan, size=JOB.size), directory, engine=InProcess())
    (disk / "filler").unlink()
    run(Digest(plan=JOB.plan, act=never, size=JOB.size), directory, engine=InProcess())
    assert (directory / "result.json").read_bytes() == expected


def never(unit: int) -> None:
    raise AssertionError(f"unit {unit} was finished")


def test_a_disk_that_may_only_be_read_is_told(disk: Path, expected: bytes) -> None:
    directory = disk / "run"
    run(JOB, directory, engine=InProcess())
    (directory / "result.json").unlink()
    assert mount("-o", "remount,ro", disk)
    for there in (directory, disk / "new"):
        with pytest.raises(CannotWrite, match=r"Read-only file system.*Make it writable"):
            run(JOB, there, engine=InProcess())
    seen = Store.open(directory)  # as status does
    assert (seen.look(), len(seen.finished), is_busy(directory)) == ({}, 40, False)
    assert mount("-o", "remount,rw", disk)
    run(Digest(plan=JOB.plan, act=never, size=JOB.size), directory, engine=InProcess())
    assert (directory / "result.json").read_bytes() == expected


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO])
@pytest.mark.parametrize("engine", [InProcess(), Local(count=2, kind="threads")], ids=repr)
def test_a_disk_that_fails_half_way_is_told(
    number: int,
    engine: Engine,
    tmp_path: Path,
    expected: bytes,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As above, for machines where nothing can be mounted."""
    plain, left = os.fsync, 12

    def fsync(handle: int) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise OSError(number, os.strerror(number))
        plain(handle)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fsync)
        with pytest.raises(CannotWrite, match=os.strerror(number)):
            run(JOB, tmp_path, engine=engine)
    keeper = Keeper(tmp_path)
    keeper.look()
    assert keeper.finished
    run(JOB, tmp_path, engine=engine)
    assert (tmp_path / "result.json").read_bytes() == expected
