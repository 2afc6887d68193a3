"""The command line: one file a command. Exit codes: 0 ran, 1 claim refuted, 2 bad call."""
