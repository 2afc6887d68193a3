"""The demonstrations of examples/flower_bugs, at a small scale."""

import importlib.util
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from epsilometer.stats.gaussians import gaussian_epsilon

EXAMPLE = Path(__file__).parents[2] / "examples" / "flower_bugs" / "bugs.py"


@pytest.fixture(scope="module")
def bugs() -> Any:
    spec = importlib.util.spec_from_file_location("flower_bugs", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["flower_bugs"] = module  # where dataclasses look their annotations up
    spec.loader.exec_module(module)
    return module


def test_equal_weights_are_as_private_as_promised(bugs: Any) -> None:
    found = bugs.equal_weights(bugs.Scale(canaries=400, clients=100, weights=20_000))
    assert found.verdict == "not refuted"
    assert found.epsilon > 3  # what is there is seen
    assert found.estimates[1].low < bugs.EPSILON < found.estimates[1].high + 1


@pytest.mark.slow
def test_whoever_has_more_examples_is_exposed(bugs: Any) -> None:
    found = bugs.unequal_weights(bugs.Scale(canaries=300, clients=1500, weights=20_000))
    assert found.verdict == "violated"
    assert found.epsilon > bugs.EPSILON
    assert found.conformance.check("equal weights").outcome == "violated"
    assert found.estimates[1].low > 2 * bugs.EPSILON


@pytest.mark.slow
def test_a_server_learning_rate_leaves_too_little_noise(bugs: Any) -> None:
    found = bugs.server_learning_rate(bugs.Scale(canaries=500, clients=100, weights=20_000))
    assert found.verdict == "violated"
    assert found.epsilon > bugs.EPSILON
    assert found.conformance.check("multiple of the mean").outcome == "violated"
    assert found.estimates[1].low > 1.5 * bugs.EPSILON


def test_fedadam_leaves_next_to_no_noise(bugs: Any) -> None:
    found = bugs.fedadam(bugs.Scale(canaries=300, clients=100, weights=20_000))
    assert found.verdict == "violated"
    assert found.epsilon > bugs.EPSILON
    assert found.estimates[0].low > 5 * bugs.EPSILON


@pytest.mark.slow
def test_noise_is_for_the_clipping_norm_of_the_next_round(bugs: Any) -> None:
    scale = bugs.Scale(canaries=600, clients=20, weights=60_000)
    found = bugs.adaptive_clipping(scale)
    assert found.verdict == "violated"
    assert found.views[0].epsilon > bugs.EPSILON
    seen = found.conformance.check("noise scale").value
    assert seen == pytest.approx(np.exp(-0.5), rel=0.15)  # Flower's noise is on the count
    truth = gaussian_epsilon(bugs.NOISE * np.exp(-0.5), bugs.DELTA)
    assert found.epsilon < truth + 2  # Flower's noise on the count moves the norm by 5 %
    still = bugs.adaptive_clipping(scale, clip_norm_lr=1e-9)
    assert still.verdict == "not refuted"  # it is the adaptation that breaks the promise


def test_adaptive_clipping_runs_away_from_the_median(bugs: Any) -> None:
    """From either side, by the same factor every round; the median norm is one half."""
    up, down = (bugs.clipping_norms(12, start=start, clients=10) for start in (0.6, 0.4))
    assert up[-1] > 2 * up[0]
    assert down[-1] < down[0] / 2
