"""Run by ``make test-huggingface``, in an environment of its own: nothing here runs without it."""

from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("transformers") else ["test_*.py"]
