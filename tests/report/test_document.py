"""Renderers show blocks, whatever they are about; texts name what findings have."""

import ast
import io
import string
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import epsilometer.report
from epsilometer.core import bound, findings
from epsilometer.core.audit import Audit
from epsilometer.core.document import (
    Axis,
    Badge,
    Document,
    Fact,
    Facts,
    Figure,
    Figures,
    Notes,
    Scale,
    Section,
    Table,
    Verdict,
    plot,
)
from epsilometer.report.markdown import render_markdown
from epsilometer.report.page import render_page
from epsilometer.report.terminal import render_terminal
from epsilometer.report.texts import FORMATS, LOOKUPS, TEXTS
from tests.report.skeleton import Skeleton

FIGURE = Figure(
    key="tides",
    title="Tides",
    caption="By hour.",
    alt="Higher at noon.",
    x=Axis(0.0, 1.0, title="hour"),
    y=Axis(0.0, 1.0, title="metres"),
    series=(plot("level", "line", "attack", [0.0, 1.0], [0.2, 0.9]),),
)
DOCUMENT = Document(
    title="a harbour",
    verdict=Verdict(
        finding="It is deep.", badge=Badge("deep", "good"), lead="At noon.", headline="DEEP: it is."
    ),
    notes=("One gauge failed.",),
    summary=(
        Facts(title="Gauges", rows=(Fact("north", "2 m", Badge("FINE", "good")),), style="reasons"),
        Scale(title="Depths", rows=(), ticks=((0.0, "0"),), claim=50.0, claimed="claimed 3 m"),
    ),
    blocks=(
        Figures(title="Figures", figures=(FIGURE,)),
        Figures(figures=(FIGURE,), stem="2-", aside=True),
        Table(title="Ships", head=("ship", "depth"), rows=(("Anna", "1 m"),) * 25, note="By name."),
        Section(title="Meaning", blocks=(Notes(lines=("Ships may enter.",)),)),
        Section(
            title="Again", blocks=(Notes(lines=("sound --again",), style="code"),), brief=False
        ),
    ),
)


def test_a_document_about_anything_is_shown_everywhere() -> None:
    page = Skeleton(render_page(DOCUMENT, {"harbour": 1}, is_cut=False))
    console = Console(width=100, file=io.StringIO())
    console.print(render_terminal(DOCUMENT))
    terminal = console.file.getvalue()  # type: ignore[attr-defined]
    markdown = render_markdown(DOCUMENT)
    for text in (page.text, terminal, markdown):
        for part in ("a harbour", "One gauge failed.", "north", "2 m", "FINE", "Anna", "By name."):
            assert part in text
        assert "Ships may enter." in text
    assert "Higher at noon." in page.text
    assert "<summary>Again</summary>" in markdown
    assert "sound --again" not in terminal  # not brief
    for text in (terminal, markdown):
        assert "And 5 more." in text
    charts = [value for _, name, value in page.attributes if name == "data-chart"]
    assert charts == ["0"]  # those aside are not on the page


def test_pictures_of_a_document_are_named_by_their_keys(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from epsilometer.report.drawing import save_figures

    written = save_figures(DOCUMENT, tmp_path, formats=("svg",))
    assert [path.name for path in written] == ["tides.svg", "2-tides.svg"]


@pytest.mark.parametrize("name", ["page", "terminal", "markdown", "drawing"])
def test_renderers_know_no_kind_of_finding(name: str) -> None:
    source = Path(epsilometer.report.__file__).with_name(f"{name}.py").read_text("utf-8")
    modules = {n.module for n in ast.walk(ast.parse(source)) if isinstance(n, ast.ImportFrom)}
    assert "epsilometer.core.document" in modules
    assert not modules & {"epsilometer.core.findings", "epsilometer.core.bound"}


def _named_texts() -> list[tuple[type, str]]:
    """Every text with the type whose fields it names."""
    types: dict[str, Any] = {**vars(findings), **vars(bound), "Audit": Audit}
    named: list[tuple[type, str]] = []
    for kind, rows in TEXTS["facts"].items():
        named += [(types[kind], text) for row in rows for text in row[:2]]
        named += [(types[kind], f"{{{row[2]}}}") for row in rows if len(row) > 2]
    for spec in TEXTS["tables"]:
        kind = findings.Check if spec.get("each") == "checks" else types[spec["of"]]
        named += [(kind, text) for text in spec["columns"].values()]
        named += [(types[spec["of"]], spec.get("note", ""))]
    for key, kind in (("bounds", "EpsilonLowerBound"), ("estimates", "EpsilonEstimate")):
        named += [(types[kind], text) for text in TEXTS[key]["columns"].values()]
    named += [(types["RecordRisk"], text) for text in TEXTS["records"]["columns"].values()]
    lines = [line for said in TEXTS["meaning"].values() for line in said]
    for sections in TEXTS["explanations"].values():
        lines += [line for section in sections for line in section["lines"]]
    return [*named, *((types[line.get("of", "Audit")], line["say"]) for line in lines)]


def test_texts_name_fields_and_formats_that_there_are() -> None:
    for kind, text in _named_texts():
        for _, field, spec, _ in string.Formatter().parse(text):
            if field is not None:
                name = field.partition(".")[0].partition("[")[0]
                assert name in LOOKUPS or hasattr(kind, name), (kind, text)
                assert spec in FORMATS or format(1.0, spec or ""), (kind, text)
