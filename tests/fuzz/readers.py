"""Every reader of the package: valid files, what may be done to them, and what must come out."""

import gzip
import io
import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import Any
from unittest import mock

import numpy as np
from click.testing import CliRunner

from epsilometer import load, read_scores
from epsilometer._dispatch import read_call
from epsilometer.audits.dpsgd.source import ModelOnRecords
from epsilometer.cli import shuffle
from epsilometer.cli.main import main
from epsilometer.cli.sources import DropoutOnRecords
from epsilometer.core.serialisation import from_json, to_json
from epsilometer.core.settings import from_settings, to_settings
from epsilometer.engine.engines import InProcess
from epsilometer.engine.plan import Plan
from epsilometer.engine.run import run
from epsilometer.files.history.entries import list_entries
from epsilometer.files.records import read_records
from epsilometer.files.tables import read_table
from epsilometer.lint.run import lint, lint_source
from epsilometer.report.markdown import as_markdown
from epsilometer.report.page import page
from epsilometer.zoo.linting import list_sources
from tests.engine.jobs import Digest, a_plan
from tests.engine.test_shards import pack, unpack
from tests.examples import AUDITS
from tests.fuzz import edits
from tests.fuzz.edits import ANYWHERE, Edit, in_archive, in_json, in_npz, unzipped, zipped
from tests.fuzz.histories import folders, in_index, indexes, published
from tests.fuzz.services import answered, journalled

HERE = Path(__file__).parent
DATA = HERE.parents[1] / "src" / "epsilometer" / "data"


@dataclass(frozen=True)
class Reader:
    """What is read.

    Attributes:
        valid: Files as people have them; the first is read without complaint.
        read: Reads such bytes in a folder, and asserts that what came out is whole; anything but
            an error of the house's is found.
        edits: What is done to the valid files.
    """

    valid: Callable[[], Sequence[bytes]]
    read: Callable[[bytes, Path], None]
    edits: Sequence[Edit] = ANYWHERE


def _file(folder: Path, name: str, data: bytes) -> Path:
    path = folder / name
    path.write_bytes(data)
    return path


# Scores, records and tables

_TOOLS = Path(__file__).parents[1] / "files" / "tool_results"
_PAIRED = b"score,member\n2.5,1\n-1.0,1\ninf,1\n1e-300,1\n0.1,0\n-inf,0\n"
_SIDES = b"inside,outside\n2.5,0.1\n-1,-inf\n3,\n"
_TABLE = b"age,job,income,label\n23,clerk,1e3,no\n45.5,nurse,2e4,yes\n31,clerk,0,no\n60,cook,7,no\n"


def _npz(**arrays: Any) -> bytes:
    return zipped({f"{name}.npy": edits.npy(np.asarray(array)) for name, array in arrays.items()})


def _scores_npz() -> list[bytes]:
    return [
        _npz(score=[2.5, -1.0, np.inf, 0.1], member=[1, 1, 0, 0]),
        _npz(inside=[2.5, 1.0], outside=[0.1, -np.inf, 0.0]),
    ]


def _records_npz() -> list[bytes]:
    return [
        _npz(x=np.arange(12, dtype=np.float32).reshape(4, 3), y=[0, 1, 0, 2]),
        _npz(features=np.ones((3, 2, 2), np.uint8), labels=["a", "b", "a"]),
    ]


def _parquet(**columns: Any) -> bytes:
    import pyarrow
    import pyarrow.parquet

    packed = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table(columns), packed)
    return packed.getvalue()


def _parquet_scores() -> list[bytes]:
    return [
        _parquet(score=[2.5, -1.0, 0.1], member=[1, 1, 0]),
        _parquet(inside=[2.5, 1.0], outside=[0.1, None]),
        _parquet(score=["1", "2"], member=[True, False]),
        _parquet(score=[[1.0], [2.0]], member=["in", "out"]),
    ]


def _arrow(**columns: Any) -> bytes:
    import pyarrow
    import pyarrow.ipc

    packed, table = io.BytesIO(), pyarrow.table(columns)
    with pyarrow.ipc.new_file(packed, table.schema) as file:
        file.write_table(table)
    return packed.getvalue()


def _arrow_tables() -> list[bytes]:
    return [
        _arrow(age=[23.0, None, 31.0], job=["clerk", None, "cook"], label=["no", "yes", "no"]),
        _arrow(when=np.array(["2020-01-01"], "datetime64[D]"), label=[1]),
    ]


def _parquet_tables() -> list[bytes]:
    return [
        _parquet(age=[23.0, 45.0], job=["clerk", "cook"], label=["no", "yes"]),
        _parquet(age=[23.0, None, 31.0], job=["clerk", None, "cook"], label=["no", "yes", "no"]),
        _parquet(x=[[1], [2]], label=[1, 0]),
        _parquet(when=np.array(["2020-01-01"], "datetime64[D]"), label=[1]),
    ]


def _scores(ending: str) -> Callable[[bytes, Path], None]:
    def read(data: bytes, folder: Path) -> None:
        scores = read_scores(_file(folder, f"scores.{ending}", data))
        for side in (scores.inside, scores.outside):
            assert side.ndim == 1
            assert side.size >= 1
            assert not np.isnan(side).any()

    return read


def _tool_scores(ending: str) -> Callable[[bytes, Path], None]:
    def read(data: bytes, folder: Path) -> None:
        read_scores(_file(folder, f"result.{ending}", data), design="fixed")

    return read


def _tool_trees() -> list[bytes]:
    report = json.loads((_TOOLS / "sacro_ml" / "report.json").read_bytes())
    for logged in report.values():
        for instance in logged["attack_experiment_logger"]["attack_instance_logger"].values():
            instance.pop("arrays_file")
            instance["individual"] = {"member_prob": [0.1, 0.9], "member": [0, 1]}
    first = dict(list(report.items())[:1])
    canaries = {"in_canary_scores": [2.5, 1.0], "out_canary_scores": [0.5]}
    return [json.dumps(first).encode(), json.dumps(canaries).encode()]


def _records(ending: str) -> Callable[[bytes, Path], None]:
    def read(data: bytes, folder: Path) -> None:
        features, labels = read_records(_file(folder, f"records.{ending}", data))
        assert features.dtype in (np.float32, np.float64)
        assert np.isfinite(features).all()
        assert features.ndim >= 2
        assert labels.shape == features.shape[:1]
        assert labels.size >= 1
        assert set(labels.tolist()) == set(range(int(labels.max()) + 1))

    return read


def _table(ending: str) -> Callable[[bytes, Path], None]:
    def read(data: bytes, folder: Path) -> None:
        table = read_table(_file(folder, f"table.{ending}", data))
        assert table.rows >= 1
        assert table.columns
        for column in table.columns:
            assert column.values.shape == (table.rows,)
            assert column.words is None or column.values.max() < len(column.words)

    return read


def _gzipped() -> list[bytes]:
    return [gzip.compress(_TABLE, mtime=0)]


def _in_gzip(data: bytes, rng: random.Random) -> bytes:
    try:
        text = gzip.decompress(data)
    except Exception:  # no gzip any more
        text = data
    return gzip.compress(edits.edited(text, ANYWHERE, rng), mtime=0)


def _numbered_settings() -> list[bytes]:
    return [(DATA / "shuffling_settings.csv").read_bytes()]


def _settings(data: bytes, folder: Path) -> None:
    rows = shuffle._read_settings(str(_file(folder, "settings.csv", data)))
    assert rows
    assert all(set(row) == set(rows[0]) for row in rows)


# Results


@cache
def _results() -> list[bytes]:
    return [to_json(audit).encode() for audit in AUDITS.values()]


def _result(data: bytes, folder: Path) -> None:
    audit = load(_file(folder, "result.json", data))
    assert from_json(to_json(audit)) == audit
    assert {entry.verdict for entry in list_entries(audit)} == {audit.verdict}
    assert len(str(audit)) <= 2_000
    if len(data) % 8 == 0:  # what is read can be shown
        assert as_markdown(audit)
        assert page(audit).startswith("<!doctype html>")


# Subjects, as TOML

_FEW = np.zeros((20, 4), np.float32), np.arange(20) % 2


def _load_model(source: ModelOnRecords) -> dict[str, Any]:
    """Bring a small model in place of the one that the file asks for, which may be huge."""
    from torch import nn

    return {"module": nn.Linear(4, 2), "data": _FEW, "title": source.model}


def _load_dropout(source: DropoutOnRecords) -> dict[str, Any]:
    return {"factory": print, "data": _FEW, "record": 3, "title": source.model}


def _config(data: bytes, folder: Path) -> None:
    path = _file(folder, "config.toml", data)
    with (
        mock.patch.object(ModelOnRecords, "load", _load_model),
        mock.patch.object(DropoutOnRecords, "load", _load_dropout),
    ):
        subject = read_call(path).subject
        settings = to_settings(subject)
        assert to_settings(from_settings(type(subject), settings)) == settings
        assert json.loads(json.dumps(settings, allow_nan=False)) == settings


_SHUFFLED = b"""claim = 3.0

[shuffled_sgd]
noise_multiplier = 0.75
steps = 781
epochs = 50
sampler = "partial:60"
observations = 1000

[audit]
delta = 1e-5
until = "narrow:0.5"
"""


def _forms() -> list[bytes]:
    whole = (DATA / "posterior.toml").read_bytes()
    forms = b'[posterior]\nforms = ["mean:0.1", "label", {type = "form", kind = "mean"}]\n'
    return [whole.replace(b"[posterior]\n", forms)]


# Runs


def _rehashed(data: bytes, rng: random.Random) -> bytes:
    """A plan that was changed, with the hash that fits the change."""
    changed = in_json(data, rng)
    try:
        plain = json.loads(changed)
        del plain["hash"]
        import hashlib

        from epsilometer.engine.plan import _encode_canonically

        digest = hashlib.sha256(_encode_canonically(plain)).hexdigest()
        return json.dumps({**plain, "hash": digest}, indent=2, ensure_ascii=False).encode()
    except (ValueError, TypeError, KeyError, RecursionError):
        return changed


def _plan(data: bytes, folder: Path) -> None:
    text = data.decode("utf-8", "replace")
    plan = Plan.from_json(text)
    assert Plan.from_json(plan.to_json()) == plan
    assert plan.stream(0).random() < 1


def _plans() -> list[bytes]:
    plain = {"rate": 0.5, "names": ["a", "b"], "nested": {"deep": [1, None]}}
    return [a_plan().to_json().encode(), a_plan(parameters=plain, units=10**6).to_json().encode()]


def _shards() -> list[bytes]:
    arrays = {"draws": np.arange(3.0), "name": np.array("x"), "yes": np.array([True, False])}
    return [pack({0: arrays, 3: {"unit": np.array(7)}}, plan="p")]


def _resummed(data: bytes, rng: random.Random) -> bytes:
    """A shard that was changed, with the checksum that fits the change."""
    import hashlib

    _, _, body = data.partition(b"\n")
    line, _, contents = body.partition(b"\n")
    body = rng.choice((in_json, *ANYWHERE))(line, rng).replace(b"\n", b"") + b"\n" + contents
    return hashlib.sha256(body).hexdigest().encode() + b"\n" + body


def _shard(data: bytes, folder: Path) -> None:
    for unit, arrays in unpack(data, plans={"p"}).items():
        assert isinstance(unit, int)
        assert all(array.dtype.kind in "biufcSU" for array in arrays.values())


@cache
def _whole_run() -> tuple[bytes, str]:
    """A finished run as one zip, and its result."""
    import tempfile

    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "run"
        result = run(Digest(plan=a_plan(units=4)), folder, engine=InProcess())
        (folder / "failures" / "00000009.json").write_text('{"unit": 9, "error": "Boom: no"}')
        kept = [path for path in sorted(folder.rglob("*")) if path.is_file()]
        files = {str(path.relative_to(folder)): path.read_bytes() for path in kept}
    return zipped(files), to_json(result)


def _run_directory(data: bytes, folder: Path) -> None:
    """Its status can be told, and it goes on to the same bytes or says why not."""
    import shutil

    shutil.rmtree(folder / "run", ignore_errors=True)
    for name, content in unzipped(data).items():
        path = folder / "run" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    for more in ((), ("--json",)):
        said = CliRunner().invoke(main, ["runs", "status", str(folder / "run"), *more])
        if said.exception is not None and not isinstance(said.exception, SystemExit):
            raise said.exception
        assert said.exit_code in (0, 2)
    # A result that is there and whole is taken as it is, whatever it says.
    (folder / "run" / "result.json").unlink(missing_ok=True)
    result = run(Digest(plan=a_plan(units=4)), folder / "run", engine=InProcess())
    assert to_json(result) == _whole_run()[1]


# Other people's programs


@cache
def _programs() -> list[bytes]:
    return [text.encode() for program in list_sources() for _, text in program.files]


def _program(data: bytes, folder: Path) -> None:
    report = lint([_file(folder, "program.py", data)])
    lines = data.count(b"\n") + data.count(b"\r") + 1
    assert all(1 <= found.line <= lines and found.column >= 1 for found in report.findings)
    lint_source(data.decode("utf-8", "replace"))


@cache
def _notebooks() -> list[bytes]:
    cells = [
        {"cell_type": "code", "source": text.decode().splitlines(keepends=True)}
        for text in _programs()[:3]
    ]
    notes = {"cell_type": "markdown", "source": ["# notes"]}
    return [json.dumps({"cells": [notes, *cells], "nbformat": 4}).encode()]


def _notebook(data: bytes, folder: Path) -> None:
    lint([_file(folder, "program.ipynb", data)])


# Data of federated tasks


def _writers() -> list[bytes]:
    images, labels = np.ones((20, 28, 28), np.uint8), np.arange(20) % 10
    return [_npz(x=images, y=labels, writer=np.arange(20) // 5)]


def _task(of: str, name: str) -> Callable[[bytes, Path], None]:
    def read(data: bytes, folder: Path) -> None:
        from epsilometer.audits.federated import tasks

        task = getattr(tasks, of)(_file(folder, name, data), rng=np.random.default_rng(0))
        assert task.clients
        assert all(len(x) == len(y) >= 1 for x, y in task.clients)

    return read


def _roles() -> list[bytes]:
    said = {"ROMEO": ["But soft, what light " * 10], "JULIET": ["Ay me! " * 20, "O Romeo " * 9]}
    return [gzip.compress(json.dumps(said).encode(), mtime=0)]


def _role_edit(data: bytes, rng: random.Random) -> bytes:
    try:
        return gzip.compress(in_json(gzip.decompress(data), rng), mtime=0)
    except Exception:  # no gzip any more
        return data


_READERS = {
    "scores-csv": Reader(lambda: [_PAIRED, _SIDES], _scores("csv")),
    "scores-npz": Reader(_scores_npz, _scores("npz"), (*ANYWHERE, *[in_npz] * 8)),
    "tool-json": Reader(_tool_trees, _tool_scores("json"), (*ANYWHERE, *[in_json] * 8)),
    "tool-pickle": Reader(
        lambda: [(_TOOLS / "tf_privacy.pickle").read_bytes()], _tool_scores("pickle")
    ),
    "records-csv": Reader(lambda: [_TABLE], _records("csv")),
    "records-npz": Reader(_records_npz, _records("npz"), (*ANYWHERE, *[in_npz] * 8)),
    "table-csv": Reader(lambda: [_TABLE], _table("csv")),
    "table-csv-gz": Reader(_gzipped, _table("csv.gz"), (*ANYWHERE, *[_in_gzip] * 8)),
    "settings-csv": Reader(_numbered_settings, _settings),
    "results": Reader(_results, _result, (*ANYWHERE, *[in_json] * 16)),
    "config-dpsgd": Reader(lambda: [(DATA / "dpsgd.toml").read_bytes()], _config),
    "config-posterior": Reader(_forms, _config),
    "config-shuffle": Reader(lambda: [_SHUFFLED], _config),
    "plan": Reader(_plans, _plan, (*ANYWHERE, in_json, *[_rehashed] * 16)),
    "shards": Reader(_shards, _shard, (*ANYWHERE, *[_resummed] * 16)),
    "run-directory": Reader(
        lambda: [_whole_run()[0]], _run_directory, (in_archive((*ANYWHERE, in_json, _rehashed)),)
    ),
    "history-index": Reader(indexes.valid, indexes.read, (*ANYWHERE, *[in_index] * 16)),
    "history-folder": Reader(folders.valid, folders.read, (in_archive((*ANYWHERE, in_json)),)),
    "paper": Reader(published.valid, published.read),
    "service-answer": Reader(answered.valid, answered.read, (*ANYWHERE, *answered.edits)),
    "service-journal": Reader(journalled.valid, journalled.read, (*ANYWHERE, *journalled.edits)),
    "lint-python": Reader(_programs, _program),
    "lint-notebook": Reader(_notebooks, _notebook, (*ANYWHERE, *[in_json] * 8)),
    "task-writers": Reader(
        _writers, _task("digits_by_writer", "mnist.npz"), (*ANYWHERE, *[in_npz] * 8)
    ),
    "task-roles": Reader(
        _roles,
        _task("shakespeare_by_role", "roles.json.gz"),
        (*ANYWHERE, *[_in_gzip] * 4, *[_role_edit] * 8),
    ),
}
if find_spec("pyarrow"):
    _READERS |= {
        "scores-parquet": Reader(_parquet_scores, _scores("parquet")),
        "records-parquet": Reader(_parquet_tables, _records("parquet")),
        "table-parquet": Reader(_parquet_tables, _table("parquet")),
        "table-arrow": Reader(_arrow_tables, _table("arrow")),
    }
READERS: Mapping[str, Reader] = MappingProxyType(_READERS)
