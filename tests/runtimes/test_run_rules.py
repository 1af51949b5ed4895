"""The pure rules of a run: retries, ownership, the queue, the environment, the decision to end."""

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from avenor.host.tree import tree_tag
from avenor.protocol.errors import Ended, LimitReached, NotOwner
from avenor.protocol.spec import Record, RunSpec
from avenor.runtimes.endings import Cause, Ending
from avenor.runtimes.environment import agent_environment
from avenor.runtimes.ownership import Client, Ownership
from avenor.runtimes.prompts import QUEUE_LIMIT, Prompt, PromptQueue
from avenor.runtimes.retries import Failure, retry_delay, should_retry

INFINITE = float("inf")


def test_retries_wait_longer_each_time_up_to_thirty_seconds() -> None:
    """2, 4, 8, 16, 30, 30 when chance is in the middle."""
    waits = [
        retry_delay(attempt=n, chance=0.5, retry_after_seconds=None, remaining_seconds=INFINITE) for n in range(1, 8)
    ]
    assert waits == [2, 4, 8, 16, 30, 30, 30]


@given(attempt=st.integers(1, 1000), chance=st.floats(0, 1, exclude_max=True))
def test_jitter_stays_within_two_and_thirty_seconds(attempt: int, chance: float) -> None:
    """No chance makes a wait shorter or longer than that."""
    wait = retry_delay(attempt=attempt, chance=chance, retry_after_seconds=None, remaining_seconds=INFINITE)
    assert 2 <= wait <= 30


@pytest.mark.parametrize(
    ("retry_after", "remaining", "expected"),
    [(90.0, INFINITE, 90.0), (1.0, INFINITE, 4.0), (90.0, 20.0, 20.0), (None, 3.0, 3.0), (90.0, -1.0, 0.0)],
)
def test_a_longer_retry_after_is_honoured_up_to_what_the_timeout_leaves(
    retry_after: float | None, remaining: float, expected: float
) -> None:
    """Never shorter than our own wait, never longer than the run may take."""
    wait = retry_delay(attempt=2, chance=0.5, retry_after_seconds=retry_after, remaining_seconds=remaining)
    assert wait == expected


@pytest.mark.parametrize(
    ("code", "permanent", "attempt", "expected"),
    [(1, False, 1, True), (1, False, 2, True), (1, False, 3, False), (1, True, 1, False)]
    + [(code, False, 1, False) for code in (0, 2, 3, 4, 5, 6, 124, 130)],
)
def test_only_code_one_is_tried_again_and_only_if_it_may_change(
    code: int, permanent: bool, attempt: int, expected: bool
) -> None:
    """Two retries are three attempts."""
    failure = Failure(message="x", permanent=permanent)
    assert should_retry(exit_code=code, failure=failure, attempt=attempt, max_retries=2) is expected


ALICE = Client(connection="c1", name="c1")
BOB = Client(connection="c2", name="c2")
ROUTED = Client(connection="c3", name="c1")


def test_the_first_client_owns_and_others_are_told_who() -> None:
    """Taking again is nothing; another is refused with the owner's name."""
    ownership = Ownership()
    assert ownership.take(ALICE) is None
    assert ownership.take(ALICE) is None
    with pytest.raises(NotOwner) as refused:
        ownership.take(BOB)
    assert refused.value.data == {"owner": "c1"}


def test_force_takes_over_and_names_who_lost() -> None:
    """The old owner can be told."""
    ownership = Ownership()
    ownership.take(ALICE)
    assert ownership.take(BOB, force=True) == ALICE
    assert ownership.owner == BOB


def test_equal_names_on_different_connections_are_different_clients() -> None:
    """A supervisor's c1 is not our c1."""
    ownership = Ownership()
    ownership.take(ALICE)
    with pytest.raises(NotOwner):
        ownership.take(ROUTED)


def test_release_and_loss_free_only_what_was_owned() -> None:
    """A stranger's leaving changes nothing; a link's loss frees what its clients owned."""
    ownership = Ownership()
    ownership.take(ROUTED)
    assert not ownership.release(ALICE)
    assert not ownership.connection_lost("c1")
    assert ownership.connection_lost("c3")
    assert ownership.owner is None


def prompt(text: str) -> Prompt:
    return Prompt(text=text, source="control")


async def test_the_queue_gives_prompts_in_order_and_wakes_who_waits() -> None:
    """wait_arrival returns once there is one."""
    queue = PromptQueue()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(queue.wait_arrival)
        await trio.testing.wait_all_tasks_blocked()
        assert queue.add(prompt("a")) == 1
    assert queue.add(prompt("b")) == 2
    assert [queue.take_nowait(), queue.take_nowait(), queue.take_nowait()] == [prompt("a"), prompt("b"), None]


def test_a_closed_queue_refuses_and_gives_back_what_was_not_read() -> None:
    """Nothing is accepted and then forgotten."""
    queue = PromptQueue()
    queue.add(prompt("a"))
    assert queue.close() == [prompt("a")]
    with pytest.raises(Ended):
        queue.add(prompt("b"))
    with pytest.raises(Ended):
        queue.put_first(prompt("c"), keep_queue=True)


def test_a_full_queue_refuses_for_now() -> None:
    """The bound is announced and retryable."""
    queue = PromptQueue()
    for number in range(QUEUE_LIMIT):
        queue.add(prompt(str(number)))
    with pytest.raises(LimitReached) as refused:
        queue.add(prompt("more"))
    assert refused.value.retryable


def test_agents_get_our_variables_and_none_of_our_parents() -> None:
    """A run without a supervisor unsets the socket of the one that it was started from."""
    record = Record(
        runtime_id="",
        run_id="run_1",
        spec=RunSpec(prompt="x", dir="/", env={"A": "spec", "AVENOR_RUN_ID": "mine"}),
        prompt="x",
    )
    base = {"A": "base", "B": "base", "AVENOR_SOCKET": "/outer", "AVENOR_RUNTIME_ID": "rt_9"}
    env = agent_environment(record, base, tree_tag(7, 99))
    assert env == {"A": "spec", "B": "base", "AVENOR_RUN_ID": "run_1", "AVENOR_TREE": "7-99"}


def test_agents_under_a_supervisor_know_it() -> None:
    """Socket and runtime id are set."""
    record = Record(
        runtime_id="rt_1", run_id="run_1", spec=RunSpec(prompt="x"), prompt="x", supervisor_socket="/s.sock"
    )
    env = agent_environment(record, {}, tree_tag(7, 99))
    assert (env["AVENOR_RUNTIME_ID"], env["AVENOR_SOCKET"]) == ("rt_1", "/s.sock")


FIRST = Cause(stop_reason="timeout", reason="first")


async def test_only_the_first_cause_counts_and_it_interrupts_what_waits() -> None:
    """Scopes opened before and after are cancelled."""
    ending = Ending()
    with ending.interruptible() as before:
        assert ending.decide(FIRST)
        assert not ending.decide(Cause(stop_reason="cancelled", reason="second"))
        await trio.sleep_forever()
    assert before.cancelled_caught
    with ending.interruptible() as after:
        await trio.sleep_forever()
    assert after.cancelled_caught
    assert ending.cause == FIRST


async def test_work_that_has_ended_by_itself_is_ended_by_no_cause() -> None:
    """Settled first, the decision to end is refused."""
    ending = Ending()
    assert ending.settle()
    assert not ending.settle()
    assert not ending.decide(FIRST)
    assert ending.cause is None
