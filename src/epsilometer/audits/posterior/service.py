"""Ask a prediction service over HTTP: at a pace, patiently, and nothing twice."""

import email.message
import hashlib
import http.client
import json
import os
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock
from numpy.typing import ArrayLike

from epsilometer import _validate
from epsilometer._files import OWNER_FILE, open_private
from epsilometer.audits.posterior.forms import check_probabilities
from epsilometer.engine.store import CannotWrite
from epsilometer.errors import EpsilometerError, InvalidArgument, UnreadableFile
from epsilometer.types import FloatArray

_TRANSIENT = (408, 425, 429, 500, 502, 503, 504)  # statuses that another try may fix
_LONGEST = 60.0  # seconds between two tries, whatever the service asks for
_READ, _SHOWN = 4096, 200  # bytes of a refusal, and characters: a key in it is found whole
_LARGEST = 64 << 20  # bytes of an answer
_BROKEN = (OSError, http.client.HTTPException, OverflowError)  # timeouts, cut lines, odd lengths
_HERE = ("localhost", "127.0.0.1", "::1")


class ServiceFailed(EpsilometerError):
    """A prediction service gave no answer that can be used. What it gave before is kept."""


def ask_for_samples(x: FloatArray, samples: int) -> Any:
    """Return the usual request: ``{"features": …, "samples": …}``."""
    return {"features": x.tolist(), "samples": samples}


def take_probabilities(answer: Any) -> ArrayLike:
    """Take them from the usual answer: ``{"probabilities": [[…], …]}``, one row per sample."""
    found: ArrayLike = answer["probabilities"]
    return found


@dataclass(frozen=True, eq=False)
class HttpService:
    """A prediction service that answers a POST of JSON with JSON.

    Every answer is written to a journal before it is used. Asked the same in the same order again,
    as after a crash, it reads what is there and asks for what is missing; so each model needs a
    journal of its own. The key of the service is read from the environment for every request, and
    goes into the header of the request and nowhere else.

    Guarantees: nothing that was answered is asked again; no more than ``per_second`` requests are
        begun a second by one object; an answer that is no probabilities, or has other classes than
        those before, raises and is not kept.
    Assumes: the service draws every answer anew. Its randomness is its own: ``rng`` is not used.

    Attributes:
        url: Where to; https, unless there is no key or the service is on this computer.
        journal: A file for its answers; it holds hashes of requests, never the requests.
        classes: How many classes, where that is known; else as many as in the first answer.
        unit: To which the service rounds, where it does: sums may miss 1 by that much.
        at_once: Samples that one request asks for; None for all.
        per_second: Requests a second.
        timeout: Seconds without a sign of the service after which a try has failed.
        tries: Of every request, before giving up.
        pause: Seconds before the second try; before each further one twice as many, at most 60.
        key: Name of the environment variable that has the key; None for none.
        key_header: As ``Authorization``, where the key is sent as ``Bearer …``, or ``X-API-Key``.
        request: ``request(x, samples)``, what is sent as JSON.
        answer: ``answer(JSON)``, the probabilities in what comes back, ``(samples, classes)``.
    """

    url: str = field(repr=False)  # what comes after a question mark may be a secret
    _: KW_ONLY
    journal: str | os.PathLike[str]
    classes: int | None = None
    unit: float | None = None
    at_once: int | None = None
    per_second: float = 5.0
    timeout: float = 30.0
    tries: int = 6
    pause: float = 1.0
    key: str | None = None
    key_header: str = "Authorization"
    request: Callable[[FloatArray, int], Any] = ask_for_samples
    answer: Callable[[Any], ArrayLike] = take_probabilities
    _journal: "_Journal" = field(init=False, repr=False)
    _next: list[float] = field(init=False, repr=False, default_factory=lambda: [0.0])
    _asked: dict[str, int] = field(init=False, repr=False, default_factory=dict)

    def __post_init__(self) -> None:
        try:
            parts = urllib.parse.urlsplit(self.url)
            known = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
        except ValueError:  # a port that is no number, half of an IPv6 address
            known = False
        if not known:
            raise InvalidArgument(
                "Expected the address of a service, https://name/path, got something else."
            )
        if parts.username or parts.password:
            raise InvalidArgument(
                "Expected an address without name and password. Give the name of an environment "
                "variable as key."
            )
        if self.key is not None:
            if parts.scheme == "http" and parts.hostname not in _HERE:
                raise InvalidArgument(
                    "Expected https for a service that is sent a key, got http: all on the way "
                    "would read it."
                )
            _read_secret(self.key)
        _validate.positive(per_second=self.per_second, timeout=self.timeout)
        _validate.whole(1, tries=self.tries)
        _validate.at_least(0, pause=self.pause)
        for name, value in (("classes", self.classes), ("at_once", self.at_once)):
            if value is not None:
                _validate.whole(1, **{name: value})
        object.__setattr__(self, "_journal", _Journal(Path(self.journal)))

    def predict(self, x: ArrayLike, samples: int, rng: np.random.Generator) -> FloatArray:
        """Predict from the journal as far as it goes, then ask the service.

        Raises:
            ServiceFailed: It gave no answer in all tries, or refused, or changed its classes. Call
                again, in this process or another, to go on.
        """
        _validate.whole(1, samples=samples)
        features = np.asarray(x)
        numbers, drawn = dict(self._asked), []
        with self._journal.hold():
            left = samples
            while left:
                some = min(left, self.at_once or left)
                body = self._write_body(features, some)
                number = numbers.get(body, 0)
                drawn.append(self._find_answer(body, number, some))
                numbers[body] = number + 1
                left -= some
        self._asked.update(numbers)  # only now: what failed begins again with what was answered
        return np.concatenate(drawn)

    def _write_body(self, features: FloatArray, samples: int) -> str:
        try:
            return json.dumps(self.request(features, samples), allow_nan=False)
        except (TypeError, ValueError) as error:
            raise InvalidArgument(
                f"Expected a request that can be written as JSON, it cannot: {error}."
            ) from error

    def _find_answer(self, body: str, number: int, samples: int) -> FloatArray:
        """Return the answer to a request that is made for the ``number``-th time."""
        asked = f"{self.url}\n{number}\n{samples}\n{body}"
        name = hashlib.sha256(asked.encode()).hexdigest()
        known = self._journal.answers.get(name)
        if known is not None:
            return self._check(known, samples)
        answer = self._check(self._ask(body), samples)
        self._journal.add(name, answer.tolist())
        return answer

    def _check(self, given: Any, samples: int) -> FloatArray:
        classes = self.classes or self._journal.classes
        try:
            return check_probabilities(given, samples, classes, unit=self.unit)
        except InvalidArgument as error:
            raise ServiceFailed(
                f"{error} So {self._where} answered {self._so_far}. Was another model put in its "
                "place? Each needs a journal of its own."
            ) from error

    def _ask(self, body: str) -> ArrayLike:
        """Return what the service says now."""
        answer = self._send(body)
        try:
            return self.answer(answer)
        except (KeyError, TypeError, IndexError) as error:
            raise ServiceFailed(
                f"Expected probabilities in the answer of {self._where}, found none "
                f"({type(error).__name__}: {self._shorten(str(error))}) {self._so_far}. Give "
                "answer=, a function that finds them."
            ) from error

    def _send(self, body: str) -> Any:
        wait, trouble = 0.0, ""
        for attempt in range(self.tries):
            time.sleep(wait)
            self._wait_for_turn()
            wait = min(self.pause * 2**attempt, _LONGEST)
            try:
                with _OPENER.open(self._make_request(body), timeout=self.timeout) as response:
                    said = _read(response, _LARGEST + 1)
                if len(said) > _LARGEST:
                    trouble = f"more than {_LARGEST >> 20} MiB"
                    break
                return json.loads(said)
            except urllib.error.HTTPError as error:
                with error:
                    trouble = f"status {error.code}"
                    if error.code not in _TRANSIENT:
                        raise ServiceFailed(self._word_refusal(error)) from None
                    wait = max(wait, _read_pause(error.headers))
            except _BROKEN as error:
                reason = getattr(error, "reason", error)
                trouble = f"{type(reason).__name__}: {self._shorten(str(reason))}"
            except (ValueError, RecursionError):
                trouble = "something that is not JSON"
        raise ServiceFailed(
            f"Expected an answer of {self._where} in {self.tries} tries, got last {trouble} "
            f"{self._so_far}. Call again to go on."
        )

    def _wait_for_turn(self) -> None:
        """Let no more than ``per_second`` requests begin per second."""
        now = time.monotonic()
        if now < self._next[0]:
            time.sleep(self._next[0] - now)
        self._next[0] = max(now, self._next[0]) + 1 / self.per_second

    def _make_request(self, body: str) -> urllib.request.Request:
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        if self.key is not None:
            bearer = "Bearer " if self.key_header.lower() == "authorization" else ""
            headers[self.key_header] = bearer + _read_secret(self.key)
        return urllib.request.Request(self.url, body.encode(), headers, method="POST")

    def _word_refusal(self, error: urllib.error.HTTPError) -> str:
        try:
            said = _read(error, _READ).decode("utf-8", "replace")
        except _BROKEN:
            said = ""
        if error.code // 100 == 3:
            said = "it sends elsewhere; give the address that it leads to"
        return (
            f"Expected an answer of {self._where}, got status {error.code} {self._so_far}: "
            f"{self._shorten(said or error.reason)}"
        )

    def _shorten(self, said: str) -> str:
        """Return what a service said as a message shows it: it may be long, or repeat its key."""
        if self.key is not None:
            said = said.replace(_read_secret(self.key), "…")
        return said[:_SHOWN]

    @property
    def _where(self) -> str:
        """Return the address without what comes after a question mark: it may be a secret."""
        parts = urllib.parse.urlsplit(self.url)
        return f"{parts.scheme}://{parts.netloc}{parts.path}"

    @property
    def _so_far(self) -> str:
        return (
            f"after {len(self._journal.answers)} answers, which are kept in {str(self.journal)!r}"
        )


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A key and records go where they were sent, and nowhere else."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


_OPENER = urllib.request.build_opener(_NoRedirect)


def _read(response: Any, most: int) -> bytearray:
    """Read so many bytes at most; in pieces, or a chunk of length -1 would be read whole."""
    said = bytearray()
    while len(said) < most and (piece := response.read1(most - len(said))):
        said += piece
    return said


class _Journal:
    """Answers by the hash of their request, one per line; only ever added to.

    A line that a crash left half is cut off by whoever holds the journal next.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.answers: dict[str, Any] = {}
        self.classes: int | None = None
        self._read = 0  # bytes

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Hold it while asking, so that two processes do not ask the same; read what is there."""
        with self._wrap_errors():
            self.path.parent.mkdir(parents=True, exist_ok=True)
            lock = FileLock(f"{self.path}.lock", mode=OWNER_FILE)
            lock.acquire()
        try:
            self._catch_up()
            yield
        finally:
            lock.release()

    def add(self, name: str, answer: list[list[float]]) -> None:
        """Add an answer; it is on the disk when this returns."""
        line = json.dumps({"request": name, "answer": answer}).encode() + b"\n"
        with self._wrap_errors(), open(self.path, "ab", opener=open_private) as file:
            file.write(line)
            file.flush()
            os.fsync(file.fileno())
        self._remember(name, answer)
        self._read += len(line)

    def _catch_up(self) -> None:
        """Read what was added, by whomever, since it last looked."""
        with self._wrap_errors(), open(self.path, "a+b", opener=open_private) as file:
            if file.seek(0, os.SEEK_END) < self._read:  # somebody began anew
                self.answers.clear()
                self.classes, self._read = None, 0
            file.seek(self._read)
            *lines, half = file.read().split(b"\n")
            if half:
                file.truncate(file.tell() - len(half))
        for line in lines:
            try:
                known = json.loads(line)
                self._remember(known["request"], known["answer"])
            except (ValueError, TypeError, LookupError, RecursionError) as error:
                raise UnreadableFile(
                    f"Expected a journal of answers, {str(self.path)!r} has something else at "
                    f"byte {self._read}. Give another file, or take that line out."
                ) from error
            self._read += len(line) + 1

    def _remember(self, name: str, answer: list[list[float]]) -> None:
        classes = len(answer[0])
        self.classes = self.classes or classes
        self.answers[name] = answer

    @contextmanager
    def _wrap_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise CannotWrite(
                f"Expected to be able to write {str(self.path)!r}: {error.strerror}. What is "
                "there stays there."
            ) from error


def _read_secret(variable: str) -> str:
    """Return the key, from the environment; an error never shows it."""
    found = os.environ.get(variable, "").strip()
    if not found or not (found.isascii() and found.isprintable()):
        raise InvalidArgument(
            f"Expected a key in the environment variable {variable}, got "
            f"{'something that no header can have' if found else 'none'}."
        )
    return found


def _read_pause(headers: email.message.Message) -> float:
    """Return the seconds that the service asks for, at most ``_LONGEST``; not of a date."""
    said = headers.get("Retry-After", "")
    return min(float(said), _LONGEST) if said.isdecimal() else 0.0
