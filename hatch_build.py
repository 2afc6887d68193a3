"""Make the README's links and pictures work on a package index, which knows no other file of it."""

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_LINK = re.compile(r"(!?)\[((?:[^][]|\[[^][]*\])*)\]\((?!https?://|#)([^)\s]+)\)")


def link_readme(text: str, source: str) -> str:
    """Return Markdown whose links to files lead to the repository at ``source``."""
    raw = source.replace("github.com", "raw.githubusercontent.com")

    def absolute(found: re.Match[str]) -> str:
        picture, said, target = found.groups()
        address = f"{raw}/main/{target}" if picture else f"{source}/blob/main/{target}"
        return f"{picture}[{link_readme(said, source)}]({address})"

    return _LINK.sub(absolute, text)


class LinkedReadme(MetadataHookInterface):
    """Gives the description of the package its README, with absolute links."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Write the readme of the metadata."""
        text = Path(self.root, "README.md").read_text("utf-8")
        linked = link_readme(text, metadata["urls"]["Source"])
        metadata["readme"] = {"content-type": "text/markdown", "text": linked}
