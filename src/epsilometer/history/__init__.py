"""Results that lie in a folder: what there is, two of them compared."""
