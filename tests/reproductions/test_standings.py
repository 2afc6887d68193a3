"""Standings follow from numbers: each by an example, joint tests by how often they are wrong."""

import importlib
import re
from pathlib import Path

import numpy as np
import pytest

from epsilometer.cli.reproduce import Expect, Item, Row, Stated, import_from, list_papers

ROOT = Path(__file__).parents[2] / "reproductions"
with import_from(ROOT):
    standings = importlib.import_module("standings")
PAPERS = list_papers()
ITEMS = [
    pytest.param(item, id=f"{name}-{item.name}")
    for name, paper in PAPERS.items()
    for item in paper.items
]


def table(*rows, **how):
    """An item of some rows."""
    rows = tuple(Row(**({"name": f"row {i}", "why": "Since."} | row)) for i, row in enumerate(rows))
    return Item(
        name="table", title="Table", measure="a:b", quick={}, full={}, files=(), rows=rows, **how
    )


def line(published, ours, **how):
    """A row of two numbers with spreads, as text."""
    stated = []
    for text in (published, ours):
        value, _, spread = text.partition(" ± ")
        stated.append(Stated(value=value, spread=spread))
    return {"published": stated[0], "ours": stated[1], **how}


def standing(*rows, **how):
    """That of the first row."""
    return standings.decide(table(*rows, **how))["row 0"]


@pytest.mark.parametrize(
    ("published", "ours", "runs", "expected"),
    [
        ("1.00 ± 0.10", "1.25 ± 0.10", 1, "agrees"),  # 0.25 of 2 √2 0.1 = 0.28
        ("1.00 ± 0.10", "1.35 ± 0.10", 1, "differs"),
        ("1.00 ± 0.10", "1.25 ± 0.10", 4, "differs"),  # four runs each: half the error
        ("1.00", "1.25 ± 0.10", 1, "agrees"),  # ours stands for theirs
        ("1.00", "1.35 ± 0.10", 1, "differs"),
        ("1.00", "1.01", 1, "cannot tell"),  # no spread at all
        ("0.31", "0.54 ± 0.60", 1, "cannot tell"),  # 0.01 would have passed
        ("2.60", "0.54 ± 0.60", 1, "differs"),  # but this could fail, and does
        ("1.60", "0.54 ± 0.60", 1, "agrees"),  # and this could have
        ("6.24", "6.25 ± 0.00", 1, "differs"),
        ("1.0, 2.0", "1.1, 2.1", 1, "cannot tell"),
    ],
)
def test_numbers_with_chance_in_them(published, ours, runs, expected):
    assert standing(line(published, ours), runs=runs, published_runs=runs) == expected


def test_several_numbers_agree_where_each_does():
    near = Stated(value="1.05, 2.05", spread="0.10, 0.10")
    far = Stated(value="1.05, 2.50", spread="0.10, 0.10")
    published = Stated(value="1.00, 2.00")
    assert standing({"published": published, "ours": near}) == "agrees"
    assert standing({"published": published, "ours": far}) == "differs"


@pytest.mark.parametrize(
    ("published", "ours", "expected"),
    [
        (Stated(value="25.63"), Stated(value="25.6295"), "agrees"),
        (Stated(value="25.63"), Stated(value="25.6349"), "agrees"),
        (Stated(value="25.63"), Stated(value="25.6351"), "differs"),
        (Stated(value="0.73"), Stated(value="0.718"), "differs"),
        (Stated(value="300"), Stated(value="299.83"), "agrees"),
        (Stated(value="3.00"), Stated(value="2.970", low="2.917", high="3.023"), "agrees"),
        (Stated(value="3.00"), Stated(value="2.885", low="2.847", high="2.923"), "differs"),
        (Stated(value="∞"), Stated(value="inf"), "agrees"),
        (Stated(value="−0.50"), Stated(value="0.50"), "differs"),
    ],
)
def test_digits_must_be_met_where_no_chance_is(published, ours, expected):
    assert standing({"published": published, "ours": ours, "exact": True}) == expected


def test_what_is_missing_is_said():
    assert standing({"published": Stated(value="1")}) == "not measured"
    assert standing({"ours": Stated(value="1")}) == "only ours"
    assert standing({"published": Stated(text="a bar"), "ours": Stated(value="1")}) == "cannot tell"


@pytest.mark.parametrize(
    ("ours", "expected"),
    [
        (("5.0", "7.0"), "same direction"),
        (("7.0", "5.0"), "differs"),
        (("5.0 ± 1.0", "7.0 ± 1.0"), "cannot tell"),  # 2 of 2 √2
        (("9.0 ± 1.0", "5.0 ± 1.0"), "differs"),
    ],
)
def test_other_data_are_compared_by_their_order(ours, expected):
    rows = [line("10", ours[0]), line("20", ours[1])]
    assert standing(*rows, setting="other") == expected


def test_the_order_is_that_of_the_group():
    rows = [line("10", "5", group="a"), line("20", "1", group="b"), line("30", "9", group="a")]
    assert standing(*rows, setting="other") == "same direction"
    assert standing(line("10", "5"), setting="other") == "cannot tell"  # nothing to order by


@pytest.mark.parametrize(
    ("ours", "expected"), [("5, 6, 4", "same direction"), ("5, 4, 6", "differs")]
)
def test_numbers_of_a_list_are_ordered_among_themselves(ours, expected):
    assert standing(line("2, 3, 1", ours), setting="other") == expected


@pytest.mark.parametrize(
    ("expect", "ours", "expected"),
    [
        (Expect(above=("row 1",)), "3.0 ± 0.1", "same direction"),
        (Expect(above=("row 1",)), "1.0 ± 0.1", "differs"),
        (Expect(above=("row 1",)), "2.1 ± 0.1", "cannot tell"),
        (Expect(above=("row 1",)), "2.0 ± 0.1", "cannot tell"),  # alike, by chance
        (Expect(below=(2.5, "row 1")), "1.0", "same direction"),
        (Expect(below=(0.5, "row 1")), "1.0", "differs"),
        (Expect(at_most=(0.665,)), "0.665", "same direction"),
        (Expect(above=(0,)), "0", "differs"),
        (Expect(equals=("row 1",)), "2.0", "agrees"),
        (Expect(equals=("row 1",)), "2.1", "differs"),
        (Expect(near=("row 1",)), "2.1 ± 0.1", "same direction"),
        (Expect(near=("row 1",)), "2.9 ± 0.1", "differs"),
        (Expect(shape="rises"), "1, 2, 4", "same direction"),
        (Expect(shape="rises"), "1, 4, 2", "differs"),
        (Expect(shape="jumps, then stays"), "1.0, 2.2, 2.1, 2.3", "same direction"),
        (Expect(shape="jumps, then stays"), "1.0, 1.2, 1.4, 1.6", "differs"),
        (Expect(part=2, above=(1,)), "0, 2", "same direction"),
    ],
)
def test_words_are_compared_by_what_they_demand(expect, ours, expected):
    said = line("", ours) | {"published": Stated(text="so it is"), "expect": expect}
    assert standing(said, line("1", "2.0 ± 0.1")) == expected


@pytest.mark.parametrize(
    ("value", "spread", "expected"),
    [
        ("1.0, 2.2, 2.1", "0.1, 0.1, 0.1", "same direction"),
        ("1.0, 2.2, 2.1", "0.5, 0.5, 0.5", "cannot tell"),
        ("1.0, 2.2, 3.1", "0.1, 0.1, 0.1", "differs"),
    ],
)
def test_a_jump_is_judged_beside_its_errors(value, spread, expected):
    said = line("", "0") | {
        "published": Stated(text="so it is"),
        "ours": Stated(value=value, spread=spread, runs=1),
        "expect": Expect(shape="jumps, then stays"),
    }
    assert standing(said) == expected


@pytest.mark.parametrize(
    ("spread", "expected"), [("0.1", "same direction"), ("0.05", "differs"), ("1.0", "cannot tell")]
)
def test_a_level_line_could_have_fallen(spread, expected):
    said = line("", "0") | {
        "published": Stated(text="so it is"),
        "ours": Stated(value="2.0, 2.2, 1.9", spread=", ".join([spread] * 3), runs=1),
        "expect": Expect(shape="stays"),
    }
    assert standing(said) == expected


def test_one_sided_rows_differ_jointly_though_each_agrees():
    rows = [line(f"{value:.2f}", f"{value - 1.9:.2f} ± 1.00") for value in (10, 20, 30, 40, 50)]
    item = table(*rows, runs=100)
    assert set(standings.decide(item).values()) == {"agrees"}
    (found,) = standings.compare_jointly(item)
    assert (found.count, found.beyond, found.low) == (5, 0, 5)
    assert standings.differs_jointly([found])


def test_one_number_of_many_that_is_far_off_differs_jointly():
    ours = Stated(value="1.000, 2.000, 3.000", spread="0.100, 0.100, 0.100")
    near, far = (Stated(value=text) for text in ("1.10, 2.10, 2.90", "1.10, 2.60, 2.90"))
    for published, expected in ((near, False), (far, True)):
        tests = standings.compare_jointly(table({"published": published, "ours": ours}, runs=100))
        assert standings.differs_jointly(tests) == expected


@pytest.mark.parametrize("spread_of_theirs", [True, False])
def test_joint_tests_are_wrong_no_more_often_than_they_say(spread_of_theirs):
    """Tables of five rows in two groups of one law: 5 % of 600 is 30, and 51 is 4 deviations."""
    rng = np.random.default_rng(3)
    wrong = 0
    for _ in range(600):
        rows = []
        for i in range(10):
            ours = rng.normal(100, 10, 10)
            theirs = rng.normal(100, 10, 4)
            spread = f" ± {theirs.std(ddof=1):.4f}" if spread_of_theirs else ""
            rows.append(
                line(
                    f"{theirs.mean():.4f}{spread}",
                    f"{ours.mean():.4f} ± {ours.std(ddof=1):.4f}",
                    group="ab"[i % 2],
                )
            )
        item = table(*rows, runs=10, published_runs=4)
        wrong += standings.differs_jointly(standings.compare_jointly(item))
    assert wrong <= 51


@pytest.mark.parametrize("item", ITEMS)
def test_rows_of_papers_can_be_decided(item):
    found = standings.decide(item)
    names = {row.name for row in item.rows}
    for row in item.rows:
        assert row.why, row
        assert found[row.name] in (*standings.STANDINGS, standings.OURS_ALONE)
        if row.published.text and row.ours.value:
            assert row.expect != Expect(), row  # words demand something
        for names_of in (row.expect.above, row.expect.below, row.expect.near, row.expect.equals):
            assert {name for name in names_of if isinstance(name, str)} <= names, row


@pytest.mark.parametrize("paper", PAPERS.values(), ids=PAPERS)
def test_nobody_types_a_standing(paper):
    text = (paper.folder / "paper.toml").read_text("utf-8")
    words = (*standings.STANDINGS, "within error", "direction only", "not reproduced")
    assert [word for word in words if re.search(rf"\b{word}\b", text, re.IGNORECASE)] == []
