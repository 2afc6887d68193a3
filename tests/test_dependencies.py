"""The audit of what we are installed with: it catches what it should, and says what it left out."""

import importlib.util
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from tests.engine.jobs import ROOT

SPEC = importlib.util.spec_from_file_location("dependencies", ROOT / "docs" / "dependencies.py")
assert SPEC is not None
assert SPEC.loader is not None
audit: Any = importlib.util.module_from_spec(SPEC)
__import__("sys").modules["dependencies"] = audit
SPEC.loader.exec_module(audit)


@pytest.mark.parametrize(
    "licence",
    ["", "GPL-3.0-only", "GNU General Public License v2 (GPLv2)", "AGPL-3.0", "SSPL-1.0"],
)
def test_licences_that_ask_for_more_are_named(licence: str) -> None:
    assert audit.judge_licence(licence)


@pytest.mark.parametrize(
    "licence",
    ["MIT", "BSD-3-Clause", "Apache Software License", "LGPL-2.1", "MPL-2.0", "MIT OR GPL-2.0"],
)
def test_licences_that_ask_for_a_notice_are_spared(licence: str) -> None:
    assert audit.judge_licence(licence) == ""


def test_the_locked_set_is_read_whole() -> None:
    text = "# versions\nNumPy==2.4.6\nast_serialize==0.13.1  # why\n\n"
    assert audit.read_locked(text) == {"numpy": "2.4.6", "ast-serialize": "0.13.1"}
    locked = audit.read_locked((ROOT / "constraints.txt").read_text("utf-8"))
    assert {"numpy", "scipy", "click", "httpx", "cloudpickle"} <= set(locked)


def test_what_is_not_installed_is_said_to_be_not_examined() -> None:
    _, wrong = audit.list_components({"no-such-package": "1.0", "click": "0.0.1"})
    assert any("no-such-package" in line and "not examined" in line for line in wrong)
    assert any("click is locked as 0.0.1" in line for line in wrong)


def test_the_bill_of_materials_is_whole_and_always_the_same() -> None:
    locked = audit.read_locked((ROOT / "constraints.txt").read_text("utf-8"))
    components, _ = audit.list_components(locked)
    bill = audit.make_bill(components, version="1.0")
    assert json.dumps(bill) == json.dumps(audit.make_bill(reversed(components), version="1.0"))
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.5")
    known = {each["bom-ref"] for each in bill["components"]} | {"pkg:pypi/epsilometer@1.0"}
    assert all({line["ref"], *line["dependsOn"]} <= known for line in bill["dependencies"])
    scope = {each["name"]: each["scope"] for each in bill["components"]}
    assert (scope["numpy"], scope["opacus"], scope["ruff"]) == ("required", "optional", "excluded")


@pytest.fixture
def database(monkeypatch: pytest.MonkeyPatch) -> Iterator[HTTPServer]:
    """A real server that knows of one vulnerability."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            bad = [{"id": "TEST-1"}]
            results = [
                {"vulns": bad} if "click@" in query["package"]["purl"] else {}
                for query in asked["queries"]
            ]
            body = json.dumps({"results": results}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    monkeypatch.setattr(audit, "DATABASE", f"http://127.0.0.1:{server.server_port}/")
    yield server
    server.shutdown()
    server.server_close()


def test_vulnerabilities_are_named_and_an_absent_database_is_no_all_clear(
    database: HTTPServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    components, _ = audit.list_components({"click": "8.5.1", "numpy": "2.4.6"})
    assert audit.find_vulnerabilities(components) == {"click 8.5.1": ["TEST-1"]}
    monkeypatch.setattr(audit, "DATABASE", "http://127.0.0.1:9/")
    assert audit.find_vulnerabilities(components) is None
