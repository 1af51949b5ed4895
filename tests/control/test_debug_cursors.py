"""What a stream of all runtimes remembers."""

import pytest

from avenor.control.debug.cursors import Cursors, Standing


def standing(number: int, latest_seq: int, status: str = "running") -> Standing:
    """One runtime."""
    return Standing(f"rt_{number}", status, latest_seq)


def test_cursors_name_only_runtimes_that_go_on() -> None:
    """An ended one can have no more events, so it takes no room in the id."""
    cursors = Cursors.at_end([standing(1, 9, "ended"), standing(2, 4), standing(3, 0, "queued")])
    assert str(cursors) == "3;2:4,3:0"
    assert str(Cursors.at_end([])) == "0;"


def test_an_end_that_was_had_is_forgotten() -> None:
    """The last event of a runtime takes it off the id."""
    cursors = Cursors.parse("2;1:4,2:7")
    assert cursors.take("rt_1", 5, is_end=True)
    assert str(cursors) == "2;2:7"
    assert not cursors.take("rt_1", 5, is_end=True)


def test_an_event_counts_once() -> None:
    """What was had is not new."""
    cursors = Cursors.parse("1;1:4")
    assert [cursors.take("rt_1", seq, is_end=False) for seq in (4, 5, 5, 6)] == [False, True, False, True]
    assert str(cursors) == "1;1:6"


def test_a_runtime_that_began_unseen_has_everything_to_come() -> None:
    """The events of a later runtime may come before the first of an earlier one."""
    cursors = Cursors.parse("1;1:4")
    assert cursors.take("rt_4", 1, is_end=False)
    assert str(cursors) == "4;1:4,2:0,3:0,4:1"
    assert cursors.take("rt_2", 1, is_end=False)


def test_meeting_the_present_tells_what_is_missing() -> None:
    """Live runtimes, ended ones that were not had to the end, and new ones; not those that were."""
    cursors = Cursors.parse("3;1:4,2:7")
    missing = cursors.meet(
        [standing(1, 9, "ended"), standing(2, 7), standing(3, 5, "ended"), standing(4, 2, "ended"), standing(5, 0)]
    )
    assert missing == {"rt_1": 4, "rt_2": 7, "rt_4": 0, "rt_5": 0}
    assert str(cursors) == "5;1:4,2:7,4:0,5:0"


def test_what_is_gone_is_not_waited_for() -> None:
    """A runtime that was pruned meanwhile, and one that has ended where we stand, leave the id."""
    cursors = Cursors.parse("3;1:4,2:7,3:1")
    assert cursors.meet([standing(2, 7, "ended"), standing(3, 1)]) == {"rt_3": 1}
    assert str(cursors) == "3;3:1"


def test_runtimes_that_began_since_are_noticed() -> None:
    """Only if they have said something: else nothing was missed."""
    cursors = Cursors.parse("1;")
    assert not cursors.have_missed([standing(1, 5), standing(2, 0)])
    assert cursors.have_missed([standing(2, 1)])


def test_a_log_that_is_another_begins_anew() -> None:
    """Nothing of it was had."""
    cursors = Cursors.parse("1;1:40")
    cursors.begin_anew("rt_1")
    assert cursors.take("rt_1", 1, is_end=False)


@pytest.mark.parametrize("text", ["0;", "3;2:4,3:0", "12;3:17,5:20"])
def test_text_and_back_is_the_same(text: str) -> None:
    """The id is all that there is to remember."""
    assert str(Cursors.parse(text)) == text


@pytest.mark.parametrize("text", ["", "17", ";", "1;2", "1;2:", "1;2:3,", "a;", "1;1:2;", "1;-1:2", "٣;", "1;1:2\n"])
def test_other_texts_are_refused(text: str) -> None:
    """With what ids look like."""
    with pytest.raises(ValueError, match="12;3:17,5:20"):
        Cursors.parse(text)
