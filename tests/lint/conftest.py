collect_ignore = ["clean", "guilty"]  # read by the checks, never imported
