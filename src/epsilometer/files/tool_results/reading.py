"""Recognise by its content which tool wrote a file, and read the scores of its attacks.

A recogniser is a function that takes :class:`~.result.Opened`, and returns the result, or None if
another tool wrote it. A new tool is a module and an entry of ``TOOLS``, or an entry point of the
group ``epsilometer.tool_results`` in another package.
"""

import io
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from epsilometer import _validate
from epsilometer._files import read_plain
from epsilometer.core.registry import Registry
from epsilometer.errors import InvalidArgument, UnreadableFile
from epsilometer.files.readers import (
    Content,
    check_single,
    cut_padding,
    open_columns,
    parse_number,
    read_numbers,
    wrap_decoder_errors,
)
from epsilometer.files.tool_results.result import Opened, ToolResult

TOOLS: Registry[Callable[[Opened], ToolResult | None]] = Registry(
    "tool_results",
    {
        "privacy-meter": "epsilometer.files.tool_results.privacy_meter:find_attacks",
        "privacy-guard": "epsilometer.files.tool_results.privacy_guard:find_attacks",
        "sacro-ml": "epsilometer.files.tool_results.sacro_ml:find_attacks",
        "robustness-toolbox": "epsilometer.files.tool_results.robustness_toolbox:find_attacks",
        "jax-privacy": "epsilometer.files.tool_results.jax_privacy:find_attacks",
        "tf-privacy": "epsilometer.files.tool_results.tf_privacy:find_attacks",
    },
)
TREES = (".json", ".pickle", ".pkl")  # endings of files that have no columns
_LARGEST = 2**28  # bytes of such a file
_DEEP = "it is nested too deeply"


def read_tree(path: Path) -> ToolResult:
    """Return the attacks in a JSON or pickle file; nothing that a pickle names is run.

    Raises:
        UnreadableFile: The file is missing, damaged or too large.
        InvalidArgument: No known tool wrote it, or it has no scores.
    """
    with wrap_decoder_errors(path, "Save its scores as .npz."):
        return find_result(_open_tree(path))


def open_content(path: Path, content: Content) -> Opened:
    """Return the columns of a file as recognisers take them."""
    names = [name.strip() for name in content.names]

    def read(name: str) -> NDArray[Any]:
        (column,) = content.read([names.index(check_single(names, name))])
        if name == "user_id":  # never shown
            return column.values if column.words is None else np.array(column.words)[column.values]
        # The other side may be longer, but where it is another file
        return read_numbers(name, column if name == "score" else cut_padding(column))

    return Opened(path, dict.fromkeys(names).keys(), read, partial(_open_beside, path))


def find_result(opened: Opened) -> ToolResult:
    """Return the result of the first tool that recognises the file."""
    for name in TOOLS:
        found = TOOLS[name](opened)
        if found is not None:
            return found
    if any(parse_number(name) is not None for name in opened.names):  # a record, nobody's business
        shown = "numbers in the first line, which names the columns"
    else:
        shown = _validate.listed(opened.names) if opened.names else "none"
    raise InvalidArgument(
        "Expected columns 'score' and 'member' (1 inside, 0 outside), or 'inside' and 'outside', "
        f"or a result of {', '.join(TOOLS)}, found {shown}."
    )


def _open_tree(path: Path) -> Opened:
    content = read_plain(path, largest=_LARGEST)
    try:
        tree = _parse_json(content) if path.suffix.lower() == ".json" else _read_pickle(content)
    except RecursionError as error:
        raise UnreadableFile(f"Could not read {path.name!r}: {_DEEP}.") from error
    lists = {
        str(name): values
        for name, values in (tree.items() if isinstance(tree, dict) else ())
        if isinstance(values, (list, np.ndarray))
    }
    beside = partial(_open_beside, path)
    return Opened(path, lists.keys(), lambda name: _as_numbers(name, lists[name]), beside, tree)


def _parse_json(content: bytes) -> Any:
    return json.loads(content.decode("utf-8"))


def _read_pickle(content: bytes) -> Any:
    from epsilometer.files.inert_pickle import Reader

    return Reader(io.BytesIO(content)).load()


def _open_beside(path: Path, name: str) -> Opened:
    """Open another file of the same folder."""
    twin = path.parent / name
    with open_columns(twin, advice="Save less of it.") as content:
        return open_content(twin, content)


def _as_numbers(name: str, values: Any) -> NDArray[Any]:
    try:
        return np.asarray(values, np.float64)
    except (TypeError, ValueError) as error:
        raise InvalidArgument(
            f"Expected numbers in {name!r}, got something else in some row. A score that is not "
            "finite is written as Infinity or -Infinity."
        ) from error
