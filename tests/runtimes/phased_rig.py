"""Loops and teams in virtual time: configs in short, plays by prompt, and a repository as the test wants it."""

from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Self

import pytest
import trio

from avenor.protocol.configs import ResolvedConfig, ResolvedLoop, ResolvedPhase, ResolvedTeam
from avenor.protocol.events import AnyEvent, LoopEnd, PhaseEnd, PhaseKind, PhaseStart, TeamEnd
from avenor.runtimes import phased
from avenor.runtimes.backends.base import TurnError, TurnStop
from avenor.runtimes.gitdelta import GitDelta, GitMark
from tests.runtimes.fake_backend import FakeBackend, FakeSession, Play
from tests.runtimes.run_rig import RunRig

Act = Callable[[FakeSession], Awaitable[TurnStop]]


class FakeGit:
    """A repository in which every mark is a commit of its own, `c1`, `c2` …

    Attributes:
        since_marks: What each delta was asked from, in order.
        may_mark: Every mark waits for this; set unless a test replaces it.
    """

    def __init__(self) -> None:
        self.count = 0
        self.since_marks: list[str | None] = []
        self.may_mark = trio.Event()
        self.may_mark.set()

    def __call__(self, _directory: str, _environ: Mapping[str, str], *, scratch: str) -> Self:
        assert scratch
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_args: object) -> None:
        pass

    async def mark(self) -> GitMark | None:
        await self.may_mark.wait()
        self.count += 1
        return GitMark(commit=f"c{self.count}", tree=f"t{self.count}")

    async def since(self, mark: GitMark | None) -> GitDelta:
        self.since_marks.append(None if mark is None else mark.commit)
        if mark is None:
            return GitDelta()
        return GitDelta(prev_commit=mark.commit, diff_stat=f"stat {mark.commit}", changed_files=f"files {mark.commit}")


@pytest.fixture
def git(monkeypatch: pytest.MonkeyPatch) -> FakeGit:
    """The repository of every run of the test."""
    fake = FakeGit()
    monkeypatch.setattr(phased, "GitDeltas", fake)
    return fake


def phases(kind: PhaseKind, *named: str | ResolvedPhase, **changes: Any) -> list[ResolvedPhase]:
    """Phases whose prompt is `do NAME`, or as they are given."""
    return [
        each if isinstance(each, ResolvedPhase) else ResolvedPhase(name=each, kind=kind, prompt=f"do {each}", **changes)
        for each in named
    ]


def phase(name: str, kind: PhaseKind = "loop", **changes: Any) -> ResolvedPhase:
    """One phase."""
    if "nested" not in changes:
        changes.setdefault("prompt", f"do {name}")
    return ResolvedPhase(name=name, kind=kind, **changes)


def loop(
    *middle: str | ResolvedPhase,
    pre: tuple[str | ResolvedPhase, ...] = (),
    post: tuple[str | ResolvedPhase, ...] = (),
    max_iterations: int = 10,
) -> ResolvedLoop:
    """A loop."""
    return ResolvedLoop(
        file="loop.json",
        pre=phases("pre", *pre),
        loop=phases("loop", *middle),
        post=phases("post", *post),
        max_iterations=max_iterations,
    )


def team(
    *members: str | ResolvedPhase,
    pre: tuple[str | ResolvedPhase, ...] = (),
    post: tuple[str | ResolvedPhase, ...] = (),
) -> ResolvedTeam:
    """A team."""
    return ResolvedTeam(
        file="team.json", pre=phases("pre", *pre), team=phases("team", *members), post=phases("post", *post)
    )


def says(*texts: str, stop_reason: str = "end_turn") -> Act:
    """Says this and ends the turn."""

    async def act(session: FakeSession) -> TurnStop:
        for number, text in enumerate(texts):
            session.say(text, message_id=f"m{number}")
        return TurnStop(stop_reason=stop_reason)

    return act


def crashes(message: str = "boom", *, text: str = "", permanent: bool = False, retry_after: float | None = None) -> Act:
    """Fails, after it has said this."""

    async def act(session: FakeSession) -> TurnStop:
        if text:
            session.say(text)
        return TurnStop(
            stop_reason="error",
            error=TurnError(
                message=message, failure_class="crash", permanent=permanent, retry_after_seconds=retry_after
            ),
        )

    return act


async def hangs(session: FakeSession) -> TurnStop:
    """Works until it is cancelled."""
    session.say("working")
    await session.cancelled.wait()
    return TurnStop(stop_reason="cancelled")


async def ignores_cancel(session: FakeSession) -> TurnStop:
    """Works on, whatever it is told."""
    session.say("working")
    await trio.sleep_forever()
    raise AssertionError("unreachable")


async def dies_when_cancelled(session: FakeSession) -> TurnStop:
    """Works until it is cancelled, which ends its process."""
    await hangs(session)
    session.exited.set()
    return TurnStop(stop_reason="agent_exited", error=TurnError(message="the agent exited", failure_class="crash"))


def later(then: Act, seconds: float = 1.0) -> Act:
    """Does something when the others have done what takes no time."""

    async def act(session: FakeSession) -> TurnStop:
        await trio.sleep(seconds)
        return await then(session)

    return act


def waits(event: trio.Event, then: Act) -> Act:
    """Does something once the test says so."""

    async def act(session: FakeSession) -> TurnStop:
        await event.wait()
        return await then(session)

    return act


class Acts:
    """Plays by prompt: what a phase does, turn after turn; the last again and again. Unknown prompts just say `ok`."""

    def __init__(self, **acts: Act | list[Act]) -> None:
        self._acts: dict[str, list[Act]] = {}
        for name, act in acts.items():
            self._acts[f"do {name}"] = act if isinstance(act, list) else [act]
        self.prompts: list[str] = []

    @property
    def play(self) -> Play:
        """For `FakeBackend`."""
        return self._play

    async def _play(self, session: FakeSession, text: str) -> TurnStop:
        self.prompts.append(text)
        acts = self._acts.get(text.split("\n")[0], [says("ok")])
        act = acts.pop(0) if len(acts) > 1 else acts[0]
        return await act(session)


def rig_for(tmp_path: Path, config: ResolvedConfig, acts: Acts | None = None, **spec: Any) -> RunRig:
    """A run of the config."""
    return RunRig(tmp_path, FakeBackend((acts or Acts()).play), config=config, **spec)


def phase_line(event: AnyEvent) -> str | None:
    """A phase's start or end in a few words, None for any other event."""
    where = "" if not isinstance(event.path, str) else f"{event.path}/"
    turn = f"#{event.iteration}" if event.iteration else ""
    if isinstance(event, PhaseStart):
        return f"+{where}{event.phase}{turn}"
    if isinstance(event, PhaseEnd):
        return f"-{where}{event.phase}{turn} {event.stop_reason} {event.exit_code}"
    return None


def course(rig: RunRig) -> list[str]:
    """The starts and ends of all phases, in order."""
    return [line for event in rig.events if (line := phase_line(event)) is not None]


def end_of(rig: RunRig) -> Any:
    """The end event of the outermost loop or team."""
    return [event for event in rig.events if isinstance(event, LoopEnd | TeamEnd)][-1]
