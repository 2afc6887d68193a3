"""``epsilometer shuffle``."""

import csv
import math
import shlex
import sys
from importlib import resources
from pathlib import Path

import click
from rich import box
from rich.table import Table

from epsilometer.accounting.pld import poisson_epsilon
from epsilometer.accounting.shuffle import shuffle_epsilon, shuffle_noise
from epsilometer.audits.runs import UntilRefuted
from epsilometer.audits.shuffling import ShufflingAudit, audit_shuffling
from epsilometer.cli.completing import one_of
from epsilometer.cli.printing import explain_option, show, show_explanation, show_result
from epsilometer.cli.samplers import ORDERED, parse_sampler
from epsilometer.cli.writing import html_option, write_page
from epsilometer.errors import InvalidArgument, UnreadableFile
from epsilometer.report.words import number
from epsilometer.core.serialisation import to_json

_SAMPLERS = ", ".join(ORDERED)
_COLUMNS = ("name", "noise_multiplier", "steps", "epochs", "delta")


@click.command()
@click.option("--noise-multiplier", type=float, help="Noise over clipping norm.")
@click.option("--steps", type=int, help="Batches an epoch; or give the two sizes.")
@click.option("--dataset-size", type=int, help="Records.")
@click.option("--batch-size", type=int, help="Records a batch.")
@click.option("--epochs", type=int, default=1, show_default=True)
@click.option("--delta", type=float, default=1e-5, show_default=True)
@click.option("--claim", type=float, help="Reported ε; by default that of Poisson sampling.")
@click.option(
    "--sampler",
    default="shuffle",
    show_default=True,
    help=f"One of {_SAMPLERS}.",
    shell_complete=one_of(ORDERED),
)
@click.option("--observations", type=float, help="Plays of the game, as 1e7.")
@click.option("--until-refuted", is_flag=True, help="Stop the game when the claim has fallen.")
@click.option("--confidence", type=float, default=0.95, show_default=True, help="One-sided.")
@click.option("--device", default="cpu", show_default=True, help="cpu or cuda.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON object.")
@explain_option
@html_option
@click.option("--sweep", help="A CSV of settings, or 'paper' for the six that are bundled.")
@click.option(
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the table of a sweep here, as CSV.",
)
def shuffle(
    noise_multiplier: float | None,
    steps: int | None,
    dataset_size: int | None,
    batch_size: int | None,
    epochs: int,
    delta: float,
    claim: float | None,
    sampler: str,
    observations: float | None,
    until_refuted: bool,
    confidence: float,
    device: str,
    seed: int,
    as_json: bool,
    explain: bool,
    html: Path | None,
    sweep: str | None,
    out: Path | None,
) -> None:
    """Say what DP-SGD leaks that shuffles and is accounted as if it sampled by Poisson.

    Exit code 1 if the reported ε cannot be true.

    Example: epsilometer shuffle --noise-multiplier 1 --steps 100 --delta 1e-5
    """
    if sweep is not None:
        _sweep(sweep, out)
        return
    if noise_multiplier is None:
        raise InvalidArgument("Expected --noise-multiplier, got none.")
    steps = _steps(steps, dataset_size, batch_size)
    audit = audit_shuffling(
        noise_multiplier=noise_multiplier,
        steps=steps,
        epochs=epochs,
        delta=delta,
        claim=claim,
        sampler=parse_sampler(sampler, known=ORDERED),
        batch_size=batch_size,
        observations=None if observations is None else _whole(observations),
        confidence=confidence,
        until=UntilRefuted() if until_refuted else None,
        seed=seed,
        device=device,
        command=_command(),
    )
    if html is not None:
        write_page(audit.result, html)
    if as_json:
        click.echo(to_json(audit.result))
    else:
        show_result(audit.result)
        click.echo(answer(audit, claim, sampler))
    if explain:
        show_explanation(audit.result, aside=as_json)
    if audit.result.verdict == "refuted":
        raise SystemExit(1)


def answer(audit: ShufflingAudit, claim: float | None, sampler: str) -> str:
    """What a person needs to know, in a few lines."""
    reported = audit.poisson_epsilon if claim is None else claim
    result = audit.result
    lines = [
        f"You report ε = {reported:.2f} (Poisson: {audit.poisson_epsilon:.2f}). "
        f"With {sampler} the mechanism's ε is at least {number(audit.exact.low)}; certified by "
        f"{result.bound.n_in + result.bound.n_out:,} plays of the game: ε ≥ "
        f"{number(result.bound.epsilon)} ({result.bound.confidence:.0%}).",
        f"To keep ε = {reported:.2f} so you need noise ≥ {audit.needed_noise:.3f}; or sample by "
        f"Poisson, or by balls in bins (ε = {audit.balls_in_bins.epsilon:.2f} with this noise).",
        f"Without any shuffling ε would be {audit.deterministic_epsilon:.2f}."
        + (f" Published lower bound: {audit.published:.2f}." if audit.published else ""),
    ]
    return "\n".join(lines)


def _steps(steps: int | None, dataset_size: int | None, batch_size: int | None) -> int:
    if steps is not None:
        if dataset_size is not None:
            raise InvalidArgument("Expected --steps or --dataset-size, got both.")
        return steps
    if dataset_size is None or batch_size is None:
        raise InvalidArgument("Expected --steps, or --dataset-size and --batch-size, got neither.")
    if not 1 <= batch_size <= dataset_size:
        raise InvalidArgument(f"Expected --batch-size from 1 to {dataset_size}, got {batch_size}.")
    return dataset_size // batch_size  # a ragged last batch is dropped, as loaders for DP-SGD do


def _whole(value: float) -> int:
    if not math.isfinite(value) or value != int(value):
        raise InvalidArgument(f"Expected a whole number of observations, got {value!r}.")
    return int(value)


def _command() -> str:
    return shlex.join(["epsilometer", *sys.argv[1:]])


def _sweep(source: str, out: Path | None) -> None:
    rows = [_row(setting) for setting in _settings(source)]
    table = Table(box=box.SIMPLE_HEAD)
    for column in rows[0]:
        table.add_column(column, justify="left" if column == "name" else "right")
    for row in rows:
        table.add_row(*row.values())
    show(table)
    if out is not None:
        try:
            with out.open("w", encoding="utf-8", newline="") as file:
                writer = csv.DictWriter(file, rows[0])
                writer.writeheader()
                writer.writerows(rows)
        except OSError as error:
            raise InvalidArgument(f"Could not write {str(out)!r}: {error.strerror}.") from error
        click.echo(f"Table: {out}")


def _row(setting: dict[str, str]) -> dict[str, str]:
    """One setting: what is reported, what is true, and what it would have taken."""
    try:
        noise, delta = float(setting["noise_multiplier"]), float(setting["delta"])
        steps, epochs = int(setting["steps"]), int(setting["epochs"])
    except ValueError as error:
        raise UnreadableFile(f"Expected numbers in the settings: {error}, in {setting}.") from error
    exact = shuffle_epsilon(noise_multiplier=noise, steps=steps, epochs=epochs, delta=delta)
    poisson = poisson_epsilon(
        noise_multiplier=noise,
        sampling_rate=1 / steps,
        steps=steps * epochs,
        delta=delta,
        adjacency="zero_out",
    )
    needed = shuffle_noise(epsilon=poisson, delta=delta, steps=steps, epochs=epochs)
    return {
        "name": setting["name"],
        "noise": f"{noise:g}",
        "steps": f"{steps}",
        "epochs": f"{epochs}",
        "δ": f"{delta:g}",
        "reported ε (Poisson)": f"{poisson:.3f}",
        "ε of shuffling ≥": number(exact.low, 3),
        "times": f"{exact.low / poisson:.1f}" if poisson else "–",
        "noise needed ≥": number(needed, 3),
    }


def _settings(source: str) -> list[dict[str, str]]:
    try:
        if source == "paper":
            text = (
                resources.files("epsilometer").joinpath("data/shuffling_settings.csv").read_text()
            )
        else:
            text = Path(source).read_text("utf-8-sig")
        rows = list(csv.DictReader(text.splitlines()))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UnreadableFile(f"Could not read {source!r}: {error}.") from error
    if not rows or any(set(row) != set(_COLUMNS) or None in row.values() for row in rows):
        raise UnreadableFile(
            f"Expected a CSV with the columns {', '.join(_COLUMNS)} and a row at least in "
            f"{source!r}, got {'other columns' if rows else 'no row'}."
        )
    return rows
