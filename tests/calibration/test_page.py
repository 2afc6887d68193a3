"""The pages of rates: the short one is made of the full one."""

import numpy as np

from tests.calibration.__main__ import PAGE, RATES, _replace_rows, shorten
from tests.calibration.counting import OURS
from tests.calibration.situations import SITUATIONS


def test_the_short_page_is_made_of_every_cell() -> None:
    assert PAGE.read_text("utf-8") == shorten(RATES.read_text("utf-8"))


def test_the_short_page_has_the_worst_cell_of_each_bound() -> None:
    rates = RATES.read_text("utf-8")
    row = "| papers: `clopper_pearson` Published | **16.8%** | **28.2%** |"
    assert row in rates
    found = shorten(rates.replace(row, row.replace("28.2%", "77.7%")))
    assert "| papers: `clopper_pearson` Published | **77.7%** |" in found


def test_rows_that_are_counted_again_take_the_place_of_the_old() -> None:
    bound = OURS[0]
    wrong = {(bound.name, s.name): np.full(1000, s.epsilon + 1) for s in SITUATIONS}
    old = RATES.read_text("utf-8").splitlines()
    new = _replace_rows([bound], wrong).splitlines()
    changed = [line for was, line in zip(old, new, strict=True) if line != was]
    assert [line.split(" | ")[0] for line in changed] == [f"| {bound.name}"] * 2
    assert changed[0].count("**100.0%**") == len(SITUATIONS)
