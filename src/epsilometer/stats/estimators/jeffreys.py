"""Jeffreys' limits on both error rates, as the one-shot papers have them: tighter, not exact."""

from epsilometer.stats import derivation
from epsilometer.stats.estimators.counting import RULES, finder, two_rates
from epsilometer.stats.estimators.method import Method
from epsilometer.stats.thresholds import Published

METHOD = Method(
    find=finder(two_rates("jeffreys")),
    derive=derivation.two_rates("jeffreys"),
    rules=(*RULES, Published),
    exact=False,
    guarantees="None: Jeffreys' limits hold on average over rates, and fall short at some.",
    assumes="Runs (or canaries) are independent of each other.",
    cites=("andrew2024", "kairouz2015"),
)
