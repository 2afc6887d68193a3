"""Audit classifiers that were fitted elsewhere and whose training recipe is unknown."""
