"""What ``epsilometer doctor`` looks at. Nothing here imports a package that might be broken.

Packages are imported in a process of their own: one that raises, hangs or kills its process is a
line in the answer, and the others are still looked at.
"""

import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from types import MappingProxyType
from typing import Literal, TypeAlias

State: TypeAlias = Literal["works", "missing", "broken", "slow", "note"]
_PATIENCE = 120.0  # seconds for a package to be imported; a cold disk is slow
_AGAIN = "Try again when the machine is less busy."
_SAID = 200  # letters of what a broken package says
# Packages that are imported by another name than they are installed by, but for dashes.
_IMPORTED_AS = MappingProxyType({"scikit-learn": "sklearn", "mlflow-skinny": "mlflow"})
USES = MappingProxyType(
    {
        "torch": "dpsgd, federated, posterior; classifiers that are networks; games on a GPU",
        "opacus": "audits of training with Opacus (epsilometer.integrations.opacus)",
        "flower": "audits of Flower deployments (epsilometer.integrations.flower)",
        "sklearn": "classifier; the digits of demo, dpsgd, federated and posterior",
        "dask": "--engine dask",
        "numba": "faster games of shuffle on a CPU; nothing stops without it",
        "parquet": "files that end in .parquet",
        "figures": "report --figures",
        "mlflow": "logging of results with MLflow",
        "signing": "check --signed-by",
    }
)
WITHOUT = (
    "estimate",
    "shuffle",
    "audit",
    "check",
    "lint",
    "report",
    "runs",
    "methods",
    "selfcheck",
)
_DATA = ("mnist.npz", "shakespeare_roles.json.gz")  # files of EPSILOMETER_DATA that commands know
_BOUND = """
import epsilometer as em
bound = em.epsilon_lower_bound(em.Scores([3.0] * 100, [0.0] * 100), delta=1e-5)
assert bound.valid and 2.5 < bound.epsilon < 3.5, bound
print(bound)
"""
_UNITS = """
from epsilometer.cli.examining import _unit
from epsilometer.engine.engines import Local
got = sorted(outcome.arrays["unit"].item() for outcome in Local(count=2).outcomes(_unit, range(2)))
assert got == [0, 1], got
print("2 units ran, in 2 processes")
"""
_GPU = """
import torch
if not torch.cuda.is_available():
    print("none that torch can use" + ("" if torch.version.cuda else " (a build for CPUs)"))
else:
    torch.ones(8, device="cuda").sum().item()
    for i in range(torch.cuda.device_count()):
        gpu = torch.cuda.get_device_properties(i)
        print(f"{gpu.name}, {gpu.total_memory / 2**30:.0f} GiB, CUDA {torch.version.cuda}")
"""
_ADDRESS = """
import sys
from epsilometer.engine.engines import Dask
print(f"{Dask(address=sys.argv[1], patience=10.0).workers} at a time")
"""


@dataclass(frozen=True, kw_only=True)
class Check:
    """One thing that was looked at.

    Attributes:
        part: Under which heading it stands.
        name: What was looked at.
        state: How it is.
        says: What was found.
        advice: What to do; empty where nothing need be done.
        vital: Whether nothing works without it.
    """

    part: str
    name: str
    state: State
    says: str
    advice: str = ""
    vital: bool = False


def examine(*, address: str | None = None) -> list[Check]:
    """All of it, in the order in which it is shown.

    Guarantees: a package that cannot be imported, for whatever reason, is a check like any other.

    Args:
        address: Of a Dask scheduler to be reached, if any.
    """
    core, extras = requirements()
    looks: list[Callable[[], Iterable[Check]]] = [
        _python,
        *(_package_look("core", name, vital=True) for name in core),
        lambda: [_program("core", "a bound", _BOUND, vital=True)],
        *(
            _package_look(f"extra {extra}", name, extra=extra)
            for extra, names in extras.items()
            for name in names
        ),
        _machine,
        _gpu,
        lambda: [_program("engines", "local", _UNITS, advice="Use --engine in-process.")],
        _cluster(address),
        _folders,
    ]
    # As many at a time as there are cores: imports are work.
    with ThreadPoolExecutor(max_workers=os.cpu_count() or 1) as pool:
        return [check for checks in pool.map(lambda look: list(look()), looks) for check in checks]


def requirements() -> tuple[tuple[str, ...], dict[str, tuple[str, ...]]]:
    """What the installed package asks for: always, and by extra (those for users), each once."""
    asked: dict[str, list[str]] = {"": [], **{extra: [] for extra in USES}}
    for line in metadata.requires("epsilometer") or ():
        name = re.match(r"[\w.-]+", line)
        extra = re.search(r"extra == ['\"]([\w-]+)['\"]", line)
        of = "" if extra is None else extra[1]
        if name is not None and of in asked:
            asked[of].append(name[0])
    told = {"epsilometer"}  # of itself with another extra, where that is not spelt out
    first: dict[str, tuple[str, ...]] = {}
    for of, names in asked.items():
        first[of] = tuple(name for name in names if name not in told)
        told.update(names)
    core = first.pop("")
    return core, {extra: names for extra, names in first.items() if names}


def works_without(checks: Iterable[Check]) -> list[str]:
    """What can be done and what cannot, in sentences."""
    lacking = {}
    for check in checks:
        if check.part.startswith("extra ") and check.state in ("missing", "broken"):
            lacking[check.part.removeprefix("extra ")] = check.state
    lines = [f"Work without any extra: {', '.join(WITHOUT)}."]
    for extra, state in lacking.items():
        cure = f"pip install 'epsilometer[{extra}]'"
        lines.append(f"Without {extra} ({state}): no {USES[extra]}. Get it with: {cure}")
    return lines


def _unit(unit: int) -> dict[str, object]:
    """What a worker is given to do."""
    import numpy as np

    return {"unit": np.array(unit)}


def _python() -> list[Check]:
    from epsilometer import __version__

    where = f"{platform.python_implementation()} {platform.python_version()}"
    return [
        Check(part="core", name="epsilometer", state="works", says=__version__),
        Check(part="core", name="Python", state="works", says=f"{where}, {platform.platform()}"),
    ]


def _package_look(
    part: str, name: str, *, vital: bool = False, extra: str = ""
) -> Callable[[], list[Check]]:
    return lambda: [_package(part, name, vital=vital, extra=extra)]


def _package(part: str, name: str, *, vital: bool, extra: str) -> Check:
    """Whether it is installed, and can be imported."""
    cure = f"pip install 'epsilometer[{extra}]'" if extra else "pip install epsilometer"
    try:
        version = metadata.version(name)
    except metadata.PackageNotFoundError:
        version = ""
    except Exception as error:  # metadata that is damaged; a line, as all else
        version = f"of unknown version ({_short(str(error))})"
    module = _IMPORTED_AS.get(name, name.replace("-", "_"))
    state, said = _run(f"import {module}; print('\\nimported')")
    if state == "works" and said == "imported":
        return Check(part=part, name=name, state="works", says=version or "installed", vital=vital)
    if state == "slow":
        says = f"{version or 'installed'}; its import {said}"
        return Check(part=part, name=name, state=state, says=says, advice=_AGAIN, vital=vital)
    if not version and f"No module named {module!r}" in said:
        return Check(
            part=part, name=name, state="missing", says="not installed", advice=cure, vital=vital
        )
    return Check(
        part=part,
        name=name,
        state="broken",
        says=f"{version or 'installed'}, but cannot be imported: {said or 'it ends its process'}",
        advice=f"pip install --force-reinstall {name}",
        vital=vital,
    )


def _program(part: str, name: str, program: str, *, advice: str = "", vital: bool = False) -> Check:
    state, said = _run(program)
    cure = {"broken": advice, "slow": _AGAIN}.get(state, "")
    return Check(part=part, name=name, state=state, says=said, advice=cure, vital=vital)


def _run(program: str, *arguments: str) -> tuple[State, str]:
    """Whether a program runs in an interpreter like this one, and its last line."""
    try:
        # -P: what lies in the folder somebody stands in is not what is installed.
        done = subprocess.run(
            [sys.executable, "-P", "-W", "ignore", "-c", program, *arguments],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_PATIENCE,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return "slow", f"took longer than {_PATIENCE:g} s: the machine is busy, or it hangs"
    except OSError as error:
        return "broken", _short(str(error))
    lines = (done.stdout if done.returncode == 0 else done.stderr or done.stdout).split("\n")
    last = next((line.strip() for line in reversed(lines) if line.strip()), "")
    if done.returncode != 0:
        return "broken", _short(last or f"its process ended with {done.returncode}")
    return "works", _short(last)


def _short(text: str) -> str:
    """One line of what others wrote, without what a terminal would obey."""
    shown = "".join(letter if letter.isprintable() else "\ufffd" for letter in text)
    return shown if len(shown) <= _SAID else shown[: _SAID - 1] + "…"


def _machine() -> list[Check]:
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None
    cores = f"{os.cpu_count()} cores" + ("" if usable is None else f", {usable} for this process")
    return [
        Check(part="machine", name="CPU", state="works", says=cores),
        Check(part="machine", name="memory", state="works", says=_memory()),
    ]


def _memory() -> str:
    try:
        whole = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return "unknown on this system"
    try:
        free = re.search(r"MemAvailable:\s+(\d+)", Path("/proc/meminfo").read_text("ascii"))
    except OSError:
        free = None
    left = "" if free is None else f", {int(free[1]) / 2**20:.1f} free"
    return f"{whole / 2**30:.1f} GiB{left}"


def _gpu() -> list[Check]:
    """What torch says of it, where there is torch; what the driver says, where there is one."""
    checks = [_driver()]
    if _installed("torch"):
        state, said = _run(_GPU)
        state = "note" if state == "works" and said.startswith("none") else state
        checks.append(Check(part="machine", name="GPU", state=state, says=said))
        if state == "works":
            checks.append(_package("machine", "triton", vital=False, extra="torch"))
    return checks


def _driver() -> Check:
    program = shutil.which("nvidia-smi")
    if program is None:
        return Check(part="machine", name="GPU driver", state="note", says="no nvidia-smi here")
    asked = [program, "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
    try:
        done = subprocess.run(
            asked, capture_output=True, text=True, errors="replace", timeout=30, check=False
        )
        said = _short("; ".join((done.stdout or done.stderr).strip().split("\n")))
        state: State = "works" if done.returncode == 0 else "broken"
    except subprocess.TimeoutExpired:
        said, state = "nvidia-smi does not answer", "slow"
    except OSError as error:
        said, state = _short(str(error)), "broken"
    return Check(part="machine", name="GPU driver", state=state, says=said)


def _installed(name: str) -> bool:
    try:
        metadata.version(name)
    except Exception:  # not there, or damaged: it has a line of its own
        return False
    return True


def _cluster(address: str | None) -> Callable[[], list[Check]]:
    def look() -> list[Check]:
        if address is None:
            return []
        state, said = _run(_ADDRESS, address)
        cure = "" if state == "works" else "Start one with: dask scheduler; dask worker ADDRESS"
        name = f"Dask at {_short(address)}"
        return [Check(part="engines", name=name, state=state, says=said, advice=cure)]

    return look


def _folders() -> list[Check]:
    return [
        _writable("temporary files", Path(tempfile.gettempdir()), "Set TMPDIR to a folder."),
        _writable("runs, in this folder", Path.cwd(), "Name another folder with --run."),
        _data(),
    ]


def _writable(name: str, folder: Path, advice: str) -> Check:
    try:
        with tempfile.NamedTemporaryFile(dir=folder) as file:
            file.write(b"epsilometer")
            file.flush()
        free = shutil.disk_usage(folder).free
    except OSError as error:
        says = f"{folder}: cannot be written to ({error.strerror})"
        return Check(part="folders", name=name, state="broken", says=says, advice=advice)
    says = f"{folder}, {free / 2**30:.1f} GiB free"
    return Check(part="folders", name=name, state="works", says=says)


def _data() -> Check:
    named = os.environ.get("EPSILOMETER_DATA")
    name = "EPSILOMETER_DATA"
    if not named:
        says = "not set; only federated --task mnist-writers and shakespeare need it"
        return Check(part="folders", name=name, state="note", says=says)
    held = [file for file in _DATA if (Path(named) / file).is_file()]
    if not held:
        says, advice = f"{named}: holds none of {', '.join(_DATA)}", "Point it to their folder."
        return Check(part="folders", name=name, state="broken", says=says, advice=advice)
    return Check(part="folders", name=name, state="works", says=f"{named}: {', '.join(held)}")
