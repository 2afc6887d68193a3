"""Read tables, scores and records from files of many formats, and the history of results."""
