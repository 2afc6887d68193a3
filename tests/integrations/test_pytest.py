"""The plugin as its users have it: real pytest in a process of its own, warnings as errors."""

import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

pytest_plugins = ["pytester"]

GAUSSIAN = """
import numpy as np
import pytest
from epsilometer import Claim, gaussian_epsilon

def mechanism(numbers, seed, noise):
    return sum(numbers) + np.random.default_rng(seed).normal(0, noise)

@pytest.mark.parametrize("noise", [1.0, 0.25])
def test_gaussian(assert_private, noise):
    assert_private(
        Claim(epsilon=gaussian_epsilon(1.0, 0.1), delta=0.1),
        lambda numbers, seed: mechanism(numbers, seed, noise),
        with_record=[1.0],
        without_record=[],
        runs=300,
    )
"""
OPACUS = """
import pytest
import torch
from opacus import PrivacyEngine
from torch.utils.data import DataLoader, TensorDataset
from epsilometer import Claim, gaussian_epsilon

def train(dataset, seed, *, clip, claimed):
    # One step over all records; what is released is the weight, which the canary pulls up.
    torch.manual_seed(seed)
    model = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.zeros_(model.weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    model, optimizer, loader = PrivacyEngine(accountant="rdp").make_private(
        module=model, optimizer=optimizer,
        data_loader=DataLoader(dataset, batch_size=len(dataset)),
        noise_multiplier=1.0 * claimed / clip, max_grad_norm=clip, poisson_sampling=False,
    )
    for features, targets in loader:
        ((model(features) - targets) ** 2).sum().backward()
        optimizer.step()
    return len(dataset) * model._module.weight.item()

@pytest.mark.parametrize("clip", [1.0, 10.0])
def test_step(assert_private, clip):
    # Whoever forgets to clip to what the noise is for has let gradients be ten times as long.
    features = torch.tensor([[0.0]] * 3 + [[5.0]])
    targets = torch.tensor([[0.0]] * 3 + [[5.0]])
    assert_private(
        Claim(epsilon=gaussian_epsilon(1.0, 0.1), delta=0.1),
        lambda data, seed: train(data, seed, clip=clip, claimed=1.0),
        with_record=TensorDataset(features, targets),
        without_record=TensorDataset(features[:3], targets[:3]),
        runs=120,
    )
"""


def run(pytester: pytest.Pytester, *options: str) -> pytest.RunResult:
    here = f"--rootdir={pytester.path}"  # whatever lies in folders above
    return pytester.runpytest_subprocess(here, "-W", "error", "-p", "no:cacheprovider", *options)


def test_a_mechanism_that_satisfies_its_claim_passes_and_a_quarter_of_its_noise_does_not(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile(test_mine=GAUSSIAN)
    done = run(pytester)
    done.assert_outcomes(passed=1, failed=1)
    done.stdout.fnmatch_lines(
        [
            "*ClaimRefuted: ε = 1.16* at δ = 0.1 was claimed; refuted after * of 300 pairs of*",
            "*Or: pytest 'test_mine.py::test_gaussian?0.25?' --audit-seed=0 --audit-runs=300",
            "*privacy audits*",
            "test_mine.py::test_gaussian?0.25?: ε = 1.16* refuted after *",
            "test_mine.py::test_gaussian?1.0?: ε = 1.16* not refuted: 300 pairs of runs prove *",
        ]
    )
    assert "integrations/pytest.py" not in done.stdout.str()  # the user's lines alone are shown
    # What a failure says to call fails again in the same way.
    first = [line for line in done.outlines if "was claimed" in line]
    again = run(pytester, "test_mine.py::test_gaussian[0.25]", "--audit-seed=0", "--audit-runs=300")
    again.assert_outcomes(failed=1)
    assert [line for line in again.outlines if "was claimed" in line] == [
        line for line in first if "not refuted" not in line
    ]


def test_options_take_the_place_of_what_tests_say(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_mine=GAUSSIAN)
    done = run(pytester, "-k", "1.0", "--audit-runs=200", "--audit-seed=7")
    done.assert_outcomes(passed=1, deselected=1)
    done.stdout.fnmatch_lines(["*not refuted: 200 pairs of runs*"])


@pytest.mark.slow
def test_workers_of_xdist_send_home_what_they_found(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_mine=GAUSSIAN)
    done = run(pytester, "-n", "2", "--junitxml=tests.xml")
    done.assert_outcomes(passed=1, failed=1)
    done.stdout.fnmatch_lines(["*privacy audits*", "*0.25?: *; refuted*", "*1.0?: *; not refuted*"])
    properties = ElementTree.parse(pytester.path / "tests.xml").iter("property")
    assert {each.get("name") for each in properties} == {"privacy audit"}


@pytest.mark.slow
def test_a_step_of_opacus_satisfies_its_claim_and_forgotten_clipping_does_not(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile(test_mine=OPACUS)
    done = pytester.runpytest_subprocess("-p", "no:cacheprovider")  # Opacus warns of itself
    done.assert_outcomes(passed=1, failed=1)
    done.stdout.fnmatch_lines(
        ["*privacy audits*", "*?1.0?: *; not refuted*", "*?10.0?: *; refuted*"]
    )


def test_what_train_raises_is_an_error_of_the_test_with_its_own_line(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile(
        """
        from epsilometer import Claim

        def broken(data, seed):
            return 1 / data

        def test_it(assert_private):
            claim = Claim(epsilon=1.0, delta=1e-5)
            assert_private(claim, broken, with_record=1.0, without_record=0.0)
        """
    )
    done = run(pytester)
    done.assert_outcomes(failed=1)
    done.stdout.fnmatch_lines([">*return 1 / data", "E*ZeroDivisionError*"])


def test_who_does_not_use_it_sees_and_loads_nothing_of_it(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import sys

        def test_it(request):
            assert request.config.pluginmanager.hasplugin("epsilometer")
            ours = {name for name in sys.modules if name.startswith("epsilometer")}
            assert ours == {
                "epsilometer", "epsilometer.integrations", "epsilometer.integrations.pytest"
            }
            assert "numpy" not in sys.modules
        """
    )
    done = run(pytester)
    done.assert_outcomes(passed=1)
    assert "audit" not in done.stdout.str()


def test_it_can_be_switched_off(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_it(assert_private): pass")
    done = run(pytester, "-p", "no:epsilometer")
    done.assert_outcomes(errors=1)
    done.stdout.fnmatch_lines(["*fixture 'assert_private' not found*"])


def test_the_function_needs_no_pytest(tmp_path: Path) -> None:
    program = """
import sys
from epsilometer.testing import assert_private
assert "pytest" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True, cwd=tmp_path)


def test_who_imported_the_package_before_pytest_is_not_warned(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_it(): pass")
    program = "import epsilometer, pytest; raise SystemExit(pytest.main(['-W', 'error']))"
    subprocess.run([sys.executable, "-c", program], check=True, cwd=pytester.path)
