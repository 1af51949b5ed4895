"""Writes the generated pages of the reference: `python docs/generate.py`.

With `--check` it writes nothing, and fails with the names of those that are out of date; a test does that.
"""

import json
import sys
from pathlib import Path

import backends

from avenor.protocol.schemas import (
    control_schema,
    doctor_schema,
    loop_schema,
    manifest_schema,
    roster_schema,
    team_schema,
)

REFERENCE = Path(__file__).parent / "reference"


def generated() -> dict[Path, str]:
    """Each generated file and what must be in it."""
    schemas = {
        "control.json": control_schema(),
        "doctor.schema.json": doctor_schema(),
        "loop.schema.json": loop_schema(),
        "manifest.schema.json": manifest_schema(),
        "roster.schema.json": roster_schema(),
        "team.schema.json": team_schema(),
    }
    files = {REFERENCE / "schemas" / name: json.dumps(schema, indent=1) + "\n" for name, schema in schemas.items()}
    files[backends.PAGE] = backends.page(backends.PAGE.read_text(encoding="utf-8"))
    return files


def main(words: list[str]) -> None:
    """Writes them all, or checks them."""
    if "--check" in words:
        old = [path for path, text in generated().items() if not path.exists() or path.read_text("utf-8") != text]
        if old:
            names = ", ".join(path.name for path in old)
            sys.exit(f"out of date: {names}; run `python docs/generate.py` and look at what has changed")
        return
    for path, text in generated().items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
