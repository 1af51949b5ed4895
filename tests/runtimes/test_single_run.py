"""The single run in virtual time: turns, queue, parking, retries, and every way to end."""

from pathlib import Path

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from avenor.host.ladder import LeftProcess, StopResult
from avenor.host.rundir import RunDir
from avenor.protocol.errors import AgentExited, Ended, InvalidParams, SpawnError
from avenor.protocol.events import (
    AgentStatus,
    Error,
    PermissionResponse,
    PromptQueued,
    Retry,
    RunEnding,
    SessionEnd,
    SessionStart,
    TurnEnd,
    TurnStart,
)
from avenor.protocol.outcomes import Status
from avenor.runtimes.backends.base import BackendRefused, TurnError, TurnStop
from avenor.runtimes.endings import Cause
from avenor.runtimes.host import RunHost
from tests.runtimes.fake_backend import FakeBackend, FakeSession, Play, play_echo, play_until_cancelled
from tests.runtimes.run_rig import RunRig, inline_threads

pytestmark = pytest.mark.usefixtures("inline_threads")

__all__ = ["inline_threads"]

CANCEL = Cause(stop_reason="cancelled", reason="test")


def stopping(stop_reason: str) -> Play:
    """A play whose turn ends with this word."""

    async def play(session: FakeSession, _text: str) -> TurnStop:
        session.say("done")
        return TurnStop(stop_reason=stop_reason)

    return play


def failing(*errors: TurnError) -> Play:
    """A play that fails with these errors in turn, and then works."""
    left = list(errors)

    async def play(session: FakeSession, text: str) -> TurnStop:
        if left:
            return TurnStop(stop_reason="error", error=left.pop(0))
        return await play_echo(session, text)

    return play


async def test_a_run_tells_its_whole_life_in_order(tmp_path: Path, autojump_clock: MockClock) -> None:
    """run.start, session, turn, session end, run.end as the last line, and the sentinel."""
    rig = RunRig(tmp_path, FakeBackend())
    outcome = await rig.run()
    assert (outcome.status, outcome.exit_code, outcome.session_id) == (Status.DONE, 0, "s1")
    assert [name for name in rig.names if name != "agent.status"] == [
        "run.start",
        "session.start",
        "turn.start",
        "agent.message_chunk",
        "turn.end",
        "session.end",
        "run.end",
    ]
    assert [event.seq for event in rig.events] == list(range(1, len(rig.events) + 1))
    assert rig.sentinel == outcome
    assert rig.only(TurnEnd)[0].final_output == "you said hello"


@pytest.mark.parametrize(
    ("stop_reason", "code", "status"),
    [
        ("end_turn", 0, Status.DONE),
        ("refusal", 2, Status.FAILED),
        ("max_tokens", 3, Status.FAILED),
        ("max_turn_requests", 4, Status.FAILED),
        ("cancelled", 130, Status.KILLED),
        ("zz", 1, Status.FAILED),
    ],
)
async def test_every_stop_reason_ends_with_its_code_and_sentinel(
    tmp_path: Path, autojump_clock: MockClock, stop_reason: str, code: int, status: Status
) -> None:
    """The backend's word is kept verbatim in sentinel, turn.end and run.end."""
    rig = RunRig(tmp_path, FakeBackend(stopping(stop_reason)))
    outcome = await rig.run()
    assert (outcome.exit_code, outcome.status, outcome.stop_reason) == (code, status, stop_reason)
    assert rig.sentinel is not None
    assert rig.sentinel.stop_reason == stop_reason
    assert rig.fold.state.outcome == status.value


@pytest.mark.parametrize(
    ("error", "stop_reason", "code", "status"),
    [
        (SpawnError("no such program"), "spawn_failed", 1, Status.FAILED),
        (AgentExited("died", retryable=True), "agent_exited", 1, Status.FAILED),
        (BackendRefused("no such model", reason="unknown_model"), "unknown_model", 1, Status.FAILED),
        (RuntimeError("a bug"), "internal_error", 1, Status.FAILED),
    ],
)
async def test_a_session_that_does_not_open_ends_the_run_with_a_sentinel(
    tmp_path: Path, autojump_clock: MockClock, error: Exception, stop_reason: str, code: int, status: Status
) -> None:
    """Whatever opening raises, faults of our own included, becomes an outcome."""
    backend = FakeBackend()
    backend.open_errors = [error]
    rig = RunRig(tmp_path, backend)
    await rig.run()
    assert rig.sentinel is not None
    assert (rig.sentinel.stop_reason, rig.sentinel.exit_code, rig.sentinel.status) == (stop_reason, code, status)
    assert rig.names[-1] == "run.end"


async def test_a_fault_in_the_beginning_ends_the_run_with_log_and_sentinel(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Like one in the work: whoever waits for the run is told."""

    def fail(_host: RunHost) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(RunHost, "clear_stale_files", fail)
    rig = RunRig(tmp_path, FakeBackend())
    await rig.run()
    assert rig.names == ["run.start", "run.end"]
    assert rig.sentinel is not None
    assert (rig.sentinel.status, rig.sentinel.stop_reason) == (Status.FAILED, "internal_error")


async def test_a_backend_that_there_is_not_ends_the_run_as_what_it_is(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """A record of another version may name one; the refusal is the outcome."""
    backend = FakeBackend()
    backend.find_error = InvalidParams("backend 'new': there is none")
    rig = RunRig(tmp_path, backend)
    outcome = await rig.run()
    assert (outcome.stop_reason, outcome.exit_code, outcome.reason) == (
        "invalid_params",
        1,
        "backend 'new': there is none",
    )
    assert rig.sentinel is not None
    assert rig.sentinel.stop_reason == "invalid_params"


async def test_a_handshake_that_takes_too_long_is_a_timeout(tmp_path: Path, autojump_clock: MockClock) -> None:
    """Code 124 with stop reason timeout, and no retry."""
    backend = FakeBackend()
    backend.open_seconds = 100
    rig = RunRig(tmp_path, backend, handshake_timeout=5.0, max_retries=3)
    outcome = await rig.run()
    assert (outcome.exit_code, outcome.stop_reason, outcome.status) == (124, "timeout", Status.TIMEOUT)
    assert len(backend.opened) == 1


async def test_the_timeout_of_the_run_covers_the_start_of_the_agent(tmp_path: Path, autojump_clock: MockClock) -> None:
    """--timeout fires while the agent is still opening."""
    backend = FakeBackend()
    backend.open_seconds = 50
    rig = RunRig(tmp_path, backend, timeout=7.0)
    started = trio.current_time()
    outcome = await rig.run()
    assert (outcome.status, outcome.stop_reason) == (Status.TIMEOUT, "timeout")
    assert trio.current_time() - started == pytest.approx(7.0, abs=0.5)


async def test_the_timeout_cuts_a_turn_short_politely(tmp_path: Path, autojump_clock: MockClock) -> None:
    """The agent is asked to cancel; the run and its turn end as timeout."""
    rig = RunRig(tmp_path, FakeBackend(play_until_cancelled), timeout=7.0)
    outcome = await rig.run()
    assert outcome.status is Status.TIMEOUT
    assert rig.only(TurnEnd)[0].stop_reason == "timeout"
    assert rig.backend.last.cancelled.is_set()


async def test_no_event_for_the_progress_timeout_ends_the_run(tmp_path: Path, autojump_clock: MockClock) -> None:
    """Counted from the last event, not from the start of the turn."""

    async def play(session: FakeSession, text: str) -> TurnStop:
        for _ in range(3):
            await trio.sleep(6)
            session.say("still here")
        return await play_until_cancelled(session, text)

    rig = RunRig(tmp_path, FakeBackend(play), progress_timeout=10.0)
    started = trio.current_time()
    outcome = await rig.run()
    assert (outcome.status, outcome.stop_reason) == (Status.TIMEOUT, "progress_timeout")
    assert trio.current_time() - started == pytest.approx(28.0, abs=0.5)


async def test_the_progress_timeout_does_not_count_while_somebody_decides(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """A permission that is answered late does not end the run."""

    async def play(session: FakeSession, text: str) -> TurnStop:
        await session.ask()
        await trio.sleep(8)
        return await play_echo(session, text)

    rig = RunRig(tmp_path, FakeBackend(play), progress_timeout=10.0)
    async with trio.open_nursery() as nursery:
        await rig.start(nursery)
        await trio.sleep(500)
        rig.host.broker.answer(rig.host.fold.state.permissions[0].request_id, "allow", None)
    assert rig.outcome is not None
    assert rig.outcome.status is Status.DONE


async def test_a_question_goes_with_its_turn(tmp_path: Path, autojump_clock: MockClock) -> None:
    """An agent that does not wait for the answer has asked nobody: its next turn may not be silent for ever."""
    async with trio.open_nursery() as nursery:

        async def play(session: FakeSession, _text: str) -> TurnStop:
            if session.prompts == ["hello"]:
                nursery.start_soon(session.ask)
                await trio.sleep(1)
                return TurnStop(stop_reason="end_turn")
            return await play_until_cancelled(session, "")

        rig = RunRig(tmp_path, FakeBackend(play), parks=True, progress_timeout=10.0, timeout=60.0)
        nursery.start_soon(rig.run)
        await trio.sleep(2)
        assert rig.fold.state.permissions == []
        rig.host.accept_prompt("again", "control")
    assert rig.outcome is not None
    assert rig.outcome.stop_reason == "progress_timeout"
    told = [name for name in rig.names if name in ("permission.request", "permission.response", "turn.end")]
    assert told == ["permission.request", "permission.response", "turn.end", "turn.end"]
    assert rig.only(PermissionResponse)[0].source == "cancel"


@pytest.mark.parametrize("moment", ["opening", "turn", "retry"])
async def test_a_cancel_ends_the_run_at_any_moment(tmp_path: Path, autojump_clock: MockClock, moment: str) -> None:
    """KILLED with 130, whatever the run was waiting for."""
    backend = FakeBackend(play_until_cancelled)
    if moment == "opening":
        backend.open_seconds = 1000
    if moment == "retry":
        backend.play = failing(*[TurnError(message="busy", retry_after_seconds=900)] * 3)
    rig = RunRig(tmp_path, backend, max_retries=3, handshake_timeout=0)
    async with trio.open_nursery() as nursery:
        await rig.start(nursery)
        assert rig.host.end(CANCEL)
    assert rig.sentinel is not None
    assert (rig.sentinel.status, rig.sentinel.exit_code, rig.sentinel.stop_reason) == (Status.KILLED, 130, "cancelled")
    assert rig.names[-1] == "run.end"


@pytest.mark.parametrize("is_lost", [False, True])
async def test_a_run_that_is_cancelled_before_it_begins_tells_first_that_it_does(
    tmp_path: Path, autojump_clock: MockClock, is_lost: bool
) -> None:
    """Its supervisor may say so in the same write in which it says who it is; no agent is started then."""
    begun = b'{"event":"run.start","seq":1,"ts":1,"kind":"single","backend":"scripted","dir":"/","version":"0"}'
    rig = RunRig(tmp_path, FakeBackend(), lost=[begun] if is_lost else [])
    assert rig.host.end(CANCEL)
    await rig.run()
    assert rig.names == ["run.resumed" if is_lost else "run.start", "run.ending", "run.end"]


async def test_an_agent_that_ignores_cancel_is_closed_after_the_grace(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """The run ends all the same, and its session is closed."""

    async def play(session: FakeSession, _text: str) -> TurnStop:
        while True:
            await trio.sleep(0.5)
            session.say("never mind")

    rig = RunRig(tmp_path, FakeBackend(play))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(rig.run)
        await trio.sleep(10)
        rig.host.end(CANCEL)
    assert rig.outcome is not None
    assert rig.outcome.status is Status.KILLED
    assert rig.backend.last.graces is not None


async def test_an_end_of_the_agent_that_takes_too_long_proves_nothing(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """The run ends, and says so: of the session, too."""
    backend = FakeBackend(play_until_cancelled)
    backend.may_close = trio.Event()
    rig = RunRig(tmp_path, backend)
    async with trio.open_nursery() as nursery:
        await rig.start(nursery)
        rig.host.end(CANCEL)
    assert rig.outcome is not None
    assert rig.outcome.status is Status.KILLED
    assert rig.host.unverified == "ending the agent took longer than it may"
    assert [event.unverified for event in rig.only(SessionEnd)] == [rig.host.unverified]


@pytest.mark.parametrize("error", [None, AgentExited("gone", retryable=False)])
async def test_what_the_agent_of_a_failed_opening_left_is_told(
    tmp_path: Path, autojump_clock: MockClock, error: AgentExited | None
) -> None:
    """Whether it took too long or failed by itself."""
    backend = FakeBackend()
    backend.open_seconds = 100
    backend.open_leaves = [StopResult(left=[LeftProcess(pid=7, name="stuck", reason="in uninterruptible sleep")])]
    if error is not None:
        backend.open_errors = [error]
    rig = RunRig(tmp_path, backend, handshake_timeout=5.0 if error is None else 0.0)
    outcome = await rig.run()
    assert outcome.exit_code != 0
    assert rig.host.left == ["stuck (7): in uninterruptible sleep"]


async def test_the_first_cause_wins(tmp_path: Path, autojump_clock: MockClock) -> None:
    """A cancel after the timeout, and a natural end after the cancel, change nothing."""

    async def play(session: FakeSession, text: str) -> TurnStop:
        await session.cancelled.wait()
        return await play_echo(session, text)

    rig = RunRig(tmp_path, FakeBackend(play), timeout=5.0)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(rig.run)
        await trio.sleep(4.5)
        rig.host.end(CANCEL)
        assert not rig.host.end(Cause(stop_reason="timeout", reason="later"))
    assert rig.outcome is not None
    assert rig.outcome.stop_reason == "cancelled"


async def test_a_cancel_after_the_work_has_ended_does_not_change_the_outcome(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """While the agent is still being closed the run is already done."""
    backend = FakeBackend()
    backend.may_close = trio.Event()
    rig = RunRig(tmp_path, backend)
    async with trio.open_nursery() as nursery:
        await rig.start(nursery)
        assert backend.last.graces is not None
        assert not rig.host.end(CANCEL)
        backend.may_close.set()
    assert rig.outcome is not None
    assert rig.outcome.status is Status.DONE


async def test_a_second_signal_closes_the_session_without_grace(tmp_path: Path, autojump_clock: MockClock) -> None:
    """kill() ends everything at once and leaves the sentinel of a cancel."""
    rig = RunRig(tmp_path, FakeBackend(play_until_cancelled))
    async with trio.open_nursery() as nursery:
        await rig.start(nursery)
        rig.host.kill(CANCEL)
    assert rig.killed == 1
    assert rig.backend.last.graces is not None
    assert rig.backend.last.graces.term_seconds == 0
    assert rig.sentinel is not None
    assert rig.sentinel.status is Status.KILLED


async def test_prompts_are_queued_behind_the_turn_and_run_in_order(tmp_path: Path, autojump_clock: MockClock) -> None:
    """Every accepted prompt is logged before the answer and sent in the same session."""

    async def play(session: FakeSession, text: str) -> TurnStop:
        await trio.sleep(10)
        return await play_echo(session, text)

    rig = RunRig(tmp_path, FakeBackend(play))
    async with trio.open_nursery() as nursery:
        await rig.start(nursery)
        first = rig.host.accept_prompt("one", "control")
        second = rig.host.accept_prompt("two", "control")
        assert [event.text for event in rig.only(PromptQueued)] == ["one", "two"]
    assert (first.queued, second.queued) == (1, 2)
    assert rig.backend.last.prompts == ["hello", "one", "two"]
    assert [event.queued for event in rig.only(TurnStart)] == [0, 1, 0]
    assert len(rig.only(SessionEnd)) == 1


async def test_a_prompt_that_races_with_the_end_is_refused_as_ending(tmp_path: Path, autojump_clock: MockClock) -> None:
    """Once the end is decided, nothing is accepted."""
    rig = RunRig(tmp_path, FakeBackend())
    await rig.run()
    with pytest.raises(Ended) as refused:
        rig.host.accept_prompt("late", "control")
    assert refused.value.reason_word == "run_ending"


async def test_interrupt_cuts_the_turn_short_and_drops_the_queue(tmp_path: Path, autojump_clock: MockClock) -> None:
    """The new prompt is next; no sentinel tells of the interrupted turn."""
    await _interrupt(tmp_path, keep_queue=False, expected=["hello", "now"])


async def test_interrupt_can_keep_the_queue(tmp_path: Path, autojump_clock: MockClock) -> None:
    """The new prompt goes before the waiting ones."""
    await _interrupt(tmp_path, keep_queue=True, expected=["hello", "now", "later"])


async def _interrupt(tmp_path: Path, *, keep_queue: bool, expected: list[str]) -> None:
    async def play(session: FakeSession, text: str) -> TurnStop:
        if text == "hello":
            return await play_until_cancelled(session, text)
        return await play_echo(session, text)

    rig = RunRig(tmp_path, FakeBackend(play))
    async with trio.open_nursery() as nursery:
        await rig.start(nursery)
        rig.host.accept_prompt("later", "control")
        rig.host.interrupt_and_prompt("now", "control", keep_queue=keep_queue)
        assert rig.sentinel is None
    assert rig.backend.last.prompts == expected
    assert rig.only(TurnEnd)[0].stop_reason == "cancelled"
    assert rig.outcome is not None
    assert rig.outcome.status is Status.DONE
    assert len(rig.backend.sessions) == 1


async def test_an_interrupted_agent_that_ignores_cancel_is_replaced_and_resumes(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """The next prompt goes to a new process that restores the session."""

    async def play(session: FakeSession, text: str) -> TurnStop:
        if text == "hello":
            await trio.sleep_forever()
        return await play_echo(session, text)

    rig = RunRig(tmp_path, FakeBackend(play))
    async with trio.open_nursery() as nursery:
        await rig.start(nursery)
        rig.host.interrupt_and_prompt("now", "control", keep_queue=False)
    assert [params.resume for params in rig.backend.opened] == [None, "s1"]
    assert rig.backend.last.prompts == ["now"]
    assert rig.only(SessionStart)[1].resumed is True


@pytest.mark.parametrize("moment", ["waiting", "closing"])
async def test_a_prompt_that_interrupts_a_retry_is_sent_instead_of_it(
    tmp_path: Path, autojump_clock: MockClock, moment: str
) -> None:
    """While the failed attempt's agent ends, and while the run waits for its time."""
    rig = RunRig(tmp_path, FakeBackend(failing(TurnError(message="gone"))), max_retries=3)
    if moment == "closing":
        rig.backend.may_close = trio.Event()
    async with trio.open_nursery() as nursery:
        await rig.start(nursery)
        rig.host.interrupt_and_prompt("now", "control", keep_queue=False)
        rig.backend.may_close.set()
    assert [event.text for event in rig.only(TurnStart)] == ["hello", "now"]
    assert rig.backend.opened[-1].resume == "s1"
    assert rig.outcome is not None
    assert rig.outcome.status is Status.DONE


async def test_a_prompt_that_interrupts_an_opening_that_fails_is_sent(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """It was accepted, and the agent may open for it."""
    backend = FakeBackend()
    backend.open_seconds = 5.0
    backend.open_errors = [AgentExited("died", retryable=True)]
    rig = RunRig(tmp_path, backend)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(rig.run)
        await trio.sleep(1)
        rig.host.interrupt_and_prompt("now", "control", keep_queue=False)
    assert backend.last.prompts == ["now"]
    assert rig.outcome is not None
    assert rig.outcome.status is Status.DONE


async def test_a_clean_turn_parks_with_its_sentinel_and_a_follow_up_removes_it(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """Parked means idle, sentinel DONE; the follow-up runs in the warm session and writes its own."""

    async def play(session: FakeSession, text: str) -> TurnStop:
        if text != "hello":
            await trio.sleep(5)
        return await play_echo(session, text)

    rig = RunRig(tmp_path, FakeBackend(play), parks=True, parked_timeout=60)
    async with trio.open_nursery() as nursery:
        await rig.start(nursery)
        assert rig.fold.state.status == "idle"
        assert rig.host.is_parked
        assert rig.sentinel is not None
        accepted = rig.host.accept_prompt("again", "control")
        assert accepted.queued == 0
        assert rig.sentinel is None
        assert rig.fold.state.status == "running"
    assert rig.backend.last.prompts == ["hello", "again"]
    assert rig.sentinel is not None
    assert rig.sentinel.status is Status.DONE


async def test_the_sentinel_of_a_parking_turn_is_there_before_the_turn_is_told_to_have_ended(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """Whoever waits for idle finds the sentinel."""
    rig = RunRig(tmp_path, FakeBackend(), parks=True, parked_timeout=1)
    seen: list[bool] = []
    publish = rig.published.publish

    def look(lines: list[bytes], heads: list[object]) -> None:
        publish(lines, heads)  # type: ignore[arg-type]
        if b'"turn.end"' in lines[0]:
            seen.append(rig.sentinel is not None)

    rig.published.publish = look  # type: ignore[method-assign,assignment]
    await rig.run()
    assert seen == [True]


async def test_a_sentinel_is_due_until_it_is_written(tmp_path: Path, autojump_clock: MockClock) -> None:
    """From the run's beginning, and again from each follow-up; what is missing while it is not due was taken away."""
    rundir = RunDir(tmp_path)
    seen: list[bool] = []

    async def play(session: FakeSession, text: str) -> TurnStop:
        seen.append(rundir.is_sentinel_due())
        return await play_echo(session, text)

    rig = RunRig(tmp_path, FakeBackend(play), parks=True)
    async with trio.open_nursery() as nursery:
        await rig.start(nursery)
        assert not rundir.is_sentinel_due()
        rig.sentinel_path.unlink()
        rig.host.accept_prompt("again", "control")
        assert rundir.is_sentinel_due()
        await trio.testing.wait_all_tasks_blocked()
        assert rig.host.is_parked
        rig.sentinel_path.unlink()
        rig.host.end(CANCEL)
    assert seen == [True, True]
    assert not rundir.is_sentinel_due()
    assert rig.sentinel is None


@pytest.mark.parametrize("how", ["parked_timeout", "cancel", "signal", "kill"])
async def test_the_end_of_a_parked_run_leaves_its_sentinel_as_it_was(
    tmp_path: Path, autojump_clock: MockClock, how: str
) -> None:
    """Reaping, cancelling and shutting down tell the outcome of the last turn, and do not touch the file."""
    rig = RunRig(tmp_path, FakeBackend(), parks=True, parked_timeout=60 if how == "parked_timeout" else 0)
    async with trio.open_nursery() as nursery:
        await rig.start(nursery)
        before = rig.sentinel_path.stat()
        if how in ("cancel", "signal"):
            rig.host.end(CANCEL)
        elif how == "kill":
            rig.host.kill(CANCEL)
    assert rig.sentinel_path.stat().st_ino == before.st_ino
    assert rig.outcome is not None
    assert rig.outcome.status is Status.DONE
    assert rig.fold.state.outcome == "DONE"


@pytest.mark.parametrize(("how", "ordered"), [("end", True), ("kill", True), ("reap", False)])
async def test_what_ends_a_parked_run_is_an_order_but_for_a_reaping(tmp_path: Path, how: str, ordered: bool) -> None:
    """The outcome is that of its last turn in any case; whether those below it end too is in the log."""
    rig = RunRig(tmp_path, FakeBackend(), parks=True)
    async with trio.open_nursery() as nursery:
        await rig.start(nursery)
        assert rig.host.is_parked
        getattr(rig.host, how)(CANCEL)
    (told,) = rig.only(RunEnding)
    assert (told.status, told.ordered) == ("DONE", ordered)


async def test_a_parked_run_has_its_whole_timeout_again_for_a_follow_up(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """--timeout does not run while the run is parked."""

    async def play(session: FakeSession, text: str) -> TurnStop:
        await trio.sleep(8)
        return await play_echo(session, text)

    rig = RunRig(tmp_path, FakeBackend(play), parks=True, parked_timeout=100, timeout=10.0)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(rig.run)
        await trio.sleep(50)
        rig.host.accept_prompt("again", "control")
    assert rig.outcome is not None
    assert rig.outcome.status is Status.DONE
    assert rig.backend.last.prompts == ["hello", "again"]


async def test_an_agent_that_dies_while_parked_is_opened_again_by_the_next_prompt(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """Its session is told to have ended, and the follow-up resumes it."""
    rig = RunRig(tmp_path, FakeBackend(), parks=True, parked_timeout=60)
    async with trio.open_nursery() as nursery:
        await rig.start(nursery)
        rig.backend.last.exited.set()
        await trio.testing.wait_all_tasks_blocked()
        assert "parked" in rig.only(SessionEnd)[0].error
        rig.host.accept_prompt("again", "control")
    assert [params.resume for params in rig.backend.opened] == [None, "s1"]
    assert rig.backend.last.prompts == ["again"]


async def test_a_prompt_does_not_go_to_an_agent_that_has_died(tmp_path: Path, autojump_clock: MockClock) -> None:
    """Though how it has died is known later: what it has started may hold its pipes."""
    rig = RunRig(tmp_path, FakeBackend(), parks=True, parked_timeout=60)
    async with trio.open_nursery() as nursery:
        await rig.start(nursery)
        lost = rig.backend.last
        lost.is_lost = True
        rig.host.accept_prompt("again", "control")
        await trio.sleep(1)
        lost.exited.set()
    assert [(session.resumed, session.prompts) for session in rig.backend.sessions] == [
        (False, ["hello"]),
        (True, ["again"]),
    ]
    assert "before the next prompt: exit status 0" in rig.only(SessionEnd)[0].error


async def test_a_turn_that_is_not_clean_ends_a_run_that_would_park(tmp_path: Path, autojump_clock: MockClock) -> None:
    """Only clean turns park."""
    rig = RunRig(tmp_path, FakeBackend(stopping("refusal")), parks=True)
    outcome = await rig.run()
    assert outcome.exit_code == 2


async def test_a_failed_attempt_is_tried_again_in_its_own_session(tmp_path: Path, autojump_clock: MockClock) -> None:
    """A new process, the same session, the same prompt; the turn's end comes before the retry is told."""
    backend = FakeBackend(failing(TurnError(message="gone", failure_class="crash")))
    rig = RunRig(tmp_path, backend, max_retries=2)
    outcome = await rig.run()
    assert outcome.status is Status.DONE
    assert [params.resume for params in backend.opened] == [None, "s1"]
    assert backend.last.prompts == ["hello"]
    retry = rig.only(Retry)[0]
    assert (retry.attempt, retry.max_retries, retry.retry_class) == (2, 2, "crash")
    assert 2000 <= retry.delay_ms <= 30000
    names = [name for name in rig.names if name != "agent.status"]
    assert names.index("turn.end") < names.index("session.end") < names.index("avenor.retry")


async def test_a_session_that_cannot_be_resumed_for_a_retry_starts_fresh_and_says_so(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """Nothing had been answered in it, so nothing is lost; the log says it."""
    backend = FakeBackend(failing(TurnError(message="gone", failure_class="crash")))
    rig = RunRig(tmp_path, backend, max_retries=1)
    refuse = BackendRefused("cannot restore s1", reason="resume_failed")

    async def play(session: FakeSession, _text: str) -> TurnStop:
        backend.open_errors = [refuse]
        backend.play = play_echo
        return TurnStop(stop_reason="error", error=TurnError(message="gone"))

    backend.play = play
    outcome = await rig.run()
    assert outcome.status is Status.DONE
    assert [params.resume for params in backend.opened] == [None, "s1", None]
    assert "new session" in rig.only(Error)[0].message


async def test_a_session_that_the_user_named_is_never_replaced_by_a_fresh_one(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """--resume that fails ends the run."""
    backend = FakeBackend()
    backend.open_errors = [BackendRefused("no such session", reason="resume_failed")]
    rig = RunRig(tmp_path, backend, resume="old", max_retries=3)
    outcome = await rig.run()
    assert (outcome.exit_code, outcome.stop_reason) == (1, "resume_failed")
    assert [params.resume for params in backend.opened] == ["old"]


@pytest.mark.parametrize(
    "error",
    [SpawnError("not installed"), BackendRefused("unknown model", reason="unknown_model")],
)
async def test_permanent_causes_are_not_tried_again(
    tmp_path: Path, autojump_clock: MockClock, error: Exception
) -> None:
    """A missing program does not appear by waiting."""
    backend = FakeBackend()
    backend.open_errors = [error]
    rig = RunRig(tmp_path, backend, max_retries=5)
    await rig.run()
    assert len(backend.opened) == 1
    assert rig.only(Retry) == []


async def test_a_run_fails_when_its_retries_are_used_up(tmp_path: Path, autojump_clock: MockClock) -> None:
    """One attempt and two retries, then FAILED with the agent's word."""
    backend = FakeBackend(failing(*[TurnError(message="broken")] * 9))
    rig = RunRig(tmp_path, backend, max_retries=2)
    outcome = await rig.run()
    assert (outcome.status, outcome.exit_code, outcome.stop_reason) == (Status.FAILED, 1, "error")
    assert len(backend.sessions) == 3
    assert outcome.reason == "broken"


@pytest.mark.parametrize(("max_retries", "opened"), [(2, [None, "s1"]), (0, [None])])
async def test_a_run_that_was_lost_before_its_retry_was_told_is_tried_again(
    tmp_path: Path, autojump_clock: MockClock, max_retries: int, opened: list[str | None]
) -> None:
    """As if its process had lived; without retries the failure stands."""
    first = RunRig(tmp_path, FakeBackend(failing(TurnError(message="gone"))), max_retries=max_retries)
    await first.run()
    lines = first.log_path.read_bytes().splitlines()
    lost = lines[: first.names.index("turn.end") + 1]
    rig = RunRig(tmp_path, FakeBackend(), lost=lost, max_retries=max_retries)
    outcome = await rig.run()
    assert [params.resume for params in [*first.backend.opened[:1], *rig.backend.opened]] == opened
    assert [event.attempt for event in rig.only(Retry)] == [2] * bool(max_retries)
    assert [event.text for event in rig.only(TurnStart)] == ["hello"] * bool(max_retries)
    assert outcome.status is (Status.DONE if max_retries else Status.FAILED)
    assert rig.names[-1] == "run.end"


async def test_a_run_that_was_lost_knows_why_its_attempt_has_failed(tmp_path: Path, autojump_clock: MockClock) -> None:
    """What the service asked for is waited, and what cannot be mended is not tried again."""
    for error in (
        TurnError(message="busy", failure_class="rate_limit", retry_after_seconds=77.5),
        TurnError(message="no such key", permanent=True),
    ):
        first = RunRig(tmp_path, FakeBackend(failing(error)), max_retries=2)
        await first.run()
        lost = first.log_path.read_bytes().splitlines()[: first.names.index("turn.end") + 1]
        rig = RunRig(tmp_path, FakeBackend(), lost=lost, max_retries=2)
        outcome = await rig.run()
        told = [(retry.delay_ms, retry.retry_class) for retry in rig.only(Retry)]
        assert told == ([] if error.permanent else [(77500, "rate_limit")])
        assert outcome.reason == ("no such key" if error.permanent else None)


@pytest.mark.parametrize("interrupts", [False, True])
async def test_a_run_that_was_lost_while_it_waited_for_a_retry_waits_on(
    tmp_path: Path, autojump_clock: MockClock, interrupts: bool
) -> None:
    """For what is left of the time that was told, unless a prompt interrupts that."""
    error = TurnError(message="busy", failure_class="rate_limit", retry_after_seconds=1000.0)
    first = RunRig(tmp_path, FakeBackend(failing(error)), max_retries=1)
    await first.run()
    lost = first.log_path.read_bytes().splitlines()[: first.names.index("avenor.retry") + 1]
    rig = RunRig(tmp_path, FakeBackend(), lost=lost, max_retries=1)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(rig.run)
        await trio.sleep(900)
        assert rig.backend.sessions == []
        if interrupts:
            rig.host.interrupt_and_prompt("now", "control", keep_queue=False)
            await trio.testing.wait_all_tasks_blocked()
        assert bool(rig.backend.sessions) == interrupts
    assert [event.text for event in rig.only(TurnStart)] == ["now" if interrupts else "hello"]
    assert rig.only(Retry) == []


async def test_a_run_that_was_lost_when_its_retry_was_interrupted_says_what_interrupted(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """The prompt was accepted instead of the next attempt."""
    first = RunRig(tmp_path, FakeBackend(failing(TurnError(message="gone"))), max_retries=2)
    async with trio.open_nursery() as nursery:
        await first.start(nursery)
        first.host.interrupt_and_prompt("now", "control", keep_queue=False)
        lost = first.log_path.read_bytes().splitlines()
    rig = RunRig(tmp_path, FakeBackend(), lost=lost, max_retries=2)
    outcome = await rig.run()
    assert [event.text for event in rig.only(TurnStart)] == ["now"]
    assert outcome.status is Status.DONE


@pytest.mark.parametrize("base", ["file/x", f"{'x' * 247}.perm", "loop"])
async def test_a_permission_base_at_which_nobody_can_look_changes_nothing(
    tmp_path: Path, autojump_clock: MockClock, base: str
) -> None:
    """Below a regular file, too long a name, a link to itself: a run that asks nothing ends as it would."""
    (tmp_path / "file").touch()
    (tmp_path / "loop.lock").symlink_to("loop.lock")
    rig = RunRig(tmp_path, FakeBackend(), permission_handler=f"file:{tmp_path / base}")
    rig.sentinel_path.write_text("of an earlier run")
    async with trio.open_nursery() as nursery:
        rig.backend.may_close = trio.Event()
        await rig.start(nursery)
        assert not rig.sentinel_path.exists()
        rig.backend.may_close.set()
    assert rig.names[-1] == "run.end"
    assert rig.sentinel is not None
    assert rig.sentinel.status is Status.DONE


async def test_prompts_that_a_failed_run_will_not_send_are_told(tmp_path: Path, autojump_clock: MockClock) -> None:
    """Accepted prompts do not vanish in silence."""
    release = trio.Event()

    async def play(_session: FakeSession, _text: str) -> TurnStop:
        await release.wait()
        return TurnStop(stop_reason="error", error=TurnError(message="broken"))

    rig = RunRig(tmp_path, FakeBackend(play))
    async with trio.open_nursery() as nursery:
        await rig.start(nursery)
        rig.host.accept_prompt("more", "control")
        release.set()
    assert "1 accepted prompts" in rig.only(Error)[0].message


async def test_a_refusal_with_prompts_waiting_goes_on_with_them(tmp_path: Path, autojump_clock: MockClock) -> None:
    """The agent lives, so what was accepted is sent; the last turn gives the outcome."""
    release = trio.Event()

    async def play(session: FakeSession, text: str) -> TurnStop:
        if text == "hello":
            await release.wait()
            return TurnStop(stop_reason="refusal")
        return await play_echo(session, text)

    rig = RunRig(tmp_path, FakeBackend(play))
    async with trio.open_nursery() as nursery:
        await rig.start(nursery)
        rig.host.accept_prompt("more", "control")
        release.set()
    assert rig.outcome is not None
    assert rig.outcome.status is Status.DONE


async def test_the_final_output_is_the_text_since_the_last_tool_call(tmp_path: Path, autojump_clock: MockClock) -> None:
    """What was said before a tool call is not the answer."""

    async def play(session: FakeSession, _text: str) -> TurnStop:
        session.say("let me look")
        session.call_tool("look")
        session.say("it is ", "m2")
        session.say("green", "m2")
        return TurnStop(stop_reason="end_turn")

    rig = RunRig(tmp_path, FakeBackend(play))
    await rig.run()
    assert rig.only(TurnEnd)[0].final_output == "it is green"


async def test_status_markers_become_events_once_and_avenor_does_not_speak_over_them(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """The agent's own word stands until the next turn."""

    async def play(session: FakeSession, _text: str) -> TurnStop:
        session.say("[status: waiting | for CI]\n")
        session.say("more text\n")
        session.say("[status: waiting | for CI]\n")
        return TurnStop(stop_reason="end_turn")

    rig = RunRig(tmp_path, FakeBackend(play))
    await rig.run()
    statuses = [(event.phase, event.label, event.source) for event in rig.only(AgentStatus)]
    assert statuses[0][0] == "thinking"
    assert statuses[1:] == [("waiting", "for CI", "agent")]
    assert rig.fold.state.phase_label == "for CI"


async def test_what_could_not_be_ended_is_named(tmp_path: Path, autojump_clock: MockClock) -> None:
    """session.end, the snapshot and the host say what is left."""

    async def play(session: FakeSession, text: str) -> TurnStop:
        session.stopped = StopResult(left=[LeftProcess(pid=7, name="mount", reason="in uninterruptible sleep")])
        return await play_echo(session, text)

    rig = RunRig(tmp_path, FakeBackend(play))
    await rig.run()
    assert rig.host.left == ["mount (7): in uninterruptible sleep"]
    assert rig.fold.state.left_processes == rig.host.left


async def test_a_sentinel_that_cannot_be_written_is_told_in_the_log(tmp_path: Path, autojump_clock: MockClock) -> None:
    """Before run.end, which stays the last line."""
    rig = RunRig(tmp_path, FakeBackend(), sentinel="missing/done.env")
    await rig.run()
    assert rig.only(Error)[0].source == "sentinel"
    assert rig.names[-1] == "run.end"
