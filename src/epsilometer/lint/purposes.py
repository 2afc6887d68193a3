"""Tell from names what code is for: private training, or tests, baselines and public data."""

import ast
import re

from epsilometer.lint.module import Module, split_words, write_name

_TEST = re.compile(r"^Test|Tests?(Case|Base)?$")
_OTHER_ENDS = {"val", "valloader", "valset", "dev", "heldout", "vanilla", "attack", "calibration"}
_OTHER_STARTS = ("test", "eval", "valid", "holdout", "public", "baseline", "nonpriv", "nondp",
                 "nodp", "pretrain", "shadow", "warmup")  # fmt: skip
_NEGATIONS = ("non", "no", "not", "without")
_TRAINS = ("step", "backward", "apply_gradients", "train_on_batch", "minimize", "value_and_grad")
_TRAIN_STARTS = ("train", "step", "update", "fit", "optimi", "dp", "private", "clip")


def is_in_test(module: Module, node: ast.AST) -> bool:
    """Tell whether a node is in a test: its function, its class or its file."""
    if module.is_test:
        return True
    for parent in module.walk_up(node):
        match parent:
            case ast.FunctionDef(name=name) if name.startswith("test"):
                return True
            case ast.ClassDef(name=name) if _TEST.search(name):
                return True
    return False


def serves_other_ends(module: Module, node: ast.AST, *names: str) -> bool:
    """Tell whether names around a node say that it does not feed private training."""
    return any(is_other_end(name) for name in (*names, *_list_names_around(module, node)))


def _list_names_around(module: Module, node: ast.AST) -> list[str]:
    names = [module.find_target(node)]
    child = node
    for parent in module.walk_up(node):
        match parent:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                names.append(name)
            case ast.keyword(arg=str(name)):
                names.append(name)
            case ast.Dict(keys=keys, values=values):
                beside = zip(keys, values, strict=True)
                names += [_word_key(key) for key, value in beside if value is child]
        child = parent
    return names


def _word_key(key: ast.expr | None) -> str:
    """Return a key of a dictionary in words."""
    match key:
        case ast.Constant(value=str(value)):
            return value
        case None:
            return ""
    return write_name(key)


def is_other_end(name: str) -> bool:
    """Recognise ``test_loader``, ``x_val``, ``non_private``; but not ``train_and_evaluate``."""
    parts = split_words(name)
    if not parts:
        return False
    for word, following in zip(parts, [*parts[1:], ""], strict=True):
        if word in _NEGATIONS and following in ("private", "dp", "priv", "privacy"):
            return True
    other = any(part in _OTHER_ENDS or part.startswith(_OTHER_STARTS) for part in parts)
    trains = any(part.startswith("train") for part in parts)
    return other and (not trains or parts[0] == "test")


def names_training(name: str) -> bool:
    """Recognise ``train_loader``, ``self.trainset``, ``x_train``."""
    return any(part.startswith("train") for part in split_words(name))


def is_training_call(name: str) -> bool:
    """Tell whether a call in a loop over batches is one that trains."""
    return name in _TRAINS or (
        bool(words := split_words(name))
        and (words[0].startswith(_TRAIN_STARTS) or words[-1] in ("step", "update"))
        and not is_other_end(name)
        and name not in ("train_test_split",)
    )


def is_partial_step(name: str) -> bool:
    """Recognise ``backward`` and the like, which a loop over parts of a batch calls as well."""
    return name in ("backward", "value_and_grad", "virtual_step") or name.startswith("clip")


def changes_weights(name: str) -> bool:
    """Recognise ``apply_gradients``, ``train_step``, ``update``; but not ``backward``."""
    words = split_words(name)
    if name in ("apply_gradients", "apply_updates", "train_on_batch", "minimize"):
        return True
    return bool(words) and words[-1] in ("step", "update") and not is_other_end(name)


def is_part_of_library(module: Module, node: ast.AST) -> bool:
    """Tell whether a node is in a class that is an optimizer, a scheduler or an engine itself."""
    around = module.find_class(node)
    return around is not None and any(
        word in around.name.lower() for word in ("optim", "schedul", "engine")
    )
