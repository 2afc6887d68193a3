"""What real training shows of the one-shot papers' figures 1 to 3 and tables 2 to 4, by item.

Each function takes trainings of ``federated.py`` by noise and repetitions, which all of them share:
they are kept in ``work``, where the next one finds them. What digits of scikit-learn show in place
of MNIST is marked.
"""

from pathlib import Path
from typing import Any

from federated import by_setting, cell, options, trained


def accuracy(**how: Any) -> dict[str, str]:
    """Test accuracy with canaries and without, each canary in one round."""
    return {
        f"Stackoverflow, noise {noise:g}: with and without canaries, %": _mark(
            how, rows, ("accuracy", "without")
        )
        for (noise, _), rows in _trained(**how).items()
    }


def normality(**how: Any) -> dict[str, str]:
    """Anderson and Darling's statistic of the final model's cosines."""
    return {
        f"MNIST by writer, noise {noise:g}, {times} repetitions": _mark(how, rows, ("anderson",))
        for (noise, times), rows in _trained(**how).items()
    }


def densities(**how: Any) -> dict[str, str]:
    """Mean and spread of cosines with the final model, in units of the null law's spread."""
    return {
        f"MNIST by writer, noise {noise:g}, {times} repetitions: mean, spread": _mark(
            how, rows, ("final_mean", "final_spread")
        )
        for (noise, times), rows in _trained(**how).items()
    }


def estimates(**how: Any) -> dict[str, str]:
    """ε_est and ε_lo of the final model by repetitions."""
    return {
        f"MNIST by writer, noise {noise:g}, {times} repetitions: ε_est, ε_lo": _mark(
            how, rows, ("final_est", "final_lo")
        )
        for (noise, times), rows in _trained(**how).items()
    }


def without_noise(**how: Any) -> dict[str, str]:
    """All iterates and the final model without noise: bounds are the valid ones."""
    ((_, rows),) = _trained(noise="0", repetitions="1", **how).items()
    names = {
        "all iterates: ε_est": "steps_est",
        "all iterates: ε_lo": "steps_valid",
        "final model: ε_est": "final_est",
        "final model: ε_lo": "final_valid",
    }
    return {f"noise 0, {of}": _mark(how, rows, (name,)) for of, name in names.items()}


def _mark(how: dict[str, Any], rows: list[dict[str, Any]], names: tuple[str, ...]) -> str:
    """Return cells of these columns, and say whether digits stood in."""
    said = ", ".join(cell([row[name] for row in rows]) for name in names)
    return f"{said} (digits)" if how["task"] == "digits" else said


def _trained(
    *, work: Path, data: Path | None, device: str, task: str, **settings: Any
) -> dict[tuple[float, int], list[dict[str, Any]]]:
    words = [f"--{name}={value}" for name, value in settings.items()]
    if data is not None:
        words.append(f"--data={data}")
    return by_setting(trained(options(task, *words, f"--device={device}", f"--out={work}")))
