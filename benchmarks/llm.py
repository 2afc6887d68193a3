"""Audit a language model that is trained here: five kinds of canaries, LoRA and full, with DP.

``train DATA OUT [SECONDS]`` trains on a GPU and writes what was measured after every run; none is
begun that would not end within so many seconds. It needs torch, NumPy and SciPy.
``page OUT`` judges that and writes ``docs/llm.md`` and ``llm_details.md``. ``--tiny`` does both in
seconds, on a CPU.
"""

import copy
import gzip
import json
import math
import platform
import re
import sys
import tempfile
import time
from collections import Counter
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gpt import GPT, ClippedSum, Shape, add_lora, count_parameters, sum_losses
from sizes import ARGUMENTS, TINY, choose_size

from epsilometer.accounting import rdp
from epsilometer.audits.text.canaries import (
    KINDS,
    Canary,
    TextCanaries,
    WordChain,
    make_canaries,
    read_tokenizer,
)
from epsilometer.audits.text.causal_model import CausalModel

SHAPE = choose_size(Shape(), Shape(1_000, 64, 1, 2, 16))
LENGTH = 64  # tokens of a record
COUNT = choose_size(1_000, 20)  # canaries of each kind
RATE, STEPS = choose_size((0.05, 200), (0.2, 2))
PRETRAIN, BATCH, MICRO = choose_size((500, 128, 256), (2, 8, 16))
ASKED = 2_500  # canaries that are measured at once
DELTA, CLIP, RANK = 1e-5, 1.0, 8
CHECKPOINTS = choose_size((1 / 8, 1 / 2, 1.0), (1 / 2, 1.0))
EPSILONS = choose_size((math.inf, 8.0, 1.0), (math.inf, 1.0))
RATES = {"full": (1e-4, 2e-4), "LoRA": (1e-3, 1e-3)}  # of learning: without DP, with it
_NEW = r"<canary-\d{6}>"  # never part of another piece, as libraries treat added tokens
_PIECES = re.compile(rf"{_NEW}| ?[A-Za-z']+| ?\d| ?(?!{_NEW})[^\sA-Za-z\d']|\s")


class Words:
    """A tokenizer of bytes, the commonest words of some texts, and new tokens."""

    def __init__(self, texts: list[str], size: int, new: int) -> None:
        counts = Counter(piece for text in texts for piece in _PIECES.findall(text))
        names = [f"<canary-{number:06d}>" for number in range(new)]
        words = [word for word, _ in counts.most_common(size - 256 - new) if len(word) > 1]
        self._ids = {word: 256 + at for at, word in enumerate([*names, *words])}
        self._words = {word: self._ids[word] for word in words}
        self._texts = {at: word for word, at in self._ids.items()}

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a text."""
        return [
            at
            for piece in _PIECES.findall(text)
            for at in ([self._ids[piece]] if piece in self._ids else piece.encode())
        ]

    def decode(self, ids: list[int]) -> str:
        """Return the text of tokens."""
        parts = (self._texts[at].encode() if at in self._texts else bytes([at % 256]) for at in ids)
        return b"".join(parts).decode("utf-8", "replace")

    def get_vocab(self) -> dict[str, int]:
        """Return words with their ids, without new tokens, which are no data's rare ones."""
        return self._words


def read_texts(folder: Path) -> tuple[list[str], list[str]]:
    """Return texts to train from scratch on, and texts of other people to fine-tune on."""
    with gzip.open(folder / "shakespeare.txt.gz", "rt", encoding="utf-8") as file:
        plays = file.read().split("\n\n")
    with gzip.open(folder / "stackexchange_users.json.gz", "rt", encoding="utf-8") as file:
        users = json.load(file)
    posts = [[text for _, _, text in users[name]] for name in sorted(users)]
    first = [text for own in posts[::2] for text in own]
    return [*plays, *first], [text for own in posts[1::2] for text in own]


def make_texts(rng: np.random.Generator) -> tuple[list[str], list[str]]:
    """Return texts of made-up words, for a tiny run."""
    words = ["".join(rng.choice(list("aeioulmnrst"), 5)) for _ in range(300)]
    texts = [" ".join(rng.choice(words, 40)) for _ in range(120)]
    return texts[:60], texts[60:]


def cut(ids: list[int]) -> list[list[int]]:
    """Return records of at most ``LENGTH`` tokens."""
    parts = [ids[start : start + LENGTH] for start in range(0, len(ids), LENGTH)]
    return [part for part in parts if len(part) > 1]


def fill(rows: list[list[int]], device: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Return records as one table, with a mask of what is in them."""
    ids = torch.zeros(len(rows), LENGTH, dtype=torch.long)
    mask = torch.zeros(len(rows), LENGTH, dtype=torch.bool)
    for place, row in enumerate(rows):
        ids[place, : len(row)] = torch.tensor(row)
        mask[place, : len(row)] = True
    return ids.to(device), mask.to(device)


def find_noise(epsilon: float) -> float:
    """Return a noise multiplier that keeps ε, by Rényi accounting of Poisson sampling."""
    low, high = 0.2, 64.0
    while high > 1.001 * low:
        middle = math.sqrt(low * high)
        spent = rdp.poisson_epsilon(
            noise_multiplier=middle, sampling_rate=RATE, steps=STEPS, delta=DELTA
        )
        low, high = (middle, high) if spent > epsilon else (low, middle)
    return high


class Bench:
    """Everything that the runs share: the model from scratch, records, canaries and coins."""

    def __init__(
        self,
        texts: tuple[list[str], list[str]],
        device: str,
        seed: int = 0,
        *,
        count: int = COUNT,
        pretrain: int = PRETRAIN,
    ) -> None:
        self.device, self.seed = device, seed
        self.start = time.perf_counter()
        torch.manual_seed(seed)
        torch.set_float32_matmul_precision("high")
        draws, self._coins, self.batches = np.random.default_rng(seed).spawn(3)
        first, second = texts
        self.tokenizer = Words(first, SHAPE.vocabulary, count)
        self.model = GPT(SHAPE).to(device)
        stream = [token for text in first for token in [*self.tokenizer.encode(text), 10]]
        self.pretrain(stream, steps=pretrain)
        self.add_new_tokens(count)
        self.groups = [TextCanaries(count=count, kind=kind) for kind in KINDS]
        chain, vocabulary = WordChain(first), read_tokenizer(self.tokenizer)
        base = CausalModel(self.model, self.tokenizer, batch_size=ASKED)
        self.canaries: list[Canary] = []
        with self.cast():
            for group, rng in zip(self.groups, draws.spawn(len(self.groups)), strict=True):
                self.canaries += make_canaries(
                    group, chain, rng=rng, texts=second, vocabulary=vocabulary, model=base
                )
        self.included = self._coins.random(len(self.canaries)) < 0.5
        planted = [
            self.tokenizer.encode(canary.text)[:LENGTH]
            for canary, coin in zip(self.canaries, self.included, strict=True)
            if coin
        ]
        records = [part for text in second for part in cut(self.tokenizer.encode(text))]
        self.records, self.planted = len(records), len(planted)
        self.ids, self.mask = fill([*records, *planted], device)
        self.log(f"{self.records} records, {self.planted} canaries planted")

    def add_new_tokens(self, count: int) -> None:
        """Begin new tokens at the mean of all, as libraries do that resize a vocabulary."""
        with torch.no_grad():
            table = self.model.tokens.weight
            new = slice(256, 256 + count)
            table[new] = table.mean(0) + 1e-3 * torch.randn_like(table[new])

    def log(self, said: str) -> None:
        """Print a line with the seconds since the start."""
        print(f"{time.perf_counter() - self.start:6.1f} s  {said}", flush=True)

    def cast(self) -> AbstractContextManager[Any]:
        """Compute in bfloat16 on a GPU."""
        if self.device == "cpu":
            return nullcontext()
        return torch.autocast("cuda", dtype=torch.bfloat16)

    def wait(self) -> float:
        """Return the time when everything that was begun is done."""
        if self.device != "cpu":
            torch.cuda.synchronize()
        return time.perf_counter()

    def pretrain(self, stream: list[int], *, steps: int) -> None:
        """Train from scratch on a stream of tokens."""
        data = torch.tensor(stream, device=self.device)
        optimizer = torch.optim.AdamW(self.model.parameters(), lr=6e-4, weight_decay=0.1)
        every = torch.ones(BATCH, LENGTH, dtype=torch.bool, device=self.device)
        loss = torch.zeros(())
        for step in range(steps):
            for group in optimizer.param_groups:  # up, and down again
                group["lr"] = 6e-4 * min(1, (step + 1) / 100, 1.1 - step / steps)
            at = torch.randint(len(data) - LENGTH, (BATCH, 1), device=self.device)
            ids = data[at + torch.arange(LENGTH, device=self.device)]
            with self.cast():
                loss = sum_losses(self.model(ids), ids, every) / BATCH
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            optimizer.step()
        self.log(f"from scratch: loss {float(loss.detach()):.2f}")

    def measure(self, model: GPT, *, completions: bool) -> tuple[Any, float]:
        """Return what a model says of all canaries, and the seconds that took."""
        begun = self.wait()
        asked = CausalModel(model, self.tokenizer, batch_size=ASKED, completions=completions)
        with self.cast():
            found = asked.measure(self.canaries)
        return found, self.wait() - begun

    def draw(self) -> torch.Tensor:
        """Draw a batch: every record by its own coin."""
        taken = np.flatnonzero(self.batches.random(len(self.ids)) < RATE)
        return torch.from_numpy(taken).to(self.device)

    def tune(self, method: str, epsilon: float) -> dict[str, Any]:
        """Fine-tune once, and measure the canaries on the way."""
        torch.manual_seed(self.seed + 1)
        model = copy.deepcopy(self.model)
        if method == "LoRA":
            add_lora(model, RANK)
        private = math.isfinite(epsilon)
        noise = find_noise(epsilon) if private else 0.0
        parameters = [p for p in model.parameters() if p.requires_grad]
        optimizer = torch.optim.AdamW(parameters, lr=RATES[method][private], weight_decay=0.0)
        clipped = ClippedSum(model, CLIP) if private else None
        marks = [max(1, round(share * STEPS)) for share in CHECKPOINTS]
        seen, spent, audit, losses = [], 0.0, 0.0, []
        for step in range(1, STEPS + 1):
            begun = self.wait()
            losses.append(self._step(model, parameters, optimizer, clipped, noise))
            spent += self.wait() - begun
            if step in marks:
                found, seconds = self.measure(model, completions=step == STEPS)
                audit += seconds if step == STEPS else 0.0
                seen.append(found)
        if clipped is not None:
            clipped.close()
        self.log(
            f"{method}, ε = {epsilon:g}, σ = {noise:.3f}: "
            f"loss {losses[0]:.2f} to {losses[-1]:.2f}, "
            f"{spent:.1f} s of training, {audit:.1f} s of audit"
        )
        return {
            "method": method,
            "epsilon": epsilon,
            "noise": noise,
            "weights": count_parameters(model, trained=True),
            "loss": losses[-1],
            "seconds": spent,
            "audit_seconds": audit,
            "measured": seen,
        }

    def _step(
        self,
        model: GPT,
        parameters: list[Any],
        optimizer: torch.optim.Optimizer,
        clipped: ClippedSum | None,
        noise: float,
    ) -> float:
        batch = self.draw()
        expected = RATE * len(self.ids)
        optimizer.zero_grad(set_to_none=True)
        total = 0.0
        for part in batch.split(MICRO):
            with self.cast():
                if clipped is not None:
                    total += clipped.add(self.ids[part], self.mask[part])[0]
                    continue
                loss = sum_losses(model(self.ids[part]), self.ids[part], self.mask[part])
            (loss / expected).backward()
            total += float(loss.detach())
        for parameter in parameters if clipped is not None else ():
            grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            parameter.grad = (grad + noise * CLIP * torch.randn_like(grad)) / expected
        optimizer.step()
        return total / max(1, len(batch))


def train(
    texts: tuple[list[str], list[str]], out: Path, device: str, limit: float = math.inf
) -> None:
    """Train and fine-tune; write what was measured after every run."""
    out.mkdir(parents=True, exist_ok=True)
    bench = Bench(texts, device)
    reference, seconds = bench.measure(bench.model, completions=False)
    arrays = {"included": bench.included, **pack("reference", reference)}
    runs: list[dict[str, Any]] = []
    name = torch.cuda.get_device_name() if device != "cpu" else "a CPU"
    longest = 0.0
    for epsilon in EPSILONS:
        for method in RATES:
            begun = time.perf_counter() - bench.start
            if begun + 1.1 * longest > limit:
                bench.log(f"no time for {method}, ε = {epsilon:g}")
                continue
            run = bench.tune(method, epsilon)
            longest = max(longest, time.perf_counter() - bench.start - begun)
            for place, found in enumerate(run.pop("measured")):
                arrays |= pack(f"{len(runs)}-{place}", found)
            run["completions"] = found.completions
            run["epsilon"] = None if math.isinf(epsilon) else epsilon
            runs.append(run)
            plain = {
                "device": name,
                "versions": {"torch": torch.__version__, "python": platform.python_version()},
                "weights": count_parameters(bench.model),
                "records": bench.records,
                "planted": bench.planted,
                "count": COUNT,
                "kinds": KINDS,
                "rate": RATE,
                "steps": STEPS,
                "delta": DELTA,
                "clip": CLIP,
                "rank": RANK,
                "checkpoints": CHECKPOINTS,
                "reference_seconds": seconds,
                "sorted": True,  # canaries are measured in the order of length
                "seconds": time.perf_counter() - bench.start,
                "canaries": bench.canaries,
                "runs": runs,
            }
            (out / "llm.json").write_text(json.dumps(plain), "utf-8")
            np.savez_compressed(out / "llm.npz", **arrays)


def pack(name: str, measured: Any) -> dict[str, Any]:
    """Return measurements as arrays that a file takes."""
    return {
        f"{name}/log_probs": np.concatenate(measured.log_probs).astype(np.float32),
        f"{name}/ranks": np.concatenate(measured.ranks).astype(np.int32),
        f"{name}/sizes": np.array([tokens.size for tokens in measured.log_probs]),
    }


def main() -> None:
    """Do what the command line asks for."""
    if TINY:
        with tempfile.TemporaryDirectory() as folder:
            train(make_texts(np.random.default_rng(0)), Path(folder), "cpu")
            write_results(Path(folder))
        return
    match ARGUMENTS:
        case ["train", data, out, *seconds]:
            device = "cuda" if torch.cuda.is_available() else "cpu"
            train(read_texts(Path(data)), Path(out), device, float(*seconds or [math.inf]))
        case ["page", out]:
            write_results(Path(out))
        case _:
            sys.exit(
                "Expected: llm.py train DATA OUT [SECONDS], llm.py page OUT, or llm.py --tiny."
            )


def write_results(out: Path) -> None:
    """Judge what was measured, and write the page; this needs the whole package."""
    from llm_page import write_llm_page

    write_llm_page(out)


if __name__ == "__main__":
    main()
