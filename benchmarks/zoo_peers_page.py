"""The sections of the zoo in the pages of the comparison: what ``zoo_peers.py`` measured."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

RAW = Path(__file__).resolve().parent / "zoo_peers.json"


@dataclass(frozen=True, kw_only=True)
class Peer:
    """A tool that is asked.

    Attributes:
        title: Its name in the page.
        script: ``peers/zoo/ask_<script>.py``.
        call: How it is called.
        delta: δ of the claim that it is asked about.
        pinned: Name of its environment in ``peers``; empty where PyPI does not have it.
        commit: Of the repository that it was imported from, where PyPI does not have it.
        ours: Whether it is epsilometer itself.
    """

    title: str
    script: str = ""
    call: str
    delta: float = 0.1
    pinned: str = ""
    commit: str = ""
    ours: bool = False


TOOLS = {
    "checks": Peer(
        title="**epsilometer**, its checks",
        call="`run_zoo()`: `em.Step` at default settings, 64 calls and replays",
        pinned="-",
        ours=True,
    ),
    "epsilometer": Peer(
        title="**epsilometer**, bound on the same numbers",
        script="epsilometer",
        call="`epsilon_lower_bound(Scores(…), delta=0.1)`",
        pinned="-",
        ours=True,
    ),
    "jax_privacy": Peer(
        title="jax-privacy",
        script="jax_privacy",
        call="`CanaryScoreAuditor(…).epsilon_clopper_pearson(0.05, 0.1)`",
        pinned="jax_privacy",
    ),
    "pystatdp": Peer(
        title="StatDP (PyStatDP)",
        script="pystatdp",
        call="`select_event`, then `hypothesis_test`; p < 5 %",
        pinned="zoo/pystatdp",
    ),
    "smartnoise": Peer(
        title="SmartNoise's evaluator (opendp-smartnoise)",
        script="smartnoise",
        call="`DPEvaluator().evaluate(…)`",
        delta=0.01,
        pinned="zoo/smartnoise",
    ),
    "dp_sniper": Peer(
        title="DP-Sniper",
        script="dp_sniper",
        call="`DPSniper(…).best_attack(…)`, then `EpsEstimator(…)`; c = 0.1, 95 %",
        commit="ee087b2",
    ),
    "dp_auditorium": Peer(
        title="DP-Auditorium",
        script="dp_auditorium",
        call="`HockeyStickPropertyTester(…).estimate_lower_bound(…)`",
        commit="b5b0286",
    ),
}
_SHORT = """## The zoo: what other tools find

Wrong and right steps of DP-SGD, [the zoo](zoo.md), given to tools that test black boxes; each is
plugged in by one function (`run_zoo(tool=…)`, `python benchmarks/zoo_peers.py`):

| tool | wrong found | right spared |
|---|---|---|
{tools}

{missed} The zoo is ours, and the checks were written with its programs at hand. Others
test any mechanism and see one number per run (the projection with the largest shift, {runs:,} runs
per side), which noise that is reused or missing from a few coordinates does not shift.
[What each was asked](../benchmarks/comparison.md#the-zoo-what-other-tools-find).
"""
_TEXT = """## The zoo: what other tools find

Wrong and right steps of DP-SGD, [the zoo](../docs/zoo.md), put to tools that test black boxes.
Each is plugged in by one function (`run_zoo(tool=…)`). `python benchmarks/zoo_peers.py` measures it
and writes this section; what was measured is kept in `benchmarks/zoo_peers.json`.

Such a tool is given numbers that a program released with one record and without it, and tests
whether they fit the claim. The release has 364 coordinates, so it is projected on a line. The
record ({records}) and the line are those with the largest change when both sides
share their randomness: replay finds them, and hands every tool the view that shows most of a
shift. {runs:,} runs with the record and {runs:,} without it are drawn once, and given to all;
that takes {drawing:.1f} CPU seconds per program, which the last column leaves out but for the
checks. The claim is the ε of one Gaussian step at δ = 0.1 (1.16 where σ = 1).

| tool | called as | wrong programs found | right ones spared | CPU per program (s) |
| --- | --- | ---: | ---: | ---: |
{tools}

What each finds of each kind:

| breaks | programs | {names} |
| --- | ---: | {ruler} |
{kinds}

{missed}

How to read it:

- The zoo is ours, and the checks were written with its programs at hand: that they find all of
  these says little of programs that nobody thought of. The others test any mechanism, and know
  nothing of DP-SGD.
- A test of black boxes sees a *shift* along the line it looks at. Less noise along that line and
  larger sensitivity shift it; noise that is reused, that cancels, or that is missing from a few
  coordinates leaves one number of one step as it should be. That is a limit of the view, and our
  own bound, given the same numbers, has it too. The checks look at all coordinates, at many
  steps, and at neighbours under the same randomness.
- StatDP and DP-Sniper test pure DP, which no Gaussian step has. They are asked about the ε that
  the claim implies for events of at least 5 and 10 %: ln(e^ε + δ/q). SmartNoise's evaluator allows
  δ in every bin of its histogram, and is asked at δ = 0.01 (ε = 2.32): of 0.1, 0.01, 0.001 and
  10⁻⁵ it is the largest at which it found a Gaussian shift of 2. The others are asked at δ = 0.1.
- PyPI has StatDP as PyStatDP, a fork, and SmartNoise's evaluator in opendp-smartnoise 0.1.4, of
  2021. DP-Auditorium and DP-Sniper are not on PyPI; they were imported from their repositories
  (google/differential-privacy at b5b0286, `python/dp_auditorium`; eth-sri/dp-sniper at ee087b2).
  `--python TOOL=PATH` names an interpreter that can import them. Of DP-Auditorium the testers were
  imported without its generators of datasets, which need Vizier.
- **smartnoise-eval** 0.3.1 cannot be asked: it compares a synthetic table with its original (its
  `sneval.metrics` are counts, means and errors of them), and has no test of a mechanism. The
  evaluator above is its predecessor's.
- Tools were given few runs and one projection. By default DP-Sniper draws 10,700,000 runs and
  StatDP 500,000, and both search for neighbours of their own; DP-Auditorium searches with Vizier.
  More runs would find smaller shifts (10 % too little noise), not what one number does not show.
- None of them looks at how batches are drawn or at what is booked.

Measured on {machine}.
"""


@dataclass(frozen=True)
class _Read:
    """What was measured, and what it is of: tools that were asked, wrong and right programs."""

    raw: dict[str, Any]
    asked: dict[str, dict[str, Any]]
    wrong: list[str]
    right: list[str]


def _read() -> _Read | None:
    if not RAW.exists():
        return None
    raw: dict[str, Any] = json.loads(RAW.read_text("utf-8"))
    wrong = [each for each, (_, breaks) in raw["programs"].items() if breaks]
    return _Read(
        raw,
        {name: raw["tools"][name] for name in TOOLS if name in raw["tools"]},
        wrong,
        [each for each in raw["programs"] if each not in wrong],
    )


def summary() -> str:
    """Return the section of the short page; empty where nothing was measured yet."""
    read = _read()
    if read is None:
        return ""
    rows = [
        f"| {TOOLS[name].title} | {count(said, read.wrong)}/{len(read.wrong)} | "
        f"{len(read.right) - count(said, read.right)}/{len(read.right)} |"
        for name, said in read.asked.items()
    ]
    return "\n" + _SHORT.format(
        tools="\n".join(rows),
        missed=_found_by_others(read.raw, read.wrong, read.asked),
        runs=read.raw["runs"],
    )


def section() -> str:
    """Return the section of the full page; empty where nothing was measured yet."""
    read = _read()
    if read is None:
        return ""
    raw, asked, wrong = read.raw, read.asked, read.wrong
    kinds = list(dict.fromkeys(raw["programs"][each][1] for each in wrong))
    return "\n" + _TEXT.format(
        records="of 8, each in three sizes",
        runs=raw["runs"],
        drawing=raw["drawing_seconds"],
        machine=raw["machine"],
        tools="\n".join(_line(name, said, wrong, read.right) for name, said in asked.items()),
        names=" | ".join(TOOLS[name].title.strip("*").replace("**", "") for name in asked),
        ruler=" | ".join("---:" for _ in asked),
        kinds="\n".join(_kind_line(kind, raw, wrong, asked) for kind in kinds),
        missed=_found_by_others(raw, wrong, asked),
    )


def count(said: dict[str, Any], programs: list[str]) -> int:
    """Return how many of some programs a tool accuses."""
    return sum(each in said["accused"] for each in programs)


def _line(name: str, said: dict[str, Any], wrong: list[str], right: list[str]) -> str:
    peer = TOOLS[name]
    title = f"{peer.title} {peer.commit or said['version']}".strip()
    found, accused = count(said, wrong), count(said, right)
    spared = f"{len(right) - accused} of {len(right)}"
    seconds = f"{said['cpu_seconds']:.2g}"
    return f"| {title} | {peer.call} | {found} of {len(wrong)} | {spared} | {seconds} |"


def _kind_line(
    kind: str, raw: dict[str, Any], wrong: list[str], asked: dict[str, dict[str, Any]]
) -> str:
    programs = [each for each in wrong if raw["programs"][each][1] == kind]
    cells = " | ".join(str(count(said, programs)) for said in asked.values())
    return f"| {kind} | {len(programs)} | {cells} |"


def _found_by_others(
    raw: dict[str, Any], wrong: list[str], asked: dict[str, dict[str, Any]]
) -> str:
    """Say first where a peer finds what the checks miss."""
    if "checks" not in asked:
        return ""
    missed = [each for each in wrong if each not in asked["checks"]["accused"]]
    told = []
    for each in missed:
        finders = [TOOLS[name].title for name, said in asked.items() if each in said["accused"]]
        told.append(f"{each} ({raw['programs'][each][0]}): {', '.join(finders) or 'by none'}")
    return (
        "What our checks miss, and who finds it: " + ("; ".join(told) or "nothing is missed") + "."
    )
