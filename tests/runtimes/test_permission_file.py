"""Permissions through files: the real handler on a real disk, in real time."""

import json
import os
import stat
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio
import trio.testing

from avenor.protocol.events import Event, PermissionRequest, PermissionResponse
from avenor.runtimes import permission_file
from avenor.runtimes.backends.base import PermissionAnswer, PermissionAsk
from avenor.runtimes.file_watch import DirectoryWatch
from avenor.runtimes.permission_file import FileHandler
from avenor.runtimes.permissions import Broker
from tests.helpers import eventually
from tests.runtimes.fake_backend import ALLOW, REJECT


class Office:
    """A broker with a file handler in a directory."""

    def __init__(self, directory: Path) -> None:
        self.request = directory / "done.perm.req"
        self.response = directory / "done.perm.req.response"
        self.reports: list[str] = []
        self.events: list[Event] = []
        self.answers: dict[str, PermissionAnswer] = {}
        self.files = FileHandler(str(directory / "done.perm"), self.reports.append)
        self.broker = Broker(token="t", auto_approve=False, claim_seconds=0, files=self.files, has_owner=lambda: False)

    async def ask(self, name: str) -> None:
        ask = PermissionAsk(tool=name, question="Run?", options=[ALLOW, REJECT], payload=msgspec.Raw(b'{"a":1}'))
        self.answers[name] = await self.broker.ask(ask, asker=self, session_id="s1", emit=self.events.append)

    def asked(self) -> dict[str, Any] | None:
        return json.loads(self.request.read_text()) if self.request.exists() else None

    async def wait_asked(self, tool: str) -> dict[str, Any]:
        def current() -> dict[str, Any] | None:
            found = self.asked()
            return found if found and found["tool"] == tool else None

        found = await eventually(current)
        assert found is not None
        return found

    def reply(self, **members: Any) -> None:
        temporary = self.response.with_suffix(".tmp")
        temporary.write_text(json.dumps(members))
        os.rename(temporary, self.response)


@pytest.fixture
def office(tmp_path: Path) -> Office:
    return Office(tmp_path)


async def test_a_request_is_written_and_its_answer_taken(office: Office) -> None:
    """Mode 0600, all members; both files are gone afterwards."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(office.ask, "shell")
        asked = await office.wait_asked("shell")
        assert stat.S_IMODE(office.request.stat().st_mode) == 0o600
        office.reply(outcome="selected", option_id="allow", message="fine", request_id=asked["request_id"])
    assert asked == {
        "request_id": "perm_1_t",
        "session_id": "s1",
        "tool": "shell",
        "question": "Run?",
        "options": [
            {"optionId": "allow", "kind": "allow_once", "name": "Allow"},
            {"optionId": "reject", "kind": "reject_once", "name": "Reject"},
        ],
        "payload": {"a": 1},
    }
    assert office.answers["shell"] == PermissionAnswer(option_id="allow", message="fine")
    assert os.listdir(office.request.parent) == []


async def test_a_cancelled_outcome_withdraws_the_tool_call(office: Office) -> None:
    """No option is chosen."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(office.ask, "shell")
        await office.wait_asked("shell")
        office.reply(outcome="cancelled")
    assert office.answers["shell"].option_id is None
    response = office.events[-1]
    assert isinstance(response, PermissionResponse)
    assert (response.kind, response.source) == ("cancelled", "file")


async def test_half_written_json_is_not_ready_yet(office: Office) -> None:
    """It is neither rejected nor taken, and counts when it is whole."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(office.ask, "shell")
        await office.wait_asked("shell")
        with office.response.open("w") as file:
            for piece in ('{"outcome": "sel', 'ected", "option_id"', ': "reject"'):
                file.write(piece)
                file.flush()
                await trio.testing.wait_all_tasks_blocked(0.02)
                assert office.answers == {}
            file.write("}")
    assert office.answers["shell"].option_id == "reject"
    assert office.reports == []


async def test_what_is_no_regular_file_is_no_answer(office: Office) -> None:
    """A named pipe there holds nothing up, and an answer may take its place."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(office.ask, "t")
        await office.wait_asked("t")
        os.mkfifo(office.response)
        await trio.testing.wait_all_tasks_blocked()
        office.reply(outcome="selected", option_id="allow")
    assert office.answers["t"].option_id == "allow"


@pytest.mark.parametrize(
    "wrong",
    [
        {"outcome": "selected", "option_id": "maybe"},
        {"outcome": "selected"},
        {"outcome": "perhaps", "option_id": "allow"},
        {"outcome": "selected", "option_id": "allow", "request_id": "perm_9_t"},
        {"option_id": "allow"},
    ],
)
async def test_a_wrong_answer_is_rejected_reported_and_waited_on_again(office: Office, wrong: dict[str, str]) -> None:
    """It is moved away, so that a right one can come."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(office.ask, "shell")
        await office.wait_asked("shell")
        office.reply(**wrong)
        await eventually(lambda: office.reports)
        assert not office.response.exists()
        assert office.response.with_suffix(".response.rejected").exists()
        assert office.answers == {}
        office.reply(outcome="selected", option_id="allow")
    assert office.answers["shell"].option_id == "allow"
    assert len(office.reports) == 1


async def test_one_request_at_a_time_is_on_disk(office: Office) -> None:
    """The others wait for their turn, in order."""
    async with trio.open_nursery() as nursery:
        for name in ("one", "two", "three"):
            nursery.start_soon(office.ask, name)
            await trio.testing.wait_all_tasks_blocked()
        for name in ("one", "two", "three"):
            asked = await office.wait_asked(name)
            office.reply(outcome="selected", option_id="allow", request_id=asked["request_id"])
    assert set(office.answers) == {"one", "two", "three"}


async def test_an_answer_elsewhere_takes_the_request_off_the_disk(office: Office) -> None:
    """And the next one gets its place."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(office.ask, "one")
        await office.wait_asked("one")
        nursery.start_soon(office.ask, "two")
        await trio.testing.wait_all_tasks_blocked()
        office.broker.answer("perm_1_t", "reject", None)
        await office.wait_asked("two")
        office.broker.answer("perm_2_t", "reject", None)
    assert not office.request.exists()


async def test_a_waiting_request_that_is_answered_elsewhere_never_comes_to_disk(office: Office) -> None:
    """Its place in the queue is given up."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(office.ask, "one")
        await office.wait_asked("one")
        for name in ("two", "three"):
            nursery.start_soon(office.ask, name)
            await trio.testing.wait_all_tasks_blocked()
        office.broker.answer("perm_2_t", "allow", None)
        office.broker.answer("perm_1_t", "allow", None)
        await office.wait_asked("three")
        office.broker.answer("perm_3_t", "allow", None)


async def test_a_late_answer_is_set_aside(office: Office) -> None:
    """It does not answer the next request."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(office.files.watch_late)
        async with trio.open_nursery() as asking:
            asking.start_soon(office.ask, "one")
            await office.wait_asked("one")
            office.broker.answer("perm_1_t", "reject", None)
        office.reply(outcome="selected", option_id="allow")
        late = office.response.with_suffix(".response.late")
        await eventually(late.exists)
        nursery.cancel_scope.cancel()
    assert json.loads(late.read_text())["option_id"] == "allow"


async def test_an_answer_that_is_there_before_the_question_is_set_aside(office: Office) -> None:
    """An old answer is never taken for a new one."""
    office.reply(outcome="selected", option_id="allow")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(office.ask, "one")
        await office.wait_asked("one")
        assert not office.response.exists()
        office.broker.answer("perm_1_t", "reject", None)


async def test_an_expired_request_moves_on_but_its_answer_still_counts(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After its time the resolver is none; the file stays as long as nobody wants the place."""
    monkeypatch.setattr(permission_file, "FILE_SECONDS", 0.02)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(office.ask, "one")
        await eventually(lambda: _resolvers(office) == ["file", "none"])
        assert office.asked() is not None
        office.reply(outcome="selected", option_id="allow")
    assert office.answers["one"].option_id == "allow"


async def test_an_expired_request_gives_its_place_to_the_next(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    """It stays pending, and can be answered over the control socket."""
    monkeypatch.setattr(permission_file, "FILE_SECONDS", 0.02)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(office.ask, "one")
        await eventually(lambda: _resolvers(office) == ["file", "none"])
        nursery.start_soon(office.ask, "two")
        await office.wait_asked("two")
        assert office.answers == {}
        office.broker.answer("perm_1_t", "allow", None)
        office.broker.answer("perm_2_t", "allow", None)
    assert len(office.answers) == 2


async def test_a_directory_that_is_not_there_is_reported_and_the_request_stays(tmp_path: Path) -> None:
    """The control socket can still answer."""
    office = Office(tmp_path / "missing")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(office.ask, "one")
        await eventually(lambda: office.reports)
        await eventually(lambda: _resolvers(office) == ["file", "none"])
        office.broker.answer("perm_1_t", "allow", None)
    assert "cannot ask" in office.reports[0]


async def test_a_place_that_cannot_be_tidied_up_is_given_up_all_the_same(office: Office) -> None:
    """What somebody has put where the lock was stays, and the run goes on."""
    lock = office.request.with_suffix(".lock")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(office.ask, "one")
        await office.wait_asked("one")
        lock.unlink()
        lock.mkdir()
        office.reply(outcome="selected", option_id="allow")
    assert office.answers["one"].option_id == "allow"
    lock.rmdir()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(office.ask, "two")
        await office.wait_asked("two")
        office.reply(outcome="selected", option_id="reject")
    assert office.answers["two"].option_id == "reject"


async def test_changes_are_told_at_once(tmp_path: Path) -> None:
    """The watch wakes for a renamed, a written and a linked file."""
    with DirectoryWatch(str(tmp_path)) as watch:
        if not watch.is_notified:
            pytest.skip("no inotify here: the handler looks now and then")
        (tmp_path / "a").write_text("x")
        for change in (
            lambda: (tmp_path / "a").rename(tmp_path / "b"),
            lambda: os.link(tmp_path / "b", tmp_path / "c"),
        ):
            with trio.fail_after(60):
                await watch.wait_change()
            change()
        with trio.fail_after(60):
            await watch.wait_change()


async def test_without_notices_the_handler_looks_by_itself(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the system cannot tell, answers are found all the same."""

    def no_inotify(_directory: str) -> int:
        return -1

    monkeypatch.setattr("avenor.runtimes.file_watch._open_inotify", no_inotify)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(office.ask, "one")
        await office.wait_asked("one")
        office.reply(outcome="selected", option_id="allow")
    assert office.answers["one"].option_id == "allow"


def _resolvers(office: Office) -> list[str]:
    return [event.resolver for event in office.events if isinstance(event, PermissionRequest)]
