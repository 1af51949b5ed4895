"""A run on real agents that did not drive what was asked for is a failure."""

import pytest

from tests.agents.audit import is_silent, problems


def test_a_run_of_all_that_was_asked_for_is_fine() -> None:
    """Sessions of each agent, a result of each check, nothing left, no silence."""
    both = [("one", "a"), ("two", "a")]
    opened = {"one": 3, "two": 1}
    assert problems(["one", "two"], opened, selected=both, done=both, left=[], silent_skips=[]) == []


def test_each_lack_is_told() -> None:
    """An agent without sessions, a check without a result, a process that was left, and a skip without a reason."""
    found = problems(
        ["one", "two"],
        {"one": 3},
        selected=[("one", "a"), ("two", "a")],
        done={("one", "a")},
        left=["one"],
        silent_skips=["test_this"],
    )
    assert found == [
        "two opened no session",
        "two has no result of a",
        "one left processes",
        "test_this was skipped, and nobody said why",
    ]


@pytest.mark.parametrize(
    ("said", "expected"),
    [("Skipped: ", True), ("Skipped", True), ("Skipped: unconditional skip", True), ("Skipped: tells no price", False)],
)
def test_a_skip_needs_a_reason(said: str, expected: bool) -> None:
    """As pytest tells them."""
    assert is_silent(said) is expected
