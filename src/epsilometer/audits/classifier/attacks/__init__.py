"""Attack classifiers: shadow models and the membership attacks that use them."""
