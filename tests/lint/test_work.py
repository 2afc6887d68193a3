"""A file twice as long is twice the work, however it was made so: calls are counted."""

import sys
from collections.abc import Callable
from textwrap import indent

import pytest

from epsilometer.lint.run import lint_source
from epsilometer.zoo.linting import list_sources

FEW = 5
PROGRAMS = list_sources()[::5]
HEAD = (
    "import functools\nimport tensorflow as tf\nfrom jax_privacy import execution_plan\n"
    "from private_transformers import PrivacyEngine\n"
    "plan = execution_plan.DpsgdConfig(iterations=100)\ndata = tf.data.Dataset.range(5)\n"
)
ENGINE = "engine = PrivacyEngine(model, batch_size=5, sample_size=9, epochs=1, target_epsilon=3)"


def work(text: str) -> int:
    lint_source("")  # reads the tables of libraries, once
    calls, before = 0, sys.getprofile()

    def count(*_: object) -> None:
        nonlocal calls
        calls += 1

    sys.setprofile(count)
    try:
        lint_source(text)
    finally:
        sys.setprofile(before)
    return calls


def in_functions(text: str, times: int) -> str:
    return "".join(f"def f{i}():\n{indent(text, '  ')}\n  pass\n" for i in range(times))


@pytest.mark.parametrize(
    "repeat",
    [
        lambda text, times: text * times,
        pytest.param(in_functions, marks=pytest.mark.slow),
        lambda text, times: f"for _ in x:\n  pass\n{indent(text, '  ') * times}",
        pytest.param(
            lambda text, times: f"if x:\n  pass\n{indent(text, '  ') * times}",
            marks=pytest.mark.slow,
        ),
    ],
    ids=["flat", "functions", "loop", "if"],
)
def test_code_that_is_repeated(repeat: Callable[[str, int], str]) -> None:
    for program in PROGRAMS:
        text = program.source + "\n"
        assert work(repeat(text, 2 * FEW)) < 2.2 * work(repeat(text, FEW)), program.id


@pytest.mark.parametrize(
    "lines",
    [
        lambda n: [f"d = {dict.fromkeys(map(str, range(n)))}", *["f(**d)"] * n],
        lambda n: [f"p = functools.partial(f, {'1, ' * n})", *["p()"] * n],
        lambda n: [*(f"from a{i} import b" for i in range(n)), *["b()"] * n],
        lambda n: [*(f"from a{i} import *" for i in range(n)), *["b()"] * n],
        lambda n: ["data = data.shuffle(9).batch(3)"] * n,
        lambda n: ["for epoch in x:", *[f"  {ENGINE}"] * n],
        lambda n: ["def f():", *[f"  {ENGINE}"] * n, "for epoch in x:", *["  f()"] * n],
    ],
    ids=["dictionary", "partial", "imports", "stars", "chain", "engines", "called"],
)
@pytest.mark.in_turn(3)
def test_code_that_nobody_wrote(lines: Callable[[int], list[str]]) -> None:
    few, many = (work(HEAD + "\n".join(lines(n))) for n in (250, 500))
    assert many < 2.2 * few
