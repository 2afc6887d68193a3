"""Audit what epsilometer is installed with: licences, known vulnerabilities, a bill of materials.

Reads the locked set (``constraints.txt``) as it is installed here. Licences are those that packages
state. Vulnerabilities are asked of the OSV database; where it cannot be reached that is said, and
the exit code is 4: nothing was checked. Writes a CycloneDX bill of materials beside the wheel.

    python docs/dependencies.py            # or: make audit-deps
    python docs/dependencies.py --offline  # licences and the bill alone
"""

import argparse
import json
import re
import sys
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
DATABASE = "https://api.osv.dev/v1/querybatch"
# Licences that ask more of whoever passes the package on than to name it.
_STRICT = re.compile(r"\b(A?GPL|GNU (Affero )?General Public|SSPL|Commons Clause)", re.IGNORECASE)
# Packages that state no licence in their metadata, and where it is stated.
KNOWN = {
    "axe-playwright-python": "MPL-2.0",  # LICENSE of its repository; used by tests alone
}


@dataclass(frozen=True)
class Component:
    """A package of the locked set.

    Attributes:
        name: As normalised.
        version: As locked.
        licence: As it states; empty where it states none.
        scope: required, optional (an extra) or excluded (development alone).
        needs: Packages that it needs, of the locked set.
    """

    name: str
    version: str
    licence: str
    scope: str
    needs: tuple[str, ...]

    @property
    def reference(self) -> str:
        """Its name as package URLs write it."""
        return f"pkg:pypi/{self.name}@{self.version}"


def read_locked(text: str) -> dict[str, str]:
    """Return names and versions of a constraints file."""
    lines = (line.partition("#")[0].strip() for line in text.splitlines())
    pairs = (line.partition("==")[::2] for line in lines if "==" in line)
    return {canonicalize_name(name): version.strip() for name, version in pairs}


def find_licence(found: Distribution) -> str:
    """Return the licence that a package states: by an expression, a classifier, or in words."""
    about = found.metadata
    if expression := about.get("License-Expression"):
        return str(expression)
    classifiers = [
        line.rpartition(" :: ")[2]
        for line in about.get_all("Classifier") or ()
        if line.startswith("License ::") and not line.endswith("OSI Approved")
    ]
    said = str(about.get("License") or "").strip().splitlines()
    words = said[0].strip() if said and len(said[0]) < 80 else ""
    name = canonicalize_name(str(about["Name"]))
    return " AND ".join(classifiers) or words or _read_title(found) or KNOWN.get(name, "")


def _read_title(found: Distribution) -> str:
    """Return the title of the file of its licence, where that names a licence."""
    for file in found.files or ():
        if file.name.upper().startswith(("LICENSE", "LICENCE", "COPYING")):
            lines = (
                line.strip() for line in file.locate().read_text("utf-8", "replace").split("\n")
            )
            title = next((line for line in lines if line), "")
            if re.search(r"licen[sc]e|BSD|MIT|Apache|GPL|MPL", title, re.IGNORECASE):
                return title[:80]
    return ""


def judge_licence(licence: str) -> str:
    """Return what is wrong with a licence; empty where nothing is."""
    if not licence:
        return "states no licence"
    if _STRICT.search(licence) and " OR " not in licence:
        return f"is under {licence}"
    return ""


def list_components(locked: Mapping[str, str]) -> tuple[list[Component], list[str]]:
    """Return the locked packages that are installed here, and what is wrong with the others."""
    scopes = _find_scopes(locked)
    components, wrong = [], []
    for name, version in sorted(locked.items()):
        try:
            found = distribution(name)
        except PackageNotFoundError:
            wrong.append(f"{name} {version} is locked and not installed: not examined")
            continue
        if found.version.partition("+")[0] != version:
            wrong.append(f"{name} is locked as {version}, installed as {found.version}")
        needs = tuple(sorted(set(_list_needs(found, ())) & set(locked)))
        scope = scopes.get(name, "excluded")
        components.append(Component(name, version, find_licence(found), scope, needs))
    return components, wrong


def _find_scopes(locked: Mapping[str, str]) -> dict[str, str]:
    """Return which packages are required, and which by an extra."""
    ours = distribution("epsilometer")
    scopes: dict[str, str] = {}
    for scope, extras in (("required", ()), ("optional", ("all",))):
        todo = [("epsilometer", extras)]
        seen = set()
        while todo:
            name, wanted = todo.pop()
            if (name, wanted) in seen:
                continue
            seen.add((name, wanted))
            scopes.setdefault(name, scope)
            found = ours if name == "epsilometer" else _find(name)
            for need in [] if found is None else _list_requirements(found, wanted):
                todo.append((canonicalize_name(need.name), tuple(sorted(need.extras))))
    return {name: scope for name, scope in scopes.items() if name in locked}


def _find(name: str) -> Distribution | None:
    try:
        return distribution(name)
    except PackageNotFoundError:
        return None


def _list_requirements(found: Distribution, extras: Iterable[str]) -> list[Requirement]:
    needs = [Requirement(line) for line in found.requires or ()]
    return [
        need
        for need in needs
        if need.marker is None
        or any(need.marker.evaluate({"extra": extra}) for extra in (*extras, ""))
    ]


def _list_needs(found: Distribution, extras: Iterable[str]) -> list[str]:
    return [canonicalize_name(need.name) for need in _list_requirements(found, extras)]


def make_bill(components: Iterable[Component], *, version: str) -> dict[str, Any]:
    """Return a CycloneDX bill of materials; the same set gives the same bytes."""
    every = sorted(components, key=lambda each: each.name)
    listed = [
        {
            "type": "library",
            "bom-ref": each.reference,
            "name": each.name,
            "version": each.version,
            "purl": each.reference,
            "scope": each.scope,
            **({"licenses": [{"license": {"name": each.licence}}]} if each.licence else {}),
        }
        for each in every
    ]
    ours = f"pkg:pypi/epsilometer@{version}"
    references = {each.name: each.reference for each in every}
    direct = sorted(set(_list_needs(distribution("epsilometer"), ())) & set(references))
    graph = [{"ref": ours, "dependsOn": [references[name] for name in direct]}]
    graph += [
        {"ref": each.reference, "dependsOn": [references[name] for name in each.needs]}
        for each in every
    ]
    seed = json.dumps(listed, sort_keys=True)
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, ours + seed)}",
        "version": 1,
        "metadata": {
            "component": {
                "type": "library",
                "bom-ref": ours,
                "name": "epsilometer",
                "version": version,
                "purl": ours,
                "licenses": [{"license": {"id": "Apache-2.0"}}],
            }
        },
        "components": listed,
        "dependencies": graph,
    }


def find_vulnerabilities(components: Iterable[Component]) -> dict[str, list[str]] | None:
    """Return known vulnerabilities by package; None where the database cannot be reached."""
    import httpx

    every = list(components)
    queries = [{"package": {"purl": each.reference}} for each in every]
    try:
        answer = httpx.post(DATABASE, json={"queries": queries}, timeout=30.0)
        answer.raise_for_status()
        results = answer.json()["results"]
    except (httpx.HTTPError, ValueError, LookupError):
        return None
    return {
        f"{each.name} {each.version}": [str(one["id"]) for one in found["vulns"]]
        for each, found in zip(every, results, strict=True)
        if found.get("vulns")
    }


def main() -> int:
    """Audit, print, write the bill; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--offline", action="store_true", help="Do not ask for vulnerabilities.")
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="Where the bill goes.")
    asked = parser.parse_args()
    locked = read_locked((ROOT / "constraints.txt").read_text("utf-8"))
    components, wrong = list_components(locked)
    licences = [f"{c.name} {why}" for c in components if (why := judge_licence(c.licence))]
    version = distribution("epsilometer").version
    asked.out.mkdir(parents=True, exist_ok=True)
    bill = asked.out / f"epsilometer-{version}.cdx.json"
    bill.write_text(json.dumps(make_bill(components, version=version), indent=2) + "\n", "utf-8")
    scopes = [c.scope for c in components]
    print(
        f"{len(locked)} packages locked, {len(components)} examined: {scopes.count('required')} "
        f"required, {scopes.count('optional')} by extras, {scopes.count('excluded')} for "
        "development."
    )
    for line in (*wrong, *licences):
        print(f"  {line}")
    print(f"Licences: {'none asks for more than a notice' if not licences else len(licences)}.")
    print(f"Bill of materials: {bill}")
    code = 1 if licences else 4 if wrong else 0
    if asked.offline:
        return code
    found = find_vulnerabilities(components)
    if found is None:
        print("Known vulnerabilities: NOT CHECKED, the database could not be reached.")
        return code or 4
    for name, ids in found.items():
        print(f"  {name}: {', '.join(ids)}")
    print(f"Known vulnerabilities: {len(found)} packages of {len(components)}.")
    return 1 if found else code


if __name__ == "__main__":
    sys.exit(main())
