"""Read ``report.json`` of SACRO-ML, and the arrays that it stores separately."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from epsilometer.errors import InvalidArgument
from epsilometer.files.tool_results.result import (
    Attack,
    Opened,
    ToolResult,
    check_area,
    divide_by_member,
    rank_by_curve,
    say_none,
)

_TOOL = "SACRO-ML"
_SCORE, _MEMBER = "individual.member_prob", "individual.member"
_ADVICE = "Run LIRAAttack(report_individual=True) or WorstCaseAttack(report_individual=True)."
_QUANTILES = (
    "QMIA learns its thresholds from the records outside, which then score lower without any leak."
)


def find_attacks(opened: Opened) -> ToolResult | None:
    """Return the attacks of a report; None if another tool wrote the file."""
    if {_SCORE, _MEMBER} <= opened.names and opened.tree is None:
        attack = divide_by_member(opened.path.stem, opened.read(_SCORE), opened.read(_MEMBER))
        attack = check_area(attack, fpr=opened.find("fpr"), tpr=opened.find("tpr"))
        return ToolResult(_TOOL, (attack,))
    reports = list(_list_reports(opened.tree))
    if not reports:
        return None
    attacks: list[Attack] = []
    beside: list[Path] = []
    reasons: list[str] = []
    for name, instance in reports:
        if name.startswith("QMIA"):
            reasons.append(_QUANTILES)
            continue
        arrays = _open_arrays(opened, instance)
        if arrays is not None:
            beside.append(arrays.path)
        found = _read_instance(name, instance, arrays)
        if found is not None:
            attacks.append(found)
    if not attacks:
        raise say_none(_TOOL, reasons, _ADVICE)
    return ToolResult(_TOOL, tuple(attacks), beside=tuple(beside))


def _list_reports(tree: Any) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield every repetition of every attack, with a name."""
    for report in tree.values() if isinstance(tree, dict) else ():
        metadata = report.get("metadata") if isinstance(report, dict) else None
        if not isinstance(metadata, dict) or "attack_name" not in metadata:
            continue
        name = f"{metadata['attack_name']} {str(report.get('log_id', ''))[:8]}".strip()
        logged = report.get("attack_experiment_logger")
        instances = logged.get("attack_instance_logger") if isinstance(logged, dict) else None
        if not isinstance(instances, dict) or not instances:
            yield name, {}
            continue
        for key, instance in instances.items():
            if isinstance(instance, dict):
                yield f"{name} {key}", instance


def _open_arrays(opened: Opened, instance: Mapping[str, Any]) -> Opened | None:
    file = instance.get("arrays_file")
    if file is None:
        return None
    if not isinstance(file, str) or Path(file).name != file:
        raise InvalidArgument("Expected arrays_file to name a file next to the report, got a path.")
    return opened.open_beside(file)


def _read_instance(name: str, instance: Mapping[str, Any], arrays: Opened | None) -> Attack | None:
    found: dict[str, Any] = dict(instance)
    individual = instance.get("individual")
    if isinstance(individual, dict):
        found |= {f"individual.{key}": values for key, values in individual.items()}
    if arrays is not None:
        wanted = (_SCORE, _MEMBER, "fpr", "tpr")
        found |= {each: arrays.read(each) for each in wanted if each in arrays.names}
    if found.get(_SCORE) is not None and found.get(_MEMBER) is not None:
        attack = divide_by_member(name, found[_SCORE], found[_MEMBER])
        return check_area(attack, found.get("AUC"))
    sizes: list[Any] = [found.get(f"n_{side}_test_examples") for side in ("pos", "neg")]
    if "fpr" in found and "tpr" in found and all(_is_whole(n) for n in sizes):
        inside, outside = map(int, sizes)
        attack = rank_by_curve(name, found["fpr"], found["tpr"], inside=inside, outside=outside)
        return check_area(attack, found.get("AUC"))
    return None


def _is_whole(value: Any) -> bool:
    """Tell whether a JSON number is a whole number; SACRO-ML writes some as 12.0."""
    return isinstance(value, (int, float)) and float(value).is_integer()
