"""Find the origins of modules and the versions of distributions.

A module belongs to the user, an installed package or Python. The user's modules are read and
digested; packages count by the version of their distribution.
"""

import ast
import hashlib
import platform
import site
import sys
import sysconfig
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib.machinery import ModuleSpec
from importlib.metadata import PackageNotFoundError, packages_distributions, version
from pathlib import Path
from types import ModuleType
from typing import Literal, TypeAlias

_ALWAYS = ("epsilometer", "numpy", "scipy")
_USUAL = {  # packages named differently than their distribution: a search is slow
    "sklearn": "scikit-learn",
    "torchgen": "torch",
    "functorch": "torch",
    "_distutils_hack": "setuptools",
    "PIL": "pillow",
    "yaml": "pyyaml",
    "attr": "attrs",
    "dateutil": "python-dateutil",
}
Kind: TypeAlias = Literal["user", "package", "ours", "python", "unknown"]
_INSTALLED = ("site-packages", "dist-packages")  # names of folders of installed packages
_OURS = __name__.partition(".")[0]
_LARGEST = 16 * 2**20  # bytes of a source file
_SOURCES = {".py", ".pyw"}


def versions(packages: Iterable[str] = ()) -> tuple[tuple[str, str], ...]:
    """Return (distribution, version) pairs of this package and of ``packages``.

    Args:
        packages: Import names, such as ``torch`` or ``sklearn``.

    Example:
        >>> [name for name, _ in versions(["sklearn"])]
        ['python', 'epsilometer', 'numpy', 'scipy', 'scikit-learn']
    """
    found = {name: _read_version(name) for name in _ALWAYS}
    for package in sorted(set(packages)):
        for name in find_distributions(package):
            if name not in found and (number := find_version(name)) is not None:
                found[name] = number
    return (("python", ".".join(platform.python_version_tuple()[:2])), *found.items())


def read_environment() -> dict[str, str]:
    """Return the versions of all installed distributions with an imported module."""
    origins = [find_origin(name) for name in {name.partition(".")[0] for name in list(sys.modules)}]
    installed = {find_package(origin) for origin in origins if origin.kind == "package"}
    names = {each for name in installed for each in find_distributions(name)}
    found = {name: find_version(name) for name in sorted(names)}
    return {name: number for name, number in found.items() if number is not None}


def list_version_changes(there: Mapping[str, str]) -> list[str]:
    """Return descriptions of those distributions that have another version here."""
    found = ((name, number, find_version(name)) for name, number in sorted(there.items()))
    return [
        f"{name} {number} there, {here or 'not installed'} here"
        for name, number, here in found
        if here != number
    ]


def find_distributions(package: str) -> tuple[str, ...]:
    """Return the distributions that a package comes from, by the name it is imported by."""
    usual = _USUAL.get(package, package)
    if find_version(usual) is not None:
        return (usual,)
    return tuple(sorted(set(_list_packages().get(package, ()))))


@cache
def find_version(distribution: str) -> str | None:
    """Return the version of a distribution; None if it is not installed."""
    try:
        return _read_version(distribution)
    except (PackageNotFoundError, ValueError):
        return None


# Reading the metadata of three packages takes 4 ms of CPU, and every plan asks for it.
_read_version = cache(version)


@cache
def _list_packages() -> Mapping[str, list[str]]:
    """Return the distributions of every package; slow, so cached once per process."""
    return packages_distributions()


@dataclass(frozen=True)
class Origin:
    """Hold the origin of a module.

    Attributes:
        kind: Written by the user, installed as a package, this package, or Python's own.
        path: Its file; None if it has none, such as a folder without ``__init__.py``.
        folders: Folders of its submodules; empty if it has none.
    """

    kind: Kind
    path: Path | None = None
    folders: tuple[str, ...] = ()


@dataclass(frozen=True)
class Source:
    """Hold the digest and imports of a source file.

    Attributes:
        digest: SHA-256 of its syntax tree: comments and layout do not count.
        imports: Its imports, as (leading dots, module, imported names).
    """

    digest: str
    imports: tuple[tuple[int, str, tuple[str, ...]], ...] = ()


def find_origin(name: str) -> Origin:
    """Return the origin of a module, loaded or not. Nothing is executed.

    Example:
        >>> find_origin("json").kind, find_origin("numpy.linalg").kind
        ('python', 'package')
    """
    top = name.partition(".")[0]
    if top in sys.stdlib_module_names and name != "__main__":
        return Origin("python")
    if top == _OURS:
        return Origin("ours")
    loaded = sys.modules.get(name)
    if isinstance(loaded, ModuleType):
        folders = tuple(getattr(loaded, "__path__", ()))
        return _classify(getattr(loaded, "__file__", None), folders)
    spec = _find_spec(name)
    if spec is None:
        return Origin("unknown")
    return _classify(
        spec.origin if spec.has_location else None, tuple(spec.submodule_search_locations or ())
    )


def find_package(origin: Origin) -> str:
    """Return the name of an installed module by its location: ``__name__`` may differ.

    Example:
        >>> find_package(find_origin("scipy.linalg"))
        'scipy'
    """
    where = str(origin.path) if origin.path is not None else next(iter(origin.folders), "")
    for home in dict(_find_homes())["package"]:
        if Path(where).is_relative_to(home):
            return Path(where).relative_to(home).parts[0].partition(".")[0]
    return ""


def read_source(path: Path) -> Source:
    """Return digest and imports of a source file; of other files, the SHA-256 of the bytes."""
    try:
        found = path.stat()
        return _read_source(path, found.st_mtime_ns, found.st_size)
    except OSError:
        return Source("unreadable")


def digest_source(text: str) -> str:
    """Return the SHA-256 of a syntax tree, or of the text if it does not parse.

    Example:
        >>> one, same, other = map(digest_source, ("x = 1  # one", "x=1", "x = 2"))
        >>> one == same, one == other
        (True, False)
    """
    with suppress(SyntaxError, ValueError, RecursionError, MemoryError):
        text = ast.dump(ast.parse(text))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def list_imports(name: str, origin: Origin) -> list[str]:
    """Return the full names of a user module's imports, and of its parent packages."""
    parents = [name[:place] for place, letter in enumerate(name) if letter == "."]
    if origin.path is None:
        return parents
    package = name if origin.folders else name.rpartition(".")[0]
    found = parents
    for dots, module, names in read_source(origin.path).imports:
        base = module
        if dots:
            outer = package.split(".")[: len(package.split(".")) - dots + 1]
            base = ".".join([*outer, *([module] if module else [])])
        found.append(base)
        found += [f"{base}.{each}" for each in names if base]
    return [each for each in found if each]


def _find_spec(name: str) -> ModuleSpec | None:
    """Find a module as an import would, part by part, so that no package is executed."""
    parts, folders, spec = name.split("."), None, None
    for place in range(len(parts)):
        spec = _ask_finders(".".join(parts[: place + 1]), folders)
        if spec is None:
            return None
        folders = list(spec.submodule_search_locations or ())
        if not folders and place + 1 < len(parts):
            return None
    return spec


def _ask_finders(name: str, folders: list[str] | None) -> ModuleSpec | None:
    for finder in sys.meta_path:
        try:
            spec = finder.find_spec(name, folders)
        except Exception:  # finders of others raise almost anything
            continue
        if spec is not None:
            return spec
    return None


def _classify(file: str | None, folders: tuple[str, ...]) -> Origin:
    where = file or next(iter(folders), None)
    if where is None:
        return Origin("unknown")
    path = None if file is None else Path(file)
    lies = {Path(where).absolute(), Path(where).resolve()}
    for kind, homes in _find_homes():
        if any(each.is_relative_to(home) for each in lies for home in homes):
            return Origin(kind, path, folders)
    return Origin("user", path, folders)


@cache
def _find_homes() -> tuple[tuple[Kind, tuple[Path, ...]], ...]:
    """Return the folders of installed packages, and then those of Python, which contain them."""
    paths = sysconfig.get_paths()
    packages = {paths["purelib"], paths["platlib"], *site.getsitepackages()}
    packages.add(site.getusersitepackages())
    # An environment may include packages of another one, by a .pth file or PYTHONPATH
    packages |= {each for each in sys.path if Path(each).name in _INSTALLED}
    python = {paths["stdlib"], paths["platstdlib"]}
    return ("package", _resolve_folders(packages)), ("python", _resolve_folders(python))


def _resolve_folders(folders: set[str]) -> tuple[Path, ...]:
    return tuple(
        {each for text in folders for each in (Path(text).absolute(), Path(text).resolve())}
    )


@cache
def _read_source(path: Path, changed: int, size: int) -> Source:
    """Read a file once, and again only if it changed."""
    if size > _LARGEST:
        return Source(f"{size} bytes, {changed}")
    data = path.read_bytes()
    plain = hashlib.sha256(data).hexdigest()
    if path.suffix not in _SOURCES:
        return Source(plain)
    try:
        tree = ast.parse(data)
        digest = hashlib.sha256(ast.dump(tree).encode("utf-8", "surrogatepass")).hexdigest()
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return Source(plain)
    return Source(digest, tuple(_list_imports(tree)))


def _list_imports(tree: ast.AST) -> list[tuple[int, str, tuple[str, ...]]]:
    found: list[tuple[int, str, tuple[str, ...]]] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [(0, alias.name, ()) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            taken = tuple(alias.name for alias in node.names if alias.name != "*")
            found.append((node.level, node.module or "", taken))
    return found
