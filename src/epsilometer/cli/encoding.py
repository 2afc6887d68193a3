"""Spell out characters that a stream's encoding lacks: eps for ε, >= for ≥."""

import codecs
import io
import sys

HANDLER = "epsilometer.spell"
_ASCII = "spelled_ascii"
_SPELLED = {
    "ε": "eps", "δ": "delta", "μ": "mu", "σ": "sigma", "λ": "lambda", "α": "alpha",
    "≥": ">=", "≤": "<=", "≠": "!=", "≈": "~", "−": "-", "–": "-", "—": "-", "―": "-",
    "×": "x", "·": "*", "•": "*", "…": "...", "∞": "inf", "√": "sqrt ", "’": "'", "‘": "'",
    "“": '"', "”": '"', "→": "->", "█": "#", "▏": "|", "✓": "ok", "✕": "x", "\u00a0": " ",
    "⁻": "-", "²": "2", "₍": "(", "₎": ")", "̂": "",
    **dict.fromkeys("─━╌", "-"),
    **dict.fromkeys("│┃", "|"),
    **dict.fromkeys("╭╮╰╯┌┐└┘├┤┬┴┼", "+"),
    **dict(zip("▁▂▃▄▅▆▇", "1234567", strict=True)),
}  # fmt: skip


def spell(text: str) -> str:
    """Return text in ASCII.

    Example:
        >>> spell("ε ≥ 3.73 at δ = 1e-05")
        'eps >= 3.73 at delta = 1e-05'
    """
    return "".join(letter if letter.isascii() else _SPELLED.get(letter, "?") for letter in text)


def spell_for(text: str, encoding: str) -> str:
    """Return text with characters that an encoding lacks spelled out, before layout.

    Example:
        >>> spell_for("ε ≥ 3 – “ok”", "cp1252"), spell_for("ε ≥ 3", "utf-8")
        ('eps >= 3 – “ok”', 'ε ≥ 3')
    """
    codecs.register_error(HANDLER, _handle)
    return text.encode(encoding, HANDLER).decode(encoding)


def _handle(error: UnicodeError) -> tuple[str | bytes, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return spell(error.object[error.start : error.end]), error.end


def spell_out() -> None:
    """Make standard output and error spell out what they cannot encode, instead of failing."""
    codecs.register_error(HANDLER, _handle)
    codecs.register(_find_codec)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            ascii_only = codecs.lookup(stream.encoding).name == "ascii"
            stream.reconfigure(encoding=_ASCII if ascii_only else None, errors=HANDLER)


def _find_codec(name: str) -> codecs.CodecInfo | None:
    """Return ASCII by another name: click takes a stream of that name for UTF-8."""
    known = codecs.lookup("ascii")
    coders = known.incrementalencoder, known.incrementaldecoder
    return codecs.CodecInfo(*known, *coders, name=_ASCII) if name == _ASCII else None
