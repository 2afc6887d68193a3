"""Audit JAX-Privacy: does a JAX loop do what its accounting events say?"""

from epsilometer._extras import needs

with needs("jax", extra="jax"), needs("jax_privacy", extra="jax"):
    from epsilometer.integrations.jax_privacy.audited_run import Audited, audited
    from epsilometer.integrations.jax_privacy.books import read_books, report_epsilon
    from epsilometer.integrations.jax_privacy.canary_scores import score_canaries
    from epsilometer.integrations.jax_privacy.keras_run import AuditedKeras, audited_keras
    from epsilometer.integrations.jax_privacy.plans import audited_plan
    from epsilometer.integrations.jax_privacy.replay import replay
    from epsilometer.integrations.jax_privacy.samplers import check

__all__ = [
    "Audited",
    "AuditedKeras",
    "audited",
    "audited_keras",
    "audited_plan",
    "check",
    "read_books",
    "replay",
    "report_epsilon",
    "score_canaries",
]
