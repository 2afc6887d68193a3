"""Name what computes: Python, and the installed distributions that were imported."""

import platform
import sys
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, packages_distributions, version

from epsilometer.engine.user_modules import find_origin, find_package

_ALWAYS = ("epsilometer", "numpy", "scipy")
_USUAL = {  # packages that lie under another name than their distribution: a search takes long
    "sklearn": "scikit-learn",
    "torchgen": "torch",
    "functorch": "torch",
    "_distutils_hack": "setuptools",
    "PIL": "pillow",
    "yaml": "pyyaml",
    "attr": "attrs",
    "dateutil": "python-dateutil",
}


def versions(packages: Iterable[str] = ()) -> tuple[tuple[str, str], ...]:
    """Return what computes, as (distribution, version) pairs: ours, and those of ``packages``.

    Args:
        packages: Names that are imported, as ``torch`` or ``sklearn``.

    Example:
        >>> [name for name, _ in versions(["sklearn"])]
        ['python', 'epsilometer', 'numpy', 'scipy', 'scikit-learn']
    """
    found = {name: version(name) for name in _ALWAYS}
    for package in sorted(set(packages)):
        for name in find_distributions(package):
            if name not in found and (number := find_version(name)) is not None:
                found[name] = number
    return (("python", ".".join(platform.python_version_tuple()[:2])), *found.items())


def read_environment() -> dict[str, str]:
    """Return the versions of all installed distributions of which something is imported."""
    origins = [find_origin(name) for name in {name.partition(".")[0] for name in list(sys.modules)}]
    installed = {find_package(origin) for origin in origins if origin.kind == "package"}
    names = {each for name in installed for each in find_distributions(name)}
    found = {name: find_version(name) for name in sorted(names)}
    return {name: number for name, number in found.items() if number is not None}


def list_version_changes(there: Mapping[str, str]) -> list[str]:
    """Return which of these distributions have another version here, in words."""
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
    return tuple(sorted(set(_every_package().get(package, ()))))


@cache
def find_version(distribution: str) -> str | None:
    """Return the version of an installed distribution; None where it is not there."""
    try:
        return version(distribution)
    except (PackageNotFoundError, ValueError):
        return None


@cache
def _every_package() -> Mapping[str, list[str]]:
    """Return the distributions of every package; it takes long, so once per process."""
    return packages_distributions()
