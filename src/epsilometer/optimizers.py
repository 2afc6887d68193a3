"""Optimisers for training many models at once.

Example:
    >>> import epsilometer as em
    >>> em.optimizers.SGD(momentum=0.9)
    SGD(momentum=0.9, weight_decay=0.0)
"""

from epsilometer.networks.optimizers import SGD, Adam, Optimizer

__all__ = ["SGD", "Adam", "Optimizer"]
