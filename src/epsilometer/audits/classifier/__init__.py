"""May a classifier be published? Leave-one-out risk, membership attacks, release rules."""
