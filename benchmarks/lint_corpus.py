"""Lint every project in a folder, and print what was found: one row per project.

    python benchmarks/lint_corpus.py FOLDER

FOLDER has one checkout per subfolder. Nothing in them is imported or run.
"""

import sys
import time
from collections import Counter
from pathlib import Path

from sizes import ARGUMENTS, choose_size

from epsilometer.lint import lint

_OWN = Path(__file__).parents[1] / "examples"  # what a tiny run looks at


def main() -> None:
    """Print a table in Markdown, and the CPU time of all."""
    (folder,) = ARGUMENTS or choose_size([], [str(_OWN)])
    sys.stdout.write("| project | files | errors | warnings | not checked | rules |\n")
    sys.stdout.write("|---|---|---|---|---|---|\n")
    files = unread = 0
    severities: Counter[str] = Counter()
    started = time.process_time()
    for project in sorted(Path(folder).iterdir()):
        if not project.is_dir():
            continue
        report = lint([project])
        counts = Counter(finding.severity for finding in report.findings)
        rules = Counter(finding.rule_id for finding in report.findings)
        said = ", ".join(f"{rule} {count}" for rule, count in sorted(rules.items()))
        sys.stdout.write(
            f"| {project.name} | {report.files} | {counts['error']} | {counts['warning']} "
            f"| {len(report.problems)} | {said or report.blind or 'none'} |\n"
        )
        files, unread = files + report.files, unread + len(report.problems)
        severities += counts
    seconds = time.process_time() - started
    sys.stdout.write(
        f"| **all** | {files} | {severities['error']} | {severities['warning']} | {unread} | |\n\n"
        f"{seconds:.1f} s of CPU.\n"
    )


if __name__ == "__main__":
    main()
