"""What was done and found, as text for the terminal and for the page in the documentation."""

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from tests.chaos.driver import Result
from tests.chaos.schedules import PLACES, RESUME_PLACES, Schedule

PAGE: Final = Path(__file__).parents[2] / "docs" / "explanation" / "chaos.md"
BEGIN, END = "<!-- chaos:begin (written by `python -m tests.chaos --write`) -->", "<!-- chaos:end -->"


class Tally:
    """The sum over the schedules that were carried out."""

    def __init__(self) -> None:
        self.schedules = 0
        self.runs = 0
        self.starts = 0
        self.hits: Counter[str] = Counter()
        self.killed: Counter[str] = Counter()
        self.done: Counter[str] = Counter()

    def add(self, result: Result) -> None:
        """Count one schedule in."""
        self.schedules += 1
        self.runs += result.runs
        self.starts += result.starts
        self.hits += result.hits
        self.killed += result.killed
        self.done += result.done

    def missing(self, *, can_resume: bool) -> list[str]:
        """Places that nobody came to, or at which nobody was killed."""
        wanted = [place for place in PLACES if can_resume or place not in RESUME_PLACES]
        return [place for place in wanted if not self.hits[place] or not self.killed[place]]


def render(tally: Tally, *, seed: int, seconds: float) -> str:
    """The figures as Markdown."""
    steps = ", ".join(f"{count} {name}" for name, count in sorted(tally.done.items()))
    lines = [
        f"- {tally.schedules} schedules from seed {seed} in {seconds:.0f} s: "
        f"{tally.runs} runs, {tally.starts} supervisors, {sum(tally.killed.values())} kills at named places",
        f"- steps: {steps}",
        "",
        "| place | reached | killed there |",
        "|---|---|---|",
        *(f"| `{place}` | {tally.hits[place]} | {tally.killed[place]} |" for place in PLACES),
    ]
    return "\n".join(lines) + "\n"


def render_failure(schedule: Schedule, found: Result, *, is_shrunk: bool) -> str:
    """What is broken, and the history that breaks it."""
    how = "the smallest history found" if is_shrunk else "its history (it did not fail again, so nothing is left out)"
    lines = [
        f"BROKEN: schedule {schedule.number} of seed {schedule.seed}: "
        f"python -m tests.chaos --seed {schedule.seed} --schedule {schedule.number}",
        *(f"  - {problem}" for problem in found.problems),
        f"  {how}, with --max-runtimes {schedule.max_runtimes}:",
        *(f"    {number}. {step.describe()}" for number, step in enumerate(schedule.steps, 1)),
        f"    {len(schedule.steps) + 1}. {_ending(schedule)}",
        f"  files: {found.kept}",
    ]
    return "\n".join(lines)


def render_proof(fault: str, number: int | None, problems: Sequence[str], tried: int) -> str:
    """How early a fault that was put in was found."""
    if number is None:
        return f"fault {fault}: NOT FOUND in {tried} schedules"
    return f"fault {fault}: found by schedule {number}, after {tried} schedules: {_first(problems)}"


def write(text: str, page: Path = PAGE) -> None:
    """Put the figures between the marks of the page.

    Raises:
        ValueError: The page has no marks.
    """
    before, begin, rest = page.read_text().partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{page} has no place for the figures: {BEGIN} … {END}")
    page.write_text(f"{before}{BEGIN}\n\n{text}\n{END}{after}")


def _ending(schedule: Schedule) -> str:
    if schedule.ending == "cancel":
        return "everything is cancelled"
    return "shutdown graceful, and a supervisor that looks at what is left"


def _first(problems: Iterable[str]) -> str:
    return next(iter(problems))[:200]
