"""Measure threats beside membership: hidden attributes, structure, ranges, use of a dataset."""
