"""Collect programs known to be wrong or right, and count what the checks find."""
