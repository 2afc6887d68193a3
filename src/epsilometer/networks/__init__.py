"""Train many models at once. Nothing here knows about privacy claims."""
