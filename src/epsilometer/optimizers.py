"""Give the optimisers of many models at once (extra ``torch``)."""

from epsilometer._extras import needs

with needs("torch", extra="torch"):
    from epsilometer.training.optimizers import SGD, Adam, Optimizer

__all__ = ["SGD", "Adam", "Optimizer"]
