"""The suite's own logic: shrinking a schedule, drawing one, and describing it."""

from collections.abc import Sequence

import pytest

from tests.chaos.schedules import PLACES, RESUME_PLACES, directed_steps, make_schedule
from tests.chaos.shrink import shrink


def _always() -> bool:
    return True


@pytest.mark.parametrize("needed", [[], [7], [0, 19], [3, 4, 5, 11], list(range(20))])
def test_shrinking_leaves_just_what_is_needed(needed: list[int]) -> None:
    """Of twenty steps those stay, in their order, without which it would not fail."""
    small = shrink(range(20), lambda steps: set(needed) <= set(steps), may_go_on=_always)
    assert list(small) == needed


def test_shrinking_ends_when_its_time_is_up() -> None:
    """The smallest part so far is the answer, and nothing is tried any more."""
    tries: list[Sequence[int]] = []

    def fails(steps: Sequence[int]) -> bool:
        tries.append(steps)
        return 0 in steps

    small = shrink(range(16), fails, may_go_on=lambda: len(tries) < 2)
    assert len(tries) == 2
    assert list(small) == [0, 1, 2, 3]


def test_a_seed_gives_the_same_schedules_every_time() -> None:
    """Another seed, or another number, gives others."""
    drawn = [make_schedule(1, number, can_resume=True) for number in range(60)]
    assert drawn == [make_schedule(1, number, can_resume=True) for number in range(60)]
    assert drawn != [make_schedule(2, number, can_resume=True) for number in range(60)]
    assert len({tuple(schedule.steps) for schedule in drawn}) == 60


@pytest.mark.parametrize("can_resume", [False, True])
def test_the_first_schedules_kill_at_every_place_in_turn(can_resume: bool) -> None:
    """Each begins with arming its place; without resume, those of a resume are left out."""
    begun = [steps[0].what for steps in directed_steps(can_resume=can_resume) if steps[0].do == "arm"]
    assert begun == [place for place in PLACES if can_resume or place not in RESUME_PLACES]


def test_nothing_is_done_to_a_run_before_it_is_spawned() -> None:
    """Nor is any number given twice."""
    for number in range(300):
        spawned: list[int] = []
        for step in make_schedule(3, number, can_resume=True).steps:
            if step.do in ("spawn", "fence"):
                assert step.run == len(spawned)
                spawned.append(step.run)
            elif step.do in ("prompt", "interrupt", "open", "answer", "cancel") or step.what in ("runtime", "agent"):
                assert step.run in spawned


def test_every_step_has_a_line_of_its_own() -> None:
    """A history is read by people."""
    for number in range(100):
        for step in make_schedule(4, number, can_resume=True).steps:
            assert "\n" not in step.describe()
            assert step.do in step.describe() or step.do in ("kill", "arm", "fence", "restart")
