"""`python -m tests.bench`: measures, prints the table, and fails if a limit is missed."""

import argparse
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.bench import machine
from tests.bench.bench import Bench, Measurement
from tests.bench.events import measure_acp_flood, measure_flood
from tests.bench.figures import Row
from tests.bench.fleet import measure_fleet, measure_shutdown
from tests.bench.spawns import measure_rate, measure_ready, measure_session
from tests.bench.table import PAGE, render, render_row, write
from tests.bench.teams import measure_team

# In the order of the table, with the keys of the rows that each gives.
_MEASUREMENTS: Mapping[tuple[str, ...], Measurement] = {
    ("spawn-p50", "spawn-p99"): measure_ready,
    ("session",): measure_session,
    ("spawn-rate",): measure_rate,
    ("memory", "status", "list", "command", "idle"): measure_fleet,
    ("shutdown",): measure_shutdown,
    ("events", "events-100", "latency"): measure_flood,
    ("events-acp",): measure_acp_flood,
    ("team",): measure_team,
}
_KEYS = [key for keys in _MEASUREMENTS for key in keys]


def main(words: Sequence[str]) -> int:
    """Runs the benchmark; 1 if a limit is missed or a spawn has failed, unless neither is asked about."""
    options = _parser().parse_args(words)
    wanted: list[str] = options.only or _KEYS
    began = time.monotonic()
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="avenor-bench-") as folder:
        bench = Bench(Path(folder), quick=options.quick)
        for keys, measure in _MEASUREMENTS.items():
            if any(key in wanted for key in keys):
                rows += _measure(bench, measure, wanted)
    text = render(rows, _facts(bench, time.monotonic() - began))
    print(f"\n{text}")
    if options.write:
        write(text)
        print(f"written to {PAGE.relative_to(Path.cwd()) if PAGE.is_relative_to(Path.cwd()) else PAGE}")
    problems = [f"{row.key}: the limit is missed" for row in rows if not row.is_met]
    problems += bench.failures
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems and not options.no_limits else 0


def _measure(bench: Bench, measure: Measurement, wanted: Sequence[str]) -> list[Row]:
    rows: list[Row] = []
    for row in measure(bench):
        if row.key in wanted:
            print(render_row(row), flush=True)
            rows.append(row)
    return rows


def _facts(bench: Bench, seconds: float) -> list[str]:
    return [
        *machine.describe(),
        f"making a file where the state directories are: {1e6 * bench.file_seconds:.0f} µs",
        f"launcher: zygote, for {bench.forked} of {bench.looked_at} runtimes that were looked at",
        "spawns with `wait: started`, but where a row says otherwise",
        f"failed spawns: {len(bench.failures)} of {bench.spawns}",
        f"{seconds:.0f} s in all{', in a hurry (`--quick`)' if bench.quick else ''}",
    ]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("--only", action="append", choices=_KEYS, help="measure only this row; repeatable")
    parser.add_argument("--quick", action="store_true", help="fewer samples: an impression in half a minute")
    parser.add_argument("--no-limits", action="store_true", help="exit with 0 although a limit is missed")
    parser.add_argument("--write", action="store_true", help=f"put the table into {PAGE.name}")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
