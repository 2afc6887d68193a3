"""Ask a service over HTTP for JSON: at a pace, patiently, and nothing twice."""

import hmac
import ipaddress
import json
import os
import socket
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Any

from filelock import FileLock

from epsilometer import _validate
from epsilometer._extras import needs
from epsilometer._files import OWNER_FILE, Folder, make_folder, open_private
from epsilometer.core.chain import make_secret, read_secret
from epsilometer.engine.store import CannotWrite
from epsilometer.errors import EpsilometerError, InvalidArgument, UnreadableFile

_TRANSIENT = (408, 425, 429, 500, 502, 503, 504)  # statuses that another try may fix
_LONGEST = 60.0  # seconds between two tries, whatever the service asks for
_READ, _SHOWN = 4096, 200  # bytes of a refusal, and characters: a key in it is found whole
_LARGEST = 64 << 20  # bytes of an answer


class ServiceFailed(EpsilometerError):
    """A service gave no answer that can be used. What it gave before is kept."""


@dataclass(frozen=True, eq=False)
class JsonService:
    """A service that answers a POST of JSON with JSON.

    Every answer is written to a journal before it is used. Asked the same in the same order again,
    as after a crash, it reads what is there and asks for what is missing. So each model needs its
    own journal. The key of the service is read from the environment for every request, and goes
    into the header of the request and nowhere else.

    Guarantees: nothing that was answered is asked again. No more than ``per_second`` requests are
        begun per second by one object. An answer that ``check`` refuses raises and is not kept.
    Assumes: the service draws every answer independently, by its own randomness.

    Attributes:
        url: Where to; https, unless the service is on this computer. Nothing for this computer
            goes through a proxy.
        journal: A file for its answers. It names requests by codes that no one can compute who
            does not have the key beside it, and never holds requests.
        per_second: Requests a second.
        timeout: Seconds without a sign of the service after which a try has failed.
        deadline: Seconds in which a try must bring its whole answer, however it trickles in.
        insecure: Send records over http to other computers too, where all on the way read them; a
            key never.
        tries: Attempts per request, before giving up.
        pause: Seconds before the second try; before each further one twice as many, at most 60.
        key: Name of the environment variable that has the key; None for none.
        key_header: As ``Authorization``, where the key is sent as ``Bearer …``, or ``X-API-Key``.
    """

    url: str = field(repr=False)  # what comes after a question mark may be a secret
    _: KW_ONLY
    journal: str | os.PathLike[str]
    per_second: float = 5.0
    timeout: float = 30.0
    deadline: float = 120.0
    insecure: bool = False
    tries: int = 6
    pause: float = 1.0
    key: str | None = None
    key_header: str = "Authorization"
    _journal: "_Journal" = field(init=False, repr=False)
    _next: list[float] = field(init=False, repr=False, default_factory=lambda: [0.0])
    _asked: dict[str, int] = field(init=False, repr=False, default_factory=dict)

    def __post_init__(self) -> None:
        try:
            parts = urllib.parse.urlsplit(self.url)
            known = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
        except ValueError:  # a port that is not a number, half of an IPv6 address
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
        if parts.scheme == "http" and not _is_here(self.url):
            if self.key is not None:
                raise InvalidArgument(
                    "Expected https for a service that is sent a key, got http: all on the way "
                    "would read it."
                )
            if not self.insecure:
                raise InvalidArgument(
                    "Expected https for a service that is sent records, got http: all on the way "
                    "would read them. Where that is no harm, give insecure=True."
                )
        if self.key is not None:
            _read_key(self.key)
        _validate.positive(per_second=self.per_second, timeout=self.timeout, deadline=self.deadline)
        _validate.whole(1, tries=self.tries)
        _validate.at_least(0, pause=self.pause)
        object.__setattr__(self, "_journal", _Journal(Path(self.journal), self.check_kept))

    def check_kept(self, answer: Any) -> None:
        """Refuse an invalid answer of a journal: raises TypeError or LookupError."""

    @contextmanager
    def ask_in_order(self) -> Iterator[Callable[[str, Callable[[Any], Any]], Any]]:
        """Hold the journal, and give a function that asks, or reads what was answered before.

        The function takes a body, and what checks an answer and returns it as it is kept. What
        failed begins again with what was answered.
        """
        numbers = dict(self._asked)

        def ask(body: str, check: Callable[[Any], Any]) -> Any:
            number = numbers.get(body, 0)
            found = self._find_answer(body, number, check)
            numbers[body] = number + 1
            return found

        with self._journal.hold():
            yield ask
        self._asked.update(numbers)

    def write_body(self, request: Any) -> str:
        """Return a request as JSON text."""
        try:
            return json.dumps(request, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise InvalidArgument(
                f"Expected a request that can be written as JSON, it cannot: {error}."
            ) from error

    def _find_answer(self, body: str, number: int, check: Callable[[Any], Any]) -> Any:
        """Return the answer to a request that is made for the ``number``-th time."""
        name = self._journal.name_request(f"{self.url}\n{number}\n{body}")
        known = self._journal.answers.get(name)
        if known is not None:
            return known
        answer = check(self._send(body))
        self._journal.add(name, answer)
        return answer

    def _send(self, body: str) -> Any:
        wait, trouble = 0.0, ""
        for attempt in range(self.tries):
            time.sleep(wait)
            self._wait_for_turn()
            wait = min(self.pause * 2**attempt, _LONGEST)
            try:
                status, headers, said = self._post(body)
            except _NoAnswer as error:
                trouble = self.shorten(str(error))
                continue
            if status in _TRANSIENT:
                trouble, wait = f"status {status}", max(wait, _read_pause(headers))
                continue
            if status // 100 != 2:
                raise ServiceFailed(self._word_refusal(status, said))
            if len(said) > _LARGEST:
                trouble = f"more than {_LARGEST >> 20} MiB"
                break
            try:
                return json.loads(said)
            except (ValueError, RecursionError):
                trouble = "something that is not JSON"
        raise ServiceFailed(
            f"Expected an answer of {self.where} in {self.tries} tries, got last {trouble} "
            f"{self.so_far}. Call again to go on."
        )

    def _post(self, body: str) -> tuple[int, Mapping[str, str], bytes]:
        """Return status, headers and body of one answer; as much of the body as is checked."""
        with needs("httpx", extra="service"):
            import httpx
        watch = _Deadline(self.deadline)
        try:
            with (
                watch,
                httpx.Client(
                    proxy=_find_proxy(self.url),
                    trust_env=False,
                    timeout=self.timeout,
                    verify=httpx.create_ssl_context() if self.url.startswith("https") else True,
                ) as client,
                client.stream(
                    "POST",
                    self.url,
                    content=body.encode(),
                    headers=self._make_headers(),
                    extensions={"trace": watch.trace},
                ) as response,
            ):
                most = _LARGEST + 1 if response.status_code // 100 == 2 else _READ
                said = bytearray()
                for piece in response.iter_raw():
                    said += piece
                    if len(said) >= most:
                        break
                shown = bytes(said[:most]) or response.reason_phrase.encode()
                return response.status_code, response.headers, shown
        except ImportError as error:
            raise InvalidArgument(
                "Expected a proxy by http, the environment names one by SOCKS, which needs "
                "socksio. Get it with: pip install 'httpx[socks]'"
            ) from error
        except (httpx.HTTPError, httpx.StreamError, httpx.InvalidURL, OSError, ValueError) as error:
            if watch.over:
                raise _NoAnswer(f"no whole answer in {self.deadline:g} s") from error
            raise _NoAnswer(f"{type(error).__name__}: {error}") from error

    def _wait_for_turn(self) -> None:
        """Let no more than ``per_second`` requests begin per second."""
        now = time.monotonic()
        if now < self._next[0]:
            time.sleep(self._next[0] - now)
        self._next[0] = max(now, self._next[0]) + 1 / self.per_second

    def _make_headers(self) -> dict[str, str]:
        headers = {
            "Content-Type": "application/json",
            "Accept": "application/json",
            "Accept-Encoding": "identity",  # a small answer must not unpack to a large one
        }
        if self.key is not None:
            bearer = "Bearer " if self.key_header.lower() == "authorization" else ""
            headers[self.key_header] = bearer + _read_key(self.key)
        return headers

    def _word_refusal(self, status: int, said: bytes) -> str:
        text = said.decode("utf-8", "replace")
        if status // 100 == 3:
            text = "it sends elsewhere; give the address that it leads to"
        return (
            f"Expected an answer of {self.where}, got status {status} {self.so_far}: "
            f"{self.shorten(text)}"
        )

    def shorten(self, said: str) -> str:
        """Return what a service said as a message shows it: it may be long, or repeat its key."""
        if self.key is not None:
            said = said.replace(_read_key(self.key), "…")
        return said[:_SHOWN]

    @property
    def where(self) -> str:
        """Return the address without what comes after a question mark: it may be a secret."""
        parts = urllib.parse.urlsplit(self.url)
        return f"{parts.scheme}://{parts.netloc}{parts.path}"

    @property
    def so_far(self) -> str:
        """Say how many answers are kept, and where."""
        return (
            f"after {len(self._journal.answers)} answers, which are kept in {str(self.journal)!r}"
        )


class _NoAnswer(Exception):
    """One try brought nothing."""


class _Deadline:
    """Ends a connection when its time is over, whatever comes through it meanwhile."""

    def __init__(self, seconds: float) -> None:
        self.over = False
        self._lines: list[socket.socket] = []
        self._timer = threading.Timer(seconds, self._end)
        self._timer.daemon = True

    def __enter__(self) -> None:
        self._timer.start()

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()
        for line in self._lines:
            line.close()

    def trace(self, event: str, info: Mapping[str, Any]) -> None:
        """Remember the lines that httpx opens; a copy of each, as TLS takes it over."""
        if event.endswith("connect_tcp.complete"):
            self._lines.append(info["return_value"].get_extra_info("socket").dup())
            if self.over:
                self._end()

    def _end(self) -> None:
        self.over = True
        for line in self._lines:
            with suppress(OSError):
                line.shutdown(socket.SHUT_RDWR)


def _is_here(url: str) -> bool:
    """Tell whether a service is on this computer."""
    host = urllib.parse.urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _find_proxy(url: str) -> str | None:
    """Return the proxy that the environment names for a service; none for this computer."""
    parts = urllib.parse.urlsplit(url)
    if _is_here(url) or urllib.request.proxy_bypass(parts.hostname or ""):
        return None
    proxies = urllib.request.getproxies()
    found = proxies.get(parts.scheme) or proxies.get("all")
    return f"http://{found}" if found and "://" not in found else found  # as curl reads it


class _Journal:
    """Answers by the code of their request, one per line; only ever added to.

    Codes are keyed, so that who has the journal cannot guess requests. A line that a crash left
    half is cut off by whoever holds the journal next.
    """

    def __init__(self, path: Path, check: Callable[[Any], None] = lambda _: None) -> None:
        self.path, self._check = path, check
        self.answers: dict[str, Any] = {}
        self._read = 0  # bytes
        self._key = b""

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Hold it while asking, so that two processes do not ask the same; read what is there."""
        with self._wrap_errors():
            make_folder(self.path.parent)
            lock = FileLock(f"{self.path}.lock", mode=OWNER_FILE)
            lock.acquire()
        try:
            self._find_key()
            self._catch_up()
            yield
        finally:
            lock.release()

    def name_request(self, asked: str) -> str:
        """Return the code of a request, which only who has the key can compute."""
        return hmac.digest(self._key, asked.encode(), "sha256").hex()

    def add(self, name: str, answer: Any) -> None:
        """Add an answer; it is on the disk when this returns."""
        line = json.dumps({"request": name, "answer": answer}).encode() + b"\n"
        with self._wrap_errors(), open(self.path, "ab", opener=open_private) as file:
            file.write(line)
            file.flush()
            os.fsync(file.fileno())
        self._remember(name, answer)
        self._read += len(line)

    def _find_key(self) -> None:
        """Read the key beside the journal; make it, and the journal, where there is neither."""
        name = f"{self.path.name}.key"
        with self._wrap_errors(), open(self.path, "ab", opener=open_private) as file:
            fresh = file.tell() == 0
        with self._wrap_errors(), Folder.hold(self.path.parent) as folder:
            self._key = make_secret(folder, name) if fresh else read_secret(folder, name)
            folder.sync()

    def _catch_up(self) -> None:
        """Read what was added, by whomever, since it last looked."""
        with self._wrap_errors(), open(self.path, "a+b", opener=open_private) as file:
            if file.seek(0, os.SEEK_END) < self._read:  # somebody began anew
                self.answers.clear()
                self._read = 0
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

    def _remember(self, name: str, answer: Any) -> None:
        self._check(answer)
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


def _read_key(variable: str) -> str:
    """Return the key, from the environment; an error never shows it."""
    found = os.environ.get(variable, "").strip()
    if not found or not (found.isascii() and found.isprintable()):
        raise InvalidArgument(
            f"Expected a key in the environment variable {variable}, got "
            f"{'something that no header can have' if found else 'none'}."
        )
    return found


def _read_pause(headers: Mapping[str, str]) -> float:
    """Return the seconds that the service asks for, at most ``_LONGEST``; not of a date."""
    said = headers.get("Retry-After", "")
    return min(float(said), _LONGEST) if said.isdecimal() else 0.0
