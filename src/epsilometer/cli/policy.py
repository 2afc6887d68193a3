"""Apply a policy file to ``check``, ``classifier``, ``regressor`` and ``posterior``."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from epsilometer.cli.options import Options
from epsilometer.cli.output import say
from epsilometer.core import annotations
from epsilometer.core.printing import one_line, to_json_text
from epsilometer.errors import InvalidArgument
from epsilometer.files.policy import Policy, PolicyCheck, check_policy, read_policy

_OUTCOMES: dict[int, annotations.Outcome] = {0: "passed", 1: "failure", 4: "error"}


def end_policy(path: Path, form: str) -> None:
    """Check every audit that a policy requires, say what was found, and exit with the most
    severe."""
    checks = check_policy(read_policy(path), path.parent)
    code = 1 if any(each.exit_code == 1 for each in checks) else max(c.exit_code for c in checks)
    say(_word(checks, code, form))
    if code:
        raise SystemExit(code)


def _word(checks: list[PolicyCheck], code: int, form: str) -> str:
    if form == "json":
        return to_json_text({"exit_code": code, "audits": msgspec.to_builtins(checks)})
    if form == "junit":
        cases = [
            annotations.Case(
                name=one_line(each.name),
                outcome=_OUTCOMES[each.exit_code],
                message=one_line(each.message),
            )
            for each in checks
        ]
        return annotations.to_junit("epsilometer policy", cases)
    lines = []
    for each in checks:
        said = one_line(f"{each.name}: {each.message}")
        if form == "github":
            level: annotations.Level = "error" if each.exit_code else "notice"
            said = annotations.to_github(level, said, title="epsilometer policy")
        else:
            said = f"{'ok  ' if not each.exit_code else 'FAIL'} {said}"
        lines.append(said)
    return "\n".join(lines)


def apply_policy(
    path: Path | None, section: str, given: dict[str, Any], options: Options
) -> tuple[dict[str, Any], Options]:
    """Return limits and options as a policy asks; what contradicts it is refused.

    Args:
        path: The policy; None if there is none.
        section: Section of the policy, with limits named like the options.
        given: Limits by name; None if an option was not used.
        options: Shared options, whose confidence the policy may set.
    """
    if path is None:
        return given, options
    policy: Policy = read_policy(path)
    asked = msgspec.to_builtins(getattr(policy, section))
    merged = dict(given)
    for name, limit in asked.items():
        if limit is None:
            continue
        if merged.get(name) not in (None, limit):
            raise InvalidArgument(
                f"Expected --{name.replace('_', '-')} {limit:g}, as the policy asks, got "
                f"{merged[name]:g}."
            )
        merged[name] = limit
    if options.confidence is not None and options.confidence < policy.confidence:
        raise InvalidArgument(
            f"Expected --confidence {policy.confidence:g} at least, as the policy asks, got "
            f"{options.confidence:g}."
        )
    return merged, replace(options, confidence=options.confidence or policy.confidence)
