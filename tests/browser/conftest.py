"""The page in a real browser, opened as a file, watched from the start."""

import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest
from msgspec.structs import replace

from epsilometer import Claim, Scores, gdp_curve
from epsilometer._dispatch import audit as run_audit
from epsilometer.core.audit import Audit
from epsilometer.core.findings import Curve, EpsilonFinding
from epsilometer.report.page import page as page_of
from tests.examples import a_record

ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


def _missing(what: str) -> NoReturn:
    message = f"{what} is missing. Get a browser for these tests with: make browser"
    if "CI" in os.environ:
        pytest.fail(message)  # there a skip would pass for a success
    pytest.skip(message)


def find_browser(playwright: Any) -> str | None:
    """Return an installed browser, or Playwright's own; None where there is neither."""
    installed = filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome")))
    own = playwright.chromium.executable_path
    return next(installed, own if Path(own).exists() else None)


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    try:
        from playwright.sync_api import sync_playwright
    except ModuleNotFoundError:
        _missing("playwright")
    with sync_playwright() as playwright:
        found = find_browser(playwright) or _missing("chromium")
        started = playwright.chromium.launch(executable_path=found, args=ARGUMENTS)
        yield started
        started.close()


@dataclass
class Opened:
    """A page, and all that it said and asked for."""

    page: Any
    complaints: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)


@pytest.fixture
def open_page(browser: Any, tmp_path: Path) -> Iterator[Callable[..., Opened]]:
    contexts = []

    def opened(audit: Audit, **options: Any) -> Opened:
        path = tmp_path / "report.html"
        path.write_text(page_of(audit), "utf-8")
        context = browser.new_context(**{"viewport": {"width": 1280, "height": 800}, **options})
        contexts.append(context)
        page = context.new_page()
        made = Opened(page)
        page.on("console", lambda m: made.complaints.append(f"{m.type}: {m.text}"))
        page.on("pageerror", lambda error: made.complaints.append(str(error)))
        page.on("dialog", lambda d: (made.complaints.append(f"dialog: {d.message}"), d.dismiss()))
        page.on("request", lambda request: made.requests.append(request.url))
        page.goto(path.as_uri())
        return made

    yield opened
    for context in contexts:
        context.close()


@pytest.fixture(scope="session")
def refuted() -> Audit:
    """An audit with everything that the page of a view can show."""
    return _audit(1.9, records=250)


@pytest.fixture(scope="session")
def views(refuted: Audit) -> Audit:
    """Two views, of which one refutes the claim."""
    other = replace(_audit(0.6, records=0).views[0], subject="The final model")
    return replace(refuted, subject="Two views", findings=(*refuted.views, other))


def _audit(mu: float, *, records: int) -> Audit:
    rng = np.random.default_rng(0)
    fpr = np.linspace(0, 1, 41)
    law = Curve(name="PLD", fpr=tuple(fpr.tolist()), fnr=tuple(gdp_curve(fpr, mu=0.6).tolist()))
    audit = run_audit(
        Scores(
            inside=rng.normal(mu, 1, 3000),
            outside=rng.normal(0, 1, 3000),
            also=("gdp", "jeffreys"),
            title="DP-SGD with its noise halved",
            adversary="Sees every noisy gradient.",
        ),
        Claim(3.0, delta=1e-5, adjacency="add_remove", accountant="PLD"),
    )
    (view,) = audit.find(EpsilonFinding)
    named = tuple(
        a_record(
            row=i,
            risk=float("inf") if i == 77 else float(i * 37 % 250),
            measure="attack score",
            note="rare" if i % 50 == 0 else "",
        )
        for i in range(records)
    )
    drawn = replace(view, evidence=replace(view.evidence, curves=(law,)))
    return replace(audit, findings=(drawn, *named))
