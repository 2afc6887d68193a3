"""Files made to hang or to fill a machine: one sentence, within 2 s of CPU and 500 MB."""

import gzip
import io
import json
import os
import struct
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from tests.engine.jobs import a_plan, in_order
from tests.examples import a_provenance, an_audit

SECONDS, MEGABYTES = 2.0, 500
SHARD = "shards/00000000.shard"
# Reads what standard input names, and says of each: seconds of CPU, and what was refused.
READER = """
import json, resource, sys, time
from pathlib import Path
import pyarrow.parquet
import epsilometer as em
from epsilometer._dispatch import read_call
from epsilometer.engine.store import Store
from epsilometer.errors import EpsilometerError
from epsilometer.lint.sources import read_source
from epsilometer.files.tables import read_table
import epsilometer.audits.scores.subject

def unfinished(path):
    raise EpsilometerError(f"skipped: {em.History(path).unreadable}")

def damaged(path):
    raise EpsilometerError(f"damaged: {Store.open(Path(path)).look()}")

def linted(path):
    raise EpsilometerError(str(read_source(Path(path))))

CALLS = {
    "scores": em.read_scores, "records": em.read_records, "table": read_table, "load": em.load,
    "call": read_call, "history": unfinished, "run": damaged, "lint": linted,
}
for line in sys.stdin:
    name, path = json.loads(line)
    begun, said = time.process_time(), None
    try:
        CALLS[name](path)
    except EpsilometerError as error:
        said = str(error)
    status = Path("/proc/self/status")  # getrusage also counts the process that began this one
    if status.exists():
        peak = int(status.read_text().partition("VmHWM:")[2].split()[0]) / 1024
    else:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps([time.process_time() - begun, peak, said]), flush=True)
"""


def make_sparse(path: Path, size: int, head: bytes = b"") -> Path:
    with path.open("wb") as file:
        file.write(head)
        file.truncate(size)
    return path


def make_fifo(path: Path) -> Path:
    os.mkfifo(path)
    return path


def make_link(path: Path, target: str) -> Path:
    path.symlink_to(target)
    return path


def make_gz(path: Path) -> Path:
    """1.4 GB of rows in 1.4 MB, as measured: one member again and again."""
    member = gzip.compress(b"1,2\n" * 2**20, 1)
    with path.open("wb") as file:
        file.write(gzip.compress(b"a,b\n"))
        for _ in range(350):
            file.write(member)
    return path


def make_npz(path: Path, *, arrays: int = 1, claimed: int | None = None) -> Path:
    """An archive that says of its arrays that they have so many bytes."""
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w", zipfile.ZIP_DEFLATED) as archive:
        for number in range(arrays):
            content = io.BytesIO()
            np.save(content, np.zeros((2, 2)))
            archive.writestr(f"{'xy'[number % 2] * (number // 2 + 1)}.npy", content.getvalue())
    data = bytearray(held.getvalue())
    if claimed is not None:
        place = data.find(b"PK\1\2")
        while place >= 0:
            struct.pack_into("<L", data, place + 24, claimed)
            place = data.find(b"PK\1\2", place + 1)
    path.write_bytes(data)
    return path


def make_parquet(path: Path, column: pa.Array, times: int) -> Path:
    """One group of rows again and again."""
    table = pa.table({"score": column, "member": column})
    with pyarrow.parquet.ParquetWriter(path, table.schema) as writer:
        for _ in range(times):
            writer.write_table(table)
    return path


def make_run(path: Path, name: str, harm: Any) -> Path:
    in_order(path, plan=a_plan(2))
    (path / name).unlink()
    harm(path / name)
    return path


def bombs(home: Path) -> dict[str, tuple[str, Path]]:
    """What is read → how, and where it lies."""
    huge, large = 8 * 2**30, 3 * 2**30
    constant = pa.array(np.zeros(2**20, np.int64))
    made = {
        **{
            f"{how} from a pipe{end}": (how, make_fifo(home / f"{how}{end}"))
            for how, end in (
                ("scores", ".csv"),
                ("scores", ".npz"),
                ("scores", ".parquet"),
                ("records", ".npz"),
                ("table", ".csv"),
                ("table", ".csv.gz"),
                ("table", ".parquet"),
                ("load", ".json"),
                ("call", ".toml"),
                ("call", ".json"),
                ("lint", ".py"),
            )
        },
        **{
            f"{how} from a device": (how, make_link(home / f"{how}-zero{end}", "/dev/zero"))
            for how, end in (("table", ".csv"), ("scores", ".npz"), ("load", ".json"))
        },
        "holes in a table": ("table", make_sparse(home / "holes.csv", large, b"a,b\n1,2\n")),
        "holes in scores": ("scores", make_sparse(home / "holes2.csv", large, b"score,member\n")),
        "a huge table": ("table", make_sparse(home / "huge.csv", huge)),
        "a huge archive": ("scores", make_sparse(home / "huge.npz", huge)),
        "a huge parquet": ("scores", make_sparse(home / "huge.parquet", huge)),
        "a huge audit": ("load", make_sparse(home / "huge.json", huge)),
        "a huge source": ("lint", make_sparse(home / "huge.py", huge)),
        "a huge file of settings": ("call", make_sparse(home / "huge.toml", huge)),
        "a gzipped table": ("table", make_gz(home / "bomb.csv.gz")),
        "an archive that grows": ("records", make_npz(home / "g.npz", arrays=2, claimed=2**31)),
        "an archive of scores": ("scores", make_npz(home / "s.npz", arrays=2, claimed=2**31)),
        "an archive of many": ("scores", make_npz(home / "m.npz", arrays=1200)),
        "a parquet of one number": ("table", make_parquet(home / "one.parquet", constant, 40)),
        "a parquet of scores": ("scores", make_parquet(home / "s.parquet", constant, 40)),
        "a run whose plan is a pipe": ("run", make_run(home / "r1", "plan.json", make_fifo)),
        "a result that is a pipe": ("load", make_run(home / "r2", "result.json", make_fifo)),
        "a shard that is a pipe": (
            "run",
            make_run(home / "r3", "shards/00000000.shard", make_fifo),
        ),
        "a shard with holes": (
            "run",
            make_run(home / "r4", "shards/00000000.shard", lambda path: make_sparse(path, large)),
        ),
        "a history with a pipe": ("history", make_run(home / "r5", "secret", make_fifo)),
    }
    (home / "dots.toml").write_text("a" + ".a" * 50_000 + " = 1\n")
    (home / "many.toml").write_text("".join(f"[a.b{each}]\n" for each in range(10**5)))
    plain = an_audit(provenance=a_provenance(settings={"x": "LISTS"})).to_json()
    lists = plain.replace('"LISTS"', "[" + "[]," * 5 * 10**6 + "[]]")
    (home / "lists.json").write_text(lists)
    return {
        **made,
        "keys of many parts": ("call", home / "dots.toml"),
        "many keys": ("call", home / "many.toml"),
        "an audit of empty lists": ("load", home / "lists.json"),
    }


@pytest.fixture(scope="module")
def refusals(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[float, float, Any]]:
    """What was said of each, in one process, so that what one leaves in memory counts too."""
    made = bombs(tmp_path_factory.mktemp("bombs"))
    lines = "".join(json.dumps([how, str(path)]) + "\n" for how, path in made.values())
    done = subprocess.run(
        [sys.executable, "-c", READER],
        input=lines,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines()]
    return dict(zip(made, found, strict=True))


def test_each_is_refused_in_one_sentence(refusals: dict[str, Any]) -> None:
    for name, (_, _, said) in refusals.items():
        assert said, name
        assert len(said) < 600, (name, said)
        assert "\n" not in said, name


def test_no_refusal_takes_long_or_much(refusals: dict[str, Any]) -> None:
    slow = {name: seconds for name, (seconds, _, _) in refusals.items() if seconds > SECONDS}
    assert not slow
    assert max(peak for _, peak, _ in refusals.values()) < MEGABYTES


def test_texts_that_repeat_are_read_and_not_written_out(tmp_path: Path) -> None:
    """A million rows of one text of 10 KB would be 10 GB; here they are numbers of one word."""
    from epsilometer.files.tables import read_table

    words = pa.DictionaryArray.from_arrays(
        pa.array(np.zeros(10**6, np.int32)), pa.array(["x" * 10_000])
    )
    path = make_parquet(tmp_path / "words.parquet", words, 1)
    assert path.stat().st_size < 10**5
    (column, _) = read_table(path).columns
    assert column.words == ("x" * 10_000,)
    assert column.values.shape == (10**6,)
