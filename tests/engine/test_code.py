"""Changed code never continues with an old run, and never hands out its result."""

import importlib
import json
import os
import subprocess
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import epsilometer as em
from epsilometer.engine import environment
from epsilometer.engine.code import Code, find_code
from epsilometer.engine.plan import CodeChanged, Plan
from epsilometer.engine.run import gather
from epsilometer.errors import InvalidArgument

PLAY = """
import numpy as np
import epsilometer as em
from laws_{tag} import mean

def play(runs, rng):
    return em.Scores(inside=rng.normal(mean(), 1, runs), outside=rng.normal(0, 1, runs))
"""
LAWS = """
MU = {mu}

def mean():
    return MU
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., ModuleType]]:
    """Writes a user's two modules, imports them anew, and returns the one with ``play``."""
    folder = tmp_path / "project"
    folder.mkdir()
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    tag = tmp_path.name.replace("-", "_")
    names = (f"laws_{tag}", f"mine_{tag}")

    def write(mu: float = 0.0, *, play: str = PLAY, laws: str = LAWS) -> ModuleType:
        (folder / f"laws_{tag}.py").write_text(laws.format(mu=mu))
        (folder / f"mine_{tag}.py").write_text(play.format(tag=tag))
        importlib.invalidate_caches()
        for name in names:
            sys.modules.pop(name, None)
        return importlib.import_module(f"mine_{tag}")

    yield write
    for name in names:
        sys.modules.pop(name, None)


def audited(play: Any, out: Path, **how: Any) -> em.Audit:
    subject = em.Runs(play, runs=400)
    return em.audit(subject, 1.0, delta=1e-5, out=out, engine=em.InProcess(), **how)


def cut(out: Path) -> None:
    """Leave a run as a kill does that comes in its middle."""
    (out / "result.json").unlink()
    for shard in sorted((out / "shards").iterdir())[1:]:
        shard.unlink()


@pytest.mark.parametrize("finished", [True, False])
def test_code_that_was_edited_to_leak_is_not_given_the_old_result(
    finished: bool, project: Callable[..., ModuleType], tmp_path: Path
) -> None:
    """As measured: not refuted by private code, which was then edited, three levels below."""
    run = tmp_path / "run"
    honest = audited(project(0.0).play, run)
    assert honest.verdict == "not refuted"
    if not finished:
        cut(run)
    leaking = project(8.0).play
    with pytest.raises(CodeChanged) as refused:
        audited(leaking, run)
    said = str(refused.value)
    assert "module laws_" in said
    assert "play" not in said.partition("found changes")[2]  # which is as it was
    assert "--accept-changes" in said
    assert audited(leaking, tmp_path / "fresh").verdict == "refuted"
    accepted = audited(leaking, run, accept_changes=True)
    assert any("module laws_" in change for change in accepted.provenance.accepted)
    assert any(text.startswith("The code changed during this run") for text in accepted.caveats)
    assert accepted.provenance.plan != honest.provenance.plan
    assert em.load(run) == accepted
    assert audited(leaking, run) == accepted  # it was accepted once, and stays on record
    with pytest.raises(CodeChanged):
        audited(project(0.0).play, run)


def test_the_same_code_goes_on_to_the_same_bytes(
    project: Callable[..., ModuleType], tmp_path: Path
) -> None:
    run = tmp_path / "run"
    audited(project(1.0).play, run)
    expected = (run / "result.json").read_bytes()
    cut(run)
    reformatted = LAWS.replace("MU = {mu}", "# the mean of scores\nMU  =  {mu}")
    audited(project(1.0, laws=reformatted).play, run)
    assert (run / "result.json").read_bytes() == expected
    assert json.loads(expected)["provenance"]["code"]


def test_a_module_that_is_imported_later_counts(
    project: Callable[..., ModuleType], tmp_path: Path
) -> None:
    lazy = PLAY.replace("from laws_{tag} import mean\n", "").replace(
        "    return", "    from laws_{tag} import mean\n    return"
    )
    audited(project(0.0, play=lazy).play, tmp_path / "run")
    with pytest.raises(CodeChanged, match="module laws_"):
        audited(project(8.0, play=lazy).play, tmp_path / "run")


def make_play(mu: float) -> Any:
    def play(runs: int, rng: np.random.Generator) -> em.Scores:
        return em.Scores(inside=rng.normal(mu, 1, runs), outside=rng.normal(0, 1, runs))

    return play


class Playing:
    def __init__(self, mu: float) -> None:
        self.mu = mu

    def play(self, runs: int, rng: np.random.Generator) -> em.Scores:
        return em.Scores(inside=rng.normal(self.mu, 1, runs), outside=rng.normal(0, 1, runs))


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (make_play, r"closure mu of .*make_play\.<locals>\.play"),
        (lambda mu: Playing(mu).play, r"object of .*Playing\.play"),
    ],
)
def test_what_a_function_closes_over_counts(
    make: Callable[[float], Any], said: str, tmp_path: Path
) -> None:
    audited(make(0.0), tmp_path / "run")
    audited(make(0.0), tmp_path / "run")
    with pytest.raises(CodeChanged, match=said):
        audited(make(8.0), tmp_path / "run")


def test_another_version_of_what_is_imported_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sklearn

    assert sklearn
    audited(make_play(0.0), tmp_path / "run")
    known = environment.find_version

    def other(name: str) -> str | None:
        return "0.0.1" if name == "scikit-learn" else known(name)

    monkeypatch.setattr(environment, "find_version", other)
    with pytest.raises(CodeChanged, match=r"scikit-learn \S+ there, 0\.0\.1 here"):
        audited(make_play(0.0), tmp_path / "run")


def test_the_units_of_smaller_runs_count_too(tmp_path: Path) -> None:
    def unit_of(value: float) -> Any:
        return lambda unit: {"value": np.array(value)}

    plan = Plan(audit="mine", parameters={}, units=2, seed=0)
    gather(plan, unit_of(1.0), tmp_path, engine=em.InProcess())
    gather(plan, unit_of(1.0), tmp_path, engine=em.InProcess())
    with pytest.raises(CodeChanged, match="closure value"):
        gather(plan, unit_of(2.0), tmp_path, engine=em.InProcess())


def define(source: str, **names: Any) -> Any:
    """A function as a notebook has it: without a file."""
    made: dict[str, Any] = {"__name__": "notebook", **names}
    exec(compile(source, "<cell>", "exec"), made)
    return made["f"]


def changed(one: Code, other: Code) -> set[str]:
    every = {**one.digests, **other.digests}
    return {name for name in every if one.digests.get(name) != other.digests.get(name)}


@pytest.mark.parametrize(
    ("before", "after", "names"),
    [
        ("def f(x): return x + 1", "def f(x): return x + 2", {"function notebook.f"}),
        ("def f(x): return x + 1", "def f(x):  # same\n    return (x + 1)", set()),
        ("def f(x, y=1): return x", "def f(x, y=2): return x", {"defaults of notebook.f"}),
        (
            "def f(x, *, y=1): return x",
            "def f(x, *, y=2): return x",
            {"keyword defaults of notebook.f"},
        ),
        (
            "def g(x): return 1\ndef f(x): return g(x)",
            "def g(x): return 2\ndef f(x): return g(x)",
            {"function notebook.g"},
        ),
        (
            "class A:\n  k = 1\ndef f(x): return A.k",
            "class A:\n  k = 2\ndef f(x): return A.k",
            {"class notebook.A"},
        ),
        (
            "class A:\n  def g(self): return 1\ndef f(x): return A().g()",
            "class A:\n  def g(self): return 2\ndef f(x): return A().g()",
            {"function notebook.A.g"},
        ),
        (
            "K = [1]\ndef f(x): return K[0]",
            "K = [2]\ndef f(x): return K[0]",
            {"global K of notebook"},
        ),
        (
            "def f(x): return [y in {'a', 'b', 'c'} for y in x]",
            "def f(x): return [y in {'c', 'b', 'a'} for y in x]",
            set(),
        ),
        # Counters and caches are no settings.
        ("K = [1]\ndef f(x): K.append(x)", "K = [2]\ndef f(x): K.append(x)", set()),
        ("K = {1: 1}\ndef f(x): K[x + 1] = x", "K = {2: 2}\ndef f(x): K[x + 1] = x", set()),
        (
            "N = 0\ndef f(x):\n  global N\n  N += 1",
            "N = 1\ndef f(x):\n  global N\n  N += 1",
            set(),
        ),
    ],
)
def test_what_counts_in_a_notebook(before: str, after: str, names: set[str]) -> None:
    one, other = find_code(define(before)), find_code(define(after))
    assert changed(one, other) == names
    assert bool(one.source)


def test_data_that_a_function_reads_by_name_count() -> None:
    source = "def f(x): return X.sum()"
    one, same, other = (find_code(define(source, X=np.full(3, value))) for value in (1.0, 1.0, 2.0))
    assert changed(one, same) == set()
    assert changed(one, other) == {"global X of notebook"}
    assert one.source == other.source  # which is published, and says nothing about data


def test_nothing_of_ours_and_nothing_installed_is_taken_for_the_users() -> None:
    from sklearn.linear_model import LogisticRegression

    code = find_code(em.ShuffledSGD(noise_multiplier=1.0, steps=10), LogisticRegression(), np.mean)
    assert not code.digests
    assert not code.source
    assert {"sklearn"} <= set(code.packages)


def test_a_class_whose_module_is_no_text_is_looked_at() -> None:
    """As of a metaclass that Cython makes, which functions of compiled modules have."""
    odd = type("Odd", (type,), {"__module__": property(lambda cls: "compiled")})
    found = find_code(odd("Kind", (), {}), types.SimpleNamespace(kind=odd))
    assert all(isinstance(name, str) for name in found.digests)


def test_code_has_the_same_digests_in_another_process(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "import json\nKINDS = {'a', 'b', 'c'}\nclass A:\n  def g(self): return {'x', 'y'}\n"
        "def f(x, y=frozenset('abc')): return A().g() & KINDS\n"
    )
    call = "import mine; from epsilometer.engine.code import find_code; print(find_code(mine.f))"
    said = {
        subprocess.run(
            [sys.executable, "-c", call],
            cwd=tmp_path,
            env={**os.environ, "PYTHONHASHSEED": str(seed)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in (1, 2)
    }
    assert len(said) == 1
    assert "function mine.A.g" in said.pop()


def test_what_has_no_contents_counts_by_its_type(tmp_path: Path) -> None:
    function = define("def make(held):\n  return lambda x: held\nf = make(FILE)", FILE=sys.stdout)
    with (tmp_path / "log").open("w") as file:
        held = define("def make(held):\n  return lambda x: held\nf = make(FILE)", FILE=file)
        assert changed(find_code(held), find_code(held)) == set()
        file.write("still open")
    assert "closure held of notebook.make.<locals>.<lambda>" in find_code(function).digests


def test_a_change_is_an_argument_that_is_not_valid() -> None:
    assert issubclass(CodeChanged, InvalidArgument)
