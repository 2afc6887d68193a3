"""Audit classifiers that were fitted elsewhere, of which no recipe is known."""
