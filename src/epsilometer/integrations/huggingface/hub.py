"""Write an audit to a repository on the Hugging Face Hub: model card, result and report."""

from typing import Any

from huggingface_hub import CommitOperationAdd, HfApi
from huggingface_hub.errors import EntryNotFoundError

from epsilometer.core.audit import Audit
from epsilometer.core.renderers import render
from epsilometer.report.model_card import write_model_card

CARD = "README.md"


def push_audit(
    audit: Audit,
    repo_id: str,
    *,
    revision: str | None = None,
    create_pr: bool = False,
    api: Any = None,
) -> str:
    """Commit an audit to a Hub repository: metadata and section of its card, and files.

    Guarantee: the card changes only as by ``epsilometer report --model-card``; all files are in one
        commit. If the card changed meanwhile, the Hub rejects the commit.
    Assumption: you are logged in with write access.

    Args:
        audit: Audit of the model.
        repo_id: Repository, as ``owner/name``.
        revision: Branch; by default the main one.
        create_pr: Open a pull request instead of committing.
        api: A ``HfApi``, if not the default one.

    Returns:
        The URL of the commit.
    """
    hub = HfApi() if api is None else api
    parent = hub.repo_info(repo_id, revision=revision).sha
    after = write_model_card(_read_card(hub, repo_id, parent), audit)
    files = {CARD: after.encode("utf-8")} | {
        f"audit{ending}": render(audit, ending) for ending in (".json", ".html")
    }
    commit = hub.create_commit(
        repo_id,
        [CommitOperationAdd(name, content) for name, content in files.items()],
        commit_message=f"Add privacy audit: {audit.verdict}",
        revision=revision,
        create_pr=create_pr,
        parent_commit=parent,
    )
    return str(commit.commit_url)


def _read_card(hub: Any, repo_id: str, revision: str) -> str:
    """Return the current card; empty if there is none."""
    try:
        path = hub.hf_hub_download(repo_id, CARD, revision=revision)
    except EntryNotFoundError:
        return ""
    with open(path, encoding="utf-8", newline="") as file:
        return file.read()
