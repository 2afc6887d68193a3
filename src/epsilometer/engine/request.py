"""Hold the options of every audit, whatever its subject: claim, δ, confidence, seed, directory."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from epsilometer.core.audit import Audit, Provenance
from epsilometer.core.claim import DEFAULT_CONFIDENCE, Claim, check_unit
from epsilometer.core.plain import to_plain
from epsilometer.core.settings import describe_shapes, to_settings
from epsilometer.core.stopping import Until
from epsilometer.engine.code import find_code
from epsilometer.engine.engines import Engine
from epsilometer.engine.environment import read_environment, versions
from epsilometer.engine.events import Listener
from epsilometer.engine.plan import Plan
from epsilometer.engine.run import Job, recompute, run
from epsilometer.errors import InvalidArgument


@dataclass(frozen=True, eq=False, kw_only=True)
class Request:
    """Hold the arguments of ``epsilometer.audit``, except for the subject.

    Attributes:
        claim: The claim, if any.
        delta: δ of all bounds: the claim's, if there is one; None if none was given.
        confidence: Confidence with which all deciding bounds hold together.
        seed: Seed of all randomness.
        out: Directory of the run; None to write nothing.
        engine: Engine that executes units; None for the subject's own choice.
        until: When to stop early; None for never.
        listen: Callbacks that receive events.
        accept_changes: Continue a run whose code has changed since it began.
        recompute: Only recompute the result of the run in ``out`` from its shards.
    """

    claim: Claim | None = None
    delta: float | None = None
    confidence: float = DEFAULT_CONFIDENCE
    seed: int = 0
    out: Path | None = None
    engine: Engine | None = None
    until: Until | None = None
    listen: Sequence[Listener] = ()
    accept_changes: bool = False
    recompute: bool = False

    @property
    def known_delta(self) -> float:
        """δ; an error if neither a claim nor ``delta`` was given."""
        if self.delta is None:
            raise InvalidArgument(
                "Expected delta, got none. Pass delta=1e-5 or a Claim, which has one."
            )
        return self.delta

    def fill_claim(self, **known: Any) -> Claim | None:
        """Return the claim, with unstated fields filled in by the subject.

        Raises:
            InvalidArgument: The claim is about clients but records are protected, or vice versa.
        """
        claim = self.claim
        if claim is None:
            return None
        if "unit" in known:
            check_unit(claim, known["unit"])
        unstated = {
            name: value for name, value in known.items() if getattr(claim, name) == "unstated"
        }
        return replace(claim, **unstated)

    def make_plan(
        self,
        subject: Any,
        *,
        units: int,
        inputs: Mapping[str, str] | None = None,
        **further: Any,
    ) -> Plan:
        """Return the plan of a run: all settings, and ``further`` ones that follow from them."""
        name = type(subject).__name__
        kept = self.out is not None
        code = find_code(subject, values=kept)
        return Plan(
            audit=name,
            parameters={
                "settings": to_settings(subject),
                "delta": self.delta,
                "confidence": self.confidence,
                "claim": None if self.claim is None else to_plain(self.claim),
                "until": self.until_settings,
                "shapes": [list(pair) for pair in describe_shapes(subject)],
                "follows": further,
            },
            units=units,
            seed=self.seed,
            inputs=dict(inputs or {}),
            code=code.digests,
            source=code.source,
            versions=versions(code.packages),
            environment=read_environment() if kept else {},
        )

    def execute(
        self,
        job: Job,
        *,
        usual: Engine,
        engine: Engine | None = None,
        listen: Sequence[Listener] | None = None,
    ) -> Audit:
        """Run a job as requested.

        Args:
            job: What to compute.
            usual: The engine to use if none was requested.
            engine: The engine to use in any case.
            listen: Callbacks that receive events; those of the request by default.
        """
        if self.recompute:
            if self.out is None:
                raise InvalidArgument("Expected the directory of a run to recompute, got none.")
            return recompute(job, self.out)
        return run(
            job,
            self.out,
            engine=engine or self.engine or usual,
            listen=self.listen if listen is None else listen,
            accept_changes=self.accept_changes,
        )

    def make_provenance(self, subject: Any, *, name: str = "") -> Provenance:
        """Return the provenance of an audit that is computed directly, without a run."""
        return Provenance(
            subject=name or type(subject).__name__,
            settings=to_settings(subject),
            delta=self.delta,
            confidence=self.confidence,
            seed=self.seed,
            until=self.until_settings,
            versions=versions(),
            shapes=describe_shapes(subject),
        )

    @property
    def until_settings(self) -> dict[str, Any] | None:
        """The rule to stop early, as JSON values."""
        if self.until is None:
            return None
        return {"type": type(self.until).__name__, **to_settings(self.until)}
