"""Check what is installed and works here: ``epsilometer doctor``.

Packages that might be broken are imported in separate processes: one that raises, hangs or crashes
becomes one line of the output.
"""

import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Literal, TypeAlias

import click

from epsilometer.cli.output import count_columns, say, say_marked, say_title
from epsilometer.core.printing import one_line, to_json_text
from epsilometer.errors import InvalidArgument

State: TypeAlias = Literal["works", "missing", "broken", "slow", "note"]
_PATIENCE = 120.0  # seconds for a package to be imported; a cold disk is slow
_AGAIN = "Try again when the machine is less busy."
_SAID = 200  # letters of what a broken package says
# Packages that are imported by another name than they are installed by, but for dashes.
_IMPORTED_AS = {"scikit-learn": "sklearn", "mlflow-skinny": "mlflow"}
USES = {
    "torch": "dpsgd, federated, posterior; classifiers that are networks; simulations on a GPU",
    "opacus": "audits of training with Opacus (epsilometer.integrations.opacus)",
    "jax": "audits of training with JAX-Privacy (epsilometer.integrations.jax_privacy); JaxModel",
    "lightning": "the callback for Lightning (epsilometer.integrations.lightning)",
    "huggingface": "audits of language models (epsilometer.integrations.huggingface)",
    "flower": "audits of Flower deployments (epsilometer.integrations.flower)",
    "sklearn": "classifier; classifiers of scikit-learn from Python",
    "dask": "--engine dask",
    "numba": "faster simulations of shuffle on a CPU",
    "parquet": "files that end in .parquet, .arrow or .feather",
    "models": "fitted models that end in .skops or .onnx",
    "excel": "files that end in .xlsx",
    "sql": "tables of databases, by URL",
    "figures": "report --figures",
    "mlflow": "logging of results with MLflow",
    "wandb": "logging of results with W&B (epsilometer.integrations.wandb)",
    "tf": "audits of TensorFlow Privacy (epsilometer.integrations.tf_privacy), on Python 3.11",
    "signing": "check --signed-by",
    "service": "audits of models behind an HTTP service",
    "ui": "ui",
}
WITHOUT = (
    "demo",
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
assert bound.valid and 4.17 < bound.epsilon < 4.19, bound
print(bound)
"""
_UNITS = """
from epsilometer.cli.doctor import _run_unit
from epsilometer.engine.engines import Local
outcomes = Local(count=2).outcomes(_run_unit, range(2))
got = sorted(outcome.arrays["unit"].item() for outcome in outcomes)
assert got == [0, 1], got
print("2 units ran, in 2 processes")
"""
_GPU = """
import torch
if not torch.cuda.is_available():
    print("none that torch can use" + ("" if torch.version.cuda else " (a CPU-only build)"))
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


_MARKS = {"works": "✓", "missing": "–", "broken": "✕", "slow": "?", "note": "·"}
_COLOURS = {"works": "green", "missing": "yellow", "broken": "red", "slow": "yellow", "note": None}
_WIDTH = 100


@dataclass(frozen=True)
class Check:
    """Hold the result of one check.

    Attributes:
        part: Its heading.
        name: What was checked.
        state: Its state.
        says: What was found.
        advice: What to do; empty if nothing needs to be done.
        vital: Whether nothing works without it.
    """

    part: str
    name: str
    state: State
    says: str
    advice: str = ""
    vital: bool = False


@click.command()
@click.option("--address", help="Connect to the Dask scheduler at tcp://host:8786.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def doctor(address: str | None, as_json: bool) -> None:
    """Check what is installed and whether it works.

    Imports every package in a separate process, computes a bound, and has two workers run a
    unit each. Exit code 0 if epsilometer works, whatever extras are missing; 3 if it does not; 2
    if no scheduler answers at --address.

    Example: epsilometer doctor
    """
    checks = examine(address=address)
    healthy = all(check.state not in ("missing", "broken") for check in checks if check.vital)
    sentences = list_workable(checks)
    if as_json:
        plain = {
            "works": healthy,
            "checks": [asdict(check) for check in checks],
            "sentences": sentences,
        }
        say(to_json_text(plain))
    else:
        _show(checks)
        say()
        for sentence in sentences:
            say(textwrap.fill(sentence, count_columns(_WIDTH), subsequent_indent="  "))
    if not healthy:
        say("epsilometer does not work here: see what is broken above.", err=True)
        raise SystemExit(3)
    if any(check.name.startswith("Dask at") and check.state != "works" for check in checks):
        raise InvalidArgument(f"Expected a Dask scheduler with workers at {address!r}, found none.")


def _show(checks: list[Check]) -> None:
    """Print all checks without rich, which may be what is broken."""
    part, widest = "", max(len(check.name) for check in checks)
    wide = count_columns(_WIDTH)
    for check in checks:
        if check.part != part:
            part = check.part
            if check is not checks[0]:
                say()
            say_title(part)
        indent = " " * (widest + 6)
        says = textwrap.fill(
            one_line(check.says), wide, initial_indent=indent, subsequent_indent=indent
        ).strip()
        line = f"{one_line(check.name):<{widest}}  {says}"
        say_marked(_MARKS[check.state], line, colour=_COLOURS[check.state], indent=2)
        if check.advice and (check.state != "missing" or check.vital):  # extras are told below
            say(f"{indent}→ {one_line(check.advice)}")


def examine(*, address: str | None = None) -> list[Check]:
    """Run all checks, in the order of display.

    Guarantees: a package that cannot be imported, for any reason, becomes a failed check.

    Args:
        address: Address of a Dask scheduler to be reached, if any.
    """
    core, extras = list_requirements()
    checks: list[Callable[[], Iterable[Check]]] = [
        _describe_python,
        *(partial(_check_package, "core", name, vital=True) for name in core),
        partial(_run_check, "core", "a bound", _BOUND, vital=True),
        *(
            partial(_check_package, f"extra {extra}", name, extra=extra)
            for extra, names in extras.items()
            for name in names
        ),
        _describe_machine,
        _check_gpu,
        partial(_run_check, "engines", "local", _UNITS, advice="Use --engine in-process."),
        *([] if address is None else [partial(_check_cluster, address)]),
        _check_folders,
    ]
    # As many at a time as there are cores: imports are work.
    with ThreadPoolExecutor(max_workers=os.cpu_count() or 1) as pool:
        return [found for some in pool.map(lambda check: check(), checks) for found in some]


def list_requirements() -> tuple[tuple[str, ...], dict[str, tuple[str, ...]]]:
    """Return the package's requirements: always, and by extra for users, each once."""
    asked: dict[str, list[str]] = {"": [], **{extra: [] for extra in USES}}
    for line in metadata.requires("epsilometer") or ():
        name = re.match(r"[\w.-]+", line)
        extra = re.search(r"extra == ['\"]([\w-]+)['\"]", line)
        of = "" if extra is None else extra[1]
        if name is not None and of in asked:
            asked[of].append(name[0])
    listed = {"epsilometer"}  # of itself with another extra, where that is not spelt out
    first: dict[str, tuple[str, ...]] = {}
    for of, names in asked.items():
        first[of] = tuple(name for name in names if name not in listed)
        listed.update(names)
    core = first.pop("")
    return core, {extra: names for extra, names in first.items() if names}


def list_workable(checks: Iterable[Check]) -> list[str]:
    """Return sentences on what works and what does not."""
    lacking = {}
    for check in checks:
        if check.part.startswith("extra ") and check.state in ("missing", "broken"):
            lacking[check.part.removeprefix("extra ")] = check.state
    lines = [f"These commands need no extra: {', '.join(WITHOUT)}."]
    for extra, state in lacking.items():
        remedy = f"pip install 'epsilometer[{extra}]'"
        lines.append(
            f"The extra {extra} is {state}. It is needed for {USES[extra]}. Get it with: {remedy}"
        )
    return lines


def _run_unit(unit: int) -> dict[str, object]:
    """Execute a unit in a worker."""
    import numpy as np

    return {"unit": np.array(unit)}


def _describe_python() -> list[Check]:
    from epsilometer import __version__

    where = f"{platform.python_implementation()} {platform.python_version()}"
    return [
        Check("core", "epsilometer", "works", __version__),
        Check("core", "Python", "works", f"{where}, {platform.platform()}"),
    ]


def _check_package(part: str, name: str, *, vital: bool = False, extra: str = "") -> list[Check]:
    """Check whether a package is installed, and can be imported."""
    check = partial(Check, part, name, vital=vital)
    try:
        version = metadata.version(name)
    except metadata.PackageNotFoundError:
        version = ""
    except Exception as error:  # metadata that is damaged; a line, as all else
        version = f"of unknown version ({_shorten(str(error))})"
    module = _IMPORTED_AS.get(name, name.replace("-", "_"))
    state, last = _run_program(f"import {module}; print('\\nimported')")
    known = version or "installed"
    if state == "works" and last == "imported":
        return [check("works", known)]
    if state == "slow":
        return [check(state, f"{known}; its import {last}", _AGAIN)]
    if not version and f"No module named {module!r}" in last:
        remedy = f"pip install 'epsilometer[{extra}]'" if extra else "pip install epsilometer"
        return [check("missing", "not installed", remedy)]
    says = f"{known}, but cannot be imported: {last or 'it ends its process'}"
    return [check("broken", says, f"pip install --force-reinstall {name}")]


def _run_check(
    part: str, name: str, program: str, *, advice: str = "", vital: bool = False
) -> list[Check]:
    state, last = _run_program(program)
    remedy = {"broken": advice, "slow": _AGAIN}.get(state, "")
    return [Check(part, name, state, last, remedy, vital)]


def _run_program(program: str, *arguments: str) -> tuple[State, str]:
    """Tell whether a program runs in an interpreter like this one, and its last line."""
    try:
        # -P: modules in the current folder are not the installed ones.
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
        return "broken", _shorten(str(error))
    lines = (done.stdout if done.returncode == 0 else done.stderr or done.stdout).split("\n")
    last = next((line.strip() for line in reversed(lines) if line.strip()), "")
    if done.returncode != 0:
        return "broken", _shorten(last or f"its process ended with {done.returncode}")
    return "works", _shorten(last)


def _shorten(text: str) -> str:
    """Return one line of foreign text, without control characters."""
    shown = "".join(letter if letter.isprintable() else "\ufffd" for letter in text)
    return shown if len(shown) <= _SAID else shown[: _SAID - 1] + "…"


def _describe_machine() -> list[Check]:
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None
    cores = f"{os.cpu_count()} cores" + ("" if usable is None else f", {usable} for this process")
    return [
        Check("machine", "CPU", "works", cores),
        Check("machine", "memory", "works", _describe_memory()),
    ]


def _describe_memory() -> str:
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


def _check_gpu() -> list[Check]:
    """Report GPUs as seen by torch and the driver, if they are installed."""
    checks = [_check_driver()]
    if _is_installed("torch"):
        state, last = _run_program(_GPU)
        state = "note" if state == "works" and last.startswith("none") else state
        checks.append(Check("machine", "GPU", state, last))
        if state == "works":
            checks += _check_package("machine", "triton", extra="torch")
    return checks


def _check_driver() -> Check:
    program = shutil.which("nvidia-smi")
    if program is None:
        return Check("machine", "GPU driver", "note", "no nvidia-smi here")
    asked = [program, "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
    try:
        done = subprocess.run(
            asked, capture_output=True, text=True, errors="replace", timeout=30, check=False
        )
        said = _shorten("; ".join((done.stdout or done.stderr).strip().split("\n")))
        state: State = "works" if done.returncode == 0 else "broken"
    except subprocess.TimeoutExpired:
        said, state = "nvidia-smi does not answer", "slow"
    except OSError as error:
        said, state = _shorten(str(error)), "broken"
    return Check("machine", "GPU driver", state, said)


def _is_installed(name: str) -> bool:
    try:
        metadata.version(name)
    except Exception:  # not there, or damaged: it has a line of its own
        return False
    return True


def _check_cluster(address: str) -> list[Check]:
    state, last = _run_program(_ADDRESS, address)
    remedy = "" if state == "works" else "Start one with: dask scheduler; dask worker ADDRESS"
    return [Check("engines", f"Dask at {_shorten(address)}", state, last, remedy)]


def _check_folders() -> list[Check]:
    return [
        _check_writable("temporary files", Path(tempfile.gettempdir()), "Set TMPDIR to a folder."),
        _check_writable("runs, in this folder", Path.cwd(), "Name another folder with --out."),
        _check_data(),
    ]


def _check_writable(name: str, folder: Path, advice: str) -> Check:
    try:
        with tempfile.NamedTemporaryFile(dir=folder) as file:
            file.write(b"epsilometer")
            file.flush()
        free = shutil.disk_usage(folder).free
    except OSError as error:
        says = f"{folder}: cannot be written to ({error.strerror})"
        return Check("folders", name, "broken", says, advice)
    says = f"{folder}, {free / 2**30:.1f} GiB free"
    return Check("folders", name, "works", says)


def _check_data() -> Check:
    named = os.environ.get("EPSILOMETER_DATA")
    name = "EPSILOMETER_DATA"
    if not named:
        says = "not set; only federated --task mnist-writers and shakespeare need it"
        return Check("folders", name, "note", says)
    held = [file for file in _DATA if (Path(named) / file).is_file()]
    if not held:
        says, advice = f"{named}: holds none of {', '.join(_DATA)}", "Point it to their folder."
        return Check("folders", name, "broken", says, advice)
    return Check("folders", name, "works", f"{named}: {', '.join(held)}")
