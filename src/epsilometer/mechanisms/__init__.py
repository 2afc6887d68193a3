"""Mechanisms that can be played many times, with the record and without it."""
