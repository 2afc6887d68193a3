"""Write what an audit of a Flower run found."""

import io
import logging
import math
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, get_args

import numpy as np
from msgspec import structs

from epsilometer._files import write_whole
from epsilometer.audits.federated.subject import measure_iterates
from epsilometer.conformance.server_rounds import has_gaussian_noise
from epsilometer.core import judge
from epsilometer.core.audit import Audit, Provenance
from epsilometer.core.claim import Claim
from epsilometer.core.findings import ConformanceFinding
from epsilometer.core.renderers import render
from epsilometer.engine.environment import versions
from epsilometer.engine.request import Request
from epsilometer.errors import EpsilometerError, InvalidArgument
from epsilometer.integrations.flower.checkpoints import Kept, hold_folder, keep_round
from epsilometer.integrations.flower.planting import Planting
from epsilometer.integrations.flower.settings import Settings
from epsilometer.stats.gaussians import gaussian_epsilon

_MODES = {
    "replace": "designated nodes were answered as canaries, their clients did not train",
    "virtual": "canaries were nodes in addition to the real ones",
    "mod": "canaries were planted by canary_mod, in the clients",
}
_RESULTS = ("result.json", "report.html")
_log = logging.getLogger("flwr")  # so that it appears among Flower's own lines


@contextmanager
def record_run(settings: Settings, call: dict[str, Any]) -> Iterator[Planting]:
    """Run; save observations after every round, and write the result when it ends or fails."""
    with _hold_somewhere(settings.out, call) as (folder, kept):
        if kept is not None:
            settings = replace(settings, seed=kept.seed)
            _log.info("epsilometer: resumes the audit in %s", folder)
        planting, ended = (
            Planting(settings, kept),
            "The app ended with an error; this is the result up to then.",
        )

        def keep() -> None:
            audit = Audit(
                subject="rounds of a Flower server",
                claim=None,
                findings=(_choose_checks(planting, planting.rounds.finding()),),
                provenance=_make_provenance(settings.request, call),
            )
            keep_round(folder, call, planting.keep(), audit)

        planting.after_round = keep
        try:
            yield planting
            ended = ""
        finally:
            try:
                write_run(planting, folder, call, ended)
            except Exception:  # the run never fails because of its audit
                _log.exception("epsilometer: no result could be written to %s", folder)


@contextmanager
def _hold_somewhere(out: str | Path, call: dict[str, Any]) -> Iterator[tuple[Path, Kept | None]]:
    """Hold the directory of a run, or a temporary one: the run never fails because of its audit."""
    with ExitStack() as stack:
        try:
            held = stack.enter_context(hold_folder(out, call))
        except (OSError, EpsilometerError) as problem:
            held = Path(mkdtemp(prefix="epsilometer-flower-")), None
            _log.warning("epsilometer: cannot write to %s (%s); %s is used.", out, problem, held[0])
        yield held


def write_run(planting: Planting, folder: Path, call: dict[str, Any], ended: str = "") -> None:
    """Write the run directory, and log its path; log and save what cannot be judged.

    Args:
        planting: The observations.
        folder: Folder to write to; files of earlier rounds are replaced.
        call: The call that repeats it, as JSON values.
        ended: Statement about the end of the run.
    """
    said = [line for line in (*_word_run(planting, ended), *planting.caveats) if line]
    try:
        audit = _make_audit(planting, call, tuple(said))
    except InvalidArgument as problem:
        said = [str(problem), *said]
        _log.warning("epsilometer: nothing to judge. %s", problem)
        for name in _RESULTS:  # the result of an earlier round is not valid either
            (folder / name).unlink(missing_ok=True)
    else:
        for name in _RESULTS:
            write_whole(folder / name, render(audit, Path(name).suffix))
        for bound in audit.bounds:
            _log.info("epsilometer: %s: %s", bound.adversary, bound)
        _log.info("epsilometer: %s", audit.verdict)
    if planting.watch is not None:
        seen, packed = planting.summarise(), io.BytesIO()
        np.savez(packed, final=seen.final, largest=seen.largest, took=seen.took)
        write_whole(folder / "cosines.npz", packed.getvalue())
    # Last, since it marks the end of the run.
    write_whole(folder / "notes.txt", ("\n".join(said) + "\n").encode("utf-8"))
    _log.info("epsilometer: written to %s", folder)


def _make_audit(planting: Planting, call: dict[str, Any], said: tuple[str, ...]) -> Audit:
    if planting.watch is None or planting.layout is None:
        raise InvalidArgument(
            planting.ended or "Expected weights that are sent to clients, saw none."
        )
    planting.refuse_mismatch()
    asked = planting.settings
    request = asked.request
    if request.claim is None:
        request = replace(request, claim=_find_claim(planting, request.known_delta))
    claim = request.fill_claim(adjacency="zero_out", unit="client")
    names = " of ".join(type(part).__name__ for part in planting.parts)
    summary = planting.summarise()
    subject = f"Flower {names or 'ServerApp'}, {summary.took.size:,} canaries"
    rounds = planting.rounds
    bound, confidence = rounds.share_confidence(
        request.confidence, delta=request.known_delta, parts=planting.part
    )
    checks = rounds.finding(*planting.check_kind(), bound=bound)
    earlier = checks if planting.kept is None else planting.kept.checks
    gaussian = earlier is not None and all(map(has_gaussian_noise, (checks, earlier)))
    try:
        views = measure_iterates(
            summary,
            replace(request, claim=claim, confidence=confidence),
            dimension=planting.layout.size,
            participation=planting.participation,
            noise="gaussian" if gaussian else "unknown",
            single=planting.single,
            subject=subject,
            caveats=said,
        )
    except InvalidArgument:
        if not rounds.rounds:
            raise
        views = ()  # canaries show nothing, but releases were checked
    if not planting.norm_known:  # canaries did not pass what clients do to their updates
        views = tuple(
            structs.replace(view, bound=structs.replace(view.bound, valid=False)) for view in views
        )
    return Audit(
        subject=subject,
        claim=claim,
        findings=(*views, _choose_checks(planting, checks)),
        provenance=_make_provenance(request, call),
    )


def _make_provenance(request: Request, call: dict[str, Any]) -> Provenance:
    return Provenance(
        subject="flower",
        settings=call,
        delta=request.delta,
        confidence=request.confidence,
        seed=request.seed,
        versions=(*versions(), ("flwr", version("flwr"))),
    )


def _choose_checks(planting: Planting, own: ConformanceFinding) -> ConformanceFinding:
    """Return the most severe findings of this process and of earlier ones that were killed."""
    earlier = None if planting.kept is None else planting.kept.checks
    if earlier is None:
        return own
    gravest_first = get_args(judge.Conformance)
    return min(own, earlier, key=lambda each: (gravest_first.index(each.verdict), -each.steps))


def _find_claim(planting: Planting, delta: float) -> Claim | None:
    """Return the ε of Flower's own accountant at this δ, or the one that follows from its noise.

    Without an accountant, the claim is that of the Gaussian mechanism: the accounted noise in each
    observed round, without amplification by sampling.
    """
    for part in planting.parts:
        spent = part.privacy_spent() if hasattr(part, "privacy_spent") else None
        if spent is not None and spent.delta == delta and math.isfinite(spent.epsilon):
            return Claim(spent.epsilon, delta, adjacency="add_remove", accountant="Flower's")
    accounted = planting.read_accounted()
    rounds = 0 if planting.watch is None else planting.summarise().rounds
    if isinstance(accounted, str) or accounted.noise is not None or not rounds:
        return None
    noise, counted = (
        accounted.noise_multiplier,
        getattr(planting.strategy, "clipped_count_stddev", 0),
    )
    if counted:  # the number of clipped updates is also released, and one client changes it by ½
        noise = (noise**-2 + (2 * counted) ** -2) ** -0.5
    if not noise:
        return None
    epsilon = gaussian_epsilon(noise / math.sqrt(rounds), delta)
    words = f"computed: noise multiplier {noise:.4g}, {rounds:,} rounds, no amplification"
    return Claim(epsilon, delta, adjacency="add_remove", unit="client", accountant=words)


def _word_run(planting: Planting, ended: str) -> Iterator[str]:
    mode = planting.settings.mode
    yield f"Mode {mode}: {_MODES[mode]}."
    yield ended
    if planting.strategy is None:
        yield (
            "Strategy.start was not called, so that the weights after the last round were "
            "observed only if they were sent over the grid."
        )
