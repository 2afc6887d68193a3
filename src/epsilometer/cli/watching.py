"""Watch a run from another terminal: ``epsilometer runs status --watch``."""

import time
from pathlib import Path

from rich.console import Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.text import Text

from epsilometer.core.printing import one_line
from epsilometer.core.words import claimed, number
from epsilometer.engine.run_state import RunState, read_state

_BETWEEN = 1.0  # seconds


def watch_run(directory: Path, *, between: float = _BETWEEN) -> RunState:
    """Show how far a run is until no one works on it any more; return how it ended."""
    state = read_state(directory)
    with Live(show_state(state), auto_refresh=False) as live:
        while state.state == "running":
            time.sleep(between)
            state = read_state(directory)
            live.update(show_state(state), refresh=True)
        live.update(show_state(state), refresh=True)
    return state


def show_state(state: RunState) -> RenderableType:
    """Return a run as a few lines."""
    done = state.finished + len(state.failures)
    lines: list[RenderableType] = [
        Text(f"{one_line(state.audit)}: {state.state}", style="bold"),
        ProgressBar(total=state.units, completed=done, width=40),
        Text(", ".join(word_state(state))),
    ]
    lines += [Text(f"unit {unit} failed: {kind}", "red") for unit, kind in state.failures[:5]]
    if state.headline:
        lines.append(Text(one_line(state.headline), "bold"))
    return Group(*lines)


def word_state(state: RunState) -> list[str]:
    """Say how far a run is, in a few words each."""
    said = [f"{state.finished:,} of {state.units:,} units finished"]
    if state.failures:
        said.append(f"{len(state.failures):,} failed")
    if state.state == "running" and state.rate > 0:
        said.append(f"{state.rate:.2g}/s")
    if state.left is not None:
        said.append(f"{state.left:.0f} s left")
    if state.epsilon is not None:
        said.append(f"ε ≥ {number(state.epsilon)} so far")
    if state.claim is not None:
        said.append(f"ε = {claimed(state.claim)} claimed")
    return said
