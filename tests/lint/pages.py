"""Write docs/lint/: one page per rule, made of its table. ``python -m tests.lint.pages``."""

import sys
from pathlib import Path

from epsilometer.lint import RULES, Rule, lint_source

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "lint"


def render_page(rule: Rule) -> str:
    """Return the page of a rule, in Markdown."""
    (finding,) = [
        each
        for each in lint_source(rule.wrong.lstrip(), path="train.py").findings
        if each.rule_id == rule.id
    ]
    place = f"train.py:{finding.line}:{finding.column}"
    return f"""# {rule.id}: {rule.name}

{rule.title[0].upper()}{rule.title[1:]}.

## Example

```python
{rule.wrong.strip()}
```

```text
{place}: {rule.id} {finding.severity}: {rule.title}
  seen: {finding.detail}
```

## Why

{rule.why}

## Do

{rule.remedy}

```python
{rule.right.strip()}
```

## What ε really is

```
{finding.command}
```

{rule.answer}

To keep the rule from a line, with a reason: `# epsilometer: ignore[{rule.id}] reason`.
[All rules](../lint.md#rules)
"""


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for rule in RULES.values():
        (FOLDER / f"{rule.id}.md").write_text(render_page(rule), "utf-8")
    sys.stdout.write(f"{len(RULES)} pages.\n")


if __name__ == "__main__":
    main()
