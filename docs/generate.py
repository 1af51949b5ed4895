"""Writes the generated pages of the reference: `python docs/generate.py`. A test fails when they are out of date."""

import json
from pathlib import Path

from avenor.protocol.schemas import control_schema

REFERENCE = Path(__file__).parent / "reference"


def generated() -> dict[Path, str]:
    """Each generated file and what must be in it."""
    return {REFERENCE / "schemas" / "control.json": json.dumps(control_schema(), indent=1) + "\n"}


def main() -> None:
    """Writes them all."""
    for path, text in generated().items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)


if __name__ == "__main__":
    main()
