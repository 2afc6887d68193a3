"""Compute leave-one-out risk of every record, by family of model."""
