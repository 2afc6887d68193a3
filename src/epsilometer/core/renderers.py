"""Find renderers by name: reports live above this package, and register themselves here."""

import os
from collections.abc import Callable
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, TypeAlias

from epsilometer.errors import InvalidArgument

Render: TypeAlias = Callable[[Any], str]
_GROUP = "epsilometer.renderers"
# By suffix: module and function. Other packages add theirs by an entry point of the group above.
RENDERERS: dict[str, str] = {
    ".json": "epsilometer.core.serialisation:to_json",
    ".html": "epsilometer.report.page:page",
    ".md": "epsilometer.report.markdown:as_markdown",
}


def renderer(suffix: str) -> Render:
    """Return what renders an audit for files of this suffix."""
    if suffix in RENDERERS:
        module, _, name = RENDERERS[suffix].partition(":")
        render: Render = getattr(import_module(module), name)
        return render
    for entry in entry_points(group=_GROUP):
        if entry.name == suffix:
            loaded: Render = entry.load()
            return loaded
    raise InvalidArgument(
        f"Expected a file ending in {', '.join(sorted(RENDERERS))}, got {suffix or 'no ending'!r}."
    )


def render(audit: Any, suffix: str) -> bytes:
    """Return an audit as a file of this suffix has it."""
    text = renderer(suffix)(audit)
    return (text if text.endswith("\n") else f"{text}\n").encode("utf-8")


def save(audit: Any, path: Path) -> Path:
    """Write an audit to a file, whole or not at all, for whoever the umask lets read it."""
    data = render(audit, path.suffix)
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        aside.write_bytes(data)
        os.replace(aside, path)
    except OSError as error:
        aside.unlink(missing_ok=True)
        raise InvalidArgument(f"Could not write {str(path)!r}: {error.strerror}.") from error
    return path
