import inspect
from collections.abc import Callable

import numpy as np
import pytest

import epsilometer as em
from epsilometer.errors import EpsilometerWarning

SCORES = em.Scores(np.linspace(0, 3, 500), np.linspace(-2, 1, 500), design="coins")
CALLS = {
    "bound": lambda: em.epsilon_lower_bound(SCORES, delta=0.1),
    "audit": lambda: em.audit(SCORES, delta=0.1),
    "cosines": lambda: em.audit(em.Cosines(np.linspace(-0.1, 0.1, 10), dimension=1000), delta=1e-5),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_warning_points_at_the_callers_line(call: Callable[[], object]) -> None:
    with pytest.warns(EpsilometerWarning) as told:
        call()
    line = inspect.getsourcelines(call)[1]
    assert [(each.filename, each.lineno) for each in told] == [(__file__, line)]  # once
