from typing import Any

import numpy as np
import pytest

from epsilometer.audits.classifier.leave_one_out import pdtp as rounding
from tests.conftest import cases


@pytest.mark.parametrize(("inputs", "expected"), cases("c10", "bin"))
def test_reference_cases(inputs: dict[str, Any], expected: dict[str, Any]) -> None:
    assert rounding.bin_centres(inputs["p"]) == pytest.approx(expected["centre"], abs=1e-12)


@pytest.mark.parametrize(("inputs", "expected"), cases("c10", "pdtp-binned"))
def test_the_largest_value_there_is(inputs: dict[str, Any], expected: dict[str, Any]) -> None:
    np.testing.assert_allclose(rounding.LARGEST, expected["max_pdtp"], atol=1e-12)


def test_edges_belong_to_the_bin_above() -> None:
    """However they were computed: as quotients, as products, or through a logarithm."""
    k = np.arange(100)
    middles = (k + 0.5) / 100
    for edges in (k / 100, k * 0.01, np.exp(np.log(np.maximum(k, 1e-300) / 100))):
        np.testing.assert_allclose(rounding.bin_centres(edges), middles, rtol=1e-12)
    np.testing.assert_allclose(rounding.bin_centres(k / 100 + 0.00999), middles, rtol=1e-12)
    with np.errstate(all="ignore"):  # the plain way is wrong for some of them
        assert (np.floor(k / 100 * 100) != k).any()
