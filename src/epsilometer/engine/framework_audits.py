"""Make the audit of a run by another framework, with everything needed to repeat it."""

from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Any

from epsilometer.core.audit import Audit, Provenance
from epsilometer.core.claim import Claim
from epsilometer.engine.environment import versions


def make_framework_audit(
    framework: str,
    packages: Sequence[str],
    function: str,
    *,
    supplied: Mapping[str, Any],
    settings: Mapping[str, Any],
    claim: Claim | None,
    delta: float | None,
    confidence: float,
    seed: int,
    **parts: Any,
) -> Audit:
    """Return the audit of a function of an integration.

    Args:
        framework: Name of the integration.
        packages: Distributions whose versions are recorded.
        function: Name of the function.
        supplied: Arguments that the user must supply again; only their types are stored.
        settings: Its other arguments.
        claim: See ``Audit``.
        delta: See ``Provenance``.
        confidence: Likewise.
        seed: Likewise.
        parts: See ``Audit``.
    """
    return Audit(
        claim=claim,
        provenance=Provenance(
            subject=framework,
            settings={
                "function": f"epsilometer.integrations.{framework}:{function}",
                **{name: {"supplied": type(thing).__name__} for name, thing in supplied.items()},
                **settings,
            },
            delta=delta,
            confidence=confidence,
            seed=seed,
            versions=(*versions(), *((name, version(name)) for name in packages)),
        ),
        **parts,
    )
