"""Exact limits on both error rates (Kairouz et al. 2015, Theorem 2.1)."""

from epsilometer.stats import derivation
from epsilometer.stats.estimators.counting import RULES, finder, two_rates
from epsilometer.stats.estimators.method import Method
from epsilometer.stats.thresholds import Published

METHOD = Method(
    find=finder(two_rates("clopper_pearson")),
    derive=derivation.two_rates("clopper_pearson"),
    rules=(*RULES, Published),
    exact=True,
    guarantees="The bound exceeds the true ε in at most 1 − confidence of audits, for any attack.",
    assumes="Runs (or canaries) are independent of each other.",
    cites=("clopper1934", "kairouz2015", "jagielski2020", "wilks1941"),
)
