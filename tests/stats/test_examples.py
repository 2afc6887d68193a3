"""Examples of docstrings hold. `make check` runs them too, but a mutant is judged by tests/."""

import doctest
import importlib
import pkgutil
from types import ModuleType

import pytest

from epsilometer import stats

MODULES = [
    importlib.import_module(found.name)
    for found in pkgutil.walk_packages(stats.__path__, "epsilometer.stats.")
]
EXAMPLES = [
    pytest.param(module, name, id=f"{module.__name__}.{name}")
    for module in MODULES
    for name, thing in vars(module).items()
    if getattr(thing, "__module__", None) == module.__name__
    and ">>>" in (thing.__doc__ or "")
    and "__mutmut" not in name
]


@pytest.mark.parametrize(("module", "name"), EXAMPLES)
def test_example_holds(module: ModuleType, name: str) -> None:
    text = vars(module)[name].__doc__
    example = doctest.DocTestParser().get_doctest(text, dict(vars(module)), name, None, 0)
    assert doctest.DocTestRunner().run(example).failed == 0


def test_there_are_examples() -> None:
    assert len(EXAMPLES) > 30
