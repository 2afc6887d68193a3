"""Which ε has DP-SGD that shuffles? Compute it and attack it."""
