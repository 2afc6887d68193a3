"""``epsilometer posterior``."""

import math
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click
import numpy as np

from epsilometer import _validate
from epsilometer._extras import needs
from epsilometer.attacks.disclosure import ReleaseForm
from epsilometer.audits.posterior import FORMS, posterior_job
from epsilometer.audits.posterior_job import PosteriorJob
from epsilometer.canaries.data import Record, mislabelled
from epsilometer.canaries.records import Way, differing_record
from epsilometer.cli.config import Data as Records
from epsilometer.cli.config import from_sections, read_sections
from epsilometer.cli.described import at_once_in, described, in_place
from epsilometer.cli.dpsgd import every_record
from epsilometer.cli.running import Finish, call_again, kept, refuted, running, unchanged
from epsilometer.cli.samplers import parse_sampler
from epsilometer.engine.plan import Plan
from epsilometer.errors import InvalidArgument
from epsilometer.types import FloatArray, IntArray

if TYPE_CHECKING:
    from torch import nn

    from epsilometer.training.ensemble import EnsembleDPSGD

_BUNDLED = "posterior.toml"
_NEVER = 1e6  # a clipping norm that no gradient reaches: plain SGD


@dataclass(frozen=True, kw_only=True)
class Data(Records):
    """Section ``[data]``: as of ``epsilometer dpsgd``, and

    Attributes:
        test: Records after those trained on, on which utility is measured.
        shadow: Records after these, on which shadow models are trained.
    """

    test: int = 0
    shadow: int = 0


@dataclass(frozen=True, kw_only=True)
class Model:
    """Section ``[model]``.

    Attributes:
        name: Which.
        dropout: Share that is dropped.
        hidden: Neurons of the dense layer; 512, of an MLP 64.
        filters: Of both convolutions.
        kernel: Side of their patches.
        padding: Around images.
    """

    name: Literal["dropout_cnn", "dropout_mlp"] = "dropout_cnn"
    dropout: float = 0.5
    hidden: int | None = None
    filters: int = 64
    kernel: int = 5
    padding: int = 0


@dataclass(frozen=True, kw_only=True)
class Training:
    """Section ``[training]``.

    Attributes:
        batch_size: B; the expected one where it varies.
        learning_rate: Of the mean gradient.
        epochs: Passes over the records.
        momentum: Of SGD.
        noise_multiplier: σ; 0 for plain SGD.
        clip_norm: C; 1 where there is noise, none where there is not.
        sampler: How batches are drawn, as of ``cli.samplers``.
        device: "cpu" or "cuda".
    """

    batch_size: int
    learning_rate: float
    epochs: int = 1
    momentum: float = 0.0
    noise_multiplier: float = 0.0
    clip_norm: float | None = None
    sampler: str = "poisson"
    device: str = "cpu"


@dataclass(frozen=True, kw_only=True)
class Audit:
    """Section ``[audit]``.

    Attributes:
        delta: δ at which ε is bounded.
        runs: Models with the record, and as many without it.
        samples: Predictions of each model.
        record: How the record is chosen that is there or not; by shadow models, but for the random
            ones.
        shadows: How many of them.
        forms: What might be published, finest first, as "samples" or "mean+std:0.01".
        claim: The ε that was promised.
        line: The ε that no form may be proved to exceed; the claim, or 1.
        advantage: What the attack's TPR − FPR may be; what (line, δ)-DP allows.
        confidence: Of all forms together.
        seed: From which all runs are drawn.
    """

    delta: float
    runs: int
    samples: int = 100
    record: Literal[
        "random", "random + adversarial", "high loss", "high loss + adversarial", "mislabelled"
    ] = "random"
    shadows: int = 10
    forms: tuple[str, ...] = ()
    claim: float | None = None
    line: float | None = None
    advantage: float | None = None
    confidence: float = 0.95
    seed: int = 0


@dataclass(frozen=True, kw_only=True)
class Config:
    """What is audited, and how: the whole file."""

    data: Data
    model: Model = field(default_factory=Model)
    training: Training
    audit: Audit


@click.command()
@described(
    bundled="a CNN with dropout on handwritten digits",
    fewest=8,
    home="epsilometer-posterior",
)
@running
def posterior(
    file: Path | None,
    runs: int | None,
    seed: int | None,
    directory: Path,
    finish: Finish,
) -> None:
    """Say which form of predictions with uncertainty may be published, by what each leaks.

    Networks with dropout are trained again and again, with a record and without it, and asked for
    many predictions of it. Exit code 1 if a claim is refuted.

    Example: epsilometer posterior --runs 8 --run posterior-run
    """
    given = read_sections(Config, file, bundled=_BUNDLED)
    job = posterior_job_of(
        replace(given, audit=in_place(given.audit, runs=runs, seed=seed)),
        command=call_again("posterior", {"config": file, "runs": runs, "seed": seed}),
        at_once=at_once_in(directory),
    )
    result = finish(job, directory)
    if refuted(result):
        raise SystemExit(1)


def resumed(plan: Plan) -> PosteriorJob:
    """The job of a plan, on the same records as before."""
    given = from_sections(Config, kept(plan, "config"))
    job = posterior_job_of(given, command=plan.command, at_once=plan.parameters.get("at_once"))
    unchanged(job, plan, given.data.file)
    return job


def posterior_job_of(given: Config, *, command: str, at_once: int | None = None) -> PosteriorJob:
    """What a config asks for.

    Args:
        given: All that is to be known.
        command: The call that does it again.
        at_once: How many models are trained at once, where a run has begun so.
    """
    features, labels = every_record(given.data)
    if given.model.name == "dropout_cnn" and features.ndim == 3:
        features = features[:, None]
    train, test, shadow = _parts(given.data, len(labels))
    training = _training(given, features.shape[1:], int(labels.max()) + 1)
    audit = given.audit
    rng = np.random.default_rng(np.random.SeedSequence(audit.seed, spawn_key=(1,)))
    every = features.astype(np.float32), labels
    record, kept = _record(audit, training, every, train, shadow, rng)
    return posterior_job(
        training,
        (every[0][kept], labels[kept]),
        record=record,
        runs=audit.runs,
        delta=audit.delta,
        samples=audit.samples,
        forms=tuple(map(_form, audit.forms)) or FORMS,
        test=(every[0][test], labels[test]) if len(test) else None,
        claim=audit.claim,
        line=audit.line,
        advantage=audit.advantage,
        confidence=audit.confidence,
        at_once=at_once,
        seed=audit.seed,
        subject=f"{given.model.name} on {Path(given.data.file).name}, {audit.record} record",
        name="posterior",
        parameters={"config": asdict(given)},
        command=command,
    )


def _parts(data: Data, count: int) -> tuple[IntArray, IntArray, IntArray]:
    """Which records are trained on, tested on, and given to shadow models."""
    _validate.whole(0, **{"data.test": data.test, "data.shadow": data.shadow})
    wanted = count - data.test - data.shadow if data.records is None else data.records
    if wanted < 2 or wanted + data.test + data.shadow > count:
        raise InvalidArgument(
            f"Expected data.records, data.test and data.shadow to fit into the {count} records of "
            f"{data.file!r}, got {wanted}, {data.test} and {data.shadow}."
        )
    first, second, third, *_ = np.split(
        np.arange(count), np.cumsum([wanted, data.test, data.shadow])
    )
    return first, second, third


def _training(given: Config, shape: tuple[int, ...], classes: int) -> "EnsembleDPSGD":
    with needs("torch", extra="torch"):
        import torch

        from epsilometer.training.ensemble import EnsembleDPSGD, cross_entropy
        from epsilometer.training.optimizers import SGD

    how = given.training
    clip = how.clip_norm or (1.0 if how.noise_multiplier else _NEVER)
    with torch.random.fork_rng(devices=[]):  # runs draw their own, but the plan names these weights
        torch.manual_seed(0)
        module = _module(given.model, shape, classes)
    return EnsembleDPSGD(
        module,
        cross_entropy,
        runs=1,
        sampler=parse_sampler(how.sampler),
        noise_multiplier=how.noise_multiplier,
        clip_norm=clip,
        learning_rate=how.learning_rate,
        optimizer=SGD(momentum=how.momentum),
        batch_size=how.batch_size,
        epochs=how.epochs,
        device=how.device,
    )


def _module(model: Model, shape: tuple[int, ...], classes: int) -> "nn.Sequential":
    from epsilometer.training.models import dropout_cnn, dropout_mlp

    if model.name == "dropout_mlp":
        return dropout_mlp(math.prod(shape), classes, model.dropout, hidden=model.hidden or 64)
    if len(shape) != 3:
        raise InvalidArgument(
            f"Expected images (channels, height, width) for dropout_cnn, got records of shape "
            f"{shape}. Give images, or take dropout_mlp."
        )
    return dropout_cnn(
        *shape,
        classes,
        model.dropout,
        filters=model.filters,
        kernel=model.kernel,
        padding=model.padding,
        hidden=model.hidden or 512,
    )


def _record(
    audit: Audit,
    training: "EnsembleDPSGD",
    every: tuple[FloatArray, IntArray],
    train: IntArray,
    shadow: IntArray,
    rng: np.random.Generator,
) -> tuple[Record, IntArray]:
    """The record that is there or not, and which are left beside it."""
    features, labels = every
    way: Way = "random" if audit.record == "mislabelled" else audit.record
    models: list[Any] = []
    if way != "random":
        if len(shadow) < training.batch_size:
            raise InvalidArgument(
                f"Expected data.shadow of a batch or more with audit.record = {way!r}, got "
                f"{len(shadow)}: shadow models are trained on records of their own."
            )
        many, own = replace(training, runs=audit.shadows), rng.spawn(1)[0]
        shadows = many.train(features[shadow], labels[shadow], rng=own)
        models = [shadows.models.model(run) for run in range(audit.shadows)]
    chosen = differing_record(features[train], labels[train], way, shadows=models, rng=rng)
    record = chosen.record
    if audit.record == "mislabelled":
        record = mislabelled(record, classes=int(labels.max()) + 1, rng=rng)
    return record, train[chosen.others]


def _form(text: str) -> ReleaseForm:
    kind, colon, unit = text.partition(":")
    try:
        return ReleaseForm(kind, unit=float(unit) if colon else None)  # type: ignore[arg-type]
    except ValueError as error:
        raise InvalidArgument(
            f"Expected a form as 'mean+std' or 'mean+std:0.01', got {_validate.short(text)}."
        ) from error
