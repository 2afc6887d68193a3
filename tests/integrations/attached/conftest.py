"""These tests need fastDP or private-transformers, which only their repositories have."""

from importlib.util import find_spec

found = find_spec("fastDP") or find_spec("private_transformers")
collect_ignore_glob = [] if found else ["test_engines.py"]
