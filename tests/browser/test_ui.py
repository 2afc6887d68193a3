"""``epsilometer ui`` in a real browser: live, read-only, and for nobody without the token."""

import contextlib
import hashlib
import json
import re
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import epsilometer as em
from epsilometer.engine.run_state import read_state
from epsilometer.errors import EpsilometerError

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")


def play(runs: int, rng: np.random.Generator) -> em.Scores:
    return em.Scores(inside=rng.normal(4, 1, runs), outside=rng.normal(0, 1, runs))


def explode(runs: int, rng: np.random.Generator) -> em.Scores:
    raise ValueError("secret=1")


def ask(address: str, **headers: str) -> int:
    """The status of an answer; 0 where nobody listens."""
    try:
        with urllib.request.urlopen(urllib.request.Request(address, headers=headers)) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        error.close()
        return error.code
    except OSError:
        return 0


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two finished runs, of which one is called as nobody should."""
    folder = tmp_path_factory.mktemp("runs")
    for name, runs in (("v1", 400), ("v2 <b>&", 900)):
        subject = em.Runs(play, runs=runs)
        em.audit(subject, 3.0, delta=1e-5, out=folder / name, engine=em.InProcess())
    return folder


@pytest.fixture(scope="module")
def address(folder: Path) -> Iterator[str]:
    call = [sys.executable, "-c", "from epsilometer.cli.main import main; main()", "ui", folder]
    served = subprocess.Popen(call, stdout=subprocess.PIPE, text=True)
    assert served.stdout is not None
    yield served.stdout.readline().removeprefix("Open: ").strip()
    served.terminate()
    served.wait(20)
    served.stdout.close()


@pytest.fixture
def page(browser: Any, address: str) -> Iterator[Any]:
    context = browser.new_context()
    page = context.new_page()
    page.complaints = []
    page.on("console", lambda m: page.complaints.append(m.text))
    page.on("pageerror", lambda error: page.complaints.append(str(error)))
    for _ in range(300):
        if ask(address.partition("?")[0]):
            break
        time.sleep(0.1)
    page.goto(address)
    yield page
    context.close()


def test_without_the_token_nothing_is_answered(page: Any, address: str) -> None:
    home, _, _ = address.partition("?")
    for path in ("", "run?path=v1", "events?path=v1", "report?path=v1", "static/htmx.min.js"):
        for token in ("", "?token=wrong"):
            assert ask(home + path + (token if "?" not in path else "")) == 403
    assert ask(address, Host="evil.example") == 400
    assert home.startswith("http://127.0.0.1:")


def test_runs_are_listed_opened_and_compared(page: Any) -> None:
    assert "token" not in page.url  # it is in a cookie now
    assert page.locator("tbody tr").count() == 2
    assert page.locator(".badge.bad").count() == 2
    page.get_by_role("link", name="v1", exact=True).click()
    assert "Claim false" in page.locator(".headline").text_content()
    page.get_by_role("link", name="Report").click()
    assert page.locator("#evidence").count() == 1
    page.go_back()
    page.go_back()
    page.get_by_role("button", name="Compare A and B").click()
    assert "views differ" in page.locator("h1").text_content()
    assert page.complaints == []


@pytest.mark.parametrize(
    "path", ["../", "..%2F..%2Fetc%2Fpasswd", "/etc", "nowhere", "v1/log.jsonl"]
)
def test_nothing_else_is_read(path: str, page: Any) -> None:
    for where in ("run", "report", "events"):
        answer = page.request.get(f"{page.url}{where}?path={path}")
        assert answer.status == 404
        assert "root:" not in answer.text()


def test_only_reading_is_answered(page: Any, folder: Path) -> None:
    before = sorted((p, p.stat().st_mtime_ns) for p in folder.rglob("*") if p.is_file())
    for method in ("post", "put", "delete"):
        assert getattr(page.request, method)(f"{page.url}run?path=v1").status == 405
    page.goto(f"{page.url}run?path=v1")
    after = sorted((p, p.stat().st_mtime_ns) for p in folder.rglob("*") if p.is_file())
    assert [each for each in after if each[0].name != "lock"] == [
        each for each in before if each[0].name != "lock"
    ]


def test_a_run_is_followed_live_to_its_end(page: Any, folder: Path) -> None:
    """A real run in another process; the page is loaded once."""
    code = "from epsilometer.cli.main import main; main()"
    call = [sys.executable, "-c", code, "demo", "--runs", "1500", "--workers", "1", "--quiet"]
    run = subprocess.Popen([*call, "--out", folder / "live"], stdout=subprocess.DEVNULL)
    try:
        while not (folder / "live" / "plan.json").exists():
            assert run.poll() is None
            time.sleep(0.1)
        page.goto(f"{page.url}run?path=live")
        loaded = page.evaluate("() => performance.timeOrigin")
        seen = set()
        for _ in range(1200):
            text = page.locator("#state").inner_text()
            seen |= set(re.findall(r"(\d+) of 12 units", text))
            if page.locator("#state .headline").count():
                break
            page.wait_for_timeout(100)
        assert len(seen) > 2, text  # it moved
        assert "Claim false" in page.locator(".headline").text_content()
        assert page.locator("svg polyline").count() == 1
        assert "claimed ε = 3" in page.locator("svg .limit-said").text_content()
        assert page.evaluate("() => performance.timeOrigin") == loaded
        assert page.complaints == []
    finally:
        run.wait(120)
        shutil.rmtree(folder / "live")


def test_units_that_failed_are_shown_by_the_kind_of_their_error(page: Any, folder: Path) -> None:
    subject = em.Runs(explode, runs=4)
    with contextlib.suppress(EpsilometerError):
        em.audit(subject, 3.0, delta=1e-5, out=folder / "broken", engine=em.InProcess())
    try:
        assert read_state(folder / "broken").failures
        page.goto(f"{page.url}run?path=broken")
        assert "ValueError" in page.locator(".failed").text_content()
        assert "secret" not in page.content()
    finally:
        shutil.rmtree(folder / "broken")


def test_axe_finds_nothing(page: Any) -> None:
    from tests.browser.test_access import found

    assert found(page) == []
    page.get_by_role("link", name="v1", exact=True).click()
    assert found(page) == []


def test_htmx_is_as_it_was_released() -> None:
    files = resources.files("epsilometer.cli").joinpath("vendor/htmx")
    known = json.loads(files.joinpath("VENDORED.json").read_text("utf-8"))
    assert set(known["sha256"]) == {file.name for file in files.iterdir()} - {"VENDORED.json"}
    for name, digest in known["sha256"].items():
        assert hashlib.sha256(files.joinpath(name).read_bytes()).hexdigest() == digest
