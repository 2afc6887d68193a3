"""Leave-one-out: how a classifier's predictions change when one of its records is taken out.

One file a family of classifiers (``families.FAMILIES``) where that is computed without fitting
again; ``pdtp`` asks them, and refits where none answers.
"""
