"""`python -m tests.load`: puts avenor under load, takes from it what it needs, and fails if a count is wrong."""

import argparse
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.bench import machine
from tests.bench.table import write
from tests.load.clients import measure_deaf, measure_flood, measure_lines
from tests.load.cycles import measure_cycles
from tests.load.endings import measure_endings, measure_killed
from tests.load.fleet import measure_fleet, measure_idle
from tests.load.page import MARKS, PAGE, render, render_row
from tests.load.rows import Load, Measurement, Row
from tests.load.shortages import (
    measure_clock,
    measure_descriptors,
    measure_full_log,
    measure_full_state,
    measure_lost_at_limit,
)

# In the order of the table.
_MEASUREMENTS: Mapping[str, Measurement] = {
    "fleet": measure_fleet,
    "idle": measure_idle,
    "cycles": measure_cycles,
    "endings": measure_endings,
    "killed": measure_killed,
    "descriptors": measure_descriptors,
    "limit-loss": measure_lost_at_limit,
    "disk-log": measure_full_log,
    "disk-spawn": measure_full_state,
    "deaf": measure_deaf,
    "flood": measure_flood,
    "lines": measure_lines,
    "clock": measure_clock,
}


def main(words: Sequence[str]) -> int:
    """Does the rows; 1 if one is broken."""
    options = _parser().parse_args(words)
    load = Load(share=0.1 if options.quick else 1.0)
    began = time.monotonic()
    rows: list[Row] = []
    for key in options.only or _MEASUREMENTS:
        rows.append(_MEASUREMENTS[key](load))
        print(render_row(rows[-1]), flush=True)
    text = render(rows, [*machine.describe(), f"{time.monotonic() - began:.0f} s in all"])
    if options.write:
        write(text, PAGE, MARKS)
        print(f"written to {PAGE.relative_to(Path.cwd()) if PAGE.is_relative_to(Path.cwd()) else PAGE}")
    broken = [row.key for row in rows if not row.is_kept]
    print(f"broken: {', '.join(broken)}" if broken else f"{len(rows)} rows kept", file=sys.stderr)
    return 1 if broken else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.load", description=__doc__)
    parser.add_argument("--only", action="append", choices=list(_MEASUREMENTS), help="only this row; repeatable")
    parser.add_argument("--quick", action="store_true", help="a tenth of everything: an impression")
    parser.add_argument("--write", action="store_true", help=f"put the table into {PAGE.name}")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
