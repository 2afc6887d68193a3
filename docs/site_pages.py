"""Write the pages of the site: docs/, pages from outside of it, and pages made of the code.

``python docs/site_pages.py`` writes them into build/pages, from which any builder makes the site.

Links are written as a code host wants them (``../benchmarks/engine.md``). On the site those files
stand beside the pages of docs/, so links are turned, and checked there like all others.
"""

import ast
import inspect
import json
import posixpath
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import click

import epsilometer
from epsilometer.cli.main import HEADINGS, main
from epsilometer.lint import RULES
from epsilometer.lint.explaining import explain_rule

sys.path.insert(0, str(Path(__file__).parent))
from site_notebooks import as_markdown

ROOT = Path(__file__).parents[1]
OUTSIDE = (
    *("CHANGELOG.md", "CONTRIBUTING.md", "benchmarks/*.md", "reproductions/*/README.md"),
    "tests/*/[a-z]*.md",
)
_LINK = re.compile(r"\]\(([^)\s#]+)(#[^)\s]*)?\)")
_NAMED = re.compile(r"(?<!!)\[([^\[\]]+)\]\(([^)\s#]+)\)")
_PACKAGE = re.compile(r"<!-- modules of (\S+) -->")
# Folders of the pages of modules, and of commands.
MODULES, COMMANDS = "reference/modules", "reference/commands"
_LARGEST = 190  # lines of entries on a page, about: eight screens of 800 pixels
# The public names by task; a test says which are missing.
GROUPS = {
    "Audit": ("audit", "Claim", "UntilRefuted", "UntilNarrow"),
    "Subjects": (
        *("Scores", "ScoreCounts", "Runs", "TrainFunction", "ShuffledSGD", "DPSGD", "Federated"),
        *("Cosines", "GaussianMechanism", "Classifier", "Regressor", "Posterior", "Step"),
        "FittedClassifier",
        "LanguageModel",
    ),
    "Results": (
        *("Audit", "findings", "EpsilonLowerBound", "EpsilonEstimate", "explain", "Explanation"),
    ),
    "Rules, samplers, models": (
        *("rules", "samplers", "sampling", "models", "optimizers", "federation", "ReleaseForm"),
        *("Record", "SphereCanaries", "HadamardCanaries", "watch_loader"),
    ),
    "Canaries in texts": ("TextCanaries", "plant_texts", "load_planted", "CausalModel"),
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
# Whoever searches finds what explains before what lists.
_BOOST = "---\nsearch:\n  boost: 0.3\n---\n"
_RULE = re.compile(r"(?<!\[)`([A-Z]{4}\d{3})`")  # as SHUF001
_HELD = re.compile(r"(?<!\[)`([a-z_]+(?:\.\w+){2,})`")  # as attacks.lira.lira


def write_pages(folder: Path) -> None:
    """Write everything that the site is built from into a folder, which is emptied before.

    Builders of sites need no hooks then, and all of them find the same pages.
    """
    shutil.rmtree(folder, ignore_errors=True)
    sources = _list_sources()
    for name, path in sources.items():
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".md":
            source = path.relative_to(ROOT).as_posix()
            text = make_page(path.read_text("utf-8"), source=source, page=name, known={*sources})
            target.write_text(text, "utf-8")
        elif name.endswith(".md"):  # a page of a notebook
            text = as_markdown(json.loads(path.read_text("utf-8")), name=path.name)
            text = make_page(text, source=f"docs/{name}", page=name, known={*sources})
            target.write_text(text, "utf-8")
        else:
            shutil.copyfile(path, target)
    made = {name: _BOOST + text for name, text in {**module_pages(), **command_pages()}.items()}
    for name, text in {**made, **rule_pages()}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, "utf-8")


def _list_sources() -> dict[str, Path]:
    """Return files by their names on the site: of docs/, from outside, and pages of notebooks."""
    docs = [p for p in sorted((ROOT / "docs").rglob("*")) if p.is_file()]
    found = {
        path.relative_to(ROOT / "docs").as_posix(): path
        for path in docs
        if path.suffix not in (".py", ".pyc")
    }
    for path in sorted(found for pattern in OUTSIDE for found in ROOT.glob(pattern)):
        name = path.relative_to(ROOT).as_posix()
        found[name] = path
        for picture in re.findall(r"!\[[^\]]*\]\(([^)\s]+)\)", path.read_text("utf-8")):
            shown = posixpath.normpath(posixpath.join(posixpath.dirname(name), picture))
            found[shown] = ROOT / shown
    for path in sorted((ROOT / "docs" / "notebooks").glob("*.ipynb")):
        found[f"notebooks/{path.stem}.md"] = path
    return found


def make_page(markdown: str, *, source: str, page: str, known: set[str]) -> str:
    """Return a file of the repository as a page: links turned, what is generated filled in.

    Args:
        markdown: Its text.
        source: Its path in the repository.
        page: Its name on the site.
        known: Names of everything on the site.
    """

    def code_alone(link: re.Match[str]) -> str:  # code is no page: its name stays, without a link
        target = _resolved(link[2], source)
        return link[1] if (ROOT / target).exists() and _on_site(target) not in known else link[0]

    if not page.startswith("notebooks/"):  # whose pages may link to the notebooks themselves
        markdown = re.sub(r"(\]\((?:[^)\s]*/)?notebooks/\w+)\.ipynb\)", r"\1.ipynb#)", markdown)
    markdown = turned(_NAMED.sub(code_alone, markdown), source=source, page=page)
    markdown = markdown.replace(".ipynb#)", ".md)")
    markdown = markdown.replace("```python\n>>>", "```pycon\n>>>")
    if page.startswith("papers/"):  # which package holds what: with a link to it
        markdown = _HELD.sub(r"[`\1`][epsilometer.\1]", markdown)
    markdown = _RULE.sub(lambda found: _link_rule(found, page), markdown)
    for marker, made in {"<!-- commands -->": commands, "<!-- names -->": names}.items():
        if marker in markdown:
            markdown = markdown.replace(marker, made())
    markdown = _PACKAGE.sub(lambda found: modules(found[1], page=page), markdown)
    return (_BOOST if page.startswith("reference/") else "") + markdown


def _link_rule(found: re.Match[str], page: str) -> str:
    """Return a rule of lint, named in a page, with a link to its own."""
    if found[1] not in RULES:
        return found[0]
    return f"[{found[0]}]({posixpath.relpath(RULES[found[1]].page, posixpath.dirname(page))})"


def rule_pages() -> dict[str, str]:
    """Return a page for every rule of lint, as ``epsilometer lint --explain`` prints it."""
    return {
        rule.page: f"{explain_rule(rule)}\n[All rules](../lint.md#rules)\n"
        for rule in RULES.values()
    }


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


def modules(package: str, *, page: str) -> str:
    """Return a table of the public modules of a package, each with a link to its own page."""
    rows = [
        f"| {_link_module(name, page)} | {_describe(name)} |" for name in public_modules(package)
    ]
    return "\n".join(["| module | |", "|---|---|", *rows])


def _link_module(name: str, page: str) -> str:
    short = name.removeprefix("epsilometer.")
    return f"[`{short}`]({posixpath.relpath(f'{MODULES}/{short}.md', posixpath.dirname(page))})"


def _describe(module: str) -> str:
    """Return the first line of what a module says of itself."""
    tree = ast.parse(_find_source(module).read_text("utf-8"))
    return _cell((ast.get_docstring(tree) or "").partition("\n\n")[0])


def _find_source(module: str) -> Path:
    path = ROOT / "src" / module.replace(".", "/")
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def module_pages() -> dict[str, str]:
    """Return a page for every public module, by its name on the site."""
    found: dict[str, str] = {}
    for stub in sorted((ROOT / "docs" / "reference").rglob("*.md")):
        text = stub.read_text("utf-8")
        up = posixpath.relpath(stub.relative_to(ROOT / "docs").as_posix(), MODULES)
        title = text.partition("\n")[0].removeprefix("# ")
        for package in _PACKAGE.findall(text):
            for name in public_modules(package):
                found |= _split_module(name, f"[{title}]({up})")
    return found


def _split_module(name: str, package: str) -> dict[str, str]:
    """Return the pages of a module: one, or several where it would be longer than eight screens."""
    short = name.removeprefix("epsilometer.")
    groups: list[list[str]] = [[]]
    weight = 0
    for node in _public_nodes(_find_source(name)):
        weight += _weigh(node)
        if weight > _LARGEST and groups[-1]:
            groups.append([])
            weight = _weigh(node)
        groups[-1].append(node.name)
    pages = [short, *(f"{short}-{part}" for part in range(2, len(groups) + 1))]
    listed = ", ".join(
        f"[{', '.join(f'`{each}`' for each in group)}]({page}.md)"
        for page, group in zip(pages, groups, strict=True)
    )
    found = {}
    for part, (page, group) in enumerate(zip(pages, groups, strict=True), start=1):
        entries = [f"::: {name}.{each}" for each in group]
        if part == 1:
            chosen = f"\n    options:\n      members: [{', '.join(group)}]" if pages[1:] else ""
            entries = [f"::: {name}{chosen}"]
        title = short if part == 1 else f"{short}, part {part}"
        more = f"\n\nPages of this module: {listed}." if pages[1:] else ""
        found[f"{MODULES}/{page}.md"] = "\n\n".join(
            [f"# {title}", f"Part of {package}.{more}", *entries, ""]
        )
    return found


def _weigh(node: ast.FunctionDef | ast.ClassDef) -> int:
    """Return about how many lines an entry takes."""
    lines = 4 + len((ast.get_docstring(node) or "").splitlines())
    if isinstance(node, ast.FunctionDef):
        return lines + len(node.args.args) + len(node.args.kwonlyargs)
    methods = [
        each
        for each in node.body
        if isinstance(each, ast.FunctionDef) and not each.name.startswith("_")
    ]
    fields = sum(isinstance(each, ast.AnnAssign) for each in node.body)
    return lines + fields + sum(map(_weigh, filter(ast.get_docstring, methods)))


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
    """Return the functions and classes of a module that do not begin with an underscore."""
    return [node.name for node in _public_nodes(path)]


def _public_nodes(path: Path) -> list[ast.FunctionDef | ast.ClassDef]:
    return [
        node
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
    """Return all commands by task, each with a link to its page."""
    folder, top = posixpath.basename(COMMANDS), click.Context(main)
    parts = []
    for heading, listed in HEADINGS.items():
        rows = []
        for name in listed:
            command = main.get_command(top, name)
            assert command is not None
            rows.append(
                f"| [`{name}`]({folder}/{name}.md) | {_cell(command.get_short_help_str(99))} |"
            )
        parts.append("\n".join([f"## {heading}", "", "| command | |", "|---|---|", *rows]))
    return "\n\n".join(parts)


def command_pages() -> dict[str, str]:
    """Return a page for every command, with its arguments, options and example, from click."""
    top = click.Context(main, info_name="epsilometer")
    return {
        f"{COMMANDS}/{name}.md": "\n\n".join(_command(name, top))
        for name in main.list_commands(top)
    }


def _command(name: str, parent: click.Context, level: str = "#") -> Iterator[str]:
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


if __name__ == "__main__":
    write_pages(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "build" / "pages")
