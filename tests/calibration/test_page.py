"""The pages of rates: the short one is made of the full one."""

from tests.calibration.__main__ import PAGE, RATES, shorten


def test_the_short_page_is_made_of_every_cell() -> None:
    assert PAGE.read_text("utf-8") == shorten(RATES.read_text("utf-8"))


def test_the_short_page_has_the_worst_cell_of_each_bound() -> None:
    rates = RATES.read_text("utf-8")
    row = "| papers: `clopper_pearson` Published | **16.8%** | **28.2%** |"
    assert row in rates
    found = shorten(rates.replace(row, row.replace("28.2%", "77.7%")))
    assert "| papers: `clopper_pearson` Published | **77.7%** |" in found
