"""One input after the other, each made from the reader's name, a seed and a number alone."""

import random
import signal
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

from epsilometer.errors import EpsilometerError
from tests.fuzz.edits import edited
from tests.fuzz.readers import READERS, Reader

PATIENCE = 10.0  # seconds of computing for one small file
WAITING = 120.0  # seconds in all: for a computer that does other things too
LONGEST = 1000  # characters of a message that somebody reads
_FORBIDDEN = ("pickle.find_class", "os.system", "subprocess.Popen", "os.exec", "os.posix_spawn")


class TooSlow(BaseException):
    """Beyond what ``except Exception`` catches, so that no reader hides it."""


class Executed(BaseException):
    """Something in a file was run."""


@dataclass
class Tally:
    """What became of the inputs of one reader."""

    reader: str
    read: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    wrong: int = 0
    found: dict[str, tuple[int, str]] = field(default_factory=dict)  # what went wrong, each once

    @property
    def tried(self) -> int:
        """All of them."""
        return self.read + self.refused.total() + self.wrong

    def __str__(self) -> str:
        refused = ", ".join(f"{kind} {times:,}" for kind, times in self.refused.most_common())
        lines = [
            f"{self.reader}: {self.tried:,} inputs, {self.read:,} read, "
            f"{self.refused.total():,} refused ({refused or 'none'}), {self.wrong:,} wrong"
        ]
        lines += [f"  input {number}: {what}" for number, what in self.found.values()]
        return "\n".join(lines)


def input_of(name: str, number: int, *, seed: int) -> bytes:
    """The input of that number; number 0 and on are the valid files themselves."""
    reader = READERS[name]
    valid = reader.valid()
    if number < len(valid):
        return valid[number]
    rng = random.Random(f"{name} {seed} {number}")
    return edited(rng.choice(valid), reader.edits, rng)


def tried(name: str, *, seed: int, first: int = 0, inputs: int = 0, minutes: float = 0.0) -> Tally:
    """Reads so many inputs, or for so long, and tells what became of them."""
    tally, end = Tally(name), time.monotonic() + 60 * minutes
    reader, number = READERS[name], first
    with tempfile.TemporaryDirectory() as folder:
        reader.read(reader.valid()[0], Path(folder))  # loads whatever is loaded when first used
        while number < first + inputs or time.monotonic() < end:
            data = input_of(name, number, seed=seed)
            one(reader, data, Path(folder), tally, number)
            number += 1
    return tally


def one(reader: Reader, data: bytes, folder: Path, tally: Tally, number: int) -> None:
    """Reads one input; whatever is no object and no error of the house's is found."""
    try:
        with watched():
            reader.read(data, folder)
    except EpsilometerError as error:
        if trouble := _unclear(str(error)):
            _found(tally, f"{type(error).__name__}, {trouble}: {str(error)[:200]!r}", number)
        else:
            tally.refused[type(error).__name__] += 1
    except (Exception, TooSlow, Executed) as error:
        frames = error.__traceback__
        while frames and frames.tb_next and frames.tb_next.tb_frame.f_code is not _late.__code__:
            frames = frames.tb_next
        where = "" if frames is None else f"{frames.tb_frame.f_code.co_qualname}:{frames.tb_lineno}"
        _found(tally, f"{type(error).__name__} at {where}: {str(error)[:200]!r}", number)
    else:
        tally.read += 1


def _found(tally: Tally, what: str, number: int) -> None:
    tally.wrong += 1
    tally.found.setdefault(what.partition(": ")[0], (number, what))


def _unclear(message: str) -> str:
    if len(message) > LONGEST:
        return f"a message of {len(message):,} characters"
    if len(message.split()) < 3:
        return "a message of few words"
    return "" if "Traceback" not in message else "a traceback as message"


@contextmanager
def watched() -> Iterator[None]:
    """Time, warnings, and whatever would run something, become errors."""
    _listening()
    clocks = (
        (signal.SIGPROF, signal.ITIMER_PROF, PATIENCE),
        (signal.SIGALRM, signal.ITIMER_REAL, WAITING),
    )
    before = [signal.signal(number, _late) for number, _, _ in clocks]
    for _, clock, seconds in clocks:
        signal.setitimer(clock, seconds)
    _RUNNING.append(True)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            yield
    finally:
        _RUNNING.clear()
        for (number, clock, _), handler in zip(clocks, before, strict=True):
            signal.setitimer(clock, 0)
            signal.signal(number, handler)


def _late(*_: Any) -> NoReturn:
    raise TooSlow(f"no answer within {PATIENCE:g} s of computing")


@cache
def _listening() -> None:
    """Once: a hook of the interpreter's cannot be taken out again."""
    sys.addaudithook(_heard)


def _heard(event: str, _: Any) -> None:
    if _RUNNING and event in _FORBIDDEN:
        raise Executed(event)


_RUNNING: list[bool] = []
