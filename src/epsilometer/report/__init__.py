"""Results for people: it reads results and never runs anything."""
