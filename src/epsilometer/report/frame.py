"""Frame every page: one HTML file that needs nothing else, no network, no other file."""

import base64
import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from importlib import resources
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

from epsilometer.core.printing import printable
from epsilometer.core.references import BIBLIOGRAPHY
from epsilometer.core.words import number, short
from epsilometer.report.explaining import FORMULA, MEASURED
from epsilometer.report.figures import COLOURS, Figure
from epsilometer.report.tones import LOOKS

LARGEST = 1_500_000  # bytes of a page
FIRST_RECORDS = 20  # shown without JavaScript


def framed(
    template: str,
    *,
    title: str,
    plain: dict[str, Any],
    figures: Sequence[Figure],
    cites: Iterable[str],
    is_cut: bool,
    drawn: bool,
    **parts: Any,
) -> str:
    """Return a page: what the template shows of ``parts``, in the frame that all pages share.

    Args:
        template: Its name; it fills the frame's ``main``.
        title: Of the page.
        plain: The audit, which the page carries as JSON.
        figures: In the order in which the template shows them.
        cites: Keys of the bibliography.
        is_cut: Whether the audit had to be cut to fit.
        drawn: Whether figures are drawn.
        parts: Whatever the template shows.
    """
    script, style = _read("vendor/uplot/uPlot.iife.min.js"), _read("vendor/uplot/uPlot.min.css")
    scripts = [script, _read("templates/page.js")] if drawn else [_read("templates/page.js")]
    styles = [style, _colours() + _read("templates/page.css")]
    return _ENVIRONMENT.get_template(template).render(
        title=title,
        figures=figures,
        references=sorted(BIBLIOGRAPHY[key] for key in set(cites)),
        is_cut=is_cut,
        drawn=drawn,
        icons={tone: look.icon for tone, look in LOOKS.items()},
        formula_titles=(FORMULA, MEASURED),
        policy=_policy(scripts, styles),
        # Ours, not a user's: their sums are in the policy.
        scripts=[Markup(text) for text in scripts],
        styles=[Markup(text) for text in styles],
        audit_json=_embedded(plain),
        licence=_read("vendor/uplot/LICENSE"),
        figures_json=_embedded([asdict(figure) for figure in figures]),
        **parts,
    )


def _embedded(plain: Any) -> Markup:
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


def _policy(scripts: Iterable[str], styles: Iterable[str]) -> str:
    """Return the policy: nothing may be loaded, and nothing may run but what is embedded here."""
    return (
        f"default-src 'none'; script-src {_sums(scripts)}; style-src {_sums(styles)}; "
        "img-src data: blob:; base-uri 'none'; form-action 'none'; "
        "require-trusted-types-for 'script'"
    )


def _sums(texts: Iterable[str]) -> str:
    digests = (hashlib.sha256(text.encode()).digest() for text in texts)
    return " ".join(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests)


def _colours() -> str:
    """Return the colours of roles in figures and of tones of verdicts, as CSS."""
    pairs: list[tuple[str, str, str]] = [(role, *pair) for role, pair in COLOURS.items()]
    pairs += [(tone, look.day, look.night) for tone, look in LOOKS.items()]
    rules = "".join(f"--{name}: light-dark({day}, {night});" for name, day, night in pairs)
    roles = "".join(f".role-{role} {{ color: var(--{role}); }}\n" for role in COLOURS)
    tones = "".join(f".tone-{tone} {{ --tone: var(--{tone}); }}\n" for tone in LOOKS)
    return f":root {{ {rules} }}\n{roles}{tones}"


def _read(name: str) -> str:
    return resources.files("epsilometer.report").joinpath(name).read_text("utf-8").strip()


def _printable(value: object) -> object:
    """Return what a template prints, without letters that a page cannot hold."""
    return printable(value) if type(value) is str else value


def _unbroken(text: str) -> str:
    """Return the text so that no line ends within "ε ≥ 4"."""
    return re.sub(r"([εδμ]) ([=≥]) ", "\\1\u00a0\\2\u00a0", text)


def _template(name: str) -> str:
    return _read(f"templates/{name}")


_ENVIRONMENT = Environment(
    autoescape=True,
    undefined=StrictUndefined,
    finalize=_printable,
    trim_blocks=True,
    lstrip_blocks=True,
    loader=FunctionLoader(_template),
)
_ENVIRONMENT.filters |= {"number": number, "short": short, "unbroken": _unbroken}
