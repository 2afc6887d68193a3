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
from gpt import Shape
from results import machine
from sizes import ARGUMENTS, TINY, choose_size, repeat_arguments, write_page
from torch.utils._python_dispatch import TorchDispatchMode

from epsilometer.audits.text.causal_model import CausalModel

HERE = Path(__file__).resolve().parent
COUNT = choose_size(8, 2)  # canaries of each kind
RECORDS = choose_size(4, 2)  # of one pass
ASKED = choose_size(200, 4)  # canaries of each kind, whose passes are counted
NARROW = choose_size(Shape(4_000, 512, 12, 2, 16), llm.SHAPE)
NARROW_STEPS = choose_size(30, 2)
RECORDED = 8_311 + 2_533  # records and planted canaries of docs/llm.md
_TEXT = """# Scoring canaries in a language model: the share of training

Written by `python benchmarks/llm_cost.py DATA{before}`; do not edit. A GPT-2 of {weights:,}
weights and the canaries of [Language models](../docs/llm.md), on one core of {machine}. Timed are
{records} records and {canaries} canaries; the share is that of 1,000 canaries of each kind, scored
on the model and on its reference with completions, in {steps} steps at rate {rate:g}. Training is
forward and backward passes without DP, where it is cheapest. CPU seconds, of one run.

{table}

Canaries are measured {count} at once here.

## What a GPU would be asked for

A CPU is kept busy by the products of matrices alone. A GPU also waits for what launches them, so
that passes and operations are counted too: for {asked:,} canaries of each kind, up to 1,000 at
once as in [Language models](../docs/llm.md), on a model of as many layers that are narrow, after
{pretrain} steps from scratch. Operations are those that torch dispatches, views included. The
seconds of these on a GPU are not measured here: only a run of `benchmarks/llm.py train` tells them.

{launched}
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
    for model in list_models(bench, COUNT):
        model.measure(bench.canaries)
    found["scoring"] = (time.process_time() - begun) / len(bench.canaries)
    return found


def list_models(bench: llm.Bench, batch_size: int) -> list[CausalModel]:
    """Return the reference, which completes nothing, and the model."""
    made = (bench.model, bench.tokenizer)
    return [
        CausalModel(*made, batch_size=batch_size, completions=completions)
        for completions in (False, True)
    ]


class CountOperations(TorchDispatchMode):
    """Count what torch dispatches."""

    count = 0

    def __torch_dispatch__(self, operation: Any, _: Any, args: Any = (), named: Any = None) -> Any:
        """Count one."""
        self.count += 1
        return operation(*args, **(named or {}))


def count_launches(folder: Path | None) -> list[tuple[int, int]]:
    """Return passes through the layers, and operations, of reference and model."""
    torch.set_num_threads(1)
    texts = llm.make_texts(np.random.default_rng(0)) if folder is None else llm.read_texts(folder)
    llm.SHAPE = NARROW
    bench = llm.Bench(texts, "cpu", count=ASKED, pretrain=NARROW_STEPS)
    passes: list[int] = []
    bench.model.norm.register_forward_hook(lambda *_: passes.append(1))
    found = []
    for model in list_models(bench, llm.ASKED):
        passes.clear()
        with CountOperations() as operations:
            model.measure(bench.canaries)
        found.append((len(passes), operations.count))
    return found


def take_tree(what: str, source: Path | None, data: list[str]) -> Any:
    """Time a tree, or count its launches, in a fresh process."""
    path = {} if source is None else {"PYTHONPATH": str(source)}
    done = subprocess.run(
        [sys.executable, str(HERE / "llm_cost.py"), what, *data, *repeat_arguments()],
        env={**os.environ, "OMP_NUM_THREADS": "1", **path},
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout.splitlines()[-1])


def compare(data: list[str], before: Path | None) -> None:
    """Time this tree, and an older one after it; write the page."""
    trees = {"this tree": None} | ({} if before is None else {"before": before})
    found = {name: take_tree("time", source, data) for name, source in trees.items()}
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
        asked=ASKED,
        pretrain=NARROW_STEPS,
        launched=_tabulate_launches(
            {name: take_tree("count", trees[name], data) for name in trees}
        ),
    )
    write_page(HERE / "llm_cost.md", page)


def _tabulate_launches(found: dict[str, Any]) -> str:
    lines = [
        "| code | passes: reference | model | operations: reference | model |",
        "| --- | --- | --- | --- | --- |",
    ]
    for name, ((before, first), (after, second)) in found.items():
        lines.append(f"| {name} | {before:,} | {after:,} | {first:,} | {second:,} |")
    return "\n".join(lines)


def main() -> None:
    """Do what the command line asks for."""
    match ARGUMENTS:
        case ["time", *data]:
            print(json.dumps(time_tree(Path(data[0]) if data else None)))
        case ["count", *data]:
            print(json.dumps(count_launches(Path(data[0]) if data else None)))
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
