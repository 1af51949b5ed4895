"""What every backend must do, whatever its agent. A `Kit` says how to make one kind of agent do it.

`CHECKS` are async functions that take a kit and a folder; a test file runs them all for its kit.
"""

import os
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Protocol

import pytest
import trio

from avenor.host import tree
from avenor.host.identity import is_alive
from avenor.protocol import events
from avenor.protocol.errors import LocalProtocolError
from avenor.runtimes.backends.base import Backend, BackendRefused, OpenParams, TurnStop, open_within
from tests.helpers import eventually
from tests.runtimes.agent_kit import GRACES, OPEN_SECONDS, TURN_SECONDS, RecordingSink, never, opened, picks

WORD = "PELICAN"


class Kit(Protocol):
    """One kind of agent, and the prompts that make it do things."""

    @property
    def backend(self) -> Backend:
        """The backend under test."""
        ...

    def params(
        self,
        folder: Path,
        *,
        resume: str | None = None,
        agent: str | None = None,
        model: str | None = None,
        thinking: str | None = None,
    ) -> OpenParams:
        """What to open a session with; the same folder means the same agent's home."""
        ...

    @property
    def choice(self) -> dict[str, str]:
        """A model, agent and thinking level, as far as it offers them, that are not its defaults."""
        ...

    def say(self, text: str) -> str:
        """Makes it say this text, and no more."""
        ...

    def touch(self, path: Path) -> str:
        """Makes it ask, then make this file by a tool; if it may, it then says `touched`."""
        ...

    def talk_on(self) -> str:
        """Makes it say `tick` for a minute."""
        ...

    def work_on(self, path: Path) -> str:
        """Makes it run a tool, asked for or not, that makes this file and then runs for a minute."""
        ...

    def recall(self) -> str:
        """Makes it show what the session's earlier prompts were."""
        ...

    def has_recalled(self, word: str, said: str) -> bool:
        """Whether the last turn had this word of an earlier prompt before it.

        Args:
            word: What was told earlier.
            said: What the agent said in the turn; a real agent shows it by what it sent to its model instead.
        """
        ...


Check = Callable[[Kit, Path], Awaitable[None]]


async def opens_a_session(kit: Kit, folder: Path) -> None:
    """An open session has an id, a version and offers, and its process is recorded before it works."""
    params = kit.params(folder)
    async with opened(kit.backend, params, RecordingSink()) as session:
        assert session.session_id
        assert not session.resumed
        assert session.agent_version
        assert session.capabilities.models or "model" not in kit.choice
        assert not session.capabilities.models or session.model in session.capabilities.models
        assert session.capabilities.resume is not None
        assert params.procs is not None
        (recorded,) = params.procs.read()
        assert (recorded.pid, recorded.pgid) == (session.agent_pid, session.agent_pid)
        assert is_alive(recorded.id)


async def runs_a_text_turn(kit: Kit, folder: Path) -> None:
    """A prompt gives its text and ends with the agent's own word."""
    sink = RecordingSink()
    async with opened(kit.backend, kit.params(folder), sink) as session:
        stop = await session.prompt(kit.say("hello there"))
        assert (stop.stop_reason, stop.error) == ("end_turn", None)
        assert sink.text() == "hello there"


async def tells_its_usage(kit: Kit, folder: Path) -> None:
    """Each turn comes with its own tokens, not with those of all turns so far."""
    async with opened(kit.backend, kit.params(folder), RecordingSink()) as session:
        first = await session.prompt(kit.say("hello there"))
        second = await session.prompt(kit.say("hello there"))
        assert first.usage is not None
        assert second.usage is not None
        assert first.usage.total_tokens > 0
        assert second.usage.output_tokens == first.usage.output_tokens


async def runs_a_tool_that_is_allowed(kit: Kit, folder: Path) -> None:
    """A question with its options comes; allowed, the tool runs and the turn goes on."""
    sink, made = RecordingSink(picks("allow_once")), folder / "made.txt"
    async with opened(kit.backend, kit.params(folder), sink) as session:
        stop = await session.prompt(kit.touch(made))
        assert stop.stop_reason == "end_turn"
        assert made.exists()
        assert "touched" in sink.text()
    (ask,) = sink.asks
    assert ask.question
    assert {"allow_once", "reject_once"} <= {option.kind for option in ask.options}
    assert ask.trusted_options
    statuses = [event.status for event in sink.of(events.ToolCallUpdate)]
    assert statuses[-1] == "completed"


async def rejects_a_tool(kit: Kit, folder: Path) -> None:
    """Rejected, the tool does not run; the turn ends by itself, and the session goes on."""
    sink, made = RecordingSink(picks("reject_once")), folder / "made.txt"
    async with opened(kit.backend, kit.params(folder), sink) as session:
        stop = await session.prompt(kit.touch(made))
        assert stop.stop_reason in ("end_turn", "cancelled")
        assert len(sink.asks) == 1
        assert not made.exists()
        assert (await session.prompt(kit.say("still here"))).stop_reason == "end_turn"
        assert "still here" in sink.text()


async def cancels_a_text(kit: Kit, folder: Path) -> None:
    """A cancel ends a turn that talks on; the next turn is whole."""
    sink = RecordingSink()
    async with opened(kit.backend, kit.params(folder), sink) as session, trio.open_nursery() as nursery:
        stops: list[TurnStop] = []
        nursery.start_soon(_keep_stop, session.prompt, kit.talk_on(), stops)
        await sink.wait_text("tick")
        await session.cancel()
        await session.cancel()  # twice does no harm
        await eventually(lambda: stops, seconds=TURN_SECONDS)
        assert stops[0].stop_reason == "cancelled"
        assert (await session.prompt(kit.say("whole again"))).stop_reason == "end_turn"
        assert "whole again" in sink.text()


async def cancels_a_tool(kit: Kit, folder: Path) -> None:
    """A cancel ends a turn whose tool runs."""
    sink, begun = RecordingSink(picks("allow_once")), folder / "begun"
    async with opened(kit.backend, kit.params(folder), sink) as session, trio.open_nursery() as nursery:
        stops: list[TurnStop] = []
        nursery.start_soon(_keep_stop, session.prompt, kit.work_on(begun), stops)
        await eventually(begun.exists, seconds=TURN_SECONDS)
        await session.cancel()
        await eventually(lambda: stops, seconds=TURN_SECONDS)
        assert stops[0].stop_reason == "cancelled"


async def cancels_an_open_question(kit: Kit, folder: Path) -> None:
    """A cancel withdraws the question, the tool does not run, and the session goes on."""
    sink, made = RecordingSink(never), folder / "made.txt"
    async with opened(kit.backend, kit.params(folder), sink) as session, trio.open_nursery() as nursery:
        stops: list[TurnStop] = []
        nursery.start_soon(_keep_stop, session.prompt, kit.touch(made), stops)
        await sink.wait_asked()
        await session.cancel()
        await eventually(lambda: stops, seconds=TURN_SECONDS)
        assert stops[0].stop_reason in ("cancelled", "end_turn")
        assert sink.withdrawn == sink.asks
        assert (await session.prompt(kit.say("next one"))).stop_reason == "end_turn"
        assert not made.exists()


async def remembers_in_the_second_turn(kit: Kit, folder: Path) -> None:
    """Two prompts of one session are one conversation."""
    sink = RecordingSink()
    async with opened(kit.backend, kit.params(folder), sink) as session:
        await session.prompt(kit.say(f"The word is {WORD}."))
        heard = len(sink.text())
        await session.prompt(kit.recall())
        assert kit.has_recalled(WORD, sink.text()[heard:])


async def takes_one_prompt_at_a_time(kit: Kit, folder: Path) -> None:
    """A second prompt in a busy session is refused by us: agents differ in what they would do."""
    sink = RecordingSink()
    async with opened(kit.backend, kit.params(folder), sink) as session, trio.open_nursery() as nursery:
        nursery.start_soon(session.prompt, kit.talk_on())
        await sink.wait_text("tick")
        with pytest.raises(LocalProtocolError):
            await session.prompt(kit.say("too early"))
        await session.cancel()


async def resumes_a_session(kit: Kit, folder: Path) -> None:
    """Another process of the agent goes on with the conversation; what was said before is not told again."""
    async with opened(kit.backend, kit.params(folder), RecordingSink()) as session:
        session_id = session.session_id
        await session.prompt(kit.say(f"The word is {WORD}."))
    sink = RecordingSink()
    async with opened(kit.backend, kit.params(folder, resume=session_id), sink) as session:
        assert session.resumed
        assert session.session_id == session_id
        await session.prompt(kit.say("on we go"))
        assert sink.text() == "on we go"
        await session.prompt(kit.recall())
        assert kit.has_recalled(WORD, sink.text())


async def refuses_to_resume_what_is_not_there(kit: Kit, folder: Path) -> None:
    """An unknown session is an error, never a silent fresh start; nothing is left running."""
    params = kit.params(folder, resume="ses_that_nobody_has_ever_seen")
    refusal = await _refusal(kit, params)
    assert (refusal.reason_word, refusal.retryable) == ("resume_failed", False)


async def uses_what_was_chosen(kit: Kit, folder: Path) -> None:
    """Model, agent and thinking level are set before the first prompt."""
    params = kit.params(folder, **kit.choice)
    async with opened(kit.backend, params, RecordingSink()) as session:
        for kind, wanted in kit.choice.items():
            if kind != "thinking":
                assert getattr(session, kind) == wanted


async def refuses_a_model_that_is_not_offered(kit: Kit, folder: Path) -> None:
    """The refusal lists what is offered, and is permanent."""
    await _refuses_setting(kit, folder, "model")


async def refuses_an_agent_that_is_not_offered(kit: Kit, folder: Path) -> None:
    """Likewise for modes, which some agents call agents."""
    await _refuses_setting(kit, folder, "agent")


async def tells_a_death_in_mid_turn(kit: Kit, folder: Path) -> None:
    """Killed in a turn, the agent's end is the turn's: a crash, with how it died."""
    sink = RecordingSink()
    async with opened(kit.backend, kit.params(folder), sink) as session, trio.open_nursery() as nursery:
        stops: list[TurnStop] = []
        nursery.start_soon(_keep_stop, session.prompt, kit.talk_on(), stops)
        await sink.wait_text("tick")
        os.kill(session.agent_pid, signal.SIGKILL)
        await eventually(lambda: stops, seconds=TURN_SECONDS)
        stop = stops[0]
        assert stop.stop_reason == "agent_exited"
        assert stop.error is not None
        assert (stop.error.failure_class, stop.error.permanent) == ("crash", False)
        assert "signal 9" in stop.error.message
        assert session.is_lost
        assert (await session.wait_exited()).returncode == -signal.SIGKILL
        assert (await session.prompt(kit.say("anyone?"))).stop_reason == "agent_exited"


async def leaves_nothing_when_closed(kit: Kit, folder: Path) -> None:
    """Closed in mid-tool, the agent and its tool are gone, and closing again says the same."""
    sink, begun = RecordingSink(picks("allow_once")), folder / "begun"
    params = kit.params(folder)
    async with opened(kit.backend, params, sink) as session, trio.open_nursery() as nursery:
        stops: list[TurnStop] = []
        nursery.start_soon(_keep_stop, session.prompt, kit.work_on(begun), stops)
        await eventually(begun.exists, seconds=TURN_SECONDS)
        # Amid an exec, as the tool may be, a process shows no environment.
        await eventually(lambda: len(tree.tagged(*params.tag)) >= 2)
        result = await session.close(GRACES)
        assert result.left == []
        assert tree.tagged(*params.tag) == []
        assert await session.close(GRACES) == result
        await eventually(lambda: stops)
        assert stops[0].stop_reason == "cancelled"


async def leaves_nothing_after_a_kill(kit: Kit, folder: Path) -> None:
    """Killed in mid-tool, the agent leaves its tool, and closing the session ends that too."""
    await _leaves_nothing_after(signal.SIGKILL, kit, folder)


async def leaves_nothing_after_a_sigterm(kit: Kit, folder: Path) -> None:
    """Likewise when it was ended by a signal that it may handle."""
    await _leaves_nothing_after(signal.SIGTERM, kit, folder)


async def survives_a_cancelled_prompt(kit: Kit, folder: Path) -> None:
    """Whoever waits for a turn may give up: the session can still be closed, and leaves nothing."""
    sink = RecordingSink()
    params = kit.params(folder)
    async with opened(kit.backend, params, sink) as session:
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(session.prompt, kit.talk_on())
                await sink.wait_text("tick")
                scope.cancel()
        with pytest.raises(LocalProtocolError):
            await session.prompt(kit.say("too early"))
        assert (await session.close(GRACES)).left == []
        assert tree.tagged(*params.tag) == []


CHECKS: list[Check] = [
    opens_a_session,
    runs_a_text_turn,
    tells_its_usage,
    runs_a_tool_that_is_allowed,
    rejects_a_tool,
    cancels_a_text,
    cancels_a_tool,
    cancels_an_open_question,
    remembers_in_the_second_turn,
    takes_one_prompt_at_a_time,
    resumes_a_session,
    refuses_to_resume_what_is_not_there,
    uses_what_was_chosen,
    refuses_a_model_that_is_not_offered,
    refuses_an_agent_that_is_not_offered,
    tells_a_death_in_mid_turn,
    leaves_nothing_when_closed,
    leaves_nothing_after_a_kill,
    leaves_nothing_after_a_sigterm,
    survives_a_cancelled_prompt,
]


async def _keep_stop(prompt: Callable[[str], Awaitable[TurnStop]], text: str, stops: list[TurnStop]) -> None:
    stops.append(await prompt(text))


async def _leaves_nothing_after(number: signal.Signals, kit: Kit, folder: Path) -> None:
    sink, begun = RecordingSink(picks("allow_once")), folder / "begun"
    params = kit.params(folder)
    async with opened(kit.backend, params, sink) as session, trio.open_nursery() as nursery:
        stops: list[TurnStop] = []
        nursery.start_soon(_keep_stop, session.prompt, kit.work_on(begun), stops)
        await eventually(begun.exists, seconds=TURN_SECONDS)
        os.kill(session.agent_pid, number)
        await session.wait_exited()
        assert (await session.close(GRACES)).left == []
        assert tree.tagged(*params.tag) == []
        await eventually(lambda: stops, seconds=TURN_SECONDS)


async def _refuses_setting(kit: Kit, folder: Path, kind: str) -> None:
    params = kit.params(folder, model="no/such") if kind == "model" else kit.params(folder, agent="no-such")
    refusal = await _refusal(kit, params)
    assert (refusal.reason_word, refusal.retryable) == (f"unknown_{kind}", False)
    assert refusal.data["offers"] or kind not in kit.choice
    assert all(offer in refusal.message for offer in refusal.data["offers"][:1])


async def _refusal(kit: Kit, params: OpenParams) -> BackendRefused:
    """The refusal of an opening that must fail, with nothing left behind."""
    async with trio.open_nursery() as nursery:
        with pytest.raises(BackendRefused) as caught:
            await open_within(OPEN_SECONDS, kit.backend, params, RecordingSink(), nursery)
    assert tree.tagged(*params.tag) == []
    assert params.aborted
    return caught.value
