"""Audit a language model by texts that were planted in its training data."""
