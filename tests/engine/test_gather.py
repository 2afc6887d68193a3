from functools import partial
from pathlib import Path

import numpy as np
import pytest

from epsilometer.engine.engines import Engine, InProcess, Local
from epsilometer.engine.events import Event
from epsilometer.engine.plan import Plan
from epsilometer.engine.run import UnitFailed, gather
from epsilometer.engine.shards import Arrays
from epsilometer.errors import InvalidArgument

PLAN = Plan(audit="mine", parameters={}, units=7, seed=3)


def drawn(unit: int) -> Arrays:
    return {"drawn": PLAN.stream(unit).normal(size=unit + 1)}


def failing(folder: Path, unit: int) -> Arrays:
    """Unit 4 fails as long as there is no such file; all others leave a line."""
    if unit == 4 and not (folder / "well").exists():
        raise InvalidArgument("Expected better of unit 4.")
    with (folder / "count").open("a") as file:
        file.write(f"{unit}\n")
    return drawn(unit)


@pytest.mark.parametrize("engine", [InProcess(), Local(count=2), Local(count=2, kind="threads")])
def test_gathers_in_the_order_of_units_on_every_engine(engine: Engine, tmp_path: Path) -> None:
    wanted = [drawn(unit)["drawn"] for unit in range(7)]
    for directory in (None, tmp_path / "run"):
        found = [arrays["drawn"] for arrays in gather(PLAN, drawn, directory, engine=engine)]
        assert [part.tobytes() for part in found] == [part.tobytes() for part in wanted]


def test_goes_on_where_it_stopped(tmp_path: Path) -> None:
    unit = partial(failing, tmp_path)  # a folder: what lies in it is not part of the code
    with pytest.raises(UnitFailed, match=r"^Expected better of unit 4\.$") as caught:
        gather(PLAN, unit, tmp_path / "run", engine=InProcess())
    assert caught.value.unit == 4
    assert "Traceback" in caught.value.traceback
    (tmp_path / "well").touch()
    found = gather(PLAN, unit, tmp_path / "run", engine=InProcess())
    assert (tmp_path / "count").read_text().split() == list("0123456")  # none twice
    np.testing.assert_array_equal(found[4]["drawn"], drawn(4)["drawn"])


def test_tells_what_happens(tmp_path: Path) -> None:
    heard: list[Event] = []
    gather(PLAN, drawn, tmp_path / "run", engine=InProcess(), listen=[heard.append])
    assert [event.name for event in heard] == ["started", "progress", "finished"]
    gather(PLAN, drawn, tmp_path / "run", engine=InProcess(), listen=[heard.append])
    assert len(heard) == 3  # there was nothing to do


def test_another_plan_is_refused(tmp_path: Path) -> None:
    gather(PLAN, drawn, tmp_path, engine=InProcess())
    other = Plan(audit="mine", parameters={}, units=7, seed=4)
    with pytest.raises(InvalidArgument, match="no other run"):
        gather(other, drawn, tmp_path, engine=InProcess())
