"""Can the ε of DP-SGD be true? Train many models with a canary and without it."""
