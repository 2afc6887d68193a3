"""Find renderers by file suffix; report modules, which import this package, are listed here."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

from epsilometer.core.registry import Registry
from epsilometer.errors import InvalidArgument

Render: TypeAlias = Callable[[Any], str]
RENDERERS: Registry[Render] = Registry(  # by suffix
    "renderers",
    {
        ".txt": "epsilometer.core.words:summarise",
        ".json": "epsilometer.core.serialisation:to_json",
        ".html": "epsilometer.report.page:page",
        ".md": "epsilometer.report.markdown:as_markdown",
        ".svg": "epsilometer.report.badge:badge",
    },
)


def render(audit: Any, suffix: str) -> bytes:
    """Return the contents of an audit's file with this suffix."""
    if suffix not in RENDERERS:
        raise InvalidArgument(
            f"Expected a file ending in {', '.join(sorted(RENDERERS))}, "
            f"got {suffix or 'no ending'!r}."
        )
    text = RENDERERS[suffix](audit)
    return (text if text.endswith("\n") else f"{text}\n").encode("utf-8")


def save(audit: Any, path: Path) -> Path:
    """Write an audit to a file atomically, with the permissions of the umask."""
    data = render(audit, path.suffix)
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        aside.write_bytes(data)
        os.replace(aside, path)
    except OSError as error:
        aside.unlink(missing_ok=True)
        raise InvalidArgument(f"Could not write {str(path)!r}: {error.strerror}.") from error
    return path
