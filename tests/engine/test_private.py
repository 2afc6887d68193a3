"""A run is its owner's: modes whatever the umask, no link followed, nothing lost or disclosed."""

import hashlib
import json
import os
import stat
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

import epsilometer as em
from epsilometer import _files
from epsilometer._files import NotPlain, write_whole
from epsilometer.engine.engines import InProcess
from epsilometer.engine.fingerprints import fingerprint
from epsilometer.engine.run import gather, run
from epsilometer.engine.store import Store, is_busy, lock
from epsilometer.errors import EpsilometerError
from tests.engine.jobs import Digest, a_plan, in_order
from tests.engine.test_gather import PLAN, drawn

UNITS = 4


@pytest.fixture(params=[0o000, 0o022, 0o077])
def umask(request: pytest.FixtureRequest) -> Iterator[None]:
    before = os.umask(request.param)
    yield
    os.umask(before)


def play(runs: int, rng: np.random.Generator) -> em.Scores:
    return em.Scores(inside=rng.normal(1, 1, runs), outside=rng.normal(0, 1, runs))


def raise_always(unit: int) -> None:
    raise ValueError("ssn=123-45-6789")


def modes(directory: Path) -> dict[str, int]:
    every = [directory, *directory.rglob("*")]
    return {path.name: stat.S_IMODE(path.lstat().st_mode) for path in every}


def contents(directory: Path) -> dict[str, bytes]:
    found = sorted(path for path in directory.rglob("*") if path.is_file())
    return {str(path.relative_to(directory)): path.read_bytes() for path in found}


@pytest.mark.usefixtures("umask")
def test_all_of_a_run_is_for_its_owner_alone(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    em.audit(em.Runs(play, runs=20), 1.0, delta=1e-5, out=tmp_path / "new", engine=InProcess())
    run(Digest(plan=a_plan(UNITS), act=raise_always), tmp_path / "there", engine=InProcess())
    gather(PLAN, drawn, tmp_path / "deep" / "er", engine=InProcess())
    em.audit(em.Scores([2.0] * 90, [0.0] * 90), 1.0, delta=1e-5, out=tmp_path / "scores")
    for name in ("new", "there", "deep/er", "scores"):
        directory = tmp_path / name
        for path in (directory, *directory.rglob("*")):
            wanted = 0o700 if path.is_dir() else 0o600
            assert stat.S_IMODE(path.stat().st_mode) == wanted, path
    assert {"plan.json", "result.json", "chain.json", "secret", "log.jsonl", "lock"} <= set(
        modes(tmp_path / "new")
    )
    assert {"failures", "00000000.json"} <= set(modes(tmp_path / "there"))


def test_a_folder_with_files_of_others_keeps_its_mode(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    tmp_path.chmod(0o755)
    in_order(tmp_path, plan=a_plan(UNITS))
    assert modes(tmp_path)[tmp_path.name] == 0o755
    assert modes(tmp_path)["result.json"] == 0o600
    assert modes(tmp_path)["shards"] == 0o700


def test_a_link_to_the_shards_of_another_run_harms_neither(tmp_path: Path) -> None:
    first, second = tmp_path / "A", tmp_path / "B"
    in_order(first, plan=a_plan(UNITS))
    Store.create(_made(second), a_plan(UNITS, seed=1))
    (second / "shards").symlink_to(first / "shards")
    before = contents(first)
    with pytest.raises(NotPlain, match=r"Expected a folder at '.*B/shards', found a link\."):
        run(Digest(plan=a_plan(UNITS, seed=1)), second, engine=InProcess())
    with pytest.raises(NotPlain):
        Store.open(second).look()
    assert contents(first) == before


@pytest.mark.parametrize(
    "name", ["log.jsonl", "result.json", "chain.json", "secret", "failures", "quarantine"]
)
def test_nothing_is_written_through_a_link(name: str, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    directory = _made(tmp_path / "run")
    if name in ("failures", "quarantine"):
        victim.mkdir()
        (victim / "00000000.json").write_text("mine")
        (directory / "shards").mkdir()
        (directory / "shards" / "00000000.shard").write_text("torn")
    else:
        victim.write_text("mine")
    (directory / name).symlink_to(victim)
    with suppress(EpsilometerError):
        run(Digest(plan=a_plan(UNITS), act=raise_always), directory, engine=InProcess())
    found = contents(tmp_path)
    assert found["victim/00000000.json" if victim.is_dir() else "victim"] == b"mine"
    assert len([path for path in found if path.startswith("victim")]) == 1


def test_a_bad_shard_is_quarantined_as_it_is(tmp_path: Path) -> None:
    expected = in_order(tmp_path, plan=a_plan(UNITS))
    shard = tmp_path / "shards" / "00000000.shard"
    for count, name in enumerate(("00000000.shard", "00000000.shard.2"), start=1):
        (tmp_path / "result.json").unlink()
        shard.write_bytes(b"torn %d" % count)
        assert in_order(tmp_path, plan=a_plan(UNITS)) == expected
        assert (tmp_path / "quarantine" / name).read_bytes() == b"torn %d" % count


def test_a_status_changes_nothing(tmp_path: Path) -> None:
    in_order(tmp_path, plan=a_plan(UNITS))
    (tmp_path / "shards" / "00000000.shard").write_bytes(b"torn")
    (tmp_path / "result.json.tmp").write_bytes(b"half")
    (tmp_path / "lock").unlink()
    before = {path: (path.lstat(), path.is_dir()) for path in [tmp_path, *tmp_path.rglob("*")]}
    from click.testing import CliRunner

    from epsilometer.cli.main import main

    done = CliRunner().invoke(main, ["runs", "status", str(tmp_path)])
    assert done.exit_code == 0, done.output
    assert not is_busy(tmp_path)
    after = {path: (path.lstat(), path.is_dir()) for path in [tmp_path, *tmp_path.rglob("*")]}
    assert after.keys() == before.keys()
    for path, (state, _) in before.items():
        assert after[path][0].st_mtime_ns == state.st_mtime_ns
        assert after[path][0].st_size == state.st_size


def test_digests_of_data_in_the_plan_are_keyed(tmp_path: Path) -> None:
    """Whoever knows all labels but one must not find it by the plan."""
    labels = np.array([0, 1, 1, 0])
    plain = fingerprint(labels)
    plan = a_plan(UNITS, inputs={"y": plain}, code={"closure y of f": plain})
    for name in "ab":
        in_order(tmp_path / name, plan=plan)
    texts = [(tmp_path / name / "plan.json").read_text() for name in "ab"]
    assert texts[0] != texts[1]
    for text in texts:
        assert plain not in text
        assert hashlib.sha256(plain.encode()).hexdigest() not in text
    results = [(tmp_path / name / "result.json").read_bytes() for name in "ab"]
    assert results[0] == results[1]
    published = json.loads(results[0])["provenance"]
    other = a_plan(UNITS, inputs={"y": fingerprint(1 - labels)})
    assert published["plan"] == plan.public_hash == other.public_hash
    assert plain not in results[0].decode()


def test_other_data_are_still_told_apart(tmp_path: Path) -> None:
    in_order(tmp_path, plan=a_plan(UNITS, inputs={"y": "00"}))
    with pytest.raises(EpsilometerError, match="other data in y"):
        in_order(tmp_path, plan=a_plan(UNITS, inputs={"y": "01"}))


def test_a_run_without_its_secret_is_not_continued(tmp_path: Path) -> None:
    in_order(tmp_path, plan=a_plan(UNITS, inputs={"y": "00"}))
    (tmp_path / "secret").unlink()
    with pytest.raises(EpsilometerError, match="Expected a secret in"):
        in_order(tmp_path, plan=a_plan(UNITS, inputs={"y": "00"}))


def test_a_file_to_share_has_the_mode_that_the_umask_leaves(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        write_whole(tmp_path / "page.html", b"for all", private=False)
        write_whole(tmp_path / "own.csv", b"for one")
    finally:
        os.umask(before)
    assert modes(tmp_path)["page.html"] == 0o644
    assert modes(tmp_path)["own.csv"] == 0o600


def _made(directory: Path) -> Path:
    directory.mkdir()
    return directory


def test_a_system_without_folders_held_open_gives_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on Windows: no handle of a folder, no flags of Unix, no flock."""
    expected = in_order(tmp_path / "expected", plan=a_plan(UNITS))
    monkeypatch.setattr(_files, "_BY_HANDLE", False)
    for name in ("_NO_LINK", "_NO_WAIT", "_A_FOLDER"):
        monkeypatch.setattr(_files, name, 0)
    monkeypatch.setitem(sys.modules, "fcntl", None)
    directory = tmp_path / "deep" / "run"
    broken = Digest(plan=a_plan(UNITS), act=raise_always)
    assert run(broken, directory, engine=InProcess()).provenance.failed == UNITS
    assert list(Store.open(directory).failures()) == list(range(UNITS))
    assert not is_busy(directory)
    with lock(directory):
        assert is_busy(directory)
    run(Digest(plan=a_plan(UNITS)), directory, engine=InProcess())
    assert (directory / "result.json").read_bytes() == expected
    (directory / "shards" / "00000000.shard").write_bytes(b"torn")
    (directory / "result.json").unlink()
    run(Digest(plan=a_plan(UNITS)), directory, engine=InProcess())
    assert (directory / "result.json").read_bytes() == expected
    assert len(list((directory / "quarantine").iterdir())) == 1
