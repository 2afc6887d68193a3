"""These tests need TensorFlow Privacy, which has an environment of its own: ``make test-tf``."""

import os
import warnings
from importlib import import_module
from importlib.util import find_spec

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
collect_ignore_glob = [] if find_spec("tensorflow_privacy") else ["test_*.py"]
if not collect_ignore_glob:
    with warnings.catch_warnings():  # what it imports warns of what that imports
        warnings.simplefilter("ignore")
        import_module("tensorflow_privacy")
