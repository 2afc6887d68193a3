"""Hand methods to torch as hooks without keeping their objects alive."""

import weakref
from collections.abc import Callable
from typing import Any


def call_weakly(method: Callable[..., None]) -> Callable[..., None]:
    """Return a function that calls a method as long as its object is alive.

    Example:
        >>> class Counter:
        ...     calls = 0
        ...     def count(self) -> None:
        ...         Counter.calls += 1
        >>> counter = Counter()
        >>> hook = call_weakly(counter.count)
        >>> hook(); del counter; hook()
        >>> Counter.calls
        1
    """
    found = weakref.WeakMethod(method)

    def call(*args: Any) -> None:
        alive = found()
        if alive is not None:
            alive(*args)

    return call
