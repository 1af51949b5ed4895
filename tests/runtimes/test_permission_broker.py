"""The permission broker: who is asked when, and that the first valid answer wins. In virtual time, without files."""

from pathlib import Path

import msgspec
import pytest
import trio
import trio.testing
from trio.testing import MockClock

from avenor.protocol.errors import InvalidParams, NoPendingPermission
from avenor.protocol.events import AgentStatus, Error, Event, PermissionOption, PermissionRequest, PermissionResponse
from avenor.runtimes.backends.base import PermissionAnswer, PermissionAsk, TurnStop
from avenor.runtimes.endings import Cause
from avenor.runtimes.ownership import Client
from avenor.runtimes.permission_file import FileHandler, Presentation
from avenor.runtimes.permissions import Broker
from tests.runtimes.fake_backend import ALLOW, REJECT, FakeBackend, FakeSession, play_echo
from tests.runtimes.run_rig import RunRig, inline_threads

__all__ = ["inline_threads"]

OWNER = Client(connection="c1", name="c1")


class SilentFiles(FileHandler):
    """A file handler whose people answer when the test says so; nothing is on disk."""

    def __init__(self) -> None:
        super().__init__("/nowhere", lambda _text: None)
        self.presented: list[Presentation] = []

    async def present(self, presentation: Presentation) -> None:
        self.presented.append(presentation)
        await trio.sleep_forever()


class Desk:
    """A broker, what it tells, and the answers that come."""

    def __init__(self, *, auto_approve: bool = False, files: FileHandler | None = None) -> None:
        self.has_owner = False
        self.events: list[Event] = []
        self.answers: list[PermissionAnswer] = []
        self.broker = Broker(
            token="t", auto_approve=auto_approve, claim_seconds=30.0, files=files, has_owner=lambda: self.has_owner
        )

    async def ask(
        self, *, trusted: tuple[str, ...] = (), options: tuple[PermissionOption, ...] = (ALLOW, REJECT)
    ) -> None:
        ask = PermissionAsk(
            tool="shell", question="Run?", options=options, payload=msgspec.Raw(b"{}"), trusted_options=trusted
        )
        self.answers.append(await self.broker.ask(ask, asker=self, session_id="s1", emit=self.events.append))

    @property
    def resolvers(self) -> list[str]:
        return [event.resolver for event in self.events if isinstance(event, PermissionRequest)]

    @property
    def responses(self) -> list[tuple[str, str, str]]:
        return [(e.option_id, e.kind, e.source) for e in self.events if isinstance(e, PermissionResponse)]


async def blocked() -> None:
    await trio.testing.wait_all_tasks_blocked()


async def test_auto_approve_takes_the_first_trusted_option_that_allows_once() -> None:
    """Answered at once, by avenor."""
    desk = Desk(auto_approve=True)
    await desk.ask(trusted=("allow",))
    assert desk.answers[0].option_id == "allow"
    assert (desk.resolvers, desk.responses) == (["automatic"], [("allow", "allow", "avenor")])


@pytest.mark.parametrize("kind", ["allow_always", "reject_once", "something_new"])
async def test_auto_approve_never_takes_another_kind(autojump_clock: MockClock, kind: str) -> None:
    """With nothing to take, somebody is asked, and a warning says so."""
    desk = Desk(auto_approve=True)
    async with trio.open_nursery() as nursery:
        option = PermissionOption(option_id="x", kind=kind)
        nursery.start_soon(lambda: desk.ask(trusted=("x",), options=(option,)))
        await blocked()
        assert desk.answers == []
        assert any(isinstance(event, Error) for event in desk.events)
        desk.broker.answer("perm_1_t", "x", None)
    assert desk.answers[0].option_id == "x"


async def test_the_owner_is_asked_alone_for_the_claim_time_then_the_files_too(autojump_clock: MockClock) -> None:
    """And the owner's answer still counts after that."""
    files = SilentFiles()
    desk = Desk(files=files)
    desk.has_owner = True
    async with trio.open_nursery() as nursery:
        nursery.start_soon(desk.ask)
        await trio.sleep(29)
        assert (desk.resolvers, files.presented) == (["control"], [])
        await trio.sleep(2)
        assert (desk.resolvers, len(files.presented)) == (["control", "file"], 1)
        desk.broker.answer("perm_1_t", "reject", "no")
    assert desk.responses == [("reject", "reject", "control")]
    assert desk.answers[0] == PermissionAnswer(option_id="reject", message="no")


async def test_an_owner_who_leaves_does_not_hold_the_files_back(autojump_clock: MockClock) -> None:
    """The file handler is tried at once when nobody is left to claim."""
    files = SilentFiles()
    desk = Desk(files=files)
    desk.has_owner = True
    started = trio.current_time()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(desk.ask)
        await blocked()
        desk.has_owner = False
        desk.broker.owner_changed()
        await blocked()
        assert len(files.presented) == 1
        assert trio.current_time() - started < 1
        files.presented[0].answer("allow", None)
    assert desk.responses == [("allow", "allow", "file")]


async def test_without_owner_and_files_a_request_waits_for_whoever_answers(autojump_clock: MockClock) -> None:
    """Nothing is ever answered because time passed."""
    desk = Desk()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(desk.ask)
        await trio.sleep(80_000)
        assert (desk.resolvers, desk.answers) == (["none"], [])
        desk.broker.answer("perm_1_t", "allow", None)
    assert desk.answers[0].option_id == "allow"


async def test_the_first_answer_wins_and_later_ones_find_nothing_pending(autojump_clock: MockClock) -> None:
    """Control after file, and file after control."""
    files = SilentFiles()
    desk = Desk(files=files)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(desk.ask)
        await blocked()
        files.presented[0].answer("allow", None)
        with pytest.raises(NoPendingPermission):
            desk.broker.answer("perm_1_t", "reject", None)
        files.presented[0].answer("reject", None)
    assert desk.responses == [("allow", "allow", "file")]


async def test_an_option_that_was_not_offered_is_refused_and_the_request_stays(autojump_clock: MockClock) -> None:
    """The refusal lists what there is."""
    desk = Desk()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(desk.ask)
        await blocked()
        with pytest.raises(InvalidParams) as refused:
            desk.broker.answer("perm_1_t", "maybe", None)
        assert refused.value.data["options"] == ["allow", "reject"]
        assert desk.broker.is_waiting(desk)
        desk.broker.answer("perm_1_t", "allow", None)


async def test_several_requests_are_answered_each_by_its_own_id(autojump_clock: MockClock) -> None:
    """Out of order, and never one for the other."""
    desk = Desk()
    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(desk.ask)
        await blocked()
        asked = [event.request_id for event in desk.events if isinstance(event, PermissionRequest)]
        assert sorted(asked) == ["perm_1_t", "perm_2_t", "perm_3_t"]
        desk.broker.answer("perm_2_t", "reject", None)
        desk.broker.answer("perm_3_t", "allow", None)
        await blocked()
        assert [answer.option_id for answer in desk.answers].count("reject") == 1
        desk.broker.answer("perm_1_t", "allow", None)
    assert len(desk.answers) == 3


async def test_a_withdrawn_question_is_settled_as_cancelled() -> None:
    """The agent's own cancel takes the request away from everybody."""
    desk = Desk()
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(desk.ask)
            await blocked()
            scope.cancel()
    assert desk.responses == [("", "cancelled", "cancel")]
    assert not desk.broker.is_waiting(desk)


async def test_a_run_that_ends_settles_every_request_as_cancelled(
    tmp_path: Path, autojump_clock: MockClock, inline_threads: None
) -> None:
    """The agent hears of the cancel before its question is answered, and no answer counts any more."""
    heard: list[str] = []

    async def play(session: FakeSession, _text: str) -> TurnStop:
        async def ask() -> None:
            answer = await session.ask()
            heard.append(f"cancelled={session.cancelled.is_set()} {answer.option_id}")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            nursery.start_soon(ask)
            await session.cancelled.wait()
        return TurnStop(stop_reason="cancelled")

    rig = RunRig(tmp_path, FakeBackend(play))
    async with trio.open_nursery() as nursery:
        await rig.start(nursery)
        rig.host.end(Cause(stop_reason="cancelled", reason="test"))
        with pytest.raises(NoPendingPermission):
            rig.host.broker.answer(rig.host.fold.state.permissions[0].request_id, "allow", None)
    assert heard == ["cancelled=True None"] * 2
    assert [event.source for event in rig.only(PermissionResponse)] == ["cancel", "cancel"]
    assert rig.fold.state.permissions == []


async def test_an_interrupt_settles_the_open_request_as_cancelled(
    tmp_path: Path, autojump_clock: MockClock, inline_threads: None
) -> None:
    """And the next prompt may ask again."""

    async def play(session: FakeSession, text: str) -> TurnStop:
        await session.ask()
        return await play_echo(session, text)

    rig = RunRig(tmp_path, FakeBackend(play))
    async with trio.open_nursery() as nursery:
        await rig.start(nursery)
        rig.host.interrupt_and_prompt("now", "control", keep_queue=False)
        await trio.sleep(1)
        rig.host.broker.answer(rig.host.fold.state.permissions[0].request_id, "allow", None)
    assert [event.kind for event in rig.only(PermissionResponse)] == ["cancelled", "allow"]


async def test_the_status_is_waiting_while_somebody_is_asked(
    tmp_path: Path, autojump_clock: MockClock, inline_threads: None
) -> None:
    """waiting from the request to the answer, then working, then done."""

    async def play(session: FakeSession, text: str) -> TurnStop:
        await session.ask()
        return await play_echo(session, text)

    rig = RunRig(tmp_path, FakeBackend(play))
    async with trio.open_nursery() as nursery:
        await rig.start(nursery)
        assert (rig.fold.state.phase, rig.fold.state.turn_state) == ("waiting", "permission")
        rig.host.broker.answer(rig.host.fold.state.permissions[0].request_id, "allow", None)
    assert [event.phase for event in rig.only(AgentStatus)] == ["thinking", "waiting", "working", "done"]


async def test_the_owner_of_the_run_is_who_is_asked_first(
    tmp_path: Path, autojump_clock: MockClock, inline_threads: None
) -> None:
    """Ownership and broker are one decision: after the owner's loss the request moves on."""

    async def play(session: FakeSession, text: str) -> TurnStop:
        await session.ask()
        return await play_echo(session, text)

    rig = RunRig(tmp_path, FakeBackend(play), permission_claim_timeout=30.0)
    rig.host.take_ownership(OWNER, force=False)
    async with trio.open_nursery() as nursery:
        await rig.start(nursery)
        assert [event.resolver for event in rig.only(PermissionRequest)] == ["control"]
        rig.host.connection_lost("c1")
        await blocked()
        assert [event.resolver for event in rig.only(PermissionRequest)] == ["control", "none"]
        assert rig.fold.state.owner is None
        rig.host.broker.answer(rig.host.fold.state.permissions[0].request_id, "allow", None)
