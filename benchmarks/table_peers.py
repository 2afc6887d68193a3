"""Attacks and verdicts of five tools on the same targets, trained on the same tables.

``python benchmarks/table_peers.py`` writes table_peers.md; ``adult:forest`` measures that case
again and keeps the others, which are in table_peers.json; ``--tiny`` asks this package alone.
Privacy Meter is a repository of scripts, of which PRIVACY_METER names a checkout.
"""

import gzip
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import mean
from typing import Any

import environments
import numpy as np
from results import machine
from sizes import ARGUMENTS, TINY, choose_size, write_page

HERE = Path(__file__).resolve().parent
TOOLS = {
    "epsilometer": "epsilometer",
    "sacroml": "SACRO-ML",
    "adversarial_robustness_toolbox": "ART",
    "privacyguard": "PrivacyGuard",
    "privacy_meter": "Privacy Meter",
}
KEPT = HERE / "table_peers.json"
CASES = (("adult", "forest"), ("adult", "logistic"), ("digits", "tree"))
RECORDS, OTHERS = choose_size((500, 250), (120, 60))
LEAKING, SILENT = choose_size((2, 4), (1, 1))


def read_adult() -> tuple[Any, Any]:
    """1,500 people: numbers as they are, words by their places."""
    with gzip.open(HERE.parent / "tests" / "data" / "adult_1500.csv.gz", "rt") as file:
        table = np.array([row.strip().split(",") for row in file][1:])
    columns = []
    for column in table.T:
        try:
            columns.append(column.astype(float))
        except ValueError:
            columns.append(np.unique(column, return_inverse=True)[1].astype(float))
    return np.stack(columns[:-1], axis=1), columns[-1].astype(int)


def read_records(name: str) -> tuple[Any, Any]:
    """Features and labels in one random order."""
    if name == "adult":
        x, y = read_adult()
    else:
        from sklearn import datasets

        load = {"digits": datasets.load_digits, "cancer": datasets.load_breast_cancer}[name]
        x, y = load(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(y))
    return x[order], y[order]


def write_question(path: Path, table: str, model: str, *, leaks: bool, seed: int) -> Path:
    """Judged records, who was in, and others; those of small tables are fewer."""
    x, y = read_records(table)
    judged = min(RECORDS, len(y) * 2 // 3)
    others = slice(judged, judged + min(OTHERS, len(y) - judged))
    member = np.random.default_rng(seed).random(judged) < 0.5
    np.savez(
        path,
        x=x[:judged],
        y=y[:judged],
        member=member,
        x_other=x[others],
        y_other=y[others],
        model=model,
        seed=seed,
        leaks=leaks,
    )
    return path


def ask(tool: str, questions: list[Path]) -> list[dict[str, Any]]:
    """What a tool says of each question, by attack; nothing where it is not there."""
    if tool == "privacy_meter" and "PRIVACY_METER" not in os.environ:
        return []
    own = tool in ("epsilometer", "privacy_meter")
    python = sys.executable if own else str(environments.python_of(tool))
    script = HERE / "peers" / "tables" / f"ask_{tool}.py"
    alone = {"OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    printed = subprocess.run(
        [python, "-W", "ignore", str(script), *map(str, questions)],
        env={**os.environ, **alone},
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    ).stdout
    told: list[dict[str, Any]] = json.loads(printed.splitlines()[-1])
    return told


def compare(table: str, model: str, tools: tuple[str, ...]) -> list[tuple[str, ...]]:
    """Rows of one case: tool and attack, AUC, caught, CPU, alarms on both kinds of target."""
    found: dict[tuple[str, str], dict[str, list[Any]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        kinds = [True] * LEAKING + [False] * SILENT
        questions = [
            write_question(Path(folder) / f"{i}.npz", table, model, leaks=leaks, seed=i)
            for i, leaks in enumerate(kinds)
        ]
        for tool in tools:
            for leaks, answers in zip(kinds, ask(tool, questions), strict=False):
                for attack, said in answers.items():
                    own = found.setdefault((tool, attack), {})
                    for name, value in said.items():
                        own.setdefault(f"{name} {leaks}", []).append(value)
    rows = []
    for (tool, attack), said in found.items():
        alarms = {
            leaks: f"{sum(v == 'fail' for v in said[f'verdict {leaks}'])} of "
            f"{len(said[f'verdict {leaks}'])}"
            if any(said[f"verdict {leaks}"])
            else "–"
            for leaks in (True, False)
        }
        rows.append(
            (
                f"{TOOLS[tool]}, {attack}",
                f"{mean(said['auc True']):.3f}",
                f"{mean(said['tpr True']):.3f}",
                f"{mean(said['cpu_seconds True']):.1f}",
                alarms[True],
                alarms[False],
            )
        )
    return sorted(rows, key=lambda row: -float(row[1]))


def main() -> None:
    """Measure cases, keep their rows, and write the page of all; or print a tiny one."""
    tools = ("epsilometer",) if TINY else tuple(TOOLS)
    head = ("", "AUC", "caught at 1 %", "CPU s", "alarms, leaking", "alarms, silent")
    kept = json.loads(KEPT.read_text("utf-8")) if KEPT.exists() and not TINY else {}
    wanted = [case for case in CASES if not ARGUMENTS or ":".join(case) in ARGUMENTS]
    for case in wanted[:1] if TINY else wanted:
        rows = compare(*case, tools)
        kept[":".join(case)] = {"machine": machine(), "rows": rows}
        if not TINY:
            KEPT.write_text(json.dumps(kept, indent=1, ensure_ascii=False) + "\n", "utf-8")
    parts = []
    for table, model in CASES:
        if (found := kept.get(f"{table}:{model}")) is not None:
            lines = [f"## {model}, {table}\n", f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
            lines += [f"| {' | '.join(row)} |" for row in found["rows"]]
            parts.append("\n".join(lines))
    text = PAGE.format(
        machine="; ".join(sorted({found["machine"] for found in kept.values()})),
        tables="\n\n".join(parts),
        cases=len(parts),
        planned=len(CASES),
        records=RECORDS,
        leaking=LEAKING,
        silent=SILENT,
    )
    write_page(HERE / "table_peers.md", text)


PAGE = """# Five tools on the same targets

Written by `python benchmarks/table_peers.py`; do not edit. Measured on {machine}.

Every target is one classifier, trained on those of {records} records that fair coins put in; all
tools attack the same {leaking} targets. {silent} others were trained on none of them, and leak
nothing of them. Shadow attacks train 32 models each. CPU seconds are those of one attack with its
shadows. An alarm is what the tool itself calls a failure: here, a rule on attacks that fails with
95 % confidence; of SACRO-ML, a significant AUC in more than a tenth of its repetitions; of
PrivacyGuard, a lower limit of ε above 0. ART and Privacy Meter give no verdict.

Read it with care: so few targets separate no tools that are close and measure no rate of false
alarms. {cases} of {planned} planned cases were run; of the forest a smaller run had been seen
before. Privacy Meter ran offline, ours online; PrivacyGuard got plain losses.

{tables}
"""

if __name__ == "__main__":
    main()
