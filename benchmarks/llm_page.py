"""Judge what benchmarks/llm.py measured; write ``docs/llm.md`` and ``llm_details.md`` here."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from sizes import write_page

import epsilometer as em
from epsilometer.audits.text.canaries import Canary, TextCanaries
from epsilometer.audits.text.measuring import Measured
from epsilometer.audits.text.planting import PlantedTexts
from epsilometer.audits.text.subject import name_group
from epsilometer.core.memorisation import MemorisationFinding
from epsilometer.core.words import number

_HERE = Path(__file__).resolve().parent
PAGE, DETAILS = _HERE.parent / "docs" / "llm.md", _HERE / "llm_details.md"
PLANNED = [(method, epsilon) for epsilon in (None, 8.0, 1.0) for method in ("full", "LoRA")]
_AIM = 0.05
_TEXT = """# Language models: what canaries prove

Written by `python benchmarks/llm.py page OUT` from what `python benchmarks/llm.py train DATA OUT`
measured. How to audit your own model: [Hugging Face](howto/huggingface.md).

A GPT-2 of {weights:,} weights was trained from scratch on bundled texts, then fine-tuned on posts
of other people: in full, and by LoRA (rank {rank}) in every linear layer. Each run has Poisson
batches at rate {rate:g}, {steps} steps, and {records:,} records beside {planted:,} planted
canaries: half of {count:,} of each kind, by coins. With DP, gradients of single texts are clipped
to {clip:g}; the noise is Rényi-accounted at δ = {delta:g}. Canaries are scored on the final model
against the model before fine-tuning. One run each, seed 0, on {device} (torch {torch}),
{minutes:.1f} minutes in all.{missing}

## What was proved

By kind: AUC, TPR at 1 % false positives, and the proved ε, which holds for all kinds of a run
together at 95 % confidence. The *reach* of verdicts is {reach}.

{final}

Cost: seconds of training, and of scoring {canaries:,} canaries on the final model and its
reference, completions included; their share, for all kinds and for one. The first run also pays for
what a GPU does once. {aim}{older}

## The order of kinds

{compared}
Panda et al. (2025) publish this order for fine-tuned models: new and crafted tokens first, random
strings last (49.6 % against 4.2 % at 1 %, Qwen2.5-0.5B; from its abstract). LoRA leaves the table
of tokens as it is, so new tokens learn nothing there. Nothing was tuned: the numbers describe this
set-up, not what a kind can do at best. [Early in training](../benchmarks/llm_details.md).

## What the model memorised

{most} [Every kind of every run](../benchmarks/llm_details.md#what-the-model-memorised).
"""
_DETAILS = """# Language models: details

Written by `python benchmarks/llm.py page OUT`. What was run and proved:
[Language models](../docs/llm.md).

## Without DP, after {early:.0%} of the steps

{order}

## What the model memorised

Share of planted texts that the final model completes from their prompt, with 95 % limits, and the
median exposure in bits.

{memorised}
"""

_OLDER = " Scoring has changed since: [before and after](../benchmarks/llm_cost.md)."


def write_llm_page(out: Path) -> None:
    """Judge every run in a folder, and write the pages."""
    plain = json.loads((out / "llm.json").read_text("utf-8"))
    with np.load(out / "llm.npz") as arrays:
        judged = [_judge_run(plain, arrays, place) for place in range(len(plain["runs"]))]
    last = [audits[-1] for audits in judged]
    named = [_name_run(run) for run in plain["runs"]]
    free = [place for place, run in enumerate(plain["runs"]) if run["epsilon"] is None]
    memorised = [
        (named[place], found)
        for place, audit in enumerate(last)
        for found in audit.find(MemorisationFinding)
    ]
    text = _TEXT.format(
        **{key: plain[key] for key in ("weights", "rank", "rate", "steps", "records", "planted")},
        **{key: plain[key] for key in ("count", "clip", "delta", "device")},
        torch=plain["versions"]["torch"],
        minutes=plain["seconds"] / 60,
        missing=_name_missing(plain["runs"]),
        reach=f"ε = {number(max(view.reach or 0 for view in last[0].views))}",
        compared=_compare_order(last[0]),
        final=_tabulate(["", *named], _list_results(plain, last)),
        most=_name_most(memorised),
        canaries=len(plain["canaries"]),
        aim=_compare_aim(plain),
        older="" if plain.get("sorted") else _OLDER,
    )
    write_page(PAGE, text)
    details = _DETAILS.format(
        early=plain["checkpoints"][0],
        order=_tabulate(
            ["run", "kind", "AUC", "TPR at 1 %", "ε ≥"],
            [
                (named[place], *row)
                for place in free
                for row in sorted(_list_views(judged[place][0]), key=lambda row: -float(row[1]))
            ],
        ),
        memorised=_tabulate(
            ["run", "canaries", "extracted", "limits", "of held-out ones, nearly", "exposure"],
            [
                (
                    name,
                    found.canaries,
                    f"{found.exact:.1%}",
                    f"{found.exact_low:.1%}–{found.exact_high:.1%}",
                    f"{found.near_held_out:.1%}",
                    f"{found.exposure:.1f} of {found.most_exposure:.1f}",
                )
                for name, found in memorised
            ],
        ),
    )
    write_page(DETAILS, details)


def _list_results(plain: dict[str, Any], last: list[em.Audit]) -> list[tuple[str, ...]]:
    """Return what each run proved of each kind, its verdict and its cost: a column per run."""
    kinds = [row[0] for row in _list_views(last[0])]
    views = [{row[0]: ", ".join(row[1:]) for row in _list_views(audit)} for audit in last]
    costs = zip(*(_compute_cost(plain, run) for run in plain["runs"]), strict=True)
    names = ("training, s", "audit, s", "share, all", "share, one")
    return [
        *((kind, *(view[kind] for view in views)) for kind in kinds),
        ("verdict", *(audit.verdict for audit in last)),
        *((name, *cells) for name, cells in zip(names, costs, strict=True)),
    ]


def _name_most(memorised: list[tuple[str, MemorisationFinding]]) -> str:
    """Say what was extracted, and of which kinds."""
    told = [
        f"{found.exact:.1%} of {found.canaries.split(' ', 1)[1]} ({name}; 95 % limits "
        f"{found.exact_low:.1%}–{found.exact_high:.1%})"
        for name, found in sorted(memorised, key=lambda each: -each[1].exact)
        if found.exact > 0
    ]
    exposed, most = max(memorised, key=lambda each: each[1].exposure)
    return (
        f"Planted texts that the final model completes from their prompt: "
        f"{'; '.join([*told, 'of all others none'])}. Most exposed: "
        f"{most.canaries.split(' ', 1)[1]} ({exposed}; {most.exposure:.1f} of "
        f"{most.most_exposure:.1f} bits)."
    )


def _name_missing(runs: list[dict[str, Any]]) -> str:
    """Say which of the planned runs were not made."""
    done = {(run["method"], run["epsilon"]) for run in runs}
    rest = [pair for pair in PLANNED if pair not in done]
    names = [_name_run({"method": method, "epsilon": epsilon}) for method, epsilon in rest]
    return f" Not measured, for want of time: {'; '.join(names)}." if names else ""


def _compare_order(audit: em.Audit) -> str:
    """Say the order of kinds at the end of the first run, which is full and without DP."""
    ordered = sorted(_list_views(audit), key=lambda row: -float(row[1]))
    return f"Here, full and without DP, by AUC at the end: {', '.join(row[0] for row in ordered)}."


def _judge_run(plain: dict[str, Any], arrays: Any, place: int) -> list[em.Audit]:
    """Audit one run at every checkpoint."""
    run = plain["runs"][place]
    planted = PlantedTexts(
        dataset=None,
        wanted=tuple(TextCanaries(count=plain["count"], kind=kind) for kind in plain["kinds"]),
        canaries=tuple(Canary(*each) for each in plain["canaries"]),
        included=arrays["included"],
    )
    reference = _unpack(arrays, "reference", ())
    audits = []
    for step in range(len(plain["checkpoints"])):
        final = step == len(plain["checkpoints"]) - 1
        model = _unpack(arrays, f"{place}-{step}", tuple(run["completions"]) if final else ())
        more = {"reference": reference, "title": _name_run(run)}
        subject = em.LanguageModel(model, planted, **more, trained=True)  # as llm.py draws batches
        audits.append(em.audit(subject, run["epsilon"], delta=plain["delta"]))
    return audits


def _unpack(arrays: Any, name: str, completions: tuple[str, ...]) -> Measured:
    ends = np.cumsum(arrays[f"{name}/sizes"])[:-1]
    return Measured(
        log_probs=tuple(np.split(arrays[f"{name}/log_probs"].astype(np.float64), ends)),
        ranks=tuple(np.split(arrays[f"{name}/ranks"].astype(np.float64), ends)),
        completions=completions,
    )


def _list_views(audit: em.Audit) -> list[tuple[str, ...]]:
    """Return kind, AUC, share caught at 1 % and ε of every view, in the order of kinds."""
    rows = {}
    for view in audit.views:
        caught = dict(view.attack.tpr_at_fpr)[0.01]
        kind = view.subject.partition(" canaries")[0].split(" ", 1)[1]
        proved = number(view.bound.epsilon)
        rows[kind] = (kind, f"{view.attack.auc:.3f}", f"{caught:.1%}", proved)
    order = [name_group(TextCanaries(kind=kind)).split(" ")[1] for kind in ("new", "rare")]
    return sorted(rows.values(), key=lambda row: (row[0] not in order, row[0]))


def _name_run(run: dict[str, Any]) -> str:
    claim = "no DP" if run["epsilon"] is None else f"ε = {run['epsilon']:g}"
    return f"{run['method']}, {claim}"


def _compute_share(plain: dict[str, Any], run: dict[str, Any]) -> float:
    return (run["audit_seconds"] + plain["reference_seconds"]) / run["seconds"]


def _compute_cost(plain: dict[str, Any], run: dict[str, Any]) -> tuple[str, ...]:
    share = _compute_share(plain, run)
    return (
        f"{run['seconds']:.1f}",
        f"{share * run['seconds']:.1f}",
        f"{share:.1%}",
        f"{share / len(plain['kinds']):.1%}",
    )


def _compare_aim(plain: dict[str, Any]) -> str:
    """Say whether the audit of all kinds costs at most the aimed share of training."""
    shares = np.array([_compute_share(plain, run) for run in plain["runs"]])
    kinds = len(plain["kinds"])
    whole = np.average(shares, weights=[run["seconds"] for run in plain["runs"]])
    return (
        f"The aim is {_AIM:.0%} of training: kept in {(shares / kinds <= _AIM).sum()} of "
        f"{shares.size} runs by one kind, in {(shares <= _AIM).sum()} by all {kinds} together, "
        f"which take {whole:.1%} of the training of all runs."
    )


def _tabulate(head: list[str], rows: list[tuple[str, ...]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
