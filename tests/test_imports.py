"""What is public, and what importing it costs."""

import ast
import doctest
import graphlib
import inspect
import subprocess
import sys
from pathlib import Path

import grimp
import pytest

import epsilometer

PACKAGE = Path(epsilometer.__file__).parent
HEAVY = ["torch", "sklearn", "dp_accounting", "matplotlib", "scipy.stats"]


def loaded_after(program: str, names: list[str]) -> set[str]:
    """Which of these modules a fresh interpreter has loaded after the program."""
    tail = f"\nimport sys; print(*(set({names!r}) & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", program + tail], capture_output=True, text=True, check=True
    )
    return set(done.stdout.split())


def test_importing_the_package_is_light() -> None:
    unwanted = [*HEAVY, "pandas", "pyarrow", "rich", "click", "numpy"]
    assert loaded_after("import epsilometer", unwanted) == set()


def test_the_default_bound_is_computed_without_heavy_packages() -> None:
    program = """
import epsilometer as em
assert em.epsilon_lower_bound(em.Scores([3.0] * 100, [0.0] * 100), delta=1e-5).epsilon > 1
"""
    slow_to_load = ["scipy.special", "importlib.metadata", "numpy.ma", "numpy.polynomial"]
    assert loaded_after(program, [*HEAVY, *slow_to_load, "pandas", "rich", "click"]) == set()


def test_the_command_line_shows_its_help_without_statistics() -> None:
    program = """
from click.testing import CliRunner
from epsilometer.cli.main import main
assert CliRunner().invoke(main, ["--help"]).exit_code == 0
"""
    assert loaded_after(program, [*HEAVY, "scipy", "rich"]) == set()


def test_the_command_line_loads_little_beside_click() -> None:
    slow_to_load = ["csv", "json", "numpy", "pathlib", "urllib.parse"]
    loaded = loaded_after("from epsilometer.cli.main import main", slow_to_load)
    assert loaded <= loaded_after("import click", slow_to_load)


def test_frameworks_cost_nothing_to_those_who_do_not_use_them() -> None:
    program = """
from click.testing import CliRunner
import epsilometer as em
from epsilometer.cli.main import main
assert em.audit(em.Scores([3.0] * 100, [0.0] * 100), 1.0, delta=1e-5).verdict == "refuted"
assert CliRunner().invoke(main, ["audit", "--help"]).exit_code == 0
import sys
print(*(name for name in sys.modules if name.startswith("epsilometer.integrations.")))
"""
    extras = [*HEAVY[:2], "opacus", "jax", "jax_privacy", "keras", "grain", "lightning", "wandb"]
    more = ["transformers", "datasets", "peft", "trl", "accelerate", "huggingface_hub", "mlflow"]
    assert loaded_after(program, [*extras, *more, "tensorflow", "tensorboard", "flwr"]) == set()


def test_every_public_name_resolves_to_the_thing_of_that_name() -> None:
    for name in set(epsilometer.__all__) - {"__version__"}:
        assert getattr(epsilometer, name).__name__.removeprefix("epsilometer.") == name
    assert sorted(dir(epsilometer)) == sorted(epsilometer.__all__)


def test_public_names_are_those_shown_to_type_checkers() -> None:
    tree = ast.parse((PACKAGE / "__init__.py").read_text("utf-8"))
    guarded = [
        node
        for block in tree.body
        if isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING"
        for node in block.body
    ]
    homes = {
        alias.name: node.module
        for node in guarded
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    aliases = [alias for node in guarded for alias in getattr(node, "names", [])]
    # Without "as" a strict type checker of a user says that we do not export the name.
    assert [alias.name for alias in aliases if alias.asname != alias.name] == []
    assert set(homes) | {"__version__"} == set(epsilometer.__all__)
    assert len(set(epsilometer.__all__)) == len(epsilometer.__all__)
    for name, home in homes.items():
        assert getattr(epsilometer, name) is getattr(sys.modules[home], name)


def test_unknown_names_are_missing_as_in_any_module() -> None:
    with pytest.raises(AttributeError, match="no attribute 'no_such_name'"):
        _ = epsilometer.no_such_name  # type: ignore[attr-defined]
    assert not hasattr(epsilometer, "numpy")


def test_there_are_few_public_names() -> None:
    assert len(epsilometer.__all__) <= 70


def test_every_public_name_says_what_it_is_with_an_example() -> None:
    """``make check`` runs the examples."""
    for name in set(epsilometer.__all__) - {"__version__"}:
        text = getattr(epsilometer, name).__doc__
        assert text, name
        assert not text.startswith(f"{name}("), name  # what dataclass writes when nobody else does
        assert doctest.DocTestParser().get_examples(text), name


def test_every_part_of_a_public_namespace_has_an_example() -> None:
    spaces = [getattr(epsilometer, name) for name in epsilometer.__all__]
    spaces = [each for each in spaces if inspect.ismodule(each)]
    assert len(spaces) >= 6
    parts = {
        f"{each.__name__}.{name}": getattr(each, name) for each in spaces for name in each.__all__
    }
    without = [name for name, part in parts.items() if ">>>" not in (part.__doc__ or "")]
    assert without == []


def _public_definitions(path: Path) -> list[ast.AST]:
    kinds = (ast.FunctionDef, ast.ClassDef)
    top = [
        node
        for node in ast.parse(path.read_text("utf-8")).body
        if isinstance(node, kinds) and not node.name.startswith("_")
    ]
    methods = [
        node
        for owner in top
        if isinstance(owner, ast.ClassDef)
        for node in owner.body
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_")
    ]
    return [*top, *methods]


def test_every_public_definition_has_a_docstring() -> None:
    bare = [
        f"{path.relative_to(PACKAGE)}: {getattr(node, 'name', 'module')}"
        for path in sorted(PACKAGE.rglob("*.py"))
        for node in (ast.parse(path.read_text("utf-8")), *_public_definitions(path))
        if not ast.get_docstring(node)  # type: ignore[arg-type]
    ]
    assert bare == []


def test_stats_never_imports_scipy_stats() -> None:
    """It takes a second to load; scipy.special has all that is needed."""
    sources = {path: path.read_text("utf-8") for path in (PACKAGE / "stats").rglob("*.py")}
    assert sources
    assert [path.name for path, text in sources.items() if "scipy.stats" in text] == []


def test_no_modules_import_each_other_in_a_circle() -> None:
    """Imports inside functions and for type checkers count too."""
    graph = grimp.build_graph("epsilometer", exclude_type_checking_imports=False)
    sorter = graphlib.TopologicalSorter(
        {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    )
    sorter.prepare()  # raises CycleError with the circle
