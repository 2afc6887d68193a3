"""``epsilometer shuffle``."""

from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any

import click
import numpy as np
from rich.text import Text

from epsilometer.accounting.pld import poisson_epsilon
from epsilometer.accounting.shuffle import shuffle_epsilon, shuffle_noise
from epsilometer.accounting.shuffle_upper import shuffle_upper, sufficient_noise
from epsilometer.audits.shuffling.subject import ShuffledSGD
from epsilometer.cli.audit import end_audit, make_call, run_call
from epsilometer.cli.options import (
    ORDERED_SAMPLER,
    Options,
    Whole,
    audit_options,
    field_options,
)
from epsilometer.cli.output import make_table, say, show, write_text
from epsilometer.core.audit import Audit
from epsilometer.core.findings import SamplerFinding
from epsilometer.core.printing import one_line, to_csv_text
from epsilometer.core.words import claimed, number, number_up
from epsilometer.errors import InvalidArgument, UnreadableFile
from epsilometer.files.readers import Column
from epsilometer.files.tables import read_table, take_words

_COLUMNS = ("name", "noise_multiplier", "steps", "epochs", "delta")


@click.command()
@field_options(
    ShuffledSGD,
    {
        "noise_multiplier": "Set the noise multiplier: noise over clipping norm.",
        "steps": "Set the number of batches per epoch.",
        "batch_size": "Set the batch size, or its expectation if it varies.",
        "epochs": "Set the number of epochs.",
        "sampler": "Draw batches by this sampler.",
        "observations": "Set the number of simulated trials, such as 1e7.",
        "device": "Run the trials on cpu or cuda.",
        "title": "Set the title of the report.",
    },
    into="settings",
    special={"sampler": ORDERED_SAMPLER, "observations": Whole()},
    defaults={"sampler": "shuffle"},
)
@click.option("--dataset-size", type=int, help="Set the size of the dataset; replaces --steps.")
@click.option(
    "--sweep",
    metavar="FILE.csv",
    help="Compute every row of this table; 'paper' uses six published ones.",
)
@click.option(
    "--table",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE.csv",
    help="Write the table of a sweep to this file.",
)
@audit_options(config=True, delta=1e-5, until=True, units=True)
def shuffle(
    settings: dict[str, Any],
    dataset_size: int | None,
    sweep: str | None,
    table: Path | None,
    options: Options,
) -> None:
    """Compute the ε of shuffled DP-SGD accounted as Poisson-sampled.

    Without --claim, the ε that a Poisson accountant reports for these settings is judged.

    Exit code 1 if the reported ε cannot be true.

    Example: epsilometer shuffle --noise-multiplier 1 --steps 100 --delta 1e-5
    """
    if sweep is not None:
        _sweep(sweep, table)
        return
    if options.config is None or dataset_size is not None:
        settings["steps"] = _count_steps(settings, dataset_size)
    if options.config is None and "noise_multiplier" not in settings:
        raise InvalidArgument("Expected --noise-multiplier, got none.")
    call = make_call("ShuffledSGD", settings, options, delta=1e-5)
    if call.claim is None:
        assert call.delta is not None  # make_call fills it in
        call = replace(call, claim=call.subject.accounted_claim(call.delta))
    audit = run_call(call, options)
    said = word_answer(audit)
    end_audit(audit, options, advice=said.splitlines()[-1], further=(Text(said),))


def word_answer(audit: Audit) -> str:
    """Say what a person needs to know, in a few lines."""
    assert audit.claim is not None
    sampling, (view,) = audit.one(SamplerFinding), audit.views
    assert sampling is not None
    assert view.computed is not None
    reported, bound = claimed(audit.claim.epsilon), view.bound
    (upper,) = (estimate for estimate in view.estimates if estimate.role == "upper")
    lines = [
        f"You report ε = {reported} (Poisson: {sampling.accounted_epsilon:.2f}). "
        f"With {sampling.sampler}, the mechanism's ε is between {number(view.computed.low)} (exact "
        f"for one pair of datasets) and {number_up(audit.upper)} (proved: {upper.method}). "
        f"{bound.n_in + bound.n_out:,} simulated trials prove ε ≥ "
        f"{number(bound.epsilon)} ({bound.confidence:.0%} confidence).",
    ]
    if sampling.published:
        lines.append(f"Published lower bound: {number(sampling.published)}.")
    if sampling.needed_noise is not None and sampling.sufficient_noise is not None:
        lines.append(
            f"To satisfy ε = {reported} with {sampling.sampler}, noise of "
            f"{number(sampling.needed_noise, 3)} is necessary and "
            f"{number_up(sampling.sufficient_noise, 3)} is sufficient."
        )
        lines.append(_word_remedy(sampling, reported))
    return "\n".join(lines)


def _word_remedy(sampling: SamplerFinding, reported: str) -> str:
    """Name the sampler that keeps the claim at the smallest noise, and the others."""
    best, *others = sampling.remedies
    beside = ", ".join(f"{other.sampler} {number_up(other.noise, 3)}" for other in others)
    return (
        f"To prove ε = {reported}, use a noise multiplier of at least {number_up(best.noise, 3)} "
        f"with {best.sampler} ({beside})."
    )


def _count_steps(settings: dict[str, Any], dataset_size: int | None) -> int:
    steps, batch_size = settings.get("steps"), settings.get("batch_size")
    if steps is not None:
        if dataset_size is not None:
            raise InvalidArgument("Expected --steps or --dataset-size, got both.")
        return int(steps)
    if dataset_size is None or batch_size is None:
        raise InvalidArgument("Expected --steps, or --dataset-size and --batch-size, got neither.")
    if not 1 <= batch_size <= dataset_size:
        raise InvalidArgument(f"Expected --batch-size from 1 to {dataset_size}, got {batch_size}.")
    # A ragged last batch is kept, as by PyTorch. Its place is likelier to be empty of the record,
    # which hides it less than as many equal batches do: their ε is a lower end.
    return -(-dataset_size // int(batch_size))


def _sweep(source: str, table: Path | None) -> None:
    rows = [_make_row(**setting) for setting in _read_settings(source)]
    shown = [_join_ends(row) for row in rows]
    lines = (map(one_line, row.values()) for row in shown)
    show(make_table(shown[0], lines, right=True, pad_edge=False))
    if table is not None:
        text = to_csv_text(tuple(rows[0]), [tuple(row.values()) for row in rows])
        write_text(text, table)
        say(f"Table: {one_line(str(table))}")


def _make_row(
    name: str, noise_multiplier: float, steps: float, epochs: float, delta: float
) -> dict[str, str]:
    """Return one setting: what is reported, what is true, and what it would have taken."""
    noise, steps, epochs = noise_multiplier, int(steps), int(epochs)
    exact = shuffle_epsilon(noise_multiplier=noise, steps=steps, epochs=epochs, delta=delta)
    poisson = poisson_epsilon(
        noise_multiplier=noise,
        sampling_rate=1 / steps,
        steps=steps * epochs,
        delta=delta,
        adjacency="zero_out",
    )
    wanted: dict[str, Any] = {"epsilon": poisson, "delta": delta, "steps": steps, "epochs": epochs}
    needed, enough = shuffle_noise(**wanted), sufficient_noise(**wanted)
    upper = shuffle_upper(noise_multiplier=noise, steps=steps, epochs=epochs, delta=delta)
    return {
        "name": name,
        "noise": f"{noise:g}",
        "steps": f"{steps}",
        "epochs": f"{epochs}",
        "δ": f"{delta:g}",
        "reported ε (Poisson)": f"{poisson:.3f}",
        "ε of shuffling ≥": number(exact.low, 3),
        "≤": number_up(upper.high, 3),
        "times": f"{exact.low / poisson:.1f}" if poisson else "–",
        "noise necessary": number(needed, 3),
        "noise sufficient": number_up(enough, 3),
    }


def _join_ends(row: dict[str, str]) -> dict[str, str]:
    """Return a row with both ends in one column, so that a terminal shows all digits."""
    name, noise, steps, epochs, delta, reported, low, high, times, needed, enough = row.values()
    return {
        "name": name,
        "noise": noise,
        "batches": f"{steps} × {epochs}",
        "δ": delta,
        "Poisson ε": reported,
        "ε of shuffling": f"[{low}, {high}]",
        "times": times,
        "noise needed": f"[{needed}, {enough}]",
    }


def _read_settings(source: str) -> list[dict[str, Any]]:
    """Return the settings of a table, one per row: names as text, all else as numbers."""
    bundled = resources.files("epsilometer").joinpath("data/shuffling_settings.csv")
    table = read_table(Path(str(bundled)) if source == "paper" else Path(source))
    if set(table.names) != set(_COLUMNS):
        raise UnreadableFile(
            f"Expected a table with the columns {', '.join(_COLUMNS)} in {source!r}, got others."
        )
    texts = take_words(table.column("name"))
    settings = {"name": texts, **{name: _take_numbers(table.column(name)) for name in _COLUMNS[1:]}}
    return [dict(zip(settings, row, strict=True)) for row in zip(*settings.values(), strict=True)]


def _take_numbers(column: Column) -> list[float]:
    whole = column.name in ("steps", "epochs")
    values = column.values
    if column.words is not None or not np.isfinite(values).all():
        raise UnreadableFile(f"Expected numbers in column {column.name!r} of the settings.")
    if whole and (values != np.floor(values)).any():
        raise UnreadableFile(f"Expected whole numbers in column {column.name!r} of the settings.")
    found: list[float] = values.tolist()
    return found
