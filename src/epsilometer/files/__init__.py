"""Read tables, scores and records from the files people have, and the history of results."""
