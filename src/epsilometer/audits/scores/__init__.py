"""Can the ε be true, given attack scores? Bound it from below."""
