"""`python -m tests.chaos`: schedules from a seed, what they came to, and a failure where an invariant is broken."""

import argparse
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from functools import partial
from itertools import count, takewhile
from pathlib import Path
from typing import Final

import msgspec

from tests.chaos.driver import Result, run_schedule
from tests.chaos.report import Tally, render, render_failure, render_proof, write
from tests.chaos.schedules import MANIFESTS, Schedule, Step, directed_steps, make_schedule
from tests.chaos.shrink import shrink
from tests.e2e.harness import AVENOR

# A schedule mostly waits for graces and for disks, so that there may be more of them than processors.
_AT_ONCE: Final = 2 * (os.cpu_count() or 1)
_SECONDS: Final = 180.0
_SHRINK_SECONDS: Final = 90.0
_PROOF_SCHEDULES: Final = 200
_FAULTS: Final = ("no-sentinel", "lost-event", "repeated-seq", "left-tool")
_FAULTS_OF_MANIFESTS: Final = ("open-sandbox", "left-worktree", "trusted-writer", "forgotten-attempts", "free-turns")
_FAULT_FOLDER: Final = Path(__file__).with_name("faults")

_Found = tuple[Schedule, Result]


class Suite:
    """Carries out schedules, several at the same time.

    Args:
        seed: They are drawn from.
        environ: More variables for their supervisors.
    """

    def __init__(self, seed: int, environ: Mapping[str, str]) -> None:
        self.can_resume = _can_resume()
        self._seed = seed
        self._environ = environ

    def schedule(self, number: int) -> Schedule:
        """The schedule of a number."""
        return make_schedule(self._seed, number, can_resume=self.can_resume)

    def carry_out(self, schedule: Schedule) -> Result:
        """What one schedule comes to."""
        return run_schedule(schedule, can_resume=self.can_resume, environ=self._environ)

    def results(self, numbers: Iterator[int]) -> Iterator[_Found]:
        """The schedules of these numbers, as they end."""
        running: dict[Future[Result], Schedule] = {}
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            while True:
                while len(running) < _AT_ONCE and (number := next(numbers, None)) is not None:
                    schedule = self.schedule(number)
                    running[pool.submit(self.carry_out, schedule)] = schedule
                if not running:
                    return
                for ended in wait(running, return_when=FIRST_COMPLETED).done:
                    yield running.pop(ended), ended.result()

    def explain(self, schedule: Schedule, found: Result) -> str:
        """The failure with the smallest history that can be found in a bounded time."""
        deadline = time.monotonic() + _SHRINK_SECONDS
        last = found
        is_again = False

        def fails(steps: Sequence[Step]) -> bool:
            nonlocal last, is_again
            result = self.carry_out(msgspec.structs.replace(schedule, steps=steps))
            if result.problems:
                if is_again:  # the files of the first failure stay, and those of the smallest
                    _forget(last)
                last, is_again = result, True
            return bool(result.problems)

        steps = shrink(schedule.steps, fails, may_go_on=lambda: time.monotonic() < deadline)
        return render_failure(msgspec.structs.replace(schedule, steps=steps), last, is_shrunk=is_again)


def main(words: Sequence[str]) -> int:
    """Runs the suite; 1 if anything is broken, or a place was never reached."""
    options = _parser().parse_args(words)
    seed = random.randrange(1_000_000) if options.seed is None else options.seed
    if options.prove:
        return _prove(seed)
    suite = Suite(seed, {})
    began = time.monotonic()
    print(f"seed {seed}", flush=True)
    if options.schedule is not None:
        numbers = iter([options.schedule])
    elif options.schedules:
        numbers = iter(range(options.schedules))
    else:
        least = len(directed_steps(can_resume=suite.can_resume))
        numbers = takewhile(lambda number: number < least or time.monotonic() < began + options.seconds, count())
    tally, broken = Tally(), list[_Found]()
    for schedule, result in suite.results(numbers):
        tally.add(result)
        if result.problems:
            broken.append((schedule, result))
            print(f"schedule {schedule.number} is broken: {result.problems[0]}", flush=True)
    text = render(tally, seed=seed, seconds=time.monotonic() - began)
    print(f"\n{text}", flush=True)
    for schedule, result in broken[: options.explain]:
        print(suite.explain(schedule, result), flush=True)
    missing = tally.missing(can_resume=suite.can_resume) if options.schedule is None else []
    for place in missing:
        print(f"nobody was killed at {place}", file=sys.stderr)
    if options.write:
        write(text)
    return 1 if broken or missing else 0


def _prove(seed: int) -> int:
    """Whether each fault that is put in is found."""
    is_proven = True
    for fault in (*_FAULTS, *_FAULTS_OF_MANIFESTS):
        suite = Suite(seed, {"PYTHONPATH": str(_FAULT_FOLDER), "AVENOR_CHAOS_FAULT": fault})
        # Those that kill at one place after the other are as likely to find it as any: numbers in an order by chance.
        numbers = [number for number in range(_PROOF_SCHEDULES) if _may_show(fault, suite.schedule(number))]
        random.Random(f"{seed}/{fault}").shuffle(numbers)
        found, tried = _first_found(suite, numbers)
        is_proven = is_proven and found is not None
        number = None if found is None else found[0].number
        print(render_proof(fault, number, [] if found is None else found[1].problems, tried), flush=True)
    return 0 if is_proven else 1


def _may_show(fault: str, schedule: Schedule) -> bool:
    """Whether a schedule does anything of what a fault is in."""
    return fault in _FAULTS or any(step.what in MANIFESTS for step in schedule.steps)


def _first_found(suite: Suite, numbers: Sequence[int]) -> tuple[_Found | None, int]:
    """The first schedule that breaks something, and how many had ended by then; those that run are let to their end."""
    found: list[_Found] = []
    tried = 0

    def wanted() -> Iterator[int]:
        for number in numbers:
            if found:
                return
            yield number

    for schedule, result in suite.results(wanted()):
        tried += not found
        if result.problems:
            found.append((schedule, result))
            _forget(result)
    return found[0] if found else None, tried


def _forget(result: Result) -> None:
    """Remove the files of a failure that nobody will look at."""
    if result.kept is not None:
        shutil.rmtree(result.kept, ignore_errors=True)


def _can_resume() -> bool:
    told = subprocess.run([AVENOR, "stable", "--help"], capture_output=True, text=True, check=True)
    return "--on-crash" in told.stdout


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    number = partial(parser.add_argument, type=int, metavar="N")
    number("--seed", help="what the schedules are drawn from; printed, and by chance if it is not given")
    number("--schedules", help="carry out the first N schedules, however long it takes")
    number("--schedule", help="carry out this one alone")
    number("--explain", default=3, help="look for the smallest history of so many that failed (default 3)")
    parser.add_argument(
        "--seconds",
        type=float,
        default=_SECONDS,
        help="begin none after so long, but for those that kill at each place (default 180)",
    )
    parser.add_argument("--write", action="store_true", help="put the figures into the documentation")
    parser.add_argument("--prove", action="store_true", help="put faults into avenor, and see that they are found")
    return parser


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
