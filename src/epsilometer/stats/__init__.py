"""Compute statistics: pure, deterministic functions of arrays, with NumPy and scipy.special."""
