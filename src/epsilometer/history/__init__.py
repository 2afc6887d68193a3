"""List the audits in a folder, compare two of them, follow one over time."""
