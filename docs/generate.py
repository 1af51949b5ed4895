"""Writes the generated pages of the reference: `python docs/generate.py`. A test fails when they are out of date."""

import json
from pathlib import Path

from avenor.protocol.schemas import control_schema, loop_schema, team_schema

REFERENCE = Path(__file__).parent / "reference"


def generated() -> dict[Path, str]:
    """Each generated file and what must be in it."""
    schemas = {
        "control.json": control_schema(),
        "loop.schema.json": loop_schema(),
        "team.schema.json": team_schema(),
    }
    return {REFERENCE / "schemas" / name: json.dumps(schema, indent=1) + "\n" for name, schema in schemas.items()}


def main() -> None:
    """Writes them all."""
    for path, text in generated().items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)


if __name__ == "__main__":
    main()
