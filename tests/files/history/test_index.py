"""The index is never the truth: whatever befalls it, the same files give the same entries."""

import errno
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

import epsilometer as em
from epsilometer._files import CACHE_FOLDER
from epsilometer.errors import UnreadableFile
from epsilometer.files.history import index
from epsilometer.files.history.index import History, find_index
from tests.examples import a_posterior, a_provenance, a_release, a_series, an_audit
from tests.files.history.folders import NOON, digits, put

FIRST = Path(__file__).parents[2] / "data" / "first_result.json"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    put(tmp_path / "v1" / "result.json", digits(1.0))
    put(tmp_path / "v2" / "result.json", digits(2.0), written=NOON + 60)
    put(tmp_path / "group.json", a_series(), written=NOON + 120)
    return tmp_path


def index_of(folder: Path) -> Path:
    found = find_index(folder)
    assert found is not None
    return found


def test_results_are_listed_oldest_first(folder: Path) -> None:
    history = em.History(folder)
    assert [(entry.path, entry.part) for entry in history.entries] == [
        ("v1/result.json", 1),
        ("v2/result.json", 1),
        *(("group.json", part) for part in range(1, 7)),
    ]
    assert history.entries[0].written == NOON
    assert index_of(folder).is_file()
    assert {path.name for path in folder.iterdir()} == {"v1", "v2", "group.json"}


def test_only_new_and_changed_files_are_read(folder: Path) -> None:
    assert History(folder).read == 3
    assert History(folder).read == 0
    put(folder / "v3" / "result.json", digits(3.0))
    put(folder / "v1" / "result.json", digits(1.5), written=NOON + 1)
    history = History(folder)
    assert history.read == 2
    assert sorted(entry.epsilon for entry in history.select(subject="digits")) == [1.5, 2.0, 3.0]
    (folder / "v2" / "result.json").unlink()
    assert {entry.label for entry in History(folder).select(subject="digits")} == {"v1", "v3"}


def test_a_file_replaced_by_one_of_the_same_size_and_time_is_read(folder: Path) -> None:
    """As a rename does within a tick of the clock: the place on the disk is another."""
    History(folder)
    put(folder / "new.tmp", digits(7.0)).replace(folder / "v1" / "result.json")
    assert History(folder).entries[0].epsilon == 7.0


def test_a_file_written_a_moment_ago_is_read_again(folder: Path) -> None:
    """Written once more within the clock's tick, it would look the same."""
    path = folder / "v1" / "result.json"
    path.write_text(path.read_text("utf-8"), "utf-8")
    History(folder)
    state = path.stat()
    text = path.read_text("utf-8")
    assert text.count('"threshold": 0.5') == 1
    path.write_text(text.replace('"confidence": 0.95', '"confidence": 0.85'), "utf-8")
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))
    assert (path.stat().st_size, path.stat().st_mtime_ns) == (state.st_size, state.st_mtime_ns)
    assert 0.85 in [entry.confidence for entry in History(folder).entries]


def ruin_with_text(path: Path) -> None:
    path.write_text("this is no index, though it is long enough to be looked at" * 50)


def ruin_in_the_middle(path: Path) -> None:
    raw = bytearray(path.read_bytes())
    raw[1000:] = b"\xff" * (len(raw) - 1000)
    path.write_bytes(raw)


def ruin_by_cutting(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:1500])


def ruin_by_emptying(path: Path) -> None:
    path.write_bytes(b"")


def ruin_by_another_version(path: Path) -> None:
    raw = path.read_bytes()
    path.write_bytes(b"00000000" + raw[8:])


def ruin_by_other_types(path: Path) -> None:
    """Its sum is right, and what it says cannot be."""
    body = b'[[["v1/result.json", 1, 1, 1, 1], [{"path": 7}], ""]]'
    path.write_bytes(index._sign(body) + b"\n" + body)


def ruin_by_a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def ruin_by_a_link(path: Path) -> None:
    path.unlink()
    path.symlink_to(path.parent / "elsewhere")


@pytest.mark.parametrize(
    "ruin",
    [
        Path.unlink,
        ruin_with_text,
        ruin_in_the_middle,
        ruin_by_cutting,
        ruin_by_emptying,
        ruin_by_another_version,
        ruin_by_other_types,
        ruin_by_a_folder,
        ruin_by_a_link,
    ],
)
def test_a_ruined_index_is_made_again(folder: Path, ruin: object) -> None:
    before = History(folder).entries
    ruin(index_of(folder))  # type: ignore[operator]
    after = History(folder)
    assert after.entries == before
    assert after.read == 3
    assert not (Path(os.environ[CACHE_FOLDER]) / "elsewhere").exists()


def test_what_an_index_says_falsely_is_read_again(folder: Path) -> None:
    before = History(folder)
    place = index_of(folder)
    place.write_bytes(place.read_bytes().replace(b'"epsilon":1.0', b'"epsilon":0.1', 1))
    after = History(folder)
    assert (after.entries, after.unreadable) == (before.entries, before.unreadable)
    assert after.read == 3
    assert History(folder).read == 0


def test_an_index_that_somebody_left_in_the_folder_is_not_believed(folder: Path) -> None:
    """As measured: a forged one, its sums right, hid that a claim was refuted."""
    before = History(folder).select(refuted=True)
    assert before
    real = index_of(folder)
    _, _, body = real.read_bytes().partition(b"\n")
    forged = body.replace(b'"refuted"', b'"not refuted"')
    assert forged != body
    for place in (folder / ".epsilometer-index.json", folder / real.name):
        place.write_bytes(index._sign(forged) + b"\n" + forged)
    assert History(folder).select(refuted=True) == before


def test_a_cache_that_others_may_write_is_not_used(
    folder: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv(CACHE_FOLDER, str(home))
    assert find_index(folder) is not None
    home.chmod(0o777)
    assert find_index(folder) is None
    assert len(History(folder).entries) == 8


def test_a_file_whose_time_was_set_back_is_read_again(folder: Path) -> None:
    path = folder / "v2" / "result.json"
    state = path.stat()
    History(folder)
    text = path.read_text("utf-8")
    path.write_text(text.replace('"confidence": 0.95', '"confidence": 0.85'), "utf-8")
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))
    assert (path.stat().st_size, path.stat().st_mtime_ns) == (state.st_size, state.st_mtime_ns)
    assert 0.85 in [entry.confidence for entry in History(folder).entries]


def test_rebuilding_reads_everything(folder: Path) -> None:
    before = History(folder).entries
    again = History(folder, rebuild=True)
    assert (again.entries, again.read) == (before, 3)


LOOK = """
import os, sys
folder, user = sys.argv[1], int(sys.argv[2])
from epsilometer import History
if os.geteuid() == 0:
    os.setuid(user)
history = History(folder)
print(len(history.entries), history.read, history.unreadable)
"""


def test_a_folder_that_may_only_be_read_is_indexed_in_memory(folder: Path) -> None:
    with tempfile.TemporaryDirectory() as home:  # pytest's own may be entered by their owner alone
        Path(home).chmod(0o755)
        shown = Path(shutil.copytree(folder, Path(home) / "shown"))
        shown.chmod(0o555)
        for _ in range(2):
            done = subprocess.run(
                [sys.executable, "-c", LOOK, str(shown), "65534"],
                capture_output=True,
                text=True,
                check=False,
            )
            assert done.stdout.split()[:2] == ["8", "3"], done.stderr
        assert {path.name for path in shown.iterdir()} == {"v1", "v2", "group.json"}
        shown.chmod(0o755)


def test_a_disk_that_is_full_changes_nothing_else(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = History(folder, rebuild=True).entries

    def fill(path: Path, data: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(index, "write_whole", fill)
    assert History(folder, rebuild=True).entries == before


def test_several_processes_index_at_once(folder: Path) -> None:
    for number in range(60):
        put(folder / f"r{number}" / "result.json", an_audit(subject=f"run {number}"))
    program = (
        "import sys; from epsilometer import History; print(len(History(sys.argv[1]).entries))"
    )
    many = [
        subprocess.Popen(
            [sys.executable, "-c", program, str(folder)], stdout=subprocess.PIPE, text=True
        )
        for _ in range(3)
    ]
    assert [process.communicate()[0].strip() for process in many] == ["68"] * 3
    assert [process.returncode for process in many] == [0] * 3
    assert History(folder).read == 0


def test_what_cannot_be_read_is_named_and_hides_nothing(folder: Path) -> None:
    put(folder / "torn" / "result.json", '{"format": 2, "subj')
    put(folder / "half.json", '{"format": 2, "subject": "s", "findings": {}}')
    (folder / "bytes.json").write_bytes(b'{"format": 2, "subject": "\xff"}')
    put(folder / "later.json", an_audit().to_json().replace('"format": 2', '"format": 3'))
    put(folder / "v0" / "result.json", FIRST.read_text("utf-8"))
    (folder / "lost.json").symlink_to(folder / "nowhere")
    put(folder / "package.json", '{"name": "not ours"}')
    put(folder / "map.json", '{"format": "GeoJSON", "features": []}')
    put(folder / "list.json", "[1, 2]")
    for _ in range(2):  # also by the index
        history = History(folder)
        assert [path for path, _ in history.unreadable] == [
            "bytes.json",
            "half.json",
            "later.json",
            "torn/result.json",
            "v0/result.json",
        ]
        reasons = dict(history.unreadable)
        assert reasons["torn/result.json"].startswith("Expected an audit as a JSON object")
        assert reasons["half.json"].startswith("Expected an audit as JSON; this is damaged")
        assert reasons["later.json"].startswith(
            "Expected an audit of format 2, got one of format 3"
        )
        assert reasons["v0/result.json"].startswith(
            "Expected an audit of format 2, got one without"
        )
        assert len(history.entries) == 8


def test_of_a_run_only_its_result_counts(folder: Path) -> None:
    put(folder / "v1" / "plan.json", "{}")
    put(folder / "v1" / "copy.json", an_audit())
    put(folder / "v1" / "shards" / "a.json", an_audit())
    put(folder / ".hidden" / "a.json", an_audit())
    put(folder / "begun" / "plan.json", "{}")
    history = History(folder)
    assert len(history.entries) == 7
    assert dict(history.unreadable)["v1/result.json"].startswith("secret is lost; ")
    assert history.unfinished == ("begun",)


def test_links_that_lead_in_a_ring_are_not_followed(folder: Path) -> None:
    (folder / "v1" / "up").symlink_to(folder)
    assert len(History(folder).entries) == 8


def test_names_that_are_no_text_are_told(folder: Path) -> None:
    strange = os.fsencode(folder) + b"/\xff.json"
    try:
        Path(os.fsdecode(strange)).write_text("{}")
    except OSError:  # a disk that has no such names
        return
    assert [reason for _, reason in History(folder).unreadable] == ["its name is not text"]


def test_numbers_of_any_size_come_back(folder: Path) -> None:
    put(folder / "v1" / "result.json", an_audit(provenance=a_provenance(seed=2**80)))
    for _ in range(2):
        assert History(folder).entries[0].seed == 2**80


def test_entries_are_selected(folder: Path) -> None:
    put(folder / "post.json", a_posterior(), written=NOON + 200)
    put(folder / "class.json", a_release(), written=NOON + 100)
    history = History(folder)
    assert {entry.kind for entry in history.select(kind="posterior")} == {"Posterior"}
    assert len(history.select(kind="SCORES")) == 8
    assert [entry.label for entry in history.select(subject="DIGITS", refuted=True)] == ["v2"]
    assert [entry.label for entry in history.select(kind="Classifier", refuted=True)] == ["class"]
    assert [entry.label for entry in history.select(subject="v1")] == ["v1"]
    assert {entry.kind for entry in history.select(since=NOON + 200)} == {"Posterior"}


def test_no_folder_is_told(tmp_path: Path) -> None:
    with pytest.raises(UnreadableFile, match="Expected a folder of results, found none"):
        History(tmp_path / "nowhere")


def test_parts_of_a_run_are_not_runs_of_their_own(tmp_path: Path) -> None:
    """The shadow models of a classifier are runs in its directory: no result is missing."""
    for place in ("done", "done/shadows/models-0-15", "begun", "begun/leave-one-out"):
        (tmp_path / place).mkdir(parents=True, exist_ok=True)
        (tmp_path / place / "plan.json").write_text("{}", "utf-8")
    an_audit().save(tmp_path / "done" / "result.json")
    assert History(tmp_path).unfinished == ("begun",)
