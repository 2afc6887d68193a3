"""Statistics: pure, deterministic functions of arrays; NumPy and scipy.special only."""
