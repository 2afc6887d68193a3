"""The example of a torch loop without Opacus: right as it is, wrong with its mistake."""

import runpy
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "torch_loop" / "step.py"


@pytest.mark.parametrize("clip_mean", [False, True])
def test_the_example_is_found_wrong_where_it_is(clip_mean: bool) -> None:
    check = runpy.run_path(str(EXAMPLE))["check"]
    found = check(clip_mean=clip_mean).conformance
    assert found.verdict == ("violated" if clip_mean else "conforms")
