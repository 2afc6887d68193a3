"""These tests need W&B and TensorBoard, in an environment of their own: ``make test-wandb``."""

from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("wandb") and find_spec("tensorboard") else ["test_*.py"]
