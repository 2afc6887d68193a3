"""Run the zoo; write docs/zoo.md and the list of its programs: ``python -m epsilometer.zoo``."""

import sys
from pathlib import Path

import click

from epsilometer.zoo.linting import render_scores
from epsilometer.zoo.page import (
    count_outcomes,
    describe_seeds,
    list_mistakes,
    read_seeds,
    render_list,
    render_page,
)
from epsilometer.zoo.programs import list_programs
from epsilometer.zoo.runner import Outcome, run_zoo

ROOT = Path(__file__).parents[3]
FILE, LIST = ROOT / "docs" / "zoo.md", ROOT / "tests" / "zoo" / "programs.md"


@click.command()
@click.option(
    "--seeds", type=click.IntRange(min=1), help="Run right programs with this many seeds too."
)
@click.option("--jobs", type=click.IntRange(min=1), default=1, help="Processes to use.")
def main(seeds: int | None, jobs: int) -> None:
    """Run the zoo, write its pages, and print the counts."""
    outcomes = run_zoo(
        (*list_programs("step"), *list_programs("opacus"), *list_programs("flower")), jobs=jobs
    )
    paragraph = read_seeds(FILE.read_text("utf-8")) if FILE.exists() else ""
    again: tuple[Outcome, ...] = ()
    if seeds:
        right = [outcome.program for outcome in outcomes if outcome.program.right]
        again = run_zoo(right, seeds=seeds, jobs=jobs)
        paragraph = describe_seeds(again, f"make zoo SEEDS={seeds}")
    scores, accused = render_scores()
    if FILE.parent.is_dir():
        FILE.write_text(render_page(outcomes, seeds=paragraph, scores=scores), "utf-8")
        LIST.write_text(render_list(outcomes), "utf-8")
    lines = (count_outcomes(outcomes), *list_mistakes(outcomes), paragraph if seeds else "", scores)
    sys.stdout.write("\n".join(filter(None, lines)).rstrip() + "\n")
    wrongly = any(each.accused and each.program.right for each in (*outcomes, *again))
    raise SystemExit(wrongly or accused)


if __name__ == "__main__":
    main()
