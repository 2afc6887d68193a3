"""Write an audit into a repository of the Hugging Face Hub: its card, the audit and its page."""

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
    """Commit an audit to a repository of the Hub: metadata and section of its card, and files.

    Guarantee: the card changes as by ``epsilometer report --model-card``, nothing else in it does;
        all files are one commit. Where the card changed meanwhile, the Hub refuses the commit.
    Assumption: you are logged in, and may write there.

    Args:
        audit: Audit of the model.
        repo_id: As ``owner/name``.
        revision: The branch; the main one by default.
        create_pr: Propose it in place of committing it.
        api: A ``HfApi``, where it is not the usual one.

    Returns:
        The address of the commit.
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
    """Return the card as it is; empty where there is none."""
    try:
        path = hub.hf_hub_download(repo_id, CARD, revision=revision)
    except EntryNotFoundError:
        return ""
    with open(path, encoding="utf-8", newline="") as file:
        return file.read()
