"""Times DP-SGD of small transformers beside ``torch.func``; writes transformer.md.

    python benchmarks/transformer.py    # CPU seconds of one thread; a GPU: benchmarks/gpu.py

Words, places, four layers of attention, two classes: a million parameters, 128 words per record.
"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from results import machine
from sizes import ARGUMENTS, choose_size, repeat_arguments, write_page
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from training import profile

from epsilometer.networks.ensemble import EnsembleDPSGD, cross_entropy
from epsilometer.networks.trainer import Precision

_PAGE = Path(__file__).resolve().parent / "transformer.md"
WORDS, PLACES, WIDTH, HEADS, LAYERS = choose_size((1500, 128, 128, 4, 4), (20, 8, 8, 2, 1))
_BATCH = choose_size(32, 2)
_TAKES = choose_size(3, 1)
_TEXT = """# Small transformers

Written by `python benchmarks/transformer.py`; do not edit. DP-SGD of `nn.TransformerEncoder`,
{size:,} parameters, {places} words per record, batches of {batch}: seconds of CPU per step of one
model, one thread, the best of {takes} in turns. *Memory* is what a separate process grew by in
its first step.

Measured on {machine}.

| | s per step | times | memory, MB |
| --- | --- | --- | --- |
| ours | {ours:.2f} | | {ours_memory:,.0f} |
| a loop over `torch.func.vmap(grad)` | {func:.2f} | {times:.2f} | {func_memory:,.0f} |
| forwards and backwards alone, without clipping | {plain:.2f} | {share:.2f} | |

Target: 8 times `torch.func`; {met}. On a CPU no program reaches it: both multiply the same
matrices, and nobody can leave out the last row. Of our time: {profile}.
"""


class Transformer(nn.Module):
    """A classifier of texts, as it is written with the layers of torch."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.places = nn.Embedding(PLACES, WIDTH)
        layer = nn.TransformerEncoderLayer(
            WIDTH, HEADS, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
        self.classes = nn.Linear(WIDTH, 2)

    def forward(self, words: Tensor) -> Tensor:
        """Return logits."""
        places = self.places(torch.arange(words.shape[1], device=words.device))
        out: Tensor = self.classes(self.layers(self.words(words) + places).mean(1))
        return out


def make_texts(count: int) -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    return rng.integers(WORDS, size=(count, PLACES)), rng.integers(2, size=count)


def make_training(
    batch: int, *, runs: int = 1, device: str = "cpu", precision: Precision = "float32"
) -> EnsembleDPSGD:
    return EnsembleDPSGD(
        Transformer(),
        cross_entropy,
        runs=runs,
        noise_multiplier=1.0,
        learning_rate=0.1,
        batch_size=batch,
        device=device,
        precision=precision,
    )


def make_loop(x: Tensor, y: Tensor) -> Callable[[], object]:
    """Return a step of DP-SGD of one model as ``torch.func``'s documentation writes it."""
    module = Transformer().to(x.device)
    parameters = {name: part.detach() for name, part in module.named_parameters()}

    def loss(given: dict[str, Tensor], one: Tensor, label: Tensor) -> Tensor:
        logits = torch.func.functional_call(module, given, (one[None],))
        return nn.functional.cross_entropy(logits, label[None])

    each = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0))

    def step() -> None:
        with sdpa_kernel(SDPBackend.MATH):  # of its kernels vmap knows this one
            gradients = each(parameters, x, y)
        squares = torch.stack([part.flatten(1).square().sum(1) for part in gradients.values()])
        weights = (1 / (squares.sum(0).sqrt() + 1e-6)).clamp(max=1)
        for name, part in gradients.items():
            summed = torch.tensordot(weights, part, 1)
            summed += torch.randn_like(summed)
            parameters[name] -= 0.1 / len(x) * summed

    return step


def _make_plain(x: Tensor, y: Tensor) -> Callable[[], object]:
    module = Transformer()
    parameters = list(module.parameters())
    return lambda: torch.autograd.grad(nn.functional.cross_entropy(module(x), y), parameters)


def _make_ours(x: Any, y: Any) -> Callable[[], object]:
    training = make_training(len(x))
    models = training.check(x, y)
    keep = torch.ones(1, len(x))
    noise = torch.empty_like(models.parameters)

    def step() -> None:
        sums = models.sum_clipped(x[None], y[None], loss=cross_entropy, clip=1.0, keep=keep)
        models.parameters.add_(sums.add_(noise.normal_()), alpha=-0.1 / len(x))

    return step


def _read_peak() -> float:
    """Return the most MB that this process ever had."""
    status = Path("/proc/self/status").read_text("ascii")
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024


def _grow(kind: str) -> float:
    """Return the MB that a separate process grows by in its first step."""
    command = [sys.executable, __file__, kind, *repeat_arguments()]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return float(done.stdout)


def main() -> None:
    """Measure and write the page; or, in a separate process, one step."""
    torch.set_num_threads(1)
    x, y = (torch.from_numpy(part) for part in make_texts(_BATCH))
    ways = {"ours": _make_ours, "func": make_loop, "plain": _make_plain}
    if ARGUMENTS:
        step = ways[ARGUMENTS[0]](x, y)
        before = _read_peak()
        step()
        print(_read_peak() - before)
        return
    calls = {name: make(x, y) for name, make in ways.items()}
    best = dict.fromkeys(calls, np.inf)
    for _ in range(_TAKES):
        for name, call in calls.items():
            before = time.process_time()
            call()
            best[name] = min(best[name], time.process_time() - before)
    text = _TEXT.format(
        size=sum(part.numel() for part in Transformer().parameters()),
        places=PLACES,
        batch=_BATCH,
        takes=_TAKES,
        machine=machine(),
        times=best["func"] / best["ours"],
        share=best["plain"] / best["ours"],
        met="met" if best["func"] >= 8 * best["ours"] else "missed",
        ours_memory=_grow("ours"),
        func_memory=_grow("func"),
        profile=profile(calls["ours"]),
        **best,
    )
    write_page(_PAGE, text)


if __name__ == "__main__":
    main()
