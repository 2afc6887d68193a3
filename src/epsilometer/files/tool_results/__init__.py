"""Read attack scores out of what other tools write."""
