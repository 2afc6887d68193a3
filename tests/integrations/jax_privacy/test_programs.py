"""Every wrong JAX program is caught by its check, and every right one is spared."""

from collections.abc import Iterator

import pytest

from tests.integrations.jax_privacy.programs import RIGHT, WRONG

COUNTS = {"caught": 0, "spared": 0}


@pytest.fixture(scope="module", autouse=True)
def _print_counts(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    reporter = request.config.pluginmanager.get_plugin("terminalreporter")
    reporter.write_line(
        f"\nJAX-Privacy: {COUNTS['caught']} of {len(WRONG)} wrong programs caught, "
        f"{COUNTS['spared']} of {len(RIGHT)} right ones spared"
    )


@pytest.mark.parametrize("name", WRONG)
def test_wrong_programs_are_caught_by_their_check(name: str) -> None:
    program, check = WRONG[name]
    found = program()
    assert check in [each.name for each in found.find("violated")], found
    COUNTS["caught"] += 1


@pytest.mark.parametrize("name", RIGHT)
def test_right_programs_are_spared(name: str) -> None:
    found = RIGHT[name]()
    assert found.find("violated") == (), found
    assert len(found.find("conforms")) >= 5
    COUNTS["spared"] += 1
