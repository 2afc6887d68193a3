"""Components of federated training: clipping, noise, participation (extra ``torch``).

Example:
    >>> import epsilometer as em
    >>> em.federation.FixedClip(0.5)
    FixedClip(norm=0.5)
"""

from epsilometer._extras import needs

with needs("torch", extra="torch"):
    from epsilometer.audits.federated.rounds import (
        AdaptiveClip,
        EveryEpoch,
        FixedClip,
        OnceIn,
        PoissonCohorts,
        UniformCohorts,
    )
    from epsilometer.audits.federated.simulation import FederatedTraining
    from epsilometer.sampling.noise import IndependentNoise, MatrixNoise, TreeNoise

__all__ = [
    "AdaptiveClip",
    "EveryEpoch",
    "FederatedTraining",
    "FixedClip",
    "IndependentNoise",
    "MatrixNoise",
    "OnceIn",
    "PoissonCohorts",
    "TreeNoise",
    "UniformCohorts",
]
