"""Write shards while units are computed: a thread takes what is finished to the disk."""

import threading

from epsilometer.engine.shards import Arrays
from epsilometer.engine.store import Store

_MOMENT = 0.05  # seconds; units that finish within one share a file and its trip to the disk
_HELD = 64 * 2**20  # bytes that may wait for the disk before the run waits for it


class Writer:
    """A thread that writes shards; an error of its is raised by the next call."""

    def __init__(self, store: Store) -> None:
        """Starts with nothing to write."""
        self._store = store
        self._units: dict[int, Arrays] = {}
        self._bytes = 0
        self._changed = threading.Condition()
        self._closed = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._work, name="epsilometer-writer", daemon=True)

    def __enter__(self) -> "Writer":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Waits until everything is on the disk."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join()
        self._raise()

    def add(self, unit: int, arrays: Arrays) -> None:
        """Takes a unit to write; waits where too much does."""
        with self._changed:
            while self._bytes > _HELD and self._error is None:
                self._changed.wait()
            self._raise()
            if not self._units:
                self._changed.notify_all()
            self._units[unit] = arrays
            self._bytes += sum(array.nbytes for array in arrays.values())

    def _work(self) -> None:
        try:
            while self._wait_for_units():
                with self._changed:
                    units, self._units, self._bytes = self._units, {}, 0
                    self._changed.notify_all()
                self._store.write_shard(dict(sorted(units.items())))
        except BaseException as error:  # handed to whoever adds next
            with self._changed:
                self._error = error
                self._changed.notify_all()

    def _wait_for_units(self) -> bool:
        """Waits for a unit and a moment more; False when there will be none."""
        with self._changed:
            self._changed.wait_for(lambda: self._units or self._closed)
            self._changed.wait_for(lambda: self._closed or self._bytes > _HELD, timeout=_MOMENT)
            return bool(self._units)

    def _raise(self) -> None:
        if self._error is not None:
            raise self._error
