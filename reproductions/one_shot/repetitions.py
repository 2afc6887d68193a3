"""What real training shows of the one-shot papers' figures 1 to 3 and tables 2 and 4, by item.

Each function takes trainings of ``federated.py`` by noise and repetitions, which all of them share:
they are kept in ``work``, where the next one finds them.
"""

from pathlib import Path
from typing import Any

from federated import by_setting, cell, options, trained


def accuracy(**how: Any) -> dict[str, str]:
    """Test accuracy with canaries and without, each canary in one round."""
    return {
        f"{_of(how)}, noise {noise:g}: with and without canaries, %": " and ".join(
            cell([row[name] for row in rows]) for name in ("accuracy", "without")
        )
        for (noise, times), rows in _trained(**how).items()
        if times == 1
    }


def normality(**how: Any) -> dict[str, str]:
    """Anderson and Darling's statistic of the final model's cosines."""
    return {
        f"{_of(how)}, noise {noise:g}, {times} repetitions": cell([r["anderson"] for r in rows])
        for (noise, times), rows in _trained(**how).items()
    }


def densities(**how: Any) -> dict[str, str]:
    """Mean and spread of cosines with the final model, in units of the null law's spread."""
    return {
        f"{_of(how)}, noise {noise:g}, {times} repetitions: mean, spread": ", ".join(
            cell([row[name] for row in rows]) for name in ("final_mean", "final_spread")
        )
        for (noise, times), rows in _trained(**how).items()
    }


def estimates(**how: Any) -> dict[str, str]:
    """ε_est and ε_lo of the final model by repetitions."""
    return {
        f"{_of(how)}, noise {noise:g}, {times} repetitions: ε_est, ε_lo": ", ".join(
            cell([row[name] for row in rows]) for name in ("final_est", "final_lo")
        )
        for (noise, times), rows in _trained(**how).items()
    }


def _of(how: dict[str, Any]) -> str:
    return {"digits": "digits", "mnist-writers": "MNIST by writer"}[how["task"]]


def _trained(
    *, work: Path, data: Path | None, device: str, task: str, **settings: Any
) -> dict[tuple[float, int], list[dict[str, Any]]]:
    words = [f"--{name}={value}" for name, value in settings.items()]
    if data is not None:
        words.append(f"--data={data}")
    return by_setting(trained(options(task, *words, f"--device={device}", f"--out={work}")))
