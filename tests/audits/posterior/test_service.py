"""A prediction service over HTTP: servers that are slow, broken, killed, or not what they were."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from epsilometer.audits.posterior.service import HttpService
from epsilometer.engine import service
from epsilometer.engine.service import ServiceFailed
from epsilometer.engine.store import CannotWrite
from epsilometer.errors import InvalidArgument, UnreadableFile
from tests.faults.counting import count

X = np.array([[0.25, -1.0], [3.0, 1e-3]])
RNG = np.random.default_rng(0)
KEY = "s3cr3t-0123456789"
PATIENT = 60.0  # seconds: no answer is late because the computer is busy


class Server:
    """Answers request after request by ``behave(number, request)``; remembers all of them."""

    def __init__(self, behave: Callable[[int, Any], Any], port: int = 0) -> None:
        self.requests: list[Any] = []
        self.headers: list[dict[str, str]] = []
        self.behave, self.end = behave, threading.Event()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                outer.requests.append(body)
                outer.headers.append(dict(self.headers))
                outer.behave(len(outer.requests) - 1, body)(self)

            def log_message(self, *_: Any) -> None:
                pass

        class Quiet(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *_: Any) -> None:
                pass  # whoever asked has hung up

        self.http = Quiet(("127.0.0.1", port), Handler)
        self.thread = threading.Thread(target=self.http.serve_forever, args=(0.01,), daemon=True)
        self.thread.start()
        self.url = f"http://127.0.0.1:{self.http.server_port}/predict?token=hidden"

    def close(self) -> None:
        self.end.set()
        self.http.shutdown()
        self.http.server_close()
        self.thread.join()


Reply = Callable[[BaseHTTPRequestHandler], None]


def reply(content: Any, status: int = 200, **headers: str) -> Reply:
    def write(handler: BaseHTTPRequestHandler) -> None:
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        handler.send_response(status)
        handler.send_header("Content-Length", str(len(body)))
        for name, value in headers.items():
            handler.send_header(name.replace("_", "-"), value)
        handler.end_headers()
        handler.wfile.write(body)

    return write


def cut_off(handler: BaseHTTPRequestHandler) -> None:
    """Hangs up in the middle of an answer."""
    handler.send_response(200)
    handler.send_header("Content-Length", "1000")
    handler.end_headers()
    handler.wfile.write(b'{"probabilities": [[0.5,')


def answers(number: int, request: Any) -> Reply:
    """Other probabilities each time."""
    first = (number + 1) / 100
    return reply({"probabilities": [[first, 1 - first]] * request["samples"]})


@pytest.fixture
def serve() -> Iterator[Callable[..., Server]]:
    running: list[Server] = []

    def start(behave: Callable[[int, Any], Any] = answers, port: int = 0) -> Server:
        running.append(Server(behave, port))
        return running[-1]

    yield start
    for server in running:
        if not server.end.is_set():
            server.close()


def asking(server: Server, tmp_path: Path, **how: Any) -> HttpService:
    known = {"journal": tmp_path / "answers.jsonl", "per_second": 1e6, "pause": 0.0}
    return HttpService(server.url, **(known | {"timeout": PATIENT} | how))


def first_column(drawn: np.ndarray) -> list[float]:
    return [float(value) for value in drawn[:, 0]]


# Asking


def test_a_request_is_the_record_and_how_many_samples(
    serve: Callable[..., Server], tmp_path: Path
) -> None:
    server = serve()
    drawn = asking(server, tmp_path).predict(X, 3, RNG)
    assert server.requests == [{"features": X.tolist(), "samples": 3}]
    assert server.headers[0]["Content-Type"] == "application/json"
    np.testing.assert_array_equal(drawn, [[0.01, 0.99]] * 3)


def test_a_service_of_another_form_is_asked_in_its_own(
    serve: Callable[..., Server], tmp_path: Path
) -> None:
    server = serve(lambda number, request: reply([{"p": [0.1, 0.9]}, {"p": [0.2, 0.8]}]))
    sampler = asking(
        server,
        tmp_path,
        request=lambda x, samples: {"instances": [x.tolist()] * samples},
        answer=lambda answer: [row["p"] for row in answer],
    )
    assert first_column(sampler.predict(X, 2, RNG)) == [0.1, 0.2]
    assert server.requests[0]["instances"] == [X.tolist()] * 2


def test_samples_are_asked_for_in_parts_and_each_call_asks_anew(
    serve: Callable[..., Server], tmp_path: Path
) -> None:
    server = serve()
    sampler = asking(server, tmp_path, at_once=2)
    assert first_column(sampler.predict(X, 5, RNG)) == [0.01, 0.01, 0.02, 0.02, 0.03]
    assert [request["samples"] for request in server.requests] == [2, 2, 1]
    assert first_column(sampler.predict(X, 2, RNG)) == [0.04, 0.04]
    assert first_column(sampler.predict(-X, 2, RNG)) == [0.05, 0.05]


def test_nothing_answered_is_asked_again(serve: Callable[..., Server], tmp_path: Path) -> None:
    server = serve()
    before = asking(server, tmp_path, at_once=1)
    first, second, other = (before.predict(x, 3, RNG) for x in (X, X, -X))
    again = asking(server, tmp_path, at_once=1)
    np.testing.assert_array_equal(again.predict(-X, 3, RNG), other)  # in any order of records
    np.testing.assert_array_equal(again.predict(X, 3, RNG), first)
    longer = again.predict(X, 4, RNG)  # one more than were asked for before
    np.testing.assert_array_equal(longer[:3], second)
    assert len(server.requests) == 10


class Clock:
    """Stands in for ``time``: sleeping takes no time, and is written down."""

    def __init__(self) -> None:
        self.now = 100.0
        self.slept: list[float] = []

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        if seconds:
            self.slept.append(seconds)
        self.now += seconds


def test_requests_are_as_far_apart_as_the_pace_says(
    serve: Callable[..., Server], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    monkeypatch.setattr(service, "time", clock)
    sampler = asking(serve(), tmp_path, at_once=1, per_second=4)
    sampler.predict(X, 4, RNG)
    assert clock.slept == pytest.approx([0.25] * 3)
    clock.now += 10  # no credit for having waited
    sampler.predict(X, 3, RNG)
    assert clock.slept == pytest.approx([0.25] * 5)


# Trouble


def test_a_service_that_recovers_is_waited_for_longer_each_time(
    serve: Callable[..., Server], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    monkeypatch.setattr(service, "time", clock)
    troubles = [
        reply({}, 500),
        cut_off,
        reply(b"<html>", 200),
        reply({}, 503, Retry_After="7"),
        reply({}, 429, Retry_After="100000"),
        reply({}, 502, Retry_After="Fri, 31 Dec 1999 23:59:59 GMT"),
    ]
    server = serve(lambda number, asked: [*troubles, answers(0, asked)][number])
    drawn = asking(server, tmp_path, pause=1.0, tries=7).predict(X, 2, RNG)
    assert first_column(drawn) == [0.01, 0.01]
    assert clock.slept == pytest.approx([1, 2, 4, 8, 60, 32], abs=1e-3)  # the pace beside them


def test_a_service_that_hangs_is_asked_again(serve: Callable[..., Server], tmp_path: Path) -> None:
    def behave(number: int, request: Any) -> Reply:
        if number == 0:
            server.end.wait(PATIENT)
        return answers(number, request)

    server = serve(behave)
    drawn = asking(server, tmp_path, timeout=1.0, tries=50).predict(X, 1, RNG)
    assert drawn.shape == (1, 2)
    assert len(server.requests) >= 2


def test_a_service_that_only_hangs_is_given_up_and_nothing_is_lost(
    serve: Callable[..., Server], tmp_path: Path
) -> None:
    hung = [True]

    def behave(number: int, request: Any) -> Reply:
        if number >= 3 and hung[0]:
            server.end.wait(PATIENT)
        return answers(number, request)

    server = serve(behave)
    patient = asking(server, tmp_path, at_once=1)
    first = patient.predict(X, 3, RNG)
    hasty = asking(server, tmp_path, at_once=1, timeout=1.0, tries=2)
    with pytest.raises(ServiceFailed, match=r"in 2 tries, got last .*[Tt]ime.* after 3 answers"):
        hasty.predict(X, 5, RNG)
    assert len(server.requests) == 5
    hung[0] = False
    for again in (hasty, asking(server, tmp_path, at_once=1)):  # the same object, or another
        np.testing.assert_array_equal(again.predict(X, 3, RNG), first)
    assert len(server.requests) == 5


def test_a_server_that_is_killed_and_comes_back_goes_on_where_it_was(
    serve: Callable[..., Server], tmp_path: Path
) -> None:
    def dies(number: int, request: Any) -> Reply:
        if number < 4:
            return answers(number, request)

        def die(handler: BaseHTTPRequestHandler) -> None:
            server.http.socket.close()  # nobody listens any more
            cut_off(handler)

        return die

    server = serve(dies)
    sampler = asking(server, tmp_path, at_once=1, tries=2)
    with pytest.raises(ServiceFailed, match=r"after 4 answers, which are kept.*go on"):
        sampler.predict(X, 6, RNG)
    port = server.http.server_port
    server.close()
    anew = serve(lambda number, request: answers(50 + number, request), port)
    assert anew.url == server.url
    found = first_column(sampler.predict(X, 6, RNG))
    assert found == [0.01, 0.02, 0.03, 0.04, 0.51, 0.52]
    assert len(anew.requests) == 2


CLIENT = """
import sys
import numpy as np
from epsilometer.audits.posterior.service import HttpService
sampler = HttpService(sys.argv[1], journal=sys.argv[2], at_once=1, per_second=1e6, timeout=600)
sampler.predict(np.ones(2), 6, np.random.default_rng(0))
"""


def test_an_audit_that_is_killed_goes_on_where_it_was(
    serve: Callable[..., Server], tmp_path: Path
) -> None:
    reached, release = threading.Event(), threading.Event()

    def behave(number: int, request: Any) -> Reply:
        if number == 4:
            reached.set()
            release.wait(PATIENT)
        return answers(number, request)

    server, journal = serve(behave), tmp_path / "answers.jsonl"
    client = subprocess.Popen([sys.executable, "-c", CLIENT, server.url, str(journal)])
    try:
        assert reached.wait(PATIENT)
    finally:
        os.kill(client.pid, signal.SIGKILL)
        client.wait()
        release.set()
    assert len(journal.read_bytes().splitlines()) == 4
    with journal.open("ab") as file:
        file.write(b'{"request": "5e')  # as if it had died while writing
    drawn = asking(server, tmp_path, at_once=1).predict(np.ones(2), 6, RNG)
    assert first_column(drawn) == [0.01, 0.02, 0.03, 0.04, 0.06, 0.07]
    assert all(json.loads(line) for line in journal.read_bytes().splitlines())
    assert len(journal.read_bytes().splitlines()) == 6


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (reply({"probabilities": [[0.2, 0.3, 0.5]]}), r"shape \(1, 2\), got \(1, 3\)"),
        (reply({"probabilities": [[0.2, 0.2]]}), "add up to 1"),
        (reply({"probabilities": [[0.5, 0.5]] * 2}), r"shape \(1, 2\), got \(2, 2\)"),
        (reply(b'{"probabilities": [[NaN, 0.5]]}'), "nan"),
        (reply({"probabilities": "none"}), "rows of numbers"),
        (reply({"error": "busy"}), "found none.*answer="),
        (reply([1, 2]), "found none"),
        (reply({"detail": "no such model"}, 404), "status 404.*no such model"),
        (reply({}, 302, Location="http://127.0.0.1:9/"), "status 302.*sends elsewhere"),
    ],
)
def test_answers_that_are_none_raise_at_once_and_keep_what_was_got(
    answer: Reply, said: str, serve: Callable[..., Server], tmp_path: Path
) -> None:
    server = serve(lambda number, asked: answer if number == 2 else answers(number, asked))
    sampler = asking(server, tmp_path, at_once=1)
    with pytest.raises(ServiceFailed, match=said) as error:
        sampler.predict(X, 3, RNG)
    assert "after 2 answers, which are kept" in str(error.value)
    assert "hidden" not in str(error.value)  # of the address
    assert len(server.requests) == 3
    assert first_column(sampler.predict(X, 3, RNG)) == [0.01, 0.02, 0.04]


def test_a_length_that_lies_is_not_read_for_ever(
    serve: Callable[..., Server], tmp_path: Path
) -> None:
    def endless(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.send_header("Transfer-Encoding", "chunked")
        handler.end_headers()
        handler.wfile.write(length + b"\r\n" + bytes(72 << 20))

    server = serve(lambda number, asked: endless)
    length = b"%x" % (72 << 20)
    with pytest.raises(ServiceFailed, match="got last more than 64 MiB"):
        asking(server, tmp_path).predict(X, 1, RNG)
    assert len(server.requests) == 1
    length = b"-1"
    with pytest.raises(ServiceFailed, match="in 2 tries, got last RemoteProtocolError"):
        asking(server, tmp_path, tries=2).predict(X, 1, RNG)


@pytest.mark.parametrize("head", [True, False], ids=["headers", "body"])
def test_a_service_that_drips_is_given_up_at_the_deadline(
    head: bool, serve: Callable[..., Server], tmp_path: Path
) -> None:
    """A byte every 50 ms satisfied any timeout, for as long as the service liked."""

    def drip(handler: BaseHTTPRequestHandler) -> None:
        start = b"HTTP/1.0 200 OK\r\n" + (b"" if head else b"Content-Length: 10000\r\n\r\n")
        handler.wfile.write(start)
        while not server.end.wait(0.05):
            handler.wfile.write(b"X")

    server = serve(lambda number, asked: drip)
    began = time.monotonic()
    with pytest.raises(ServiceFailed, match=r"in 2 tries, got last no whole answer in 0.5 s"):
        asking(server, tmp_path, deadline=0.5, tries=2).predict(X, 1, RNG)
    assert 1.0 <= time.monotonic() - began < 10.0
    count("service drips bytes past its deadline", 2)


def test_nothing_for_this_computer_goes_through_a_proxy(
    serve: Callable[..., Server], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    proxy, server = serve(), serve()
    for name in ("http_proxy", "HTTP_PROXY", "https_proxy", "all_proxy"):
        monkeypatch.setenv(name, proxy.url)
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    asking(server, tmp_path).predict(X, 1, RNG)
    assert (len(server.requests), len(proxy.requests)) == (1, 0)
    assert service._find_proxy("http://127.1.2.3/x") is None
    assert service._find_proxy("http://[::1]/x") is None
    assert service._find_proxy("https://example.org") == proxy.url
    monkeypatch.setenv("https_proxy", "proxy.example:3128")  # the usual way to write it
    assert service._find_proxy("https://example.org") == "http://proxy.example:3128"


def test_a_proxy_that_cannot_be_used_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One by SOCKS ended in an ImportError."""
    monkeypatch.setitem(sys.modules, "socksio", None)
    monkeypatch.setenv("https_proxy", "socks5://127.0.0.1:9")
    asked = HttpService("https://example.org/x", journal=tmp_path / "journal", tries=1)
    with pytest.raises(InvalidArgument, match=r"pip install 'httpx\[socks\]'"):
        asked.predict(X, 1, RNG)


def test_records_go_over_https_unless_that_is_said_to_be_no_harm(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="https for a service that is sent records"):
        HttpService("http://example.org", journal=tmp_path / "j")
    with pytest.raises(InvalidArgument, match="https for a service that is sent records"):
        HttpService("http://localhost.example.org", journal=tmp_path / "j")
    HttpService("http://example.org", journal=tmp_path / "j", insecure=True)


def test_a_name_in_a_netrc_is_not_sent(
    serve: Callable[..., Server], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login me password mine\n")
    (tmp_path / "netrc").chmod(0o600)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    server = serve()
    asking(server, tmp_path).predict(X, 1, RNG)
    assert "authorization" not in {name.lower() for name in server.headers[0]}


def test_another_model_behind_a_journal_is_told_after_a_restart(
    serve: Callable[..., Server], tmp_path: Path
) -> None:
    asking(serve(), tmp_path).predict(X, 1, RNG)
    other = serve(lambda number, asked: reply({"probabilities": [[0.2, 0.3, 0.5]]}))
    with pytest.raises(ServiceFailed, match=r"got \(1, 3\).*its own journal"):
        asking(other, tmp_path).predict(X, 1, RNG)


def test_a_service_that_rounds_is_taken_at_its_word(
    serve: Callable[..., Server], tmp_path: Path
) -> None:
    server = serve(lambda number, asked: reply({"probabilities": [[0.33, 0.33, 0.33]]}))
    with pytest.raises(ServiceFailed, match="Say to which unit"):
        asking(server, tmp_path).predict(X, 1, RNG)
    assert asking(server, tmp_path, unit=0.01).predict(X, 1, RNG).shape == (1, 3)


# The key


def test_the_key_goes_into_the_header_and_nowhere_else(
    serve: Callable[..., Server], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SERVICE_KEY", f" {KEY}\n")  # as files end
    server = serve(
        lambda number, asked: (
            reply({"you sent": "x" * 180 + KEY}, 403) if number == 1 else answers(number, asked)
        )
    )
    sampler = asking(server, tmp_path, key="SERVICE_KEY")
    sampler.predict(X, 1, RNG)
    assert server.headers[0]["Authorization"] == f"Bearer {KEY}"
    with pytest.raises(ServiceFailed, match="status 403") as error:
        sampler.predict(X, 1, RNG)
    asking(server, tmp_path, key="SERVICE_KEY", key_header="X-API-Key").predict(-X, 1, RNG)
    assert {name.lower(): value for name, value in server.headers[2].items()}["x-api-key"] == KEY
    shown = [repr(sampler), str(error.value), *(path.read_text() for path in tmp_path.iterdir())]
    assert not any("hidden" in text for text in shown)  # of the address
    held = shown + [repr(value) for value in vars(sampler).values()]
    assert not any(KEY[:4] in text for text in held)  # nor a part of it


def test_neither_a_long_reason_nor_the_key_in_it_is_shown(
    serve: Callable[..., Server], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(403, f"not with {KEY}" + "!" * 3000)
        handler.end_headers()

    monkeypatch.setenv("SERVICE_KEY", KEY)
    with pytest.raises(ServiceFailed, match=r"status 403.*not with …!!!") as error:
        asking(serve(lambda *_: refuse), tmp_path, key="SERVICE_KEY").predict(X, 1, RNG)
    assert len(str(error.value)) < 1000


def test_a_key_that_is_not_there_or_would_be_read_by_all_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    how: dict[str, Any] = {"journal": tmp_path / "j", "key": "SERVICE_KEY"}
    monkeypatch.delenv("SERVICE_KEY", raising=False)
    with pytest.raises(InvalidArgument, match="variable SERVICE_KEY, got none"):
        HttpService("https://example.org", **how)
    monkeypatch.setenv("SERVICE_KEY", "split\nin two")
    with pytest.raises(InvalidArgument, match="no header can have") as error:
        HttpService("https://example.org", **how)
    assert "split" not in str(error.value)
    monkeypatch.setenv("SERVICE_KEY", KEY)
    with pytest.raises(InvalidArgument, match="https for a service that is sent a key"):
        HttpService("http://example.org", **how)
    assert HttpService("https://example.org", **how).tries == 6


# The journal


def test_a_journal_holds_hashes_and_answers_and_not_the_records(
    serve: Callable[..., Server], tmp_path: Path
) -> None:
    asking(serve(), tmp_path).predict(np.array([123.5]), 1, RNG)
    text = (tmp_path / "answers.jsonl").read_text()
    assert "123.5" not in text
    assert json.loads(text)["answer"] == [[0.01, 0.99]]


def test_who_has_a_journal_cannot_guess_its_requests(
    serve: Callable[..., Server], tmp_path: Path
) -> None:
    """Two journals of the same request name it differently; without its key one is refused."""
    server, names = serve(lambda *_: reply({"probabilities": [[0.5, 0.5]]})), set()
    for journal in ("a", "b"):
        asking(server, tmp_path, journal=tmp_path / journal).predict(X, 1, RNG)
        names.add(json.loads((tmp_path / journal).read_text())["request"])
        assert (tmp_path / f"{journal}.key").stat().st_mode & 0o777 == 0o600
    assert len(names) == 2
    (tmp_path / "a.key").unlink()
    with pytest.raises(UnreadableFile, match=r"Expected a secret in .*a\.key"):
        asking(server, tmp_path, journal=tmp_path / "a").predict(X, 1, RNG)
    assert len(server.requests) == 2


def test_a_damaged_journal_is_told_and_left_alone(
    serve: Callable[..., Server], tmp_path: Path
) -> None:
    server, path = serve(), tmp_path / "answers.jsonl"
    sampler = asking(server, tmp_path, at_once=1)
    sampler.predict(X, 2, RNG)
    first, second = path.read_bytes().splitlines(keepends=True)
    for damage in (b"\0\0\0\n", b"[]\n", b'{"request": "a", "answer": 5}\n'):
        path.write_bytes(first + damage + second)
        with pytest.raises(UnreadableFile, match=f"something else at byte {len(first)}"):
            asking(server, tmp_path).predict(X, 2, RNG)
        assert path.read_bytes() == first + damage + second
    assert len(server.requests) == 2


def test_a_journal_that_was_taken_away_is_begun_anew(
    serve: Callable[..., Server], tmp_path: Path
) -> None:
    server = serve()
    sampler = asking(server, tmp_path)
    sampler.predict(X, 1, RNG)
    (tmp_path / "answers.jsonl").unlink()
    assert first_column(sampler.predict(X, 1, RNG)) == [0.02]
    assert len((tmp_path / "answers.jsonl").read_text().splitlines()) == 1


def test_a_journal_that_cannot_be_written_is_told(
    serve: Callable[..., Server], tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CannotWrite, match="able to write"):
        asking(serve(), tmp_path, journal=tmp_path / "file" / "answers").predict(X, 1, RNG)
    with pytest.raises(CannotWrite, match="able to write"):
        asking(serve(), tmp_path, journal=tmp_path).predict(X, 1, RNG)


def test_two_who_share_a_journal_do_not_ask_the_same(
    serve: Callable[..., Server], tmp_path: Path
) -> None:
    server = serve()
    both = [asking(server, tmp_path, at_once=1) for _ in range(2)]
    found: list[Any] = [None, None]

    def ask(at: int) -> None:
        found[at] = both[at].predict(X, 20, RNG)

    threads = [threading.Thread(target=ask, args=(at,)) for at in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(server.requests) == 20
    np.testing.assert_array_equal(*found)


# Bad input


@pytest.mark.parametrize(
    ("url", "how", "said"),
    [
        ("file:///etc/passwd", {}, "address of a service"),
        ("http://[::1", {}, "address of a service"),
        ("http://example.org:word", {}, "address of a service"),
        ("example.org/predict", {}, "address of a service"),
        ("https://", {}, "address of a service"),
        ("https://me:word@example.org", {}, "without name and password"),
        ("https://example.org", {"per_second": 0}, "per_second > 0"),
        ("https://example.org", {"timeout": -1.0}, "timeout > 0"),
        ("https://example.org", {"tries": 0}, "tries ≥ 1"),
        ("https://example.org", {"pause": -1}, "pause ≥ 0"),
        ("https://example.org", {"at_once": 0}, "at_once ≥ 1"),
        ("https://example.org", {"classes": 1.5}, "whole number for classes"),
    ],
)
def test_bad_settings_are_told(url: str, how: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match=said) as error:
        HttpService(url, journal=tmp_path / "j", **how)
    assert "word" not in str(error.value).replace("password", "")


@pytest.mark.parametrize("x", [[np.nan, 1.0], [1.0 + 2.0j]])
def test_a_record_that_json_cannot_say_is_told(
    x: Any, serve: Callable[..., Server], tmp_path: Path
) -> None:
    server = serve()
    with pytest.raises(InvalidArgument, match="written as JSON"):
        asking(server, tmp_path).predict(x, 1, RNG)
    with pytest.raises(InvalidArgument, match="samples ≥ 1"):
        asking(server, tmp_path).predict(X, 0, RNG)
    assert server.requests == []
