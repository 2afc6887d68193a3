"""Load classifiers from skops and ONNX files, and from trusted joblib and pickle files.

Loading a pickle runs its code. So these two are read only by ``load_trusted``, which settings name
as a function: no file can trigger it unless the user passes ``--trust``.
"""

import io
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from epsilometer._extras import has, needs
from epsilometer.audits.classifier.fitted.subject import predict_shown
from epsilometer.audits.classifier.published import read_model_file
from epsilometer.audits.classifier.sklearn_models import clone_estimator, read_labels
from epsilometer.errors import InvalidArgument
from epsilometer.files.readers import Column, hash_file
from epsilometer.files.spellings import read_spelled
from epsilometer.files.tables import Table, spell_number, take_words
from epsilometer.integrations.sklearn import TableModel
from epsilometer.types import BoolArray, FloatArray

_TRUSTED = (".joblib", ".pkl", ".pickle")
ENDINGS = (".skops", ".onnx", *_TRUSTED)
OWN = "own"  # the recipe that uses the fitted model's settings
_IN = frozenset({"1", "true", "yes", "in", "train", "training", "member"})
_OUT = frozenset({"0", "false", "no", "out", "test", "testing", "other"})
_GAPS = frozenset({"", "na", "n/a", "nan", "null", "none"})  # which pandas reads as missing
_NAMED = 5  # largest number of columns in an error message
_CLASSES = ("classlabels_strings", "classlabels_int64s", "classlabels_ints", "cats_int64s")


def is_model_file(text: str) -> bool:
    """Tell whether a string is the path of a fitted model's file.

    Example:
        >>> is_model_file("model.skops"), is_model_file("naive-bayes")
        (True, False)
    """
    return Path(text).suffix.lower() in ENDINGS


def load_safely(path: Path) -> Any:
    """Load a model from a file that runs no code when read: skops or ONNX.

    Raises:
        InvalidArgument: It is of another kind, or contains types that skops does not know.
    """
    content, ending = read_model_file(path), path.suffix.lower()
    if ending == ".onnx":
        return OnnxClassifier(content)
    if ending != ".skops":
        raise InvalidArgument(
            f"Expected --trust to load {path.name!r}: reading {ending or 'such a file'} runs its "
            "code. Save the model with skops.io.dump, or say that you trust the file."
        )
    with needs("skops", extra="models"):
        from skops.io import get_untrusted_types, loads
    with _name_damage(path):
        unknown = get_untrusted_types(data=content)
        if not unknown:
            return loads(content)
    raise InvalidArgument(
        f"Expected types in {path.name!r} that skops knows, found {', '.join(unknown[:_NAMED])}. "
        "Pass --trust if you trust the file."
    )


def load_trusted(path: Path) -> Any:
    """Load a model from any file, which may run code: skops, ONNX, joblib or pickle."""
    content, ending = read_model_file(path), path.suffix.lower()
    if ending == ".onnx":
        return OnnxClassifier(content)
    with _name_damage(path):
        if ending == ".skops":
            with needs("skops", extra="models"):
                from skops.io import get_untrusted_types, loads
            return loads(content, trusted=get_untrusted_types(data=content))
        with needs("joblib", extra="sklearn"):
            import joblib
        return joblib.load(io.BytesIO(content))  # which reads plain pickles too


class _name_damage:  # noqa: N801 - a context manager, as suppress is
    """Turn a library's error about an unreadable file into a sentence."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if isinstance(error, Exception) and not isinstance(error, InvalidArgument | ImportError):
            raise InvalidArgument(
                f"Expected a model in {self.path.name!r} that can be loaded, got {kind.__name__}.",
                withheld=str(error)[:300],
            ) from error


class OnnxClassifier:
    """Wrap an ONNX classifier with the interface of scikit-learn.

    Attributes:
        classes_: The labels, in the order of probabilities.
        feature_names_in_: Names of inputs, if every column is a separate input.
        n_features_in_: Number of columns, if all are one input.
    """

    _estimator_type = "classifier"

    def __init__(self, content: bytes) -> None:
        with needs("onnx", extra="models"):
            import onnx
        try:
            model = onnx.load_model_from_string(content)  # reads no file that it names
        except Exception as error:
            raise InvalidArgument(
                "Expected a model in the file of ONNX, got something else.", withheld=str(error)
            ) from error
        given = {each.name for each in model.graph.initializer}
        self._inputs = [each for each in model.graph.input if each.name not in given]
        if not self._inputs:
            raise InvalidArgument("Expected a model of ONNX that takes records, got no input.")
        if len(self._inputs) > 1:
            self.feature_names_in_ = np.array([each.name for each in self._inputs], object)
        else:
            shape = self._inputs[0].type.tensor_type.shape.dim
            self.n_features_in_ = int(shape[1].dim_value) if len(shape) == 2 else 0
        if len(model.graph.output) < 2:
            raise InvalidArgument(
                "Expected a classifier of ONNX with labels and probabilities, got one output."
            )
        self.classes_ = np.array(_find_classes(model))
        _show_tensors(model)
        self._outputs = [each.name for each in model.graph.output][:2]
        try:
            self._run = _make_session(model)
        except Exception as error:  # of either library
            raise InvalidArgument(
                f"Expected a model of ONNX that can be run, got {type(error).__name__}.",
                withheld=str(error)[:300],
            ) from error

    def __getstate__(self) -> dict[str, Any]:
        """Return the classes: everything else is in the bytes of the file, which are searched."""
        return {"classes_": self.classes_}

    def predict(self, X: Any) -> NDArray[Any]:  # noqa: N803 - as in scikit-learn
        """Return the label of each record."""
        return np.asarray(self._ask(X)[0]).ravel()

    def predict_proba(self, X: Any) -> FloatArray:  # noqa: N803
        """Return the probabilities of each record, in the order of ``classes_``."""
        labels, said = self._ask(X)
        found = np.asarray(said, np.float64)
        if found.ndim != 2 or found.shape[1] != self.classes_.size:
            raise InvalidArgument(
                f"Expected probabilities of {self.classes_.size} classes, got shape {found.shape}."
            )
        likeliest = self.classes_[found.argmax(axis=1)]
        if np.mean(likeliest == np.asarray(labels).ravel()) < 0.5:
            raise InvalidArgument(
                "Expected labels of ONNX that are the likeliest by its probabilities, got others: "
                "the order of classes is not known."
            )
        return found

    def _ask(self, X: Any) -> list[Any]:  # noqa: N803
        if len(self._inputs) == 1:
            feed = {self._inputs[0].name: _cast(np.asarray(X), self._inputs[0])}
        else:
            feed = {
                each.name: _cast(X[each.name].to_numpy().reshape(-1, 1), each)
                for each in self._inputs
            }
        return self._run(self._outputs, feed)


def _show_tensors(model: Any) -> None:
    """Return probabilities as a tensor instead of ZipMap's dictionary per record."""
    from onnx import TensorProto
    from onnx.helper import make_tensor_value_info

    for node in [node for node in model.graph.node if node.op_type == "ZipMap"]:
        model.graph.node.remove(node)
        for output in model.graph.output:
            if output.name == node.output[0]:
                output.CopyFrom(make_tensor_value_info(node.input[0], TensorProto.FLOAT, None))


def _make_session(model: Any) -> Callable[[list[str], dict[str, Any]], list[Any]]:
    """Return a session that runs the graph: onnxruntime if installed, else the slow reference."""
    if has("onnxruntime"):
        import onnxruntime

        quiet = onnxruntime.SessionOptions()
        quiet.log_severity_level, quiet.intra_op_num_threads = 3, 1
        session = onnxruntime.InferenceSession(
            model.SerializeToString(), quiet, providers=["CPUExecutionProvider"]
        ).run
    else:
        from onnx.reference import ReferenceEvaluator

        session = ReferenceEvaluator(model).run
    return session  # type: ignore[no-any-return]


def _cast(values: NDArray[Any], declared: Any) -> NDArray[Any]:
    """Convert values to the declared type of an ONNX input."""
    from onnx.helper import tensor_dtype_to_np_dtype

    kind = np.dtype(tensor_dtype_to_np_dtype(declared.type.tensor_type.elem_type))
    return values.astype(str).astype(object) if kind.kind == "O" else values.astype(kind)


def _find_classes(model: Any) -> list[Any]:
    from onnx.helper import get_attribute_value

    for node in reversed(model.graph.node):
        for attribute in node.attribute:
            if attribute.name in _CLASSES:
                found = get_attribute_value(attribute)
                if len(found):
                    return [each.decode() if isinstance(each, bytes) else each for each in found]
    raise InvalidArgument("Expected the names of classes in the file of ONNX, found none.")


@dataclass(frozen=True)
class FittedTable(TableModel):
    """Load a fitted classifier from a file, and the table of people on which it was trained.

    Without a recipe it provides the arguments of ``FittedClassifier``, with one those of
    ``Classifier``. Other fields are those of ``TableModel``.

    Attributes:
        model: The file: ``.skops`` or ``.onnx``; with ``reader`` also ``.joblib`` or ``.pkl``.
        member: Column with membership: 1 or 0, yes or no, train or test. None: all were members.
        recipe: How similar models are trained: ``"own"``, with the settings of the fitted one; or a
            function that returns an estimator for the same columns. None: unknown.
        reader: ``load_trusted`` loads any file, and may run its code.
    """

    model: str | Callable[[], Any] = "model.skops"
    member: str | None = None
    recipe: str | Callable[[], Any] | None = None
    reader: Callable[[Path], Any] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.model, str | Path) or not is_model_file(str(self.model)):
            raise InvalidArgument(
                f"Expected a model's file with the ending {', '.join(ENDINGS)}, got "
                f"{Path(str(self.model)).name!r}."
            )
        object.__setattr__(self, "model", Path(self.model))
        if isinstance(self.recipe, str) and self.recipe != OWN:
            raise InvalidArgument(
                f"Expected recipe {OWN!r} or module:factory, got {self.recipe!r}."
            )

    def load(self) -> dict[str, Any]:
        """Read the model and the table: all that either kind of audit needs."""
        path = Path(str(self.model))
        model = (self.reader or load_safely)(path)
        if not hasattr(model, "classes_"):
            raise InvalidArgument(
                f"Expected a fitted classifier in {path.name!r}, got {type(model).__name__}."
            )
        table = self._draw(self._read())
        y = _match_labels(take_words(table.column(self.label)), model, self.label)
        member = None if self.member is None else _read_member(table.column(self.member))
        left = {self.label, *({self.member} if self.member else ()), *self.drop}
        features, notes = _list_features(model, table.without(*left))
        if self.recipe is not None:
            notes = (*notes, _say_attacked(member, y.size))
        common = {
            "X": features,
            "y": y,
            "model_file": path,
            "caveats": (*table.notes, *notes),
            "title": f"{type(model).__name__} of {path.name} on {self._name}",
        }
        if self.recipe is None:
            if self.group:
                raise InvalidArgument(
                    "Expected a recipe with groups: without one no record's risk is measured."
                )
            return {**common, "model": model, "member": member}
        return {**common, **self._load_recipe(model, table, features, y, member)}

    def fingerprints(self) -> tuple[tuple[str, str], ...]:
        """Return the names of both files and the SHA-256 of their contents."""
        return (*super().fingerprints(), hash_file(Path(str(self.model))))

    def _load_recipe(
        self, model: Any, table: Table, features: Any, y: NDArray[Any], member: BoolArray | None
    ) -> dict[str, Any]:
        if callable(self.recipe):
            estimator = self.recipe()
        elif hasattr(model, "get_params"):
            estimator = clone_estimator(model)
        else:
            raise InvalidArgument(
                f"Expected --recipe module:factory, got {OWN!r}: {type(model).__name__} does not "
                "say how it was trained."
            )
        target = None
        if member is not None and not member.all():
            classes, _ = read_labels(y)
            target = predict_shown(model, features, classes, labels=False), member
        names = getattr(features, "columns", None)
        return {
            "estimator": estimator,
            "fitted": model,
            "target": target,
            "groups": {name: take_words(table.column(name)) for name in self.group} or None,
            "feature_names": None if names is None else tuple(map(str, names)),
        }


def _say_attacked(member: BoolArray | None, records: int) -> str:
    """State which model was attacked, and which one leave-one-out risk is about."""
    if member is None or member.all():
        return (
            "Models trained by the recipe were attacked, not the fitted one: no record is known to "
            "be outside its training data, which --member would state."
        )
    return (
        "The fitted model was attacked, with reference models trained by the recipe. Leave-one-out "
        f"risk is that of a model trained by it on all {records:,} records, of which the fitted "
        f"one saw {int(member.sum()):,}."
    )


def _match_labels(words: NDArray[Any], model: Any, name: str) -> NDArray[Any]:
    """Convert labels to the model's, which may be numbers where a table has text."""
    classes = np.asarray(model.classes_)
    if classes.ndim != 1 or classes.dtype.kind not in "biufOUS":
        raise InvalidArgument("Expected a model of one label per record, got another.")
    known = {text: i for i, each in enumerate(classes.tolist()) for text in _spell(each)}
    strange = int(sum(word not in known for word in words.tolist()))
    if strange:
        raise InvalidArgument(
            f"Expected labels among the {classes.size} classes of the model, {strange:,} of "
            f"{words.size:,} in {name!r} are others."
        )
    found: NDArray[Any] = classes[[known[word] for word in words.tolist()]]
    return found


def _spell(label: Any) -> Iterator[str]:
    """Yield the spellings of a class in a table."""
    yield str(label)
    if isinstance(label, bool):
        yield from (str(int(label)), str(label).lower())
    elif isinstance(label, int | float):
        yield spell_number(label)


def _read_member(column: Column) -> BoolArray:
    words = [word.strip().lower() for word in take_words(column).tolist()]
    strange = sum(word not in _IN | _OUT for word in words)
    if strange:
        raise InvalidArgument(
            f"Expected 1 or 0, yes or no, train or test in {column.name!r}, which says who was in; "
            f"{strange:,} of {len(words):,} records have something else."
        )
    return np.array([word in _IN for word in words])


def _list_features(model: Any, table: Table) -> tuple[Any, tuple[str, ...]]:
    """Return the columns in the model's order, by name if it has names."""
    names = getattr(model, "feature_names_in_", None)
    if names is not None:
        wanted = [str(name) for name in names]
        missing = [name for name in wanted if name not in table.names]
        if missing:
            raise InvalidArgument(
                f"Expected the {len(wanted)} columns that the model was fitted to, "
                f"{len(missing)} are not in the table: {', '.join(missing[:_NAMED])}."
            )
        ignored = len(table.columns) - len(wanted)
        note = f"{ignored} columns that the model was not fitted to were left out."
        with needs("pandas", extra="models"):
            import pandas as pd
        frame = pd.DataFrame({name: _take_values(table.column(name)) for name in wanted})
        return frame, (note,) if ignored else ()
    read = [read_spelled(column)[0] for column in table.columns]
    texts = [column.name for column in read if column.words is not None]
    if texts:
        raise InvalidArgument(
            f"Expected numbers for a model that knows no names of columns, {', '.join(texts)} hold "
            "words. Fit it to a data frame, or leave them out: --drop."
        )
    expected = int(getattr(model, "n_features_in_", 0)) or len(read)
    if expected != len(read):
        raise InvalidArgument(
            f"Expected {expected} columns, to which the model was fitted, got {len(read)}: "
            f"{', '.join(column.name for column in read[: 2 * _NAMED])}. Leave others out: --drop."
        )
    return np.stack([np.asarray(column.values, np.float64) for column in read], axis=1), ()


def _take_values(column: Column) -> NDArray[Any]:
    """Return a column as pandas would read it: missing values are nan."""
    if column.words is None:
        return np.asarray(column.values, np.float64)
    words = [np.nan if word.lower() in _GAPS else word for word in column.words]
    found: NDArray[Any] = np.array(words, object)[column.values]
    return found
