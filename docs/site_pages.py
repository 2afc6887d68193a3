"""What mkdocs cannot do by itself: pages from outside of docs/, and pages made of the code.

Links are written as a code host wants them (``../benchmarks/engine.md``). On the site those files
stand beside the pages of docs/, so links are turned, and checked there like all others.
"""

import ast
import inspect
import posixpath
import re
from pathlib import Path
from typing import Any

import click
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

import epsilometer
from epsilometer.cli.main import main

ROOT = Path(__file__).parents[1]
OUTSIDE = ("CHANGELOG.md", "CONTRIBUTING.md", "benchmarks/*.md", "reproductions/*/README.md")
_LINK = re.compile(r"\]\(([^)\s#]+)(#[^)\s]*)?\)")
_NAMED = re.compile(r"(?<!!)\[([^\[\]]+)\]\(([^)\s#]+)\)")
_ROOM = re.compile(r"<!-- modules of (\S+) -->")
_HELD = re.compile(r"(?<!\[)`([a-z_]+(?:\.\w+){2,})`")  # as attacks.lira.lira


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Adds pages that lie outside of docs/, and the pictures they show."""
    for path in sorted(found for pattern in OUTSIDE for found in ROOT.glob(pattern)):
        name = path.relative_to(ROOT).as_posix()
        files.append(File.generated(config, name, abs_src_path=str(path)))
        for picture in re.findall(r"!\[[^\]]*\]\(([^)\s]+)\)", path.read_text("utf-8")):
            shown = posixpath.normpath(posixpath.join(posixpath.dirname(name), picture))
            files.append(File.generated(config, shown, abs_src_path=str(ROOT / shown)))
    return files


def on_page_markdown(markdown: str, *, page: Page, files: Files, **_: Any) -> str:
    """Turns links that leave docs/ or come from outside, and fills in what is generated."""
    source = page.file.src_uri
    in_docs = page.file.generated_by is None or source.startswith("notebooks/")
    path = f"docs/{source}" if in_docs else source

    def code_alone(link: re.Match[str]) -> str:  # code is no page: its name stays, without a link
        target = _resolved(link[2], path)
        is_code = (ROOT / target).exists() and files.get_file_from_path(_on_site(target)) is None
        return link[1] if is_code else link[0]

    markdown = turned(_NAMED.sub(code_alone, markdown), source=path, page=source)
    markdown = markdown.replace("```python\n>>>", "```pycon\n>>>")
    if source.startswith("reference/"):  # whoever searches finds what explains before what lists
        page.meta["search"] = {"boost": 0.3}
    if source.startswith("papers/"):  # which room holds what: with a link to it
        markdown = _HELD.sub(r"[`\1`][epsilometer.\1]", markdown)
    for marker, made in {"<!-- commands -->": commands, "<!-- names -->": names}.items():
        if marker in markdown:
            markdown = markdown.replace(marker, made())
    return _ROOM.sub(lambda found: modules(found[1]), markdown)


def turned(markdown: str, *, source: str, page: str) -> str:
    """Links of a file of the repository as links between pages of the site.

    Example:
        >>> turned("[a](../benchmarks/engine.md#b)", source="docs/x.md", page="x.md")
        '[a](benchmarks/engine.md#b)'
        >>> turned("[a](docs/x.md)", source="CHANGELOG.md", page="CHANGELOG.md")
        '[a](x.md)'
    """

    def turn(link: re.Match[str]) -> str:
        target, anchor = link[1], link[2] or ""
        if "://" in target:
            return link[0]
        on_site = _on_site(_resolved(target, source))
        return f"]({posixpath.relpath(on_site, posixpath.dirname(page) or '.')}{anchor})"

    return _LINK.sub(turn, markdown)


def _resolved(target: str, source: str) -> str:
    """What a link of ``source`` leads to, from the root of the repository."""
    return posixpath.normpath(posixpath.join(posixpath.dirname(source), target))


def _on_site(path: str) -> str:
    return "index.md" if path == "README.md" else path.removeprefix("docs/")


def modules(room: str) -> str:
    """An entry for each public module of a room, or of the files beside the rooms."""
    return "\n\n".join(f"::: {name}" for name in public_modules(room))


def public_modules(room: str) -> list[str]:
    """Names of the modules of a room that have something public, in the order of their names."""
    package = ROOT / "src" / room.replace(".", "/")
    beside = room == "epsilometer"
    found = sorted(package.glob("*.py") if beside else package.rglob("*.py"))
    named = {path: path.relative_to(ROOT / "src").with_suffix("").as_posix() for path in found}
    return [
        name.removesuffix("/__init__").replace("/", ".")
        for path, name in named.items()
        if not path.stem.startswith("_") or (path.stem == "__init__" and not beside)
        if public_names(path)
    ]


def public_names(path: Path) -> list[str]:
    """Functions and classes of a module that do not begin with an underscore."""
    return [
        node.name
        for node in ast.parse(path.read_text("utf-8")).body
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_")
    ]


def names() -> str:
    """The names that ``import epsilometer`` has, each with its first line and its full entry."""
    lines = ["| name | |", "|---|---|"]
    for name, module in sorted(epsilometer._MODULE.items(), key=lambda row: row[0].lower()):
        first = (getattr(epsilometer, name).__doc__ or "").strip().splitlines()[0]
        lines.append(f"| [`{name}`][epsilometer.{module}.{name}] | {_cell(first)} |")
    return "\n".join(lines)


def commands() -> str:
    """Every command with its arguments, options and example, from click itself."""
    top = click.Context(main, info_name="epsilometer")
    return "\n\n".join(_command(name, top) for name in main.list_commands(top))


def _command(name: str, top: click.Context) -> str:
    command = main.get_command(top, name)
    assert command is not None
    context = click.Context(command, info_name=name, parent=top)
    help_text, _, example = inspect.cleandoc(command.help or "").partition("Example: ")
    usage = " ".join(["epsilometer", name, *command.collect_usage_pieces(context)])
    rows = [option.get_help_record(context) for option in command.params]
    options = [f"| `{row[0]}` | {_cell(row[1])} |" for row in rows if row and row[1]]
    return "\n".join(
        [
            f"## epsilometer {name}",
            "",
            f"    {usage}",
            "",
            help_text.replace("\b", "").strip(),
            "",
            *([f"Example: `{' '.join(example.split())}`", ""] if example else []),
            *(["| option | |", "|---|---|", *options] if options else []),
        ]
    )


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;").replace("``", "`")
