"""Theory: what a mechanism promises."""
