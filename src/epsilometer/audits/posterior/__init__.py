"""Do outputs of a Bayesian network leak more than its mean? Audit every release form."""
