"""One virtual environment for each peer, made from its pinned requirements when it is missing."""

import subprocess
import sys
from pathlib import Path

_HERE = Path(__file__).resolve().parent


def python_of(peer: str) -> Path:
    """The interpreter of a peer's environment, which is built first if it is not up to date."""
    pinned = _HERE / "peers" / f"{peer}.txt"
    home = _HERE.parent / ".venv-peers" / peer
    python, installed = home / "bin" / "python", home / "installed.txt"
    if not python.exists() or not installed.exists() or _differ(installed, pinned):
        subprocess.run([sys.executable, "-m", "venv", "--clear", home], check=True)
        subprocess.run([python, "-m", "pip", "install", "-q", "-r", pinned], check=True)
        installed.write_text(pinned.read_text())  # last: an interrupted build is begun anew
    return python


def _differ(one: Path, other: Path) -> bool:
    return one.read_text() != other.read_text()
