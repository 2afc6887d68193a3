"""One owner at a time, and doors that are closed."""

import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from epsilometer.engine.engines import InProcess
from epsilometer.engine.run import run
from epsilometer.engine.store import CannotRead, CannotWrite, RunBusy, Store, is_busy, lock
from tests.engine.jobs import ROOT, Digest, a_plan, in_order

HOLD = """
import sys, time
from pathlib import Path
from epsilometer.engine.store import lock
with lock(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(600)
"""


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    call = [sys.executable, "-c", HOLD, str(tmp_path)]
    with subprocess.Popen(call, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def test_a_second_process_is_refused_until_the_first_is_killed(
    tmp_path: Path, holder: subprocess.Popen[str]
) -> None:
    job = Digest(plan=a_plan(2))
    with pytest.raises(RunBusy, match="another process works on"):
        run(job, tmp_path, engine=InProcess())
    line = json.dumps({"time": 1.0, "event": "started", "process": 17, "host": "there"})
    (tmp_path / "log.jsonl").write_text('{"torn\n' + line + "\n[1]\n7\n")
    with pytest.raises(RunBusy, match=r"process 17 on there works on .* epsilometer runs status"):
        run(job, tmp_path, engine=InProcess())
    assert is_busy(tmp_path)
    assert not (tmp_path / "plan.json").exists()
    holder.kill()  # SIGKILL
    holder.wait()
    assert not is_busy(tmp_path)
    run(job, tmp_path, engine=InProcess())
    assert not is_busy(tmp_path)


def test_a_second_thread_and_a_second_call_are_refused(tmp_path: Path) -> None:
    refused = []

    def second() -> None:
        try:
            run(Digest(plan=a_plan(2)), tmp_path, engine=InProcess())
        except RunBusy as error:
            refused.append(error)

    with lock(tmp_path):
        thread = threading.Thread(target=second)
        thread.start()
        thread.join()
        second()
    assert len(refused) == 2
    second()
    assert (tmp_path / "result.json").exists()


def test_who_only_asks_does_not_turn_away_who_works(tmp_path: Path) -> None:
    """``busy`` holds the lock for an instant; a run that begins then waits for it."""
    stop = threading.Event()

    def ask() -> None:
        while not stop.is_set():
            is_busy(tmp_path)

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        for _ in range(20):
            with lock(tmp_path):
                pass
    finally:
        stop.set()
        thread.join()


# root opens every door, unless it has left its keys at home
KEYLESS = ["setpriv", "--bounding-set=-dac_override,-dac_read_search", "--"]

OPEN = """
import sys
from pathlib import Path
from epsilometer.engine.store import Store
try:
    store = Store.open(Path(sys.argv[1]))
    print(store.look(), sorted(store.finished), store.failures())
except Exception as error:
    print(type(error).__name__, error)
"""

BEGIN = """
import sys
from pathlib import Path
from epsilometer.engine.run import run
from tests.engine.jobs import Digest, a_plan
try:
    run(Digest(plan=a_plan(3)), Path(sys.argv[1]))
except Exception as error:
    print(type(error).__name__, error)
"""


def without_keys(code: str, directory: Path) -> str:
    """What Python says as one whom permissions bind."""
    bound = os.getuid() != 0
    if not bound and shutil.which("setpriv") is None:
        pytest.skip("root cannot be kept out without setpriv")
    call = [*([] if bound else KEYLESS), sys.executable, "-c", code, str(directory)]
    done = subprocess.run(call, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture
def closed(tmp_path: Path) -> Iterator[Path]:
    """A run without its result, whose doors the test closes; they are opened again after it."""
    in_order(tmp_path / "run", plan=a_plan(3))
    (tmp_path / "run" / "result.json").unlink()
    yield tmp_path / "run"
    for path in (tmp_path / "run", tmp_path / "run" / "shards"):
        path.chmod(0o755)


def test_a_folder_that_may_not_be_read_is_told_not_taken_for_empty(closed: Path) -> None:
    assert without_keys(OPEN, closed) == "{} [0, 1, 2] {}"
    (closed / "shards").chmod(0)
    said = without_keys(OPEN, closed)
    assert said.startswith(f"CannotRead Expected to be able to read '{closed / 'shards'}'")
    assert "Permission denied" in said


@pytest.mark.parametrize("folder", [".", "shards"])
def test_a_folder_that_may_not_be_written_is_told(folder: str, closed: Path) -> None:
    cut = closed / "shards" / "00000000.shard"
    cut.write_bytes(cut.read_bytes()[:-1])  # so that there is something to write
    (closed / folder).chmod(0o555)
    said = without_keys(BEGIN, closed)
    assert said.startswith(f"CannotWrite Expected to be able to write in '{closed}'")
    assert "Permission denied" in said
    assert f"Make it writable, then resume with: epsilometer runs resume {closed}" in said


def test_a_closed_folder_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As above, where root cannot be kept out."""

    def shut(path: object) -> list[str]:
        raise PermissionError(13, "Permission denied", str(path))

    (tmp_path / "shards").mkdir()
    monkeypatch.setattr(os, "listdir", shut)
    with pytest.raises(CannotRead, match="Permission denied"):
        Store(tmp_path, a_plan()).look()


def test_a_file_where_the_directory_should_be_is_told(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("a file")
    for directory in (tmp_path / "run", tmp_path / "run" / "below"):
        with pytest.raises(CannotWrite, match="Expected to be able to write in"):
            run(Digest(plan=a_plan(1)), directory, engine=InProcess())
