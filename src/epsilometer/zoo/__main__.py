"""Run the zoo and write docs/zoo.md: ``python -m epsilometer.zoo``."""

import sys
from collections.abc import Sequence
from pathlib import Path

from epsilometer.zoo.runner import Outcome, count_outcomes, render_table, run_zoo

FILE = Path(__file__).parents[3] / "docs" / "zoo.md"
_HEAD = """# The zoo

Programs that are known to be wrong, and right ones that look unusual. Each is one step of DP-SGD on
a small network (364 parameters, 32 records, σ = 1, C = 1 where nothing else is said), written as a
plain function, and is checked by `epsilometer.Step` at default settings: 64 calls on the same batch
and replays of 8 records. A wrong program that is missed is a false all-clear, and is named here.

```python
from epsilometer.zoo.runner import count_outcomes, run_zoo

print(count_outcomes(run_zoo()))
```

Another tool is compared by one function: `run_zoo(tool=…)` takes a function of a program and a
seed. `epsilometer zoo` prints this table; `python -m epsilometer.zoo` writes this page.
"""


def render_page(outcomes: Sequence[Outcome]) -> str:
    """Return the page of the documentation, as Markdown."""
    return f"{_HEAD}\n**{count_outcomes(outcomes)}**\n\n{render_table(outcomes)}\n"


def main() -> int:
    """Run the zoo, write its page where the documentation is, and say what was counted."""
    outcomes = run_zoo()
    if FILE.parent.is_dir():
        FILE.write_text(render_page(outcomes), "utf-8")
    sys.stdout.write(f"{count_outcomes(outcomes)}\n")
    return int(any(outcome.accused and outcome.program.right for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main())
