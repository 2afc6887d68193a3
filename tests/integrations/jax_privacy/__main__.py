"""Run wrong and right programs, and count: ``python -m tests.integrations.jax_privacy [SECONDS]``.

On whatever device JAX finds; pytest is not needed. Programs for which no time is left are counted
as not run.
"""

import sys
import time
from collections import Counter

import jax

from tests.integrations.jax_privacy.programs import RIGHT, WRONG


def main() -> int:
    """Return 0 where every wrong program is caught and every right one spared."""
    limit = float(sys.argv[1]) if len(sys.argv) > 1 else float("inf")
    print(f"JAX {jax.__version__} on {jax.devices()[0].device_kind}", flush=True)
    counts = Counter[str]()
    start = time.perf_counter()
    # One right program after two wrong ones, so that a short run has both.
    order = sorted(
        [(3 * at + 2, name, RIGHT[name], "") for at, name in enumerate(RIGHT)]
        + [(3 * (at // 2) + at % 2, name, *WRONG[name]) for at, name in enumerate(WRONG)]
    )
    for _, name, program, check in order:
        if time.perf_counter() - start > limit:
            counts["not run"] += 1
            continue
        violated = [each.name for each in program().find("violated")]
        good = check in violated if check else not violated
        kind = "wrong" if check else "right"
        counts[f"{kind} {'as it should be' if good else 'MISJUDGED'}"] += 1
        print(f"{kind}: {name}: {violated}, {time.perf_counter() - start:.1f} s", flush=True)
    print(
        f"{counts['wrong as it should be']} wrong programs caught, {counts['wrong MISJUDGED']} "
        f"missed; {counts['right as it should be']} right ones spared, "
        f"{counts['right MISJUDGED']} accused; {counts['not run']} not run"
    )
    return int(bool(counts["wrong MISJUDGED"] or counts["right MISJUDGED"]))


if __name__ == "__main__":
    sys.exit(main())
