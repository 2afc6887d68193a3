"""Measure threats other than membership: hidden attributes, structure, ranges, use of a dataset."""
