"""Write gpu.md from the lines that ``gpu.py`` printed; labels and ratios are computed.

PYTHONPATH=src python benchmarks/gpu.py > lines.txt    # on a GPU
python benchmarks/gpu_page.py lines.txt                # keeps them in gpu.json; writes the page
python benchmarks/gpu_page.py                          # the page again
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sizes import ARGUMENTS, write_page

_PAGE = Path(__file__).resolve().parent / "gpu.md"
_LINES = _PAGE.with_suffix(".json")
_PRECISIONS = {"float32": "float32", "tf32": "TF32", "bfloat16": "bfloat16"}
_MODELS = {  # name of the part, model, target in model-steps per second
    "mlp": ("MLP 600–32–100", 900_000),
    "lenet": ("LeNet-5, 28×28", 120_000),
    "cnn": ("CNN of Table II, 3×32×32", 2_500),
}
_TRANSFORMERS = 8  # times torch.func
_TEXT = """# DP-SGD of many models on a GPU

Written by `python benchmarks/gpu_page.py` from `benchmarks/gpu.json`; do not edit.

A *model-step* is one step of one model on a batch of 100: forward, backward, per-example clipping, noise, a canary and its observation, the update. Measured through the public API (`EnsembleDPSGD`), with sampling and transfers.

One {gpu} with {cores} cores, torch {torch}, Triton {triton}, on {date}, one run of

    PYTHONPATH=src python benchmarks/gpu.py    # at most 200 s; prints a line of JSON per measurement

In [`precision=`](../docs/dpsgd.md#precision) float32, TF32 and bfloat16; the better of two takes. `torch.func` is our general path (`path="general"`) in float32; a hand-written loop can be faster.

| model | at once | float32 | TF32 | bfloat16 | target | `torch.func` | times |
|---|---|---|---|---|---|---|---|
{models}

Where the time goes, by `torch.profiler` in the same run:

{profiles}

## Small transformers

`nn.TransformerEncoder` of four layers, 1,001,730 parameters, 128 words per record, batches of 100, in the same run: model-steps per second of {at_once} models and four steps, with the models' set-up, which takes about a quarter of a second.

| | model-steps per second | times |
|---|---|---|
{transformers}

Target: {least} times, {judged} with the set-up. {without} On a CPU both do [the same products](transformer.md).

## Trials

10⁹ trials of the batched Gaussian mechanism take {trials:.3f} s ([batched_gaussian.md](batched_gaussian.md)).

## Memory

The number of models at once is chosen by `networks/devices.py`: on a GPU as many as fit into 60 % of free memory, on a CPU as many as stay in its cache.

## What an audit costs its training

With one target canary or the partially informed adversary [accuracy](training.md) is that of unaudited runs to 0.1 %; the worst case destroys the model. Opacus: [accuracy](../docs/opacus.md#what-it-costs), [time and memory](conformance.md).
"""  # noqa: E501
Lines = Sequence[dict[str, Any]]


def main() -> None:
    """Keep the lines of a run if there are some, and write the page."""
    kept = json.loads(_LINES.read_text("utf-8"))
    if ARGUMENTS:
        printed = Path(ARGUMENTS[0]).read_text("utf-8").splitlines()
        kept = {**kept, "lines": [json.loads(line) for line in printed if line.startswith("{")]}
        _LINES.write_text(json.dumps(kept, indent=1, ensure_ascii=False) + "\n", "utf-8")
    write_page(_PAGE, make_page(kept["lines"], notes=kept["notes"]))


def make_page(lines: Lines, *, notes: dict[str, Any]) -> str:
    """Return the page of one run; ``notes`` are what people wrote of its profiles."""
    (about,) = _find(lines, "machine")
    (trials,) = _find(lines, "trials")
    loop = max(_rates(lines, "transformer: torch.func"))
    ours = {
        said: max(_rates(lines, "transformer", precision=name))
        for name, said in _PRECISIONS.items()
    }
    rows = [
        "| a loop over `torch.func.vmap(grad)`, one model after the other, set-up not counted "
        f"| {_say(loop)} | |",
        *(f"| ours, {name} | {_say(rate)} | {rate / loop:.1f} |" for name, rate in ours.items()),
    ]
    return _TEXT.format(
        **{key: about[key] for key in ("gpu", "cores", "torch")},
        triton=about.get("triton", "–"),
        date=about.get("date", "–"),
        models="\n".join(_show_model(lines, part) for part in _MODELS),
        profiles="\n".join(f"- {note}" for note in notes["profiles"]),
        at_once=max(line["at_once"] for line in _find(lines, "transformer")),
        transformers="\n".join(rows),
        least=_TRANSFORMERS,
        judged=_judge(max(ours.values()) / loop, _TRANSFORMERS),
        without=notes["transformer"],
        trials=trials["seconds"],
    )


def _show_model(lines: Lines, part: str) -> str:
    """Return the row of one model."""
    (name, target), cells, found, counts = _MODELS[part], [], [], []
    for precision in _PRECISIONS:
        takes = _rates(lines, part, precision=precision)
        counts += [line["at_once"] for line in _find(lines, part, precision=precision)]
        cells.append(" to ".join(dict.fromkeys(map(_say, (min(takes), max(takes))))))
        found.append(max(takes))
    general = max(_rates(lines, f"{part}: torch.func"))
    return (
        f"| {name} | {', '.join(f'{count:,}' for count in dict.fromkeys(counts))} | "
        f"{' | '.join(cells)} | {target:,}, {_judge(max(found), target)} | {_say(general)} | "
        f"{max(found) / general:.0f} |"
    )


def _find(lines: Lines, what: str, **about: Any) -> list[dict[str, Any]]:
    """Return the measurements of something that did not fail."""
    return [
        line
        for line in lines
        if line["what"] == what
        and "error" not in line
        and all(line.get(key) == value for key, value in about.items())
    ]


def _rates(lines: Lines, what: str, **about: Any) -> list[float]:
    return [line["per_second"] for line in _find(lines, what, **about)] or [float("nan")]


def _say(rate: float) -> str:
    """Return a rate to three digits."""
    return f"{float(f'{rate:.3g}'):,.10g}"


def _judge(reached: float, target: float) -> str:
    return "met" if reached >= target else "missed"


if __name__ == "__main__":
    main()
