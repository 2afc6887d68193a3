"""Runs that survive: a plan, units of work, a directory, and what executes them."""
