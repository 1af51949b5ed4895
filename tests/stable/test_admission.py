"""Places, queue, trees and parked runtimes, as counts."""

import pytest

from avenor.protocol.errors import LimitReached
from avenor.stable.admission import Admission, Limits


def make(**limits: int) -> Admission:
    """An admission with small limits."""
    return Admission(Limits(**{"max_runtimes": 2, "queue": 2, "max_tree": 3, "max_parked": 2, **limits}))


def test_a_spawn_starts_while_there_is_a_place() -> None:
    """The last place is given; after that it waits."""
    assert make().decide(busy=1, tree_size=None) == "start"
    assert make().decide(busy=2, tree_size=None) == "queue"


def test_nobody_overtakes_the_queue() -> None:
    """A free place belongs to the one who waits, not to the one who comes."""
    admission = make()
    admission.enqueue("rt_1")
    assert admission.decide(busy=0, tree_size=None) == "queue"
    assert admission.take_startable(busy=1) == ["rt_1"]
    assert admission.decide(busy=0, tree_size=None) == "start"


def test_a_full_queue_refuses() -> None:
    """Retryable, with the bound that was reached; a queue of 0 refuses at once."""
    admission = make(queue=1)
    admission.enqueue("rt_1")
    with pytest.raises(LimitReached) as full:
        admission.decide(busy=2, tree_size=None)
    assert (full.value.retryable, full.value.data) == (True, {"limit": "queue"})
    with pytest.raises(LimitReached):
        make(queue=0).decide(busy=2, tree_size=None)


def test_places_are_taken_in_order_and_no_more_than_there_are() -> None:
    """Also when more work than there are places."""
    admission = make(max_runtimes=3)
    for runtime_id in ("a", "b", "c"):
        admission.enqueue(runtime_id)
    assert admission.take_startable(busy=5) == []
    assert admission.take_startable(busy=1) == ["a", "b"]
    assert admission.queued == ("c",)


def test_one_who_leaves_the_queue_is_never_started() -> None:
    """Leaving twice, or from outside, says so."""
    admission = make()
    admission.enqueue("a")
    assert admission.leave_queue("a")
    assert not admission.leave_queue("a")
    assert admission.take_startable(busy=0) == []


def test_a_child_starts_whatever_works_until_its_tree_is_full() -> None:
    """It never waits for the parent that waits for it."""
    admission = make()
    assert admission.decide(busy=99, tree_size=2) == "start"
    with pytest.raises(LimitReached) as full:
        admission.decide(busy=0, tree_size=3)
    assert full.value.data == {"limit": "max_tree"}


def test_the_oldest_parked_goes_first() -> None:
    """A woken one is not parked any more, and parking again makes it the youngest."""
    admission = make(max_parked=2)
    assert admission.park("a") == []
    assert admission.park("b") == []
    admission.unpark("a")
    assert admission.park("a") == []
    assert admission.park("c") == ["b"]
    assert admission.park("d") == ["a"]


def test_without_parking_each_goes_at_once() -> None:
    """`--max-parked 0`."""
    assert make(max_parked=0).park("a") == ["a"]
