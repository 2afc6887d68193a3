import pytest

from epsilometer._extras import needs
from epsilometer.errors import EpsilometerError, MissingExtra


def test_a_missing_package_is_told_by_its_extra() -> None:
    with (
        pytest.raises(MissingExtra, match=r"pip install 'epsilometer\[magic\]'") as caught,
        needs("no_such_package", extra="magic"),
    ):
        import no_such_package  # type: ignore[import-not-found]  # noqa: F401
    assert isinstance(caught.value, EpsilometerError)  # exit code 2 on the command line
    assert isinstance(caught.value, ImportError)  # and what importers expect
    assert isinstance(caught.value.__cause__, ModuleNotFoundError)


def test_a_missing_part_of_the_package_is_told_too() -> None:
    with pytest.raises(MissingExtra), needs("json", extra="magic"):
        import json.no_such_part  # type: ignore[import-not-found]  # noqa: F401


def test_another_missing_module_is_not_blamed_on_the_package() -> None:
    """The package is there but broken: its install must not be blamed."""
    with pytest.raises(ModuleNotFoundError) as caught, needs("torch", extra="torch"):
        raise ModuleNotFoundError("No module named 'numpy_of_torch'", name="numpy_of_torch")
    assert not isinstance(caught.value, MissingExtra)


def test_a_name_that_begins_alike_is_another_module() -> None:
    with pytest.raises(ModuleNotFoundError) as caught, needs("torch", extra="torch"):
        raise ModuleNotFoundError("No module named 'torchvision'", name="torchvision")
    assert not isinstance(caught.value, MissingExtra)


@pytest.mark.parametrize("error", [ImportError("broken"), ValueError("other"), OSError()])
def test_other_errors_pass_unchanged(error: Exception) -> None:
    with pytest.raises(type(error)) as caught, needs("torch", extra="torch"):
        raise error
    assert caught.value is error


def test_nothing_happens_where_nothing_is_missing() -> None:
    with needs("json", extra="magic"):
        import json
    assert json.loads("1") == 1
