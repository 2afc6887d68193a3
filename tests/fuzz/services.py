"""A prediction service whose answers are any bytes, and the journal that they are kept in."""

import json
import random
import socket
import tempfile
import threading
from functools import cache
from pathlib import Path

import numpy as np

from epsilometer.audits.posterior.service import HttpService
from tests.fuzz.edits import in_json

_X = np.array([0.25, -1.0])
_REQUEST = b"0" * 64  # stands for the hash of the request, which has the server's port in it
_BODY = json.dumps({"probabilities": [[0.25, 0.75], [0.5, 0.5], [1.0, 0.0]]}).encode()


class _Raw:
    """Answers every connection with the same bytes, whatever is asked, and hangs up."""

    def __init__(self) -> None:
        self.said = b""
        self._socket = socket.create_server(("127.0.0.1", 0), backlog=16)
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}/predict"
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            connection, _ = self._socket.accept()
            with connection:
                try:
                    connection.settimeout(1.0)
                    self._hear(connection)
                    connection.sendall(self.said)
                    connection.shutdown(socket.SHUT_WR)
                    while connection.recv(4096):
                        pass
                except OSError:  # whoever asked has hung up
                    continue

    def _hear(self, connection: socket.socket) -> None:
        heard = b""
        while b"\r\n\r\n" not in heard:
            heard += connection.recv(4096)
        head, _, body = heard.partition(b"\r\n\r\n")
        wanted = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
        while len(body) < wanted:
            body += connection.recv(4096)


@cache
def _server() -> _Raw:
    return _Raw()


def _response(body: bytes, status: bytes = b"200 OK", more: bytes = b"") -> bytes:
    length = str(len(body)).encode()
    return b"HTTP/1.1 %s\r\nContent-Length: %s\r\n%s\r\n%s" % (status, length, more, body)


def _ask(folder: Path, name: str) -> None:
    service = HttpService(
        _server().url, journal=folder / name, tries=1, pause=0.0, per_second=1e6, timeout=2.0
    )
    found = service.predict(_X, 3, np.random.default_rng(0))
    assert found.shape[0] == 3
    assert np.isfinite(found).all()
    assert np.abs(found.sum(axis=1) - 1).max() < 0.02
    again = HttpService(service.url, journal=folder / name, tries=1, timeout=2.0)
    assert (again.predict(_X, 3, np.random.default_rng(0)) == found).all()


class answered:  # noqa: N801 - a namespace
    """Whole responses, their first lines and headers among them."""

    @staticmethod
    def valid() -> list[bytes]:
        chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
        chunked += b"%x\r\n%s\r\n0\r\n\r\n" % (len(_BODY), _BODY)
        return [
            _response(_BODY),
            chunked,
            _response(b"no", b"503 Busy", b"Retry-After: 0\r\n"),
            _response(b"no", b"403 Forbidden"),
            _response(b"", b"302 Found", b"Location: http://127.0.0.1:9/\r\n"),
        ][:2]

    @staticmethod
    def read(data: bytes, folder: Path) -> None:
        _server().said = data
        (folder / "answers.jsonl").unlink(missing_ok=True)
        _ask(folder, "answers.jsonl")


def _in_body(data: bytes, rng: random.Random) -> bytes:
    return _response(in_json(_BODY, rng))


def _status(data: bytes, rng: random.Random) -> bytes:
    status = rng.choice((b"503 Busy", b"403 No", b"302 Found", b"204 None", b"999 \xff", b"100 Go"))
    more = rng.choice((b"Retry-After: 0\r\n", b"Location: /\r\n", b"", b"X: " + b"y" * 70_000))
    return _response(rng.choice((_BODY, b"", b"\x00" * 5000)), status, more)


answered.edits = (*[_in_body] * 8, _status, _status)  # type: ignore[attr-defined]


class journalled:  # noqa: N801 - a namespace
    """Journals; what is not in them is asked for, and answered well."""

    @staticmethod
    def valid() -> list[bytes]:
        return [_journal()[0].replace(_hash(), _REQUEST) * 2]

    @staticmethod
    def read(data: bytes, folder: Path) -> None:
        _server().said = _response(_BODY)
        (folder / "journal.jsonl").write_bytes(data.replace(_REQUEST, _hash()))
        (folder / "journal.jsonl.key").write_bytes(_journal()[1])
        _ask(folder, "journal.jsonl")


@cache
def _journal() -> tuple[bytes, bytes]:
    """That of one request, and its key."""
    with tempfile.TemporaryDirectory() as folder:
        _server().said = _response(_BODY)
        _ask(Path(folder), "journal.jsonl")
        named = Path(folder) / "journal.jsonl"
        return named.read_bytes(), named.with_name("journal.jsonl.key").read_bytes()


def _hash() -> bytes:
    return str(json.loads(_journal()[0])["request"]).encode()


def _in_line(data: bytes, rng: random.Random) -> bytes:
    lines = data.splitlines(keepends=True) or [b"{}"]
    at = rng.randrange(len(lines))
    lines[at] = in_json(lines[at], rng).replace(b"\n", b" ") + b"\n"
    return b"".join(lines)


journalled.edits = (*[_in_line] * 8,)  # type: ignore[attr-defined]
