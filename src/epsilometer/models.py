"""Models, losses and scores for training many models at once (extra ``torch``).

Example:
    >>> import epsilometer as em
    >>> sum(weights.numel() for weights in em.models.mlp(64, 10).parameters())
    2410
"""

from epsilometer._extras import needs

with needs("torch", extra="torch"):
    from epsilometer.networks.ensemble import EnsembleDPSGD, cross_entropy
    from epsilometer.networks.loss import negative_loss
    from epsilometer.networks.models import cnn, dropout_cnn, dropout_mlp, lenet5, mlp

__all__ = [
    "EnsembleDPSGD",
    "cnn",
    "cross_entropy",
    "dropout_cnn",
    "dropout_mlp",
    "lenet5",
    "mlp",
    "negative_loss",
]
