"""An audit in a repository of the Hub: the requests that are sent, answered on this machine."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from huggingface_hub import HfApi, ModelCard
from huggingface_hub.errors import EntryNotFoundError

import epsilometer as em
from epsilometer.core.serialisation import from_json
from epsilometer.integrations.huggingface import push_audit
from epsilometer.report.model_card import list_metadata, write_model_card

OWN = "---\nlicense: mit\n---\n# A model\r\n"


class Hub(HfApi):  # type: ignore[misc, unused-ignore]
    """One repository, in memory."""

    def __init__(self, folder: Path, card: str | None) -> None:
        super().__init__(endpoint="http://127.0.0.1:9")
        self.folder, self.card, self.commits = folder, card, []  # type: ignore[var-annotated]

    def repo_info(self, repo_id: str, **asked: Any) -> Any:
        return SimpleNamespace(sha="c0ffee")

    def hf_hub_download(self, repo_id: str, filename: str, **asked: Any) -> str:
        assert (filename, asked["revision"]) == ("README.md", "c0ffee")
        if self.card is None:
            raise EntryNotFoundError("none")
        path = self.folder / filename
        path.write_bytes(self.card.encode())
        return str(path)

    def create_commit(self, repo_id: str, operations: Any, **asked: Any) -> Any:
        self.commits.append({op.path_in_repo: op.path_or_fileobj for op in operations} | asked)
        return SimpleNamespace(commit_url=f"https://hub/{repo_id}/commit/1")


@pytest.fixture
def audit() -> em.Audit:
    return em.audit(em.Scores([1.0] * 900, [0.0] * 900), 3.0, delta=1e-5)


@pytest.mark.parametrize("card", [None, OWN])
def test_card_and_audit_are_one_commit(tmp_path: Path, audit: em.Audit, card: str | None) -> None:
    hub = Hub(tmp_path, card)
    assert push_audit(audit, "me/model", api=hub, create_pr=True) == "https://hub/me/model/commit/1"
    (commit,) = hub.commits
    assert (commit["parent_commit"], commit["create_pr"]) == ("c0ffee", True)
    written = commit["README.md"].decode()
    assert written == write_model_card(card or "", audit)
    data = ModelCard(written).data.to_dict()
    assert data["privacy_audit"] == list_metadata(audit)
    assert data.get("license") == (None if card is None else "mit")
    assert from_json(commit["audit.json"]) == audit
    assert b"<!doctype html>" in commit["audit.html"]


@pytest.mark.parametrize(
    "card",
    [
        "---\r\nlicense: mit\r\n---\r\n# Mine\r\n",
        "\n---\nlicense: mit\n---\n",
        "---\nlicense: mit\n---",
    ],
)
def test_the_hub_reads_all_metadata(audit: em.Audit, card: str) -> None:
    data = ModelCard(write_model_card(card, audit)).data.to_dict()
    assert data["license"] == "mit"
    assert data["privacy_audit"] == list_metadata(audit)


def test_a_second_audit_replaces_the_first(tmp_path: Path, audit: em.Audit) -> None:
    hub = Hub(tmp_path, write_model_card(OWN, audit))
    push_audit(audit, "me/model", api=hub)
    assert hub.commits[0]["README.md"].decode() == write_model_card(OWN, audit)
