"""Train to the letter of the paper: 60 epochs, 50 models per side, T = 1,000, ten trials.

    python reproductions/bayesian/letter.py --data DATA --out FOLDER --device cuda --limit 240

DATA has ``cifar10_train1.npz``, ``cifar10_train2.npz`` and ``cifar10_test.npz``. The record is the
image at random. Models are trained a trial at a time, or fewer where the time left allows no more,
and what they say is written part by part; called again, training goes on with the next part. Parts
are then cut into the trials of ``reproduce.py train``. Needs NumPy and torch alone.
"""

import argparse
import json
import math
import time
from collections.abc import Callable
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any

import half
import numpy as np
import torch
from cifar import images

BATCH, SIGMA, RATE = 256, 0.5, 0.15  # of the paper
COUNTED = (1, 2, 5, 10, 50)  # samples whose mean's accuracy is printed
D = 4  # the number of the files that have models of D
_MARGIN = 1.15  # more time than measured that a trial is given
_ANSWERS = ("vector", "samples", "diverged")
_KEPT = 10  # epochs between answers that are kept
_GROUPS = 2  # of models whose batches are about as large


class OutOfTime(Exception):
    """The limit was reached before the last step."""


@dataclass
class Clock:
    """Seconds since the program began, and how many it may take."""

    limit: float
    started: float = field(default_factory=time.monotonic)

    @property
    def left(self) -> float:
        """Return seconds that are left."""
        return self.limit - (time.monotonic() - self.started)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is trained, and how long.

    Attributes:
        data: Folder of the images.
        out: Folder of what models say.
        device: ``"cuda"``; a CPU takes months.
        limit: Seconds.
        epochs: Of a model.
        runs: Models per side of a trial.
        trials: How many.
        first: Part to begin with.
        samples: T.
        train: Images, of which D lacks one.
        test: Images.
    """

    data: Path
    out: Path
    device: str = "cuda"
    limit: float = math.inf
    epochs: int = 60
    runs: int = 50
    trials: int = 10
    first: int = 0
    samples: int = 1000
    train: int = 20_000
    test: int = 10_000


def main() -> None:
    """Train parts until all trials are there or the time is over."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    for part in fields(Plan):
        kind = {"data": Path, "out": Path, "device": str, "limit": float}.get(part.name, int)
        needed = part.default is MISSING
        default = None if needed else part.default
        parser.add_argument(f"--{part.name}", type=kind, required=needed, default=default)
    train(Plan(**vars(parser.parse_args())))


def train(plan: Plan) -> None:
    """Train what is missing."""
    torch.backends.cudnn.benchmark = True
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
    plan.out.mkdir(parents=True, exist_ok=True)
    with torch.no_grad():
        Letter(plan, Clock(plan.limit)).run()


class Letter:
    """All images on the device, and what is trained on them."""

    def __init__(self, given: Plan, clock: Clock) -> None:
        self.given, self.clock = given, clock
        self.compiled = given.device != "cpu"
        parts = [images(given.data / f"cifar10_train{part}.npz") for part in (1, 2)]
        x, y = (np.concatenate(side)[: given.train] for side in zip(*parts, strict=True))
        self.patches = half.patches_of(x, device=given.device)
        self.labels = torch.from_numpy(y).to(given.device)
        self.added = int(np.random.default_rng(2021).integers(len(x)))
        self.steps = (len(x) - 1) // BATCH  # of an epoch
        settings = {
            "epochs": given.epochs,
            "train": given.train,
            "runs": given.runs,
            "trials": given.trials,
            "ways": 1,
        }
        (given.out / "settings.json").write_text(json.dumps(settings))
        self.say("images are there")

    def say(self, *words: Any) -> None:
        """Print, and write to a file, what has happened and when."""
        line = f"{time.monotonic() - self.clock.started:7.1f} s  " + " ".join(map(str, words))
        print(line, flush=True)
        with (self.given.out / "log.txt").open("a", encoding="utf-8") as log:
            log.write(line + "\n")

    def run(self) -> None:
        """Train one part after the other, of as many models as a trial has or the time allows."""
        given = self.given
        if self._assemble() >= given.trials * given.runs:
            return
        per_step = self.warm_up()
        for part in range(given.first, 10**4):
            if self._path(part, D).exists():
                continue
            missing = given.trials * given.runs - self._assemble()
            needed = per_step * self.steps * given.epochs * _MARGIN
            allowed = math.floor(given.runs * self.clock.left / needed)
            runs = min(given.runs, missing, allowed)
            if runs < min(5, given.runs, missing) or missing <= 0:
                self.say(f"{self.clock.left:.0f} s left, {needed:.0f} per trial; {missing} missing")
                return
            begun = time.monotonic()
            try:
                self.train_part(part, runs)
            except OutOfTime:
                self.say("out of time in part", part)
                return
            seconds = time.monotonic() - begun
            per_step = seconds / (self.steps * given.epochs) * given.runs / runs
            self.say(f"part {part}: {runs} models per side in {seconds:.1f} s")

    def _assemble(self) -> int:
        """Write the trials that parts suffice for; return how many models per side there are."""
        total = 0
        for number in (0, D):
            paths = [self._path(part, number) for part in range(10**4)]
            parts = [dict(np.load(path)) for path in paths if path.exists()]
            if not parts:
                return 0
            every = {key: np.concatenate([part[key] for part in parts]) for key in _ANSWERS}
            total, runs = len(every["vector"]), self.given.runs
            for trial in range(total // runs):
                own = {key: every[key][trial * runs : (trial + 1) * runs] for key in _ANSWERS}
                np.savez_compressed(self.given.out / f"{trial}-{number}.npz", **own)
        return total

    def warm_up(self) -> float:
        """Return seconds per step of all models of a trial, after kernels have been chosen."""
        given = self.given
        if given.device != "cpu":
            try:
                half.check_kernels(self.patches[:16], self.labels[:16])
            except Exception as error:
                self.compiled = False
                self.say("kernels are not used:", type(error).__name__, str(error)[:300])
        self._train(0, given.runs, steps=20 if given.device != "cpu" else 1)
        self._wait()
        begun = time.monotonic()
        measured = 20 if given.device != "cpu" else 1
        self._train(1, given.runs, steps=measured)
        self._wait()
        per_step = (time.monotonic() - begun) / measured
        rate = 2 * given.runs / per_step
        self.say(f"{1000 * per_step:.1f} ms per step of {2 * given.runs}: {rate:.0f} steps/s")
        if given.device != "cpu":
            self.say(f"{torch.cuda.max_memory_allocated() / 2**30:.0f} GiB of device memory")
        return per_step

    def train_part(self, part: int, runs: int) -> None:
        """Train so many models per side and write what they say."""

        def watch(networks: half.Networks, step: int) -> None:
            epochs, rest = divmod(step + 1, self.steps)
            if rest:
                return
            self._wait()  # or the clock would be ahead of the device
            if epochs % _KEPT == 0 and epochs < self.given.epochs:
                self._write(part, networks, runs, epochs, f"-after-{epochs}")
            if self.clock.left < 0 and epochs < self.given.epochs:
                self._write(part, networks, runs, epochs, f"-after-{epochs}")
                raise OutOfTime

        networks = self._train(part, runs, watch=watch)
        if part == 0:
            found = self.accuracy(networks, torch.arange(runs, 2 * runs)[:10])
            np.savez_compressed(self.given.out / "accuracy.npz", **found)
            self.say("accuracy, %:", *found["shares"].mean(1).round(4).tolist())
        self._write(part, networks, runs, self.given.epochs, "")

    def _train(
        self,
        seed: int,
        runs: int,
        *,
        steps: int | None = None,
        watch: Callable[[half.Networks, int], None] = lambda networks, step: None,
    ) -> half.Networks:
        """Train so many models with the record and as many without it."""
        device = self.given.device
        rng = np.random.default_rng([seed, runs])
        generator = torch.Generator(device).manual_seed(int(rng.integers(2**63)))
        networks = half.Networks(
            2 * runs, device=device, generator=generator, compiled=self.compiled
        )
        everyone = torch.arange(len(self.labels), device=device).repeat(2 * runs, 1)
        everyone[runs:, self.added] = -1
        batches = half.poisson_batches(
            everyone,
            sampling_rate=BATCH / len(self.labels),
            steps=steps or self.steps * self.given.epochs,
            rng=rng,
            groups=min(_GROUPS, 2 * runs),
        )
        half.train(
            networks,
            self.patches,
            self.labels,
            batches,
            noise=SIGMA,
            rate=RATE,
            batch_size=BATCH,
            generator=generator,
            watch=lambda step: watch(networks, step),
        )
        return networks

    def _write(self, part: int, networks: half.Networks, runs: int, epochs: int, what: str) -> None:
        """Write the probability of the record's class: without dropout, and in each sample."""
        record, label = self.patches[self.added], int(self.labels[self.added])
        plain = _chances(networks, record[None], dropout=False)[..., label]
        samples, drawn = self.given.samples, []
        for start in range(0, samples, 250):
            some = record.repeat(min(250, samples - start), 1, 1)
            drawn.append(_chances(networks, some, dropout=True)[..., label])
        vector, answers = plain.cpu().numpy(), torch.cat(drawn, 1)[:, None].cpu().numpy()
        for number, side in ((0, slice(0, runs)), (D, slice(runs, 2 * runs))):
            path = self._path(part, number, what)
            partly = path.with_suffix(".tmp.npz")
            np.savez_compressed(
                partly,
                vector=vector[side],
                samples=answers[side],
                diverged=~np.isfinite(vector[side][:, 0]),
                epochs=epochs,
                left_out=self.added,
            )
            partly.rename(path)
        self.say(f"part {part}, {epochs} epochs: mean {np.nanmean(vector):.3f} of the class")

    def accuracy(self, networks: half.Networks, which: torch.Tensor) -> dict[str, np.ndarray]:
        """Return shares right of some models on test images, and means of samples themselves.

        Of the mean of 1, 2, 5, 10 and 50 samples, and last of the network without dropout.
        """
        few = networks.pick(which.to(self.given.device))
        x, y = (part[: self.given.test] for part in images(self.given.data / "cifar10_test.npz"))
        means: list[list[np.ndarray]] = [[] for _ in range(len(COUNTED) + 1)]
        at_once = max(1, 30_000 // len(which))
        for start in range(0, len(x), at_once):
            patches = half.patches_of(x[start : start + at_once], device=self.given.device)
            total: Any = 0.0
            for number in range(1, COUNTED[-1] + 1):
                total = total + _chances(few, patches, dropout=True)
                if number in COUNTED:
                    means[COUNTED.index(number)].append((total / number).cpu().numpy())
            means[-1].append(_chances(few, patches, dropout=False).cpu().numpy())
        every = np.stack([np.concatenate(parts, axis=1) for parts in means])
        return {
            "shares": np.mean(every.argmax(-1) == y, axis=-1),
            "means": every[-2:].astype(np.float16),  # of 50 samples, and without dropout
            "labels": y,
            "counted": np.array(COUNTED),
        }

    def _path(self, part: int, number: int, what: str = "") -> Path:
        return self.given.out / f"part-{part}-{number}{what}.npz"

    def _wait(self) -> None:
        if self.given.device != "cpu":
            torch.cuda.synchronize()


def _chances(networks: half.Networks, patches: torch.Tensor, *, dropout: bool) -> torch.Tensor:
    """Return probabilities of classes, ``(models, images, classes)``, of the same images."""
    places = torch.arange(len(patches), device=patches.device).repeat(networks.models, 1)
    return networks.predict(patches, places, dropout=dropout).softmax(-1)


if __name__ == "__main__":
    main()
