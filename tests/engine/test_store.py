"""A run's directory: whole or absent, and nothing in it is trusted."""

import ast
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from epsilometer import engine
from epsilometer._files import write_whole
from epsilometer.engine import store as storing
from epsilometer.engine.engines import InProcess
from epsilometer.engine.events import EVENTS
from epsilometer.engine.run import run
from epsilometer.engine.shards import Arrays, DamagedShard
from epsilometer.engine.store import Store
from epsilometer.errors import InvalidArgument
from tests.engine.jobs import Digest, a_plan, in_order, names
from tests.engine.test_shards import OBJECTS, Bomb, pack, pickled_npy, sealed
from tests.faults.counting import count

UNITS = 6


def of(unit: int) -> Arrays:
    return {"draws": np.arange(float(unit)), "unit": np.array(unit)}


def fresh(directory: Path, **changed: Any) -> Store:
    directory.mkdir(exist_ok=True)
    store = Store.create(directory, a_plan(UNITS, **changed))
    store.prepare()
    return store


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    """A finished run of six units, one a shard, less its result."""
    in_order(tmp_path, plan=a_plan(UNITS))
    (tmp_path / "result.json").unlink()
    store = fresh(tmp_path)
    units = {unit: store.read(unit) for unit in range(UNITS)}
    shutil.rmtree(tmp_path / "shards")
    store.prepare()
    for unit, arrays in units.items():
        store.write_shard({unit: arrays})
    (tmp_path / "log.jsonl").unlink()
    return tmp_path


@pytest.fixture
def expected(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return in_order(tmp_path_factory.mktemp("expected"), plan=a_plan(UNITS))


def finish(directory: Path) -> tuple[bytes, dict[str, str], int]:
    """The result, what was damaged, and how many units were computed."""
    events: list[Any] = []
    computed: list[int] = []
    job = Digest(plan=a_plan(UNITS), act=computed.append)
    run(job, directory, engine=InProcess(), listen=[events.append])
    damaged = {e.details["file"]: e.details["reason"] for e in events if e.name == "damaged"}
    assert set(names(events)) <= set(EVENTS)
    return (directory / "result.json").read_bytes(), damaged, len(computed)


def shard(unit: int) -> str:
    return f"{unit:08d}.shard"


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def as_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()
    (path / "keep me").write_text("mine")


def as_symlink(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))
    path.symlink_to("elsewhere")


def as_dangling_symlink(path: Path) -> None:
    path.unlink()
    path.symlink_to("nowhere")


def as_device(path: Path) -> None:
    path.unlink()
    path.symlink_to("/dev/zero")


def as_fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def of_another_plan(path: Path) -> None:
    path.write_bytes(pack({2: of(2)}, plan=a_plan(UNITS, seed=1).hash))


def of_units_outside(path: Path) -> None:
    path.write_bytes(pack({2: of(2), UNITS: of(UNITS)}, plan=a_plan(UNITS).hash))


def of_no_unit(path: Path) -> None:
    path.write_bytes(pack({}, plan=a_plan(UNITS).hash))


def of_objects(path: Path) -> None:
    whose = {"plan": a_plan(UNITS).hash, "units": [[2, [["draws", "|O", [2]]]]]}
    path.write_bytes(sealed(whose, pickle.dumps(OBJECTS)))


def as_pickle(path: Path) -> None:
    path.write_bytes(pickle.dumps(Bomb()))


def as_npy(path: Path) -> None:
    path.write_bytes(pickled_npy())


def as_another(path: Path) -> None:
    """Unit 3's shard under unit 2's name: the next unit 2 would be written over unit 3."""
    path.with_name(shard(3)).rename(path)


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (cut, "checksum"),
        (empty, "checksum"),
        (as_directory, "not a regular file"),
        (as_symlink, "not a regular file"),
        (as_dangling_symlink, "not a regular file"),
        (as_device, "not a regular file"),
        (as_fifo, "not a regular file"),
        (of_another_plan, "belongs to the plan"),
        (of_units_outside, "units that the plan does not have"),
        (of_no_unit, "units that the plan does not have"),
        (of_objects, "its contents do not"),
        (as_pickle, "checksum"),
        (as_npy, "checksum"),
        (as_another, "renamed"),
    ],
)
def test_a_damaged_shard_is_named_and_computed_again(
    damage: Callable[[Path], None], reason: str, whole: Path, expected: bytes
) -> None:
    damage(whole / "shards" / shard(2))
    lost = 2 if damage is as_another else 1
    result, damaged, computed = finish(whole)
    assert result == expected
    assert list(damaged) == [f"shards/{shard(2)}"]
    assert reason in damaged[f"shards/{shard(2)}"]
    assert computed == lost
    assert fresh(whole).look() == {}
    assert finish(whole) == (expected, {}, 0)
    count("shard torn, forged, renamed or replaced")


def test_what_is_not_ours_is_moved_aside_not_deleted(whole: Path) -> None:
    as_directory(whole / "shards" / shard(2))
    finish(whole)
    assert (whole / "quarantine" / shard(2) / "keep me").read_text() == "mine"


def test_every_byte_flipped_of_a_shard_is_computed_again(whole: Path, expected: bytes) -> None:
    path = whole / "shards" / shard(2)
    data = path.read_bytes()
    store = Store.open(whole)
    for at in range(0, len(data), 7):  # all of them in test_shards; here that the store asks
        path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        assert list(store.look()) == [shard(2)]
    assert finish(whole)[0] == expected


def test_two_shards_that_changed_places_are_computed_again(whole: Path, expected: bytes) -> None:
    one, other = whole / "shards" / shard(1), whole / "shards" / shard(4)
    one.rename(whole / "x")
    other.rename(one)
    (whole / "x").rename(other)
    result, damaged, computed = finish(whole)
    assert (result, len(damaged), computed) == (expected, 2, 2)


def test_a_copy_of_a_shard_is_not_counted_twice(whole: Path, expected: bytes) -> None:
    shutil.copy(whole / "shards" / shard(1), whole / "shards" / "copy of 1.shard")
    result, damaged, computed = finish(whole)
    assert (result, list(damaged), computed) == (expected, ["shards/copy of 1.shard"], 0)


def test_what_others_leave_lying_around_is_ignored(whole: Path, expected: bytes) -> None:
    strange = ["notes.txt", "notes.tmp", "shards/README", "shards/x.npy", "failures/x.json"]
    strange += ["failures/readme.txt", "failures/2.json", "shards/.hidden", "x.shard", "data.pkl"]
    for name in strange:
        (whole / name).write_bytes(pickle.dumps(Bomb()))
    (whole / "shards" / "folder").mkdir()
    assert finish(whole) == (expected, {}, 0)
    assert all((whole / name).exists() for name in strange)


def test_what_a_crash_left_half_written_is_cleared_away(whole: Path, expected: bytes) -> None:
    halves = [f"shards/{shard(9)}.tmp", "result.json.tmp", "failures/00000001.json.tmp"]
    for name in halves:
        (whole / name).write_bytes(b"half")
    (whole / "plan.json.tmp").symlink_to("plan.json")
    assert finish(whole) == (expected, {}, 0)
    assert not list(whole.rglob("*.tmp"))


def test_a_link_at_the_temporary_name_is_not_written_through(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("mine")
    (tmp_path / "x.json.tmp").symlink_to(precious)
    write_whole(tmp_path / "x.json", b"ours")
    assert precious.read_text() == "mine"
    assert (tmp_path / "x.json").read_bytes() == b"ours"
    assert not (tmp_path / "x.json").is_symlink()


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b"null",
        b"[]",
        b"\xff\xfe",
        pickle.dumps(Bomb()),
        b'{"format": 2}',
        b"[" * 100_000,
    ],
)
def test_a_torn_result_is_made_again_from_the_shards(
    text: bytes, whole: Path, expected: bytes
) -> None:
    (whole / "result.json").write_bytes(text)
    assert finish(whole) == (expected, {}, 0)


def test_the_result_of_another_plan_is_made_again(
    whole: Path, expected: bytes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    other = in_order(tmp_path_factory.mktemp("other"), plan=a_plan(UNITS, seed=1))
    (whole / "result.json").write_bytes(other)
    assert finish(whole) == (expected, {}, 0)


@pytest.mark.parametrize(
    "text", [b"", b"{", b"null", b"\xff\xfe", pickle.dumps(Bomb()), b"[" * 100_000]
)
def test_a_torn_plan_is_told_and_nothing_is_lost(text: bytes, whole: Path, expected: bytes) -> None:
    plan = (whole / "plan.json").read_bytes()
    before = sorted(path.name for path in (whole / "shards").iterdir())
    (whole / "plan.json").write_bytes(text)
    for call in (lambda: Store.open(whole), lambda: finish(whole)):
        with pytest.raises(InvalidArgument, match=r"plan\.json"):
            call()
    assert sorted(path.name for path in (whole / "shards").iterdir()) == before
    (whole / "plan.json").write_bytes(plan)
    assert finish(whole) == (expected, {}, 0)


def test_a_plan_edited_by_hand_is_told_and_nothing_is_lost(whole: Path, expected: bytes) -> None:
    plan = (whole / "plan.json").read_text("utf-8")
    (whole / "plan.json").write_text(plan.replace('"seed": 0', '"seed": 1'), "utf-8")
    with pytest.raises(InvalidArgument, match="was changed after the run began"):
        finish(whole)
    (whole / "plan.json").write_text(plan, "utf-8")
    assert finish(whole) == (expected, {}, 0)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"seed": 1}, "seed 0 there, 1 here"),
        ({"parameters": {"rate": 0.25}}, "parameters"),
        ({"versions": (("digest", "2"),)}, "found changes: digest 1 there, 2 here"),
        ({"inputs": {"X": "ab"}}, "other data in X"),
    ],
)
def test_another_plan_in_the_same_directory_is_told_apart(
    changed: dict[str, Any], said: str, whole: Path
) -> None:
    with pytest.raises(InvalidArgument, match=said):
        run(Digest(plan=a_plan(UNITS, **changed)), whole, engine=InProcess())
    assert len(Store.open(whole).plan.hash) == 64


def test_equal_numbers_that_are_written_otherwise_are_another_plan(tmp_path: Path) -> None:
    """1 == 1.0 == True in Python, and three hashes."""
    Store.create(tmp_path, a_plan(parameters={"x": 1}))
    for value, text in ((1.0, "1.0"), (True, "true")):
        with pytest.raises(InvalidArgument, match=f"parameters.x 1 there, {text} here"):
            Store.create(tmp_path, a_plan(parameters={"x": value}))


def test_a_run_keeps_names_that_are_no_unicode(tmp_path: Path) -> None:
    """A file name that is not UTF-8 reaches Python with lone surrogates."""
    plan = a_plan(2, inputs={"audit \udc80.csv ε": "ab"})
    run(Digest(plan=plan), tmp_path, engine=InProcess())
    assert list(Store.open(tmp_path).plan.inputs) == list(plan.inputs)


def test_no_run_is_told(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="Expected a run in"):
        Store.open(tmp_path)
    with pytest.raises(InvalidArgument, match="Expected a run in"):
        Store.open(tmp_path / "nowhere")


def test_nothing_in_the_engine_unpickles_files() -> None:
    """Read from its source, so that no forgotten path escapes."""
    forbidden = {"pickle", "cPickle", "dill", "marshal", "shelve", "cloudpickle", "load", "loads"}
    for path in Path(engine.__path__[0]).glob("*.py"):
        if path.name == "pool.py":  # opens the call that the parent process sends by a pipe
            continue
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            match node:
                case ast.Import(names=imported):
                    assert not {alias.name for alias in imported} & forbidden, path
                case ast.ImportFrom(module=module, names=imported) if module in forbidden:
                    # what joblib raises; an error class opens nothing
                    assert [alias.name for alias in imported] == ["PicklingError"], path
                case ast.Attribute(value=ast.Name(id=owner), attr=attribute):
                    assert attribute not in forbidden or owner == "json", (path, owner, attribute)
                case ast.keyword(arg=name):
                    assert name != "allow_pickle", path


def test_a_rewritten_shard_is_read_anew(tmp_path: Path) -> None:
    store = fresh(tmp_path)
    store.write_shard({2: of(2), 4: of(4)})
    assert store.read(4)["unit"] == 4
    cut(tmp_path / "shards" / shard(2))
    assert list(store.look()) == [shard(2)]
    assert store.finished == frozenset()


def test_a_shard_torn_after_it_was_looked_at_is_told(tmp_path: Path) -> None:
    fresh(tmp_path).write_shard({2: of(2)})
    store = fresh(tmp_path)
    store._recent.clear()
    cut(tmp_path / "shards" / shard(2))
    with pytest.raises(DamagedShard, match="was whole a moment ago"):
        store.read(2)


def test_no_batch_ever_takes_the_name_of_a_shard_with_other_units(
    tmp_path: Path, rng: np.random.Generator
) -> None:
    """Random batches, crashes and resumes: what was finished stays finished."""
    plan, todo = a_plan(40), set(range(40))
    tmp_path.joinpath("run").mkdir()
    while todo:
        store = Store.create(tmp_path / "run", plan)
        assert store.prepare() == {}
        assert store.finished == frozenset(range(40)) - todo
        for _ in range(3):
            batch = rng.permutation(sorted(todo))[: rng.integers(1, 5)].tolist()
            if batch:
                store.write_shard({unit: of(unit) for unit in sorted(batch)})
                todo -= set(batch)
    for unit in range(40):
        np.testing.assert_array_equal(store.read(unit)["draws"], of(unit)["draws"])


def test_a_finished_unit_has_not_failed(tmp_path: Path) -> None:
    store = fresh(tmp_path)
    store.write_failure(2, "why \udc80 ε")
    store.write_failure(3, "why")
    assert Store.open(tmp_path).failures() == {2: "why \udc80 ε", 3: "why"}
    store.write_shard({2: of(2)})
    assert store.failures() == {3: "why"}
    note = (tmp_path / "failures" / "00000003.json").read_bytes()
    store.write_shard({3: of(3)})
    (tmp_path / "failures" / "00000003.json").write_bytes(note)  # a crash came between the two
    late = Store.open(tmp_path)
    late.look()
    assert late.failures() == {}  # as status sees it
    late.prepare()
    assert not list((tmp_path / "failures").iterdir())


@pytest.mark.parametrize("note", ["", "{", "[]", '{"unit": 2}', "\0", '{"error": "x"'])
def test_a_torn_note_of_a_failure_is_no_evidence(note: str, tmp_path: Path) -> None:
    store = fresh(tmp_path)
    (tmp_path / "failures" / "00000002.json").write_text(note)
    assert store.failures() == {}


def test_failures_take_time_as_they_are_many(tmp_path: Path) -> None:
    """Each is checked once: 16,000 took 2.2 s, where every name was sought in a list."""
    store = fresh(tmp_path)
    for unit in range(300):
        (tmp_path / "failures" / f"{unit:08d}.json").write_text('{"unit": 0, "error": "x"}')
    names = Names(f"{unit:08d}.json" for unit in range(300))
    assert len(storing._list_noted(names)) == 300  # type: ignore[arg-type]
    assert names.asked == 1
    assert len(store.failures()) == 300


class Names(list[str]):
    """A folder that counts how often its names are asked for."""

    asked = 0

    def names(self) -> list[str]:
        self.asked += 1
        return list(self)


def test_failures_are_grouped_by_cause_the_most_frequent_first() -> None:
    told = {unit: f"Traceback (most recent call last):\n{kind}: x" for unit, kind in CAUSES.items()}
    assert storing.group_causes(told) == {"ValueError": [2, 7, 9], "KeyError": [1]}


CAUSES = {7: "ValueError", 1: "KeyError", 2: "ValueError", 9: "ValueError"}


def test_small_shards_are_folded_and_nothing_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storing, "_MANY", 10)
    store = Store.create(tmp_path, a_plan(500))
    store.prepare()
    order = np.random.default_rng(0).permutation(500).tolist()
    for unit in order:
        store.write_shard({unit: of(unit % 5)})
        assert len(list((tmp_path / "shards").iterdir())) <= 10
    again = Store.open(tmp_path)
    assert again.look() == {}
    assert again.finished == set(range(500))
    for unit in range(500):
        assert again.read(unit)["unit"] == unit % 5


def test_what_a_crash_in_folding_leaves_twice_is_removed(tmp_path: Path) -> None:
    store = fresh(tmp_path)
    for unit in (1, 2):
        store.write_shard({unit: of(unit)})
    kept = (tmp_path / "shards" / shard(2)).read_bytes()
    store.write_shard({1: of(1), 2: of(2)})  # as folding does
    assert (tmp_path / "shards" / shard(2)).read_bytes() == kept
    late = Store.open(tmp_path)
    assert late.prepare() == {}
    assert [path.name for path in (tmp_path / "shards").iterdir()] == [shard(1)]
    assert late.read(2)["unit"] == 2


def test_a_million_units_are_a_plan_like_any_other(tmp_path: Path) -> None:
    """The last unit, finished out of turn, is found and not counted as the first."""
    plan = a_plan(10**6)
    store = Store.create(tmp_path, plan)
    store.prepare()
    store.write_shard({10**6 - 1: of(3), 10**6 - 2: of(2)})
    again = Store.open(tmp_path)
    assert again.look() == {}
    assert again.finished == {10**6 - 1, 10**6 - 2}
