"""Serve the runs of a folder to a browser on this machine: read-only, with a token."""

import asyncio
import hmac
from collections.abc import AsyncIterator, Callable
from importlib import resources
from pathlib import Path
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined

from epsilometer._extras import needs
from epsilometer.cli import history_words
from epsilometer.cli.compare_page import compare_page
from epsilometer.cli.watching import word_state
from epsilometer.core import judge
from epsilometer.core.printing import one_line, printable
from epsilometer.core.serialisation import load
from epsilometer.core.words import claimed
from epsilometer.engine.run_state import RunState, read_state
from epsilometer.errors import EpsilometerError, UnreadableFile
from epsilometer.files.history.comparison import compare
from epsilometer.files.history.index import History
from epsilometer.files.stamps import read_stamp
from epsilometer.report.page import page
from epsilometer.report.tones import LOOKS

with needs("starlette", extra="ui"):
    from starlette.applications import Starlette
    from starlette.middleware import Middleware
    from starlette.middleware.trustedhost import TrustedHostMiddleware
    from starlette.requests import Request
    from starlette.responses import (
        HTMLResponse,
        PlainTextResponse,
        RedirectResponse,
        Response,
        StreamingResponse,
    )
    from starlette.routing import Route

_COOKIE = "epsilometer-token"
_BETWEEN = 1.0  # seconds
_WIDTH, _HEIGHT = 640, 240  # of the chart
_STATIC = {
    "htmx.min.js": ("vendor/htmx/htmx.min.js", "text/javascript"),
    "sse.min.js": ("vendor/htmx/sse.min.js", "text/javascript"),
    "ui.css": ("ui_templates/ui.css", "text/css"),
}
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
        "img-src 'self' data:; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


def make_app(folder: Path, token: str, *, between: float = _BETWEEN) -> Starlette:
    """Return the application: pages about the runs in a folder, and events while they run.

    Guarantee: nothing is written; nothing outside the folder is read; without the token nothing is
        answered.

    Args:
        folder: A folder that contains runs, at any depth.
        token: Token that every request must have.
        between: Seconds between two looks at a run.
    """
    return _Site(folder.resolve(), token, between).make_app()


class _Site:
    def __init__(self, folder: Path, token: str, between: float) -> None:
        self._folder, self._token, self._between = folder, token, between

    def make_app(self) -> Starlette:
        pages: dict[str, Callable[[Request], Any]] = {
            "/": self._show_index,
            "/run": self._show_run,
            "/events": self._send_events,
            "/report": self._show_report,
            "/compare": self._show_comparison,
            "/static/{name}": self._send_static,
        }
        routes = [Route(path, self._guard(answer)) for path, answer in pages.items()]
        hosts = Middleware(TrustedHostMiddleware, allowed_hosts=["127.0.0.1", "localhost"])
        return Starlette(routes=routes, middleware=[hosts])

    def _guard(self, answer: Callable[[Request], Any]) -> Callable[[Request], Any]:
        """Answer only requests with the token: in the address once, then in a cookie."""

        async def guarded(request: Request) -> Response:
            given = request.query_params.get("token")
            if given is not None and hmac.compare_digest(given.encode(), self._token.encode()):
                moved = RedirectResponse(request.url.remove_query_params("token").path)
                moved.set_cookie(_COOKIE, self._token, httponly=True, samesite="strict")
                return moved
            kept = request.cookies.get(_COOKIE, "")
            if not hmac.compare_digest(kept.encode(), self._token.encode()):
                return PlainTextResponse(
                    "Expected the token. Open the address that epsilometer ui printed.", 403
                )
            try:
                found: Response = await answer(request)
            except EpsilometerError as error:
                return PlainTextResponse(one_line(error.shareable), 404)
            return found

        return guarded

    async def _show_index(self, request: Request) -> Response:
        history = await asyncio.to_thread(History, self._folder)
        entries = sorted(history.select(), key=lambda entry: -entry.written)
        rows = [
            {
                "path": entry.label,
                "date": history_words.date(entry),
                "subject": one_line(entry.subject),
                "claim": history_words.claimed(entry),
                "found": history_words.found(entry),
                "verdict": entry.view_verdict,
                "tone": judge.tone(entry.view_verdict),
                "is_run": entry.path.endswith("result.json"),
                "has_units": (self._folder / entry.path).with_name("plan.json").is_file(),
                "file": entry.path,
            }
            for entry in entries
        ]
        return _render("index.html", rows=rows, unfinished=history.unfinished)

    async def _show_run(self, request: Request) -> Response:
        path = request.query_params.get("path", "")
        state = await asyncio.to_thread(read_state, self._find(path))
        return _render("run.html", path=path, named=one_line(path or "."), **_describe(state))

    async def _send_events(self, request: Request) -> Response:
        """Send the state whenever it changes, until the run ends."""
        directory = self._find(request.query_params.get("path", ""))

        async def look() -> AsyncIterator[str]:
            last = None
            while not await request.is_disconnected():
                state = await asyncio.to_thread(read_state, directory)
                if state != last:
                    last = state
                    text = _ENVIRONMENT.get_template("state.html").render(**_describe(state))
                    lines = "".join(f"data: {line}\n" for line in text.splitlines())
                    yield f"event: state\n{lines}\n"
                if state.state != "running":
                    yield "event: done\ndata: \n\n"
                    return
                await asyncio.sleep(self._between)

        return StreamingResponse(look(), media_type="text/event-stream", headers=_HEADERS)

    async def _show_report(self, request: Request) -> Response:
        source = self._find(request.query_params.get("path", ""))

        def make() -> str:
            stamp = read_stamp(source)
            return page(load(source), stamp=() if stamp is None else stamp.describe())

        return HTMLResponse(await asyncio.to_thread(make))  # its own policy is in it

    async def _show_comparison(self, request: Request) -> Response:
        names = [request.query_params.get(which, "") for which in ("a", "b")]
        first, second = map(self._find, names)
        found = await asyncio.to_thread(compare, first, second)
        title = one_line(f"{names[0]} and {names[1]}")
        return HTMLResponse(await asyncio.to_thread(compare_page, found, title=title))

    async def _send_static(self, request: Request) -> Response:
        known = _STATIC.get(request.path_params["name"])
        if known is None:
            return PlainTextResponse("There is no such file.", 404)
        return Response(_read(known[0]), media_type=known[1], headers=_HEADERS)

    def _find(self, path: str) -> Path:
        """Return a run or a result by its name in the folder; what is outside does not exist."""
        found = (self._folder / path).resolve()
        if not found.is_relative_to(self._folder) or not (
            any((found / name).is_file() for name in ("plan.json", "result.json"))
            or (found.suffix == ".json" and found.is_file())
        ):
            raise UnreadableFile("Expected a run or a result in the folder, found none.")
        return found


def _describe(state: RunState) -> dict[str, Any]:
    """Return what the template of a state shows."""
    done = state.finished + len(state.failures)
    ended = state.verdict and state.state == "finished"
    return {
        "state": state,
        "share": round(100 * done / state.units, 1),
        "said": word_state(state),
        "tone": judge.tone(state.verdict) if ended else "neutral",  # type: ignore[arg-type]
        "chart": _draw(state),
        "resume": state.state == "stopped",
    }


def _draw(state: RunState) -> dict[str, Any] | None:
    """Return ε against units, and the line above which the claim is refuted, in pixels."""
    if len(state.points) < 2:
        return None
    limit = [] if state.claim is None else [state.claim]
    top = 1.15 * max([1e-9, *limit, *(epsilon for _, epsilon in state.points)])

    def place(used: float, epsilon: float) -> tuple[float, float]:
        return (
            round(44 + (_WIDTH - 54) * used / max(state.units, 1), 1),
            round(_HEIGHT - 26 - (_HEIGHT - 36) * epsilon / top, 1),
        )

    return {
        "width": _WIDTH,
        "height": _HEIGHT,
        "line": " ".join(f"{x},{y}" for x, y in (place(*point) for point in state.points)),
        "last": place(*state.points[-1]),
        "limit": None if state.claim is None else place(0, state.claim)[1],
        "limit_said": "" if state.claim is None else f"claimed ε = {claimed(state.claim)}",
        "ticks": [(place(0, top * i / 4)[1], f"{top * i / 4:.2g}") for i in range(5)],
        "units": state.units,
    }


def _render(template: str, **known: Any) -> HTMLResponse:
    return HTMLResponse(_ENVIRONMENT.get_template(template).render(**known), headers=_HEADERS)


def _read(name: str) -> str:
    return resources.files("epsilometer.cli").joinpath(name).read_text("utf-8")


_ENVIRONMENT = Environment(
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    finalize=lambda value: printable(value) if type(value) is str else value,
    loader=FunctionLoader(lambda name: _read(f"ui_templates/{name}")),
)
_ENVIRONMENT.globals["icons"] = {tone: look.icon for tone, look in LOOKS.items()}
