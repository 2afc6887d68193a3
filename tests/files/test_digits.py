import numpy as np
from sklearn.datasets import load_digits

from epsilometer.core.settings import parse_choice
from epsilometer.files.digits import Digits, read_digits


def test_they_are_those_of_scikit_learn() -> None:
    pixels, classes = load_digits(return_X_y=True)
    features, labels = read_digits()
    np.testing.assert_array_equal(features, pixels)
    np.testing.assert_array_equal(labels, classes)
    assert (features.dtype, labels.dtype) == (np.float64, np.int64)


def test_a_reference_reads_and_names_them() -> None:
    assert parse_choice("digits") == Digits()
    assert set(Digits().load()) == {"features", "labels"}
    ((name, digest),) = Digits().fingerprints()
    assert (name, len(digest)) == ("digits.npz", 64)
