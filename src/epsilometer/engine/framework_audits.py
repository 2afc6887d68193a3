"""Make the audit of a run that another framework did, with what a second run needs."""

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
        packages: Distributions whose versions are kept.
        function: Name of the function.
        supplied: Its arguments that the user must supply again; kept by type.
        settings: Its other arguments.
        claim: As of ``Audit``.
        delta: As of ``Provenance``.
        confidence: Likewise.
        seed: Likewise.
        parts: As of ``Audit``.
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
