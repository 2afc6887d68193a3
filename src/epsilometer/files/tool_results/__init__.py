"""Read attack scores from the results of other tools."""
