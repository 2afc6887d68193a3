"""Register objects by name: by one line, or by an entry point of another package.

Every kind of extension (estimators, engines, subjects, renderers, choices, …) has one registry.
Another package adds its own with ``REGISTRY.register(name, value)``, or with an entry point of the
group ``epsilometer.<kind>``, which needs no import of ours.
"""

import functools
import pkgutil
import sys
from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from epsilometer import _validate
from epsilometer.errors import InvalidArgument

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

Item = TypeVar("Item")


class Registry(Mapping[str, Item], Generic[Item]):
    """Objects of one kind by name; each is imported when it is first asked for.

    Guarantee: names of this package win over registered ones, and those over entry points.
    Assumption: an entry point loads what the registry holds.

    Args:
        kind: The plural noun that names the entry-point group ``epsilometer.<kind>``.
        own: Objects by name, or paths to them (``"module:attribute"`` or ``"module"``).
        also: Further kinds whose entry points are included.

    Example:
        >>> shapes: Registry[type] = Registry("shapes", {"pair": "builtins:tuple"})
        >>> shapes.register("bag", set)
        >>> shapes["pair"], shapes.find("bag"), list(shapes)
        (<class 'tuple'>, <class 'set'>, ['pair', 'bag'])
    """

    def __init__(
        self, kind: str, own: Mapping[str, Item | str] | None = None, *, also: tuple[str, ...] = ()
    ) -> None:
        """Take the names of this package."""
        self.group = f"epsilometer.{kind}"
        self._groups = (self.group, *(f"epsilometer.{each}" for each in also))
        self._items: dict[str, Item | str] = dict(own or {})

    def register(self, name: str, item: Item | str) -> None:
        """Add an object, or the path of one, under a new name.

        Raises:
            InvalidArgument: The name is taken by another object.
        """
        if self._items.setdefault(name, item) is not item:
            raise InvalidArgument(
                f"Expected a new name for {self.group}, got {_validate.short(name)}."
            )

    def find(self, name: Any, *, label: str = "") -> Item:
        """Return the object of a name, or raise an error that lists all names.

        Args:
            name: The registered name.
            label: Name of the argument in the error message.
        """
        if not isinstance(name, str) or name not in self:
            expected = f"{label} to be one of" if label else "one of"
            raise InvalidArgument(
                f"Expected {expected} {', '.join(self)}, got {_validate.short(name)}."
            )
        return self[name]

    def name_of(self, item: Any) -> str | None:
        """Return the name of an object, without importing any other; None if it has none."""
        path = path_of(item)
        for name in self:
            if self._items.get(name) is item or self.path(name) == path:
                return name
        return None

    def path(self, name: str) -> str:
        """Return the path of the object of a name, as ``module:attribute``."""
        if name not in self._items:
            return self._entries()[name].value
        item = self._items[name]
        return item if isinstance(item, str) else path_of(item)

    def __getitem__(self, name: str) -> Item:
        """Return the object of a name; import it if necessary."""
        if name in self._items:
            item = self._items[name]
            loaded: Item = pkgutil.resolve_name(item) if isinstance(item, str) else item
        else:
            loaded = self._entries()[name].load()
        return loaded

    def __iter__(self) -> Iterator[str]:
        """Yield own and registered names, then names of entry points."""
        yield from self._items
        yield from (name for name in self._entries() if name not in self._items)

    def __contains__(self, name: object) -> bool:
        """Tell whether there is an object of this name, without importing it."""
        return name in self._items or name in self._entries()

    def __len__(self) -> int:
        """Return the number of names."""
        return len(tuple(iter(self)))

    def _entries(self) -> "Mapping[str, EntryPoint]":
        return _find_entries(self._groups, tuple(sys.path))


def path_of(item: Any) -> str:
    """Return the path under which an object was defined, as ``module:attribute``."""
    if isinstance(item, ModuleType):
        return item.__name__
    named = item if hasattr(item, "__qualname__") else type(item)
    return f"{named.__module__}:{named.__qualname__}"


@functools.lru_cache(maxsize=64)
def _find_entries(groups: tuple[str, ...], path: tuple[str, ...]) -> "Mapping[str, EntryPoint]":
    """Return entry points of some groups; scanning all distributions takes about 10 ms."""
    from importlib.metadata import entry_points

    del path  # a key of the cache: another path may have other distributions
    return {entry.name: entry for group in groups for entry in entry_points(group=group)}
