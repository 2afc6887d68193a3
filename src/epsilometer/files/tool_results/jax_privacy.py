"""Read the scores that JAX-Privacy's ``CanaryScoreAuditor`` takes, saved under its names."""

from epsilometer.files.tool_results.result import Attack, Opened, ToolResult, take_side

_IN, _OUT = "in_canary_scores", "out_canary_scores"
_DESIGNS = ("fixed", "coins", "runs")  # canaries are the user's own


def find_attacks(opened: Opened) -> ToolResult | None:
    """Return scores of canaries; None if another tool wrote the file."""
    if not {_IN, _OUT} <= opened.names:
        return None
    inside, outside = (take_side(opened.read(name), name) for name in (_IN, _OUT))
    return ToolResult("JAX-Privacy", (Attack("canary scores", inside, outside),), designs=_DESIGNS)
