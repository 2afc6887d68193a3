"""Render a document as one self-contained HTML file: no network, no other file."""

import base64
import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from importlib import resources
from itertools import count
from typing import Any, TypeAlias

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

from epsilometer.core.audit import Audit
from epsilometer.core.document import Document, find_figures
from epsilometer.core.printing import printable
from epsilometer.core.references import BIBLIOGRAPHY
from epsilometer.core.serialisation import to_object
from epsilometer.errors import InvalidArgument
from epsilometer.report.build import build
from epsilometer.report.fitting import count_records, fit_audit
from epsilometer.report.tones import COLOURS, LOOKS

Stamped: TypeAlias = Sequence[tuple[str, str]]
LARGEST = 1_500_000  # bytes of a page
# How much is kept, until the page is small enough: records, and whether figures are drawn.
_ATTEMPTS = ((5_000, True), (1_000, True), (100, True), (0, True), (0, False))


def page(audit: Audit, *, stamp: Stamped = ()) -> str:
    """Return the audit as one HTML page of at most 1.5 MB; the same audit gives the same bytes.

    A stamp, as names and values, is shown below it and is not part of the audit. Of very many
    records only the riskiest are shown, and with very many views no figures; the page then says so.
    If it still does not fit, ``InvalidArgument`` is raised.
    """
    total = count_records(audit)
    for records, drawn in _ATTEMPTS:
        if drawn and total <= records < _ATTEMPTS[0][0]:
            continue  # would change nothing
        fitted = fit_audit(audit, records=records)
        document = build(fitted, records=total)
        text = render_page(
            document, to_object(fitted), is_cut=fitted != audit, drawn=drawn, stamp=stamp
        )
        if len(text.encode()) <= LARGEST:
            return text
    raise InvalidArgument(
        f"Expected an audit whose page fits into {LARGEST:,} bytes; this one has too many views "
        "or inputs. Save it as .md or .json."
    )


def render_page(
    document: Document, plain: Any, *, is_cut: bool, drawn: bool = True, stamp: Stamped = ()
) -> str:
    """Return a document as a page.

    Args:
        document: What it shows.
        plain: What the page carries as JSON.
        is_cut: Whether that had to be cut to fit.
        drawn: Whether figures are drawn.
        stamp: Names and values: when, where and from what it came.
    """
    shown = (block for block in find_figures(document) if drawn and not block.aside)
    figures = [asdict(figure) for block in shown for figure in block.figures]
    chart = _read("vendor/uplot/uPlot.iife.min.js"), _read("vendor/uplot/uPlot.min.css")
    scripts = [*chart[:drawn], _read("templates/page.js")]
    styles = [chart[1], _list_colours() + _read("templates/page.css")]
    return _ENVIRONMENT.get_template("page.html").render(
        document=document,
        references=sorted(BIBLIOGRAPHY[key] for key in set(document.cites)),
        is_cut=is_cut,
        stamp=stamp,
        drawn=drawn,
        next_chart=count().__next__,
        next_table=count(1).__next__,  # labels of regions must differ
        icons={tone: look.icon for tone, look in LOOKS.items()},
        policy=_write_policy(scripts, styles),
        # Ours, not a user's: their sums are in the policy.
        scripts=[Markup(text) for text in scripts],
        styles=[Markup(text) for text in styles],
        audit_json=_embed(plain),
        figures_json=_embed(figures),
        licence=_read("vendor/uplot/LICENSE"),
    )


def _embed(plain: Any) -> Markup:
    """Return JSON that cannot end its script element: pure ASCII without ``<``, ``>`` and ``&``."""
    text = json.dumps(_clean(plain), allow_nan=False, separators=(",", ":"))
    for letter in "<>&":
        text = text.replace(letter, f"\\u{ord(letter):04x}")
    return Markup(text)


def _clean(plain: Any) -> Any:
    """Return JSON values without letters that the page's script must not show either."""
    if isinstance(plain, str):
        return printable(plain)
    if isinstance(plain, dict):
        return {printable(key): _clean(part) for key, part in plain.items()}
    return [_clean(part) for part in plain] if isinstance(plain, (list, tuple)) else plain


def _write_policy(scripts: Iterable[str], styles: Iterable[str]) -> str:
    """Return the policy: nothing may be loaded, and nothing may run but what is embedded here."""
    return (
        f"default-src 'none'; script-src {_list_sums(scripts)}; style-src {_list_sums(styles)}; "
        "img-src data: blob:; base-uri 'none'; form-action 'none'; "
        "require-trusted-types-for 'script'"
    )


def _list_sums(texts: Iterable[str]) -> str:
    digests = (hashlib.sha256(text.encode()).digest() for text in texts)
    return " ".join(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests)


def _list_colours() -> str:
    """Return the colours of roles in figures and of tones of verdicts, as CSS."""
    pairs: list[tuple[str, str, str]] = [(role, *pair) for role, pair in COLOURS.items()]
    pairs += [(tone, look.day, look.night) for tone, look in LOOKS.items()]
    rules = "".join(f"--{name}: light-dark({day}, {night});" for name, day, night in pairs)
    roles = "".join(f".role-{role} {{ color: var(--{role}); }}\n" for role in COLOURS)
    tones = "".join(f".tone-{tone} {{ --tone: var(--{tone}); }}\n" for tone in LOOKS)
    return f":root {{ {rules} }}\n{roles}{tones}"


def _read(name: str) -> str:
    return resources.files("epsilometer.report").joinpath(name).read_text("utf-8").strip()


def _print(value: object) -> object:
    """Return what a template prints, without letters that a page cannot hold."""
    return printable(value) if type(value) is str else value


def _bind(text: str) -> str:
    """Return the text so that no line ends within "ε ≥ 4"."""
    return re.sub(r"([εδμ]) ([=≥]) ", "\\1\u00a0\\2\u00a0", text)


_ENVIRONMENT = Environment(
    autoescape=True,
    undefined=StrictUndefined,
    finalize=_print,
    trim_blocks=True,
    lstrip_blocks=True,
    loader=FunctionLoader(lambda name: _read(f"templates/{name}")),
)
_ENVIRONMENT.filters["bind"] = _bind
_ENVIRONMENT.filters["shorten"] = lambda title: title.partition(":")[0]
