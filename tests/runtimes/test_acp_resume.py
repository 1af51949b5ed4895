"""Resuming without doing harm, and without mistaking a new session for the old one."""

import time
from contextlib import nullcontext
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest
import trio
from trio.testing import MockClock

from avenor.protocol.errors import HandshakeTimeout
from avenor.runtimes.backends.acp import AcpBackend
from avenor.runtimes.backends.acp_resume import seconds_to_wait, wait_loadable
from avenor.runtimes.backends.base import OpenParams, SessionSink, open_within
from avenor.runtimes.backends.profiles import builtin
from tests.runtimes.agent_kit import RecordingSink, make_params, opened, python_agent
from tests.runtimes.fake_backend import FakeBackend, FakeSession
from tests.runtimes.mini_agent import PRELUDE

_PATTERN = builtin("gemini-acp").resume_not_while
_NOW = datetime(2026, 11, 30, 0, 22, 48, tzinfo=UTC).timestamp()


def _write_chat(home: Path, minute: str, session: str) -> None:
    folder = home / ".gemini" / "tmp" / "some-project" / "chats"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"session-{minute}-{session[:8]}.jsonl").touch()


def test_a_session_that_was_made_in_this_minute_has_to_wait_for_the_next(tmp_path: Path) -> None:
    """Gemini would write over it; the wait is what is left of the minute."""
    params = make_params(tmp_path, resume="8f296c9b-4569-4ba3-8c38-6a42068af893")
    assert seconds_to_wait(_PATTERN, params, _NOW) == 0
    _write_chat(tmp_path, "2026-11-30T00-22", "8f296c9b-4569")
    assert seconds_to_wait(_PATTERN, params, _NOW) == pytest.approx(12.2)
    assert seconds_to_wait(_PATTERN, params, _NOW + 12.2) == 0


def test_other_sessions_and_other_agents_do_not_wait(tmp_path: Path) -> None:
    """Only the file of the same session, in the same minute, of an agent that does this."""
    params = make_params(tmp_path, resume="8f296c9b-4569-4ba3-8c38-6a42068af893")
    _write_chat(tmp_path, "2026-11-30T00-22", "00000000-4569")
    _write_chat(tmp_path, "2026-11-30T00-21", "8f296c9b-4569")
    assert seconds_to_wait(_PATTERN, params, _NOW) == 0
    _write_chat(tmp_path, "2026-11-30T00-22", "8f296c9b-4569")
    assert seconds_to_wait("", params, _NOW) == 0
    assert seconds_to_wait(_PATTERN, msgspec.structs.replace(params, resume=None), _NOW) == 0


async def test_the_program_is_started_when_the_session_may_be_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The wait comes first of all: a program that has started may have done the harm already."""
    session, started = "8f296c9b-4569", tmp_path / "started"
    now = _NOW + 11.9  # so that a tenth of a second is left, and the margin
    monkeypatch.setattr("avenor.runtimes.backends.acp_resume.time.time", lambda: now)
    _write_chat(tmp_path, "2026-11-30T00-22", session)
    body = f"""
open({str(started)!r}, "w").write(repr(time.monotonic()))
hello(loadSession=True)
m = expect("session/load")
heard("old")
reply(m, {{}})
turns()
"""
    backend = AcpBackend(msgspec.structs.replace(builtin("acp"), resume_not_while=_PATTERN), "0")
    params = make_params(tmp_path, command=python_agent(tmp_path, PRELUDE + body), resume=session)
    begun = time.monotonic()
    async with opened(backend, params, RecordingSink()) as resumed:
        assert resumed.resumed
    assert float(started.read_text()) >= begun + 0.3


class _WaitingBackend(FakeBackend):
    """Opens its sessions once they may be loaded."""

    async def open(self, params: OpenParams, sink: SessionSink, nursery: trio.Nursery) -> FakeSession:
        await wait_loadable(builtin("gemini-acp"), params)
        return await super().open(params, sink, nursery)


@pytest.mark.parametrize(("open_seconds", "is_late"), [(4.0, False), (6.0, True)])
async def test_the_wait_takes_nothing_of_the_agents_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock, open_seconds: float, is_late: bool
) -> None:
    """12 seconds are waited; after them the handshake has its 5, and no more."""
    monkeypatch.setattr("avenor.runtimes.backends.acp_resume.time.time", lambda: _NOW)
    _write_chat(tmp_path, "2026-11-30T00-22", "8f296c9b-4569")
    params = make_params(tmp_path, resume="8f296c9b-4569")
    backend = _WaitingBackend()
    backend.open_seconds = open_seconds
    async with trio.open_nursery() as nursery:
        with pytest.raises(HandshakeTimeout) if is_late else nullcontext():
            await open_within(5.0, backend, params, RecordingSink(), nursery)
    assert len(backend.sessions) == (0 if is_late else 1)
    assert trio.current_time() == pytest.approx(12.2 + min(open_seconds, 5.0))


@pytest.mark.parametrize(("by", "method"), [("load", "session/load"), ("resume", "session/resume")])
async def test_the_profile_says_which_call_restores(by: str, method: str, tmp_path: Path) -> None:
    """Of agents that have both; one that nothing is known of is made to show the past (hermes would make a new one)."""
    body = f"""
hello(loadSession=True, sessionCapabilities={{"resume": {{}}}})
m = expect({method!r})
heard("old")
reply(m, {{}})
turns()
"""
    backend = AcpBackend(msgspec.structs.replace(builtin("acp"), resume_by=by), "0")
    params = make_params(tmp_path, command=python_agent(tmp_path, PRELUDE + body), resume="s1")
    async with opened(backend, params, RecordingSink()) as session:
        assert session.resumed
    assert builtin("acp").resume_by == "load"
