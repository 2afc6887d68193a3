"""Add to the site what mkdocs cannot: pages from outside of docs/, and pages made of the code.

Links are written as a code host wants them (``../benchmarks/engine.md``). On the site those files
stand beside the pages of docs/, so links are turned, and checked there like all others.
"""

import ast
import inspect
import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

import epsilometer
from epsilometer.cli.main import HEADINGS, main

ROOT = Path(__file__).parents[1]
OUTSIDE = ("CHANGELOG.md", "CONTRIBUTING.md", "benchmarks/*.md", "reproductions/*/README.md")
_LINK = re.compile(r"\]\(([^)\s#]+)(#[^)\s]*)?\)")
_NAMED = re.compile(r"(?<!!)\[([^\[\]]+)\]\(([^)\s#]+)\)")
_PACKAGE = re.compile(r"<!-- modules of (\S+) -->")
# The public names by task; a test says which are missing.
GROUPS = {
    "Audit": ("audit", "Claim", "UntilRefuted", "UntilNarrow"),
    "Subjects": (
        *("Scores", "ScoreCounts", "Runs", "TrainFunction", "ShuffledSGD", "DPSGD", "Federated"),
        *("Cosines", "GaussianMechanism", "Classifier", "Posterior", "Step"),
    ),
    "Results": (
        *("Audit", "findings", "EpsilonLowerBound", "EpsilonEstimate", "explain", "Explanation"),
    ),
    "Rules, samplers, models": (
        *("rules", "samplers", "sampling", "models", "optimizers", "federation", "ReleaseForm"),
        *("Record", "SphereCanaries", "HadamardCanaries", "watch_loader"),
    ),
    "Bounds and accounting": (
        *("epsilon_lower_bound", "ConfidenceSequence", "tradeoff_curve", "TradeoffCurve"),
        *("dp_curve", "gdp_curve", "gaussian_epsilon", "gaussian_sigma", "gaussian_delta"),
        *("two_gaussians_epsilon", "cosine_cdf", "cosine_quantile"),
        *("shuffle_epsilon", "shuffle_upper", "shuffle_delta", "shuffle_noise", "sufficient_noise"),
        *("pdtp", "dtp_over", "dtp_exact", "dtp_upper_bound"),
    ),
    "Files": ("load", "json_schema", "read_scores", "read_records"),
    "Runs and engines": ("Local", "InProcess", "Dask", "History"),
}
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
    if source.startswith("papers/"):  # which package holds what: with a link to it
        markdown = _HELD.sub(r"[`\1`][epsilometer.\1]", markdown)
    for marker, made in {"<!-- commands -->": commands, "<!-- names -->": names}.items():
        if marker in markdown:
            markdown = markdown.replace(marker, made())
    return _PACKAGE.sub(lambda found: modules(found[1]), markdown)


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


def modules(package: str) -> str:
    """Return an entry for each public module of a package, or of the files beside the packages."""
    return "\n\n".join(f"::: {name}" for name in public_modules(package))


def public_modules(package: str) -> list[str]:
    """Return the modules of a package that define something public, in the order of their names."""
    folder = ROOT / "src" / package.replace(".", "/")
    beside = package == "epsilometer"
    found = sorted(folder.glob("*.py") if beside else folder.rglob("*.py"))
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
    """Return the public names by task, each with its first line and a link to its full entry."""
    return "\n\n".join(
        "\n".join([f"## {task}", "", "| name | |", "|---|---|", *map(_name, group)])
        for task, group in GROUPS.items()
    )


def _name(name: str) -> str:
    value = getattr(epsilometer, name)
    first = _cell(inspect.cleandoc(value.__doc__ or "").splitlines()[0])
    if inspect.ismodule(value):
        parts = ", ".join(
            f"[`{part}`][{getattr(value, part).__module__}.{part}]" for part in value.__all__
        )
        return f"| `{name}` | {first} {parts} |"
    home = f"epsilometer.{epsilometer._MODULE[name]}"
    return f"| [`{name}`][{home}.{name}] | {first} |"


def commands() -> str:
    """Return every command with its arguments, options and example, from click itself."""
    top = click.Context(main, info_name="epsilometer")
    rows = [
        f"| {heading} | {', '.join(f'[`{name}`](#epsilometer-{name})' for name in listed)} |"
        for heading, listed in HEADINGS.items()
    ]
    listing = "\n".join(["| | |", "|---|---|", *rows])
    entries = (part for name in main.list_commands(top) for part in _command(name, top))
    return "\n\n".join([listing, *entries])


def _command(name: str, parent: click.Context, level: str = "##") -> Iterator[str]:
    group = parent.command
    assert isinstance(group, click.Group)
    command = group.get_command(parent, name)
    assert command is not None
    context = click.Context(command, info_name=name, parent=parent)
    help_text, _, example = inspect.cleandoc(command.help or "").partition("Example: ")
    usage = " ".join([context.command_path, *command.collect_usage_pieces(context)])
    rows = [option.get_help_record(context) for option in command.params]
    options = [f"| `{row[0]}` | {_cell(row[1])} |" for row in rows if row and row[1]]
    yield "\n".join(
        [
            f"{level} {context.command_path}",
            "",
            f"    {usage}",
            "",
            help_text.replace("\b", "").strip(),
            "",
            *([f"Example: `{' '.join(example.split())}`", ""] if example else []),
            *(["| option | |", "|---|---|", *options] if options else []),
        ]
    )
    if isinstance(command, click.Group):  # as "runs list"
        for part in command.list_commands(context):
            yield from _command(part, context, f"{level}#")


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;").replace("``", "`")
