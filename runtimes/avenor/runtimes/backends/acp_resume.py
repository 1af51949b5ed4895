"""Restoring an earlier session of an ACP agent, and making sure that it was restored.

An agent that does not know a session says so, as a rule. Some open a new one instead, under the same id or another, and
some destroy the session if they are asked too early. None of these may pass for a resumed session.
"""

import time
from pathlib import Path
from typing import Final

import trio

from avenor.protocol.errors import METHOD_NOT_FOUND
from avenor.runtimes.backends.acp_errors import classify
from avenor.runtimes.backends.acp_session import AcpSession
from avenor.runtimes.backends.acp_types import AgentCapabilities, SessionList, SessionResult
from avenor.runtimes.backends.acp_wire import CallFailed
from avenor.runtimes.backends.base import BackendRefused, OpenParams
from avenor.runtimes.backends.profiles import Profile

LIST_PAGES = 20  # Of session/list, when an agent's answer to session/load leaves doubt.

_MINUTE: Final = 60.0
_MARGIN_SECONDS: Final = 0.2  # Past the turn of the minute, for a clock that is read twice.


class Restoring:
    """One resumption.

    Args:
        profile: Whose session it is.
        session: The connection to a fresh process of the agent.
        params: What to open; `resume` is set.
        where: The params that a new session would be opened with.
    """

    def __init__(self, profile: Profile, session: AcpSession, params: OpenParams, where: dict[str, object]) -> None:
        self._profile = profile
        self._session = session
        self._cwd = params.cwd
        self._where = where
        self._id = params.resume or ""

    async def run(self, can: AgentCapabilities) -> None:
        """Restores the session.

        Raises:
            BackendRefused: It was not restored, or that cannot be told.
        """
        self._session.session_id = self._id
        try:
            result = await self._resume_or_load(can)
        except CallFailed as failure:
            reason = classify(failure.error).message
            raise self._failed(f"the agent refused {failure.method}: {reason}") from failure
        if result.session_id not in (None, self._id):
            raise self._failed(f"the agent opened another session, {result.session_id}")
        self._session.offers.take_session(result)
        self._session.resumed = True

    async def _resume_or_load(self, can: AgentCapabilities) -> SessionResult:
        params = {"sessionId": self._id, **self._where}
        prefers_load = self._profile.resume_by == "load" and can.load_session
        if can.can("resume") and not prefers_load:
            try:
                return await self._session.call("session/resume", params, SessionResult)
            except CallFailed as failure:
                # Some agents declare it and do not have it (qwen 0.15).
                if failure.error.code != METHOD_NOT_FOUND or not can.load_session:
                    raise
        elif not can.load_session:
            raise self._failed("this agent cannot resume sessions")
        self._session.start_replay()
        result = await self._session.call("session/load", params, SessionResult)
        if await self._session.wait_replayed() == 0 and can.can("list") and not await self._is_listed():
            # Some agents answer an unknown id with a new session, or with nothing at all (qwen 0.15, hermes).
            raise self._failed("the agent does not know it and would start afresh")
        return result

    async def _is_listed(self) -> bool:
        params: dict[str, str] = {"cwd": self._cwd}
        for _page in range(LIST_PAGES):
            listed = await self._session.call("session/list", params, SessionList)
            if any(info.session_id == self._id for info in listed.sessions):
                return True
            if listed.next_cursor is None:
                return False
            params["cursor"] = listed.next_cursor
        return True  # too many to look through: the benefit of the doubt

    def _failed(self, why: str) -> BackendRefused:
        return BackendRefused(
            f"session {self._id} cannot be resumed: {why}", reason="resume_failed", data={"session_id": self._id}
        )


async def wait_loadable(profile: Profile, params: OpenParams) -> None:
    """Waits while loading the session would destroy it: at most until the minute is over in which it was made.

    The time for the handshake begins afterwards: it is the agent's, which has not been started.
    """
    seconds = seconds_to_wait(profile.resume_not_while, params, time.time())
    params.handshake.deadline += seconds
    await trio.sleep(seconds)


def seconds_to_wait(pattern: str, params: OpenParams, now: float) -> float:
    """How long the session must not be loaded yet, in seconds; 0 if it may be.

    Args:
        pattern: `Profile.resume_not_while`.
        params: What to open; the home is looked for in its environment.
        now: The wall clock, in seconds since 1970.
    """
    if not pattern or params.resume is None:
        return 0.0
    names = {"{minute}": time.strftime("%Y-%m-%dT%H-%M", time.gmtime(now)), "{session8}": params.resume[:8]}
    for place, value in names.items():
        pattern = pattern.replace(place, value)
    is_there = any(True for _ in Path(params.env.get("HOME", "/")).glob(pattern))
    return _MINUTE - now % _MINUTE + _MARGIN_SECONDS if is_there else 0.0
