"""Tests of the JAX backend need JAX, which has an environment of its own: ``make test-jax``."""

from importlib.util import find_spec

collect_ignore = [] if find_spec("jax") else ["test_jax_trainer.py"]
