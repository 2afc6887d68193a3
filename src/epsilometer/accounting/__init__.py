"""Compute the ε of a mechanism from its settings."""
