"""Give what federated training is made of: clipping, noise, participation (extra ``torch``).

Example:
    >>> import epsilometer as em
    >>> em.federation.FixedClip(0.5)
    FixedClip(norm=0.5)
"""

from epsilometer._extras import needs

with needs("torch", extra="torch"):
    from epsilometer.training.clipping import AdaptiveClip, FixedClip
    from epsilometer.training.federated import FederatedTraining
    from epsilometer.training.noise import IndependentNoise, MatrixNoise, TreeNoise
    from epsilometer.training.participation import (
        EveryEpoch,
        OnceIn,
        PoissonCohorts,
        UniformCohorts,
    )

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
