"""Right servers of many kinds are spared, and planted mistakes are caught."""

from collections.abc import Callable

import pytest

from epsilometer.conformance.round_sums import AccountedMean, RoundSums
from tests.calibration.servers import (
    RIGHT,
    RUNS,
    WRONG,
    Server,
    find_accusers,
    limit_share,
)

BY_NAME = {server.name: server for server in RIGHT}
ALLOWED = 1e-3


@pytest.mark.parametrize("server", RIGHT, ids=lambda server: server.name)
def test_right_servers_are_spared(server: Server) -> None:
    assert find_accusers(server, runs=2, seed=1) == []


@pytest.mark.parametrize("server", WRONG, ids=lambda server: server.name)
def test_wrong_servers_are_found(server: Server) -> None:
    assert len(find_accusers(server, runs=2)) == 2


@pytest.mark.slow
def test_at_most_one_right_server_in_a_thousand_is_accused() -> None:
    accused = sum(len(find_accusers(server, runs=RUNS)) for server in RIGHT)
    assert limit_share(accused, RUNS * len(RIGHT)) <= ALLOWED


def test_few_runs_show_nothing() -> None:
    assert limit_share(0, 258) > 10 * ALLOWED
    assert limit_share(2, 6_300) < ALLOWED < limit_share(2, 6_200)


# Mistakes, planted: the same runs must catch each.


def take_every_rate_for_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take a rate that is not declared for 1."""
    monkeypatch.setattr(RoundSums, "limit_rate", lambda self, alpha: None)


def expect_more_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Expect a fifth more noise than is accounted for."""
    right = AccountedMean.norm.fget
    assert right is not None
    monkeypatch.setattr(AccountedMean, "norm", property(lambda self: 1.2 * right(self)))


PLANTED: tuple[tuple[Callable[[pytest.MonkeyPatch], None], str], ...] = (
    (take_every_rate_for_one, "a fifth of a step, undeclared"),
    (take_every_rate_for_one, "little noise, fewer averaged"),
    (expect_more_noise, "half a step, declared"),
)


@pytest.mark.slow
@pytest.mark.parametrize(("plant", "name"), PLANTED)
def test_planted_mistakes_are_caught(
    plant: Callable[[pytest.MonkeyPatch], None], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    accused = len(find_accusers(BY_NAME[name], runs=6))
    assert accused >= 3
