"""Query a JSON service over HTTP: rate-limited, with retries, and no request twice."""

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
    """Raised when a service gave no usable answer. Earlier answers are kept."""


@dataclass(frozen=True, eq=False)
class JsonService:
    """Query a service that answers a POST of JSON with JSON.

    Every answer is written to a journal before it is used. If the same requests are repeated in the
    same order, as after a crash, stored answers are read and only missing ones requested. So each
    model needs its own journal. The key of the service is read from the environment for every
    request, and is only sent in the header of the request.

    Guarantees: no answered request is repeated. One object begins at most ``per_second`` requests
        per second. An answer that ``check`` refuses raises and is not kept.
    Assumes: the service draws every answer independently, by its own randomness.

    Attributes:
        url: URL of the service; https, unless it is on this computer. Requests to this computer use
            no proxy.
        journal: File of its answers. It never holds requests, only codes for them that cannot be
            computed without the key file next to it.
        per_second: Largest number of requests per second.
        timeout: Seconds without a response from the service after which a try has failed.
        deadline: Seconds within which a try must receive its whole answer.
        insecure: Whether to send records over http to other computers too, readable by everyone on
            the way; a key is never sent so.
        tries: Attempts per request, before giving up.
        pause: Seconds before the second try; doubled before each further one, at most 60.
        key: Name of the environment variable that has the key; None for none.
        key_header: Header for the key, such as ``X-API-Key``; ``Authorization`` sends ``Bearer …``.
    """

    url: str = field(repr=False)  # the query string may be a secret
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
                "Expected an address without name and password. Name an environment variable as "
                "key."
            )
        if parts.scheme == "http" and not _is_here(self.url):
            if self.key is not None:
                raise InvalidArgument(
                    "Expected https for a service that is sent a key, got http, which anyone on "
                    "the way can read."
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
        """Refuse an invalid answer in the journal: raise TypeError or LookupError."""

    @contextmanager
    def ask_in_order(self) -> Iterator[Callable[[str, Callable[[Any], Any]], Any]]:
        """Lock the journal, and yield a function that queries, or reads the stored answer.

        The function takes a body, and a function that checks an answer and returns it in the form
        to be stored. After a failure, a new call begins with the stored answers.
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
        """Return the answer to the ``number``-th repetition of a request."""
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
        """Return status, headers and body of one answer, the body up to a limit."""
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
        """Wait so that at most ``per_second`` requests begin per second."""
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
        """Return a service's words for a message: shortened, and without the key."""
        if self.key is not None:
            said = said.replace(_read_key(self.key), "…")
        return said[:_SHOWN]

    @property
    def where(self) -> str:
        """Return the URL without its query string, which may be a secret."""
        parts = urllib.parse.urlsplit(self.url)
        return f"{parts.scheme}://{parts.netloc}{parts.path}"

    @property
    def so_far(self) -> str:
        """State how many answers are kept, and where."""
        return (
            f"after {len(self._journal.answers)} answers, which are kept in {str(self.journal)!r}"
        )


class _NoAnswer(Exception):
    """Raised when one try failed."""


class _Deadline:
    """Close a connection at its deadline, even if data still arrives."""

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
        """Record the sockets that httpx opens; a copy of each, since TLS takes it over."""
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
    """Store answers by the code of their request, one per line, in an append-only file.

    Codes are keyed, so requests cannot be guessed from the journal. A line that a crash left
    incomplete is cut off by the next process that holds the journal.
    """

    def __init__(self, path: Path, check: Callable[[Any], None] = lambda _: None) -> None:
        self.path, self._check = path, check
        self.answers: dict[str, Any] = {}
        self._read = 0  # bytes
        self._key = b""

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Lock it, so that two processes do not send the same requests; read stored answers."""
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
        """Return the code of a request, which cannot be computed without the key."""
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
        """Read the key next to the journal; create both if neither exists."""
        name = f"{self.path.name}.key"
        with self._wrap_errors(), open(self.path, "ab", opener=open_private) as file:
            fresh = file.tell() == 0
        with self._wrap_errors(), Folder.hold(self.path.parent) as folder:
            self._key = make_secret(folder, name) if fresh else read_secret(folder, name)
            folder.sync()

    def _catch_up(self) -> None:
        """Read what was added since the last call, by any process."""
        with self._wrap_errors(), open(self.path, "a+b", opener=open_private) as file:
            if file.seek(0, os.SEEK_END) < self._read:  # another process started it again
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
    """Return the key from the environment; errors never show it."""
    found = os.environ.get(variable, "").strip()
    if not found or not (found.isascii() and found.isprintable()):
        raise InvalidArgument(
            f"Expected a key in the environment variable {variable}, got "
            f"{'something that no header can have' if found else 'none'}."
        )
    return found


def _read_pause(headers: Mapping[str, str]) -> float:
    """Return the seconds that the service requests, at most ``_LONGEST``; dates are ignored."""
    said = headers.get("Retry-After", "")
    return min(float(said), _LONGEST) if said.isdecimal() else 0.0
