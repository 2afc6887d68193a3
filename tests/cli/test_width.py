"""What commands print fits a narrow terminal: whole words, whole columns, short verdicts."""

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import epsilometer as em

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="there are no such terminals")
WIDTH = 60


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Scores, and two results of a subject with a long name."""
    folder = tmp_path_factory.mktemp("runs")
    rng = np.random.default_rng(0)
    rows = [f"{rng.normal(1.2 * (i % 2)):.5f},{i % 2}" for i in range(400)]
    (folder / "scores.csv").write_text("\n".join(["score,member", *rows]), "utf-8")
    for name, count in (("first", 400), ("second", 300)):
        scores = em.Scores(
            np.linspace(1, 2, count),
            np.linspace(0, 1.01, count),
            title="DP-SGD of a network on handwritten digits",
        )
        (folder / name).mkdir()
        em.audit(scores, em.Claim(3.0, delta=1e-5)).save(folder / name / "result.json")
    return folder


def print_narrow(folder: Path, *arguments: str, encoding: str = "utf-8") -> list[str]:
    """Return the lines of a command on a terminal of 60 columns."""
    import fcntl
    import pty
    import struct
    import termios

    reader, writer = pty.openpty()
    fcntl.ioctl(writer, termios.TIOCSWINSZ, struct.pack("HHHH", 40, WIDTH, 0, 0))
    left_out = ("COLUMNS", "LINES", "FORCE_COLOR")
    environment = {name: value for name, value in os.environ.items() if name not in left_out}
    environment |= {"PYTHONIOENCODING": encoding, "TERM": "xterm"}
    command = [sys.executable, "-m", "epsilometer", *arguments]
    child = subprocess.Popen(
        command, stdin=writer, stdout=writer, stderr=writer, cwd=folder, env=environment
    )
    os.close(writer)
    said = b""
    try:
        while read := os.read(reader, 65_536):
            said += read
    except OSError:  # how Linux says that the terminal was closed
        pass
    os.close(reader)
    child.wait()
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", said.decode(encoding))
    return [line.rpartition("\r")[2].rstrip() for line in plain.split("\r\n")]


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
@pytest.mark.parametrize(
    "typed",
    [
        "",
        "methods",
        "estimate scores.csv --delta 1e-5 --claim 1",
        "estimate scores.csv --delta 1e-5 --claim 1 -v --explain",
        "estimate scores.csv --delta 1e-5 --claim 3 --quiet",
        "shuffle --noise-multiplier 1 --steps 100 --observations 2000 --claim 3 -v",
        "runs list .",
        "runs trend .",
        "runs compare first second",
        "runs --help",
        "check first",
        "report second -v",
    ],
)
def test_it_fits(typed: str, encoding: str, folder: Path) -> None:
    lines = print_narrow(folder, *typed.split(), encoding=encoding)
    assert "Traceback" not in "".join(lines)
    assert [line for line in lines if len(line) > WIDTH] == []
    assert [line for line in lines if line.endswith("…") or "…  " in line] == []
    assert not any(line.endswith("...") for line in lines if "[ARGS]" not in line)


def test_a_verdict_takes_at_most_three_lines(folder: Path) -> None:
    lines = print_narrow(folder, "estimate", "scores.csv", "--delta", "1e-5", "--claim", "4")
    assert lines[0].startswith("NOT REFUTED: ")
    assert lines.index("scores.csv") <= 3
    assert len(print_narrow(folder, "check", "first")) <= 3


def test_no_column_is_lost(folder: Path) -> None:
    """Where a table is too wide its rows are stacked; no name is cut."""
    listed = "\n".join(print_narrow(folder, "runs", "list", "."))
    for part in ("first", "second", "DP-SGD of a network on handwritten digits", "verdict"):
        assert part in listed
    text = " ".join(print_narrow(folder, "report", "first", "-v"))
    for part in ("calibrated", "observations", "400 + 400", "thresholds by"):
        assert part in text
