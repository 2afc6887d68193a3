"""The callback finds in Lightning what the same run by hand would show."""

import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import epsilometer as em
from epsilometer.errors import InvalidArgument
from tests.integrations.lightning.modules import Private, fit

WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "the loader of make_private was not handed over": ({"hand_over": False}, "batch sizes"),
    "shuffling": ({"poisson": False}, "batch sizes"),
    "half the noise": ({"noise": 0.5}, "noise scale"),
    "no noise": ({"noise": 0.0}, "noise scale"),
}
RIGHT: dict[str, dict[str, Any]] = {"Poisson sampling": {}, "more noise": {"noise": 1.5}}
EXAMPLE = Path(__file__).parents[3] / "examples" / "lightning" / "train.py"
COUNTS = {"caught": 0, "spared": 0}
pytestmark = [
    pytest.mark.filterwarnings("ignore::UserWarning"),  # of Lightning and Opacus about themselves
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


@pytest.fixture(scope="module", autouse=True)
def _print_counts(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    reporter = request.config.pluginmanager.get_plugin("terminalreporter")
    reporter.write_line(
        f"\nLightning: {COUNTS['caught']} of {len(WRONG)} wrong programs caught, "
        f"{COUNTS['spared']} of {len(RIGHT)} right ones spared"
    )


@pytest.mark.parametrize("name", WRONG)
def test_wrong_programs_are_caught_by_their_check(name: str) -> None:
    settings, check = WRONG[name]
    audit = fit(Private(**settings))
    assert audit.verdict == "violated"
    assert audit.conformance is not None
    violated = [each.name for each in audit.conformance.find("violated")]
    assert check in violated, violated
    COUNTS["caught"] += 1


@pytest.mark.parametrize("name", RIGHT)
def test_right_programs_are_spared(name: str) -> None:
    audit = fit(Private(**RIGHT[name]))
    assert audit.conformance is not None
    assert audit.conformance.find("violated") == ()
    assert len(audit.conformance.find("conforms")) >= 10
    assert audit.conformance.steps == 60
    COUNTS["spared"] += 1


def test_the_result_is_written_where_it_is_asked_for(tmp_path: Any) -> None:
    audit = fit(Private(), epochs=1, save=tmp_path / "audit.json")
    assert em.load(tmp_path / "audit.json").verdict == audit.verdict


def test_a_training_without_a_private_optimiser_is_refused() -> None:
    module = Private()
    module.optimizer = torch.optim.SGD(module.net.parameters(), lr=0.1)
    with pytest.raises(InvalidArgument, match="DPOptimizer"):
        fit(module, epochs=1)


def test_a_module_without_an_engine_is_refused() -> None:
    module = Private()
    engine, module.privacy_engine = module.privacy_engine, None
    with pytest.raises(InvalidArgument, match="found 0"):
        fit(module, epochs=1)
    assert fit(module, epochs=1, privacy_engine=engine).conformance is not None


@pytest.mark.parametrize("forget_loader", [False, True])
def test_the_example_runs(forget_loader: bool) -> None:
    train = runpy.run_path(str(EXAMPLE))["train"]
    found = train(forget_loader=forget_loader).conformance
    violated = {each.name for each in found.find("violated")}
    assert ("batch sizes" in violated) if forget_loader else not violated
