"""Write docs/result.schema.json: the JSON Schema of an audit, generated from its classes.

``python docs/result_schema.py`` after a change of them; a test compares.
"""

import json
from pathlib import Path

from epsilometer.core.serialisation import json_schema

FILE = Path(__file__).parent / "result.schema.json"


def render_schema() -> str:
    """Return the schema as it is written to the file."""
    return json.dumps(json_schema(), indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    FILE.write_text(render_schema(), "utf-8")
