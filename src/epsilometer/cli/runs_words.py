"""Turn comparisons of results into plain values."""

from dataclasses import asdict
from typing import Any

from epsilometer.files.history.comparison import Comparison


def to_plain(found: Comparison) -> dict[str, Any]:
    """Return a comparison as JSON values."""
    return {
        "settings": [
            dict(zip(("name", "first", "second"), row, strict=True)) for row in found.settings
        ],
        "audits": [
            {**asdict(audit), "first": audit.first.to_dict(), "second": audit.second.to_dict()}
            for audit in found.audits
        ],
        "only_first": list(found.only_first),
        "only_second": list(found.only_second),
    }
