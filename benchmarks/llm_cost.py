"""Compare the CPU time of scoring canaries in a GPT-2 with that of training it.

    python benchmarks/llm_cost.py DATA           # this tree; writes llm_cost.md
    python benchmarks/llm_cost.py DATA BEFORE    # beside src of an older checkout

Texts, canaries and training are those of ``llm.py``, and so is the number of passes that shares are
computed for; the model is as it begins, and fewer records and canaries are timed.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import llm
import numpy as np
import torch
from results import machine
from sizes import ARGUMENTS, TINY, choose_size, repeat_arguments, write_page

from epsilometer.audits.text.causal_model import CausalModel

HERE = Path(__file__).resolve().parent
COUNT = choose_size(8, 2)  # canaries of each kind
RECORDS = choose_size(4, 2)  # of one pass
RECORDED = 8_311 + 2_533  # records and planted canaries of docs/llm.md
_TEXT = """# Scoring canaries in a language model: the share of training

Written by `python benchmarks/llm_cost.py DATA{before}`; do not edit. A GPT-2 of {weights:,}
weights and the canaries of [Language models](../docs/llm.md), on one core of {machine}. Timed are
{records} records and {canaries} canaries; the share is that of 1,000 canaries of each kind, scored
on the model and on its reference with completions, in {steps} steps at rate {rate:g}. Training is
forward and backward passes without DP, where it is cheapest. CPU seconds, of one run.

{table}

Canaries are measured {count} at once. With 1,000 at once, as on the GPU, completions cost less, and
code that does not sort canaries by length fills up more.

A CPU is kept busy by the products of matrices alone. A GPU also waits for what launches them: there
the shares are larger, and only a run of `benchmarks/llm.py train` tells them.
"""


def time_tree(folder: Path | None) -> dict[str, Any]:
    """Return CPU seconds per record of training and per canary of scoring."""
    torch.set_num_threads(1)
    texts = llm.make_texts(np.random.default_rng(0)) if folder is None else llm.read_texts(folder)
    bench = llm.Bench(texts, "cpu", count=COUNT, pretrain=0)
    found: dict[str, Any] = {"weights": llm.count_parameters(bench.model)}
    ids, mask = bench.ids[-RECORDS:], bench.mask[-RECORDS:]
    for method in llm.RATES:
        if method == "LoRA":
            llm.add_lora(bench.model, llm.RANK)
        llm.sum_losses(bench.model(ids[:1]), ids[:1], mask[:1]).backward()  # what is done once
        begun = time.process_time()
        llm.sum_losses(bench.model(ids), ids, mask).backward()
        found[method] = (time.process_time() - begun) / RECORDS
    begun = time.process_time()
    for completions in (False, True):  # the reference, and the model
        asked = CausalModel(bench.model, bench.tokenizer, batch_size=COUNT, completions=completions)
        asked.measure(bench.canaries)
    found["scoring"] = (time.process_time() - begun) / len(bench.canaries)
    return found


def take_tree(source: Path | None, data: list[str]) -> dict[str, Any]:
    """Time a tree in a fresh process."""
    path = {} if source is None else {"PYTHONPATH": str(source)}
    done = subprocess.run(
        [sys.executable, str(HERE / "llm_cost.py"), "one", *data, *repeat_arguments()],
        env={**os.environ, "OMP_NUM_THREADS": "1", **path},
        capture_output=True,
        text=True,
        check=True,
    )
    return dict(json.loads(done.stdout.splitlines()[-1]))


def compare(data: list[str], before: Path | None) -> None:
    """Time this tree, and an older one after it; write the page."""
    trees = {"this tree": None} | ({} if before is None else {"before": before})
    found = {name: take_tree(source, data) for name, source in trees.items()}
    kinds = len(llm.KINDS)
    rows = []
    for method in llm.RATES:
        training = min(take[method] for take in found.values())  # the code of training is the same
        for name, take in found.items():
            share = take["scoring"] * 1_000 * kinds / (training * llm.RATE * llm.STEPS * RECORDED)
            rows.append(
                f"| {name} | {method} | {training:.2f} | {take['scoring']:.2f} | {share:.1%} "
                f"| {share / kinds:.2%} |"
            )
    head = (
        "| code | training | s per record | s per canary | share, all five kinds | of one kind |\n"
        "| --- | --- | --- | --- | --- | --- |\n"
    )
    page = _TEXT.format(
        before="" if before is None else " BEFORE",
        weights=found["this tree"]["weights"],
        machine=machine(),
        records=RECORDS,
        canaries=COUNT * kinds,
        steps=llm.STEPS,
        rate=llm.RATE,
        count=COUNT,
        table=head + "\n".join(rows),
    )
    write_page(HERE / "llm_cost.md", page)


def main() -> None:
    """Do what the command line asks for."""
    match ARGUMENTS:
        case ["one", *data]:
            print(json.dumps(time_tree(Path(data[0]) if data else None)))
        case [data]:
            compare([data], None)
        case [data, before]:
            compare([data], Path(before).resolve())
        case [] if TINY:
            compare([], None)
        case _:
            sys.exit("Expected: llm_cost.py DATA [BEFORE], or llm_cost.py --tiny.")


if __name__ == "__main__":
    main()
