"""What a person sees of a run: pieces for stdout and stderr, and the view that writes them."""

import os
import pty
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import msgspec
import pytest
import trio
import trio.testing

from avenor.protocol.events import (
    AnyEvent,
    Error,
    EventHead,
    LoopEnd,
    MessageChunk,
    PermissionOption,
    PermissionRequest,
    PermissionResponse,
    PhaseEnd,
    Retry,
    RunEnd,
    SessionStart,
    TeamEnd,
    ToolCall,
    ToolCallUpdate,
    TurnEnd,
    TurnStart,
    encode_event,
)
from avenor.protocol.methods import wrap_event
from avenor.runtimes import terminal
from avenor.runtimes.eventlines import Piece, Renderer
from avenor.runtimes.terminal import LineDisplay, View
from tests.helpers import eventually_sync
from tests.runtimes.run_driver import OneShot, script_of


def say(text: str) -> MessageChunk:
    return MessageChunk(content=msgspec.Raw(msgspec.json.encode({"type": "text", "text": text})))


def shown(renderer: Renderer, *events: AnyEvent) -> tuple[str, str]:
    """Everything on stdout and on stderr."""
    pieces = [piece for event in events for piece in renderer.render(event)]
    return tuple("".join(p.text for p in pieces if p.stream == stream) for stream in ("out", "err"))  # type: ignore[return-value]


def plain(*, shows_text: bool = True) -> Renderer:
    return Renderer(shows_text=shows_text, uses_color=False)


def test_agent_text_goes_to_stdout_and_tools_to_stderr_on_lines_of_their_own() -> None:
    """A tool in the middle of a line of text starts a new one."""
    out, err = shown(
        plain(),
        SessionStart(backend="scripted", dir="/", model="small", session_id="s1"),
        say("let me "),
        say("look"),
        ToolCall(toolCallId="t", title="Read  file\nx"),
        ToolCallUpdate(toolCallId="t", status="completed"),
        say("done\n"),
    )
    assert out == "let me look\ndone\n"
    assert err == "session s1 · scripted · small\n· Read file x\n✓ Read file x\n"


def test_text_is_left_out_where_stdout_is_for_the_reply_alone() -> None:
    """Tools are still told."""
    out, err = shown(plain(shows_text=False), say("hidden"), ToolCall(toolCallId="t", title="Look"))
    assert (out, err) == ("", "· Look\n")


def test_escape_sequences_of_an_agent_do_not_reach_the_terminal() -> None:
    """Text is text, in messages and in titles."""
    out, err = shown(plain(), say("a\x1b[2Jb\tc\n"), ToolCall(toolCallId="t", title="x\x1b]0;evil\x07y"))
    assert out == "ab\tc\n"
    assert "\x1b" not in err
    assert "\x07" not in err


def test_what_wants_attention_is_told_with_what_can_be_answered() -> None:
    """Requests, answers, failures, retries, errors and a bad end."""
    options = [
        PermissionOption(option_id="allow", kind="allow_once"),
        PermissionOption(option_id="no", kind="reject_once"),
    ]
    _, err = shown(
        plain(),
        PermissionRequest(request_id="perm_1", tool="sh", question="Run ls?", options=options, resolver="none"),
        PermissionResponse(request_id="perm_1", option_id="allow", kind="allow", source="control"),
        ToolCall(toolCallId="t", title="Run"),
        ToolCallUpdate(toolCallId="t", status="failed"),
        TurnEnd(stop_reason="error", error="model is gone"),
        Retry(attempt=2, max_retries=3, delay_ms=4000, retry_class="crash"),
        TurnStart(text="next prompt", source="control"),
        Error(source="log", message="disk full"),
        RunEnd(status="FAILED", exit_code=1, stop_reason="error", reason="model is gone"),
    )
    assert err.splitlines() == [
        "? perm_1: Run ls? (allow, no)",
        "  perm_1: allow, by control",
        "· Run",
        "✗ Run",
        "turn failed: model is gone",
        "retry 2 in 4s (crash)",
        "> next prompt",
        "! log: disk full",
        "FAILED (error): model is gone",
    ]


def test_a_good_end_and_automatic_permissions_are_not_worth_a_line() -> None:
    """Nothing is said that is not news."""
    options = [PermissionOption(option_id="allow", kind="allow_once")]
    assert shown(
        plain(),
        PermissionRequest(request_id="perm_1", tool="sh", question="?", options=options, resolver="automatic"),
        RunEnd(status="DONE", exit_code=0, stop_reason="end_turn"),
    ) == ("", "")


def test_colour_is_only_used_where_it_was_asked_for() -> None:
    """The same line, with and without."""
    event = ToolCall(toolCallId="t", title="Look")
    assert "\x1b[" in shown(Renderer(shows_text=True, uses_color=True), event)[1]
    assert "\x1b[" not in shown(plain(), event)[1]


def phased(event: AnyEvent, phase: str, *, path: str | None = None, iteration: int = 0) -> AnyEvent:
    event.phase, event.iteration = phase, iteration
    if path is not None:
        event.path = path
    return event


def test_lines_of_a_team_say_which_phase_they_are_about() -> None:
    """Members that use the same tool call ids are told apart, and no text of theirs is mixed up."""
    out, err = shown(
        Renderer(shows_text=False, uses_color=False, has_phases=True),
        phased(SessionStart(backend="scripted", dir="/", session_id="s1"), "api"),
        phased(ToolCall(toolCallId="t", title="Read a"), "api"),
        phased(ToolCall(toolCallId="t", title="Read b"), "fix", path="db", iteration=2),
        phased(say("spoken"), "api"),
        phased(ToolCallUpdate(toolCallId="t", status="completed"), "api"),
        phased(ToolCallUpdate(toolCallId="t", status="failed"), "fix", path="db", iteration=2),
    )
    assert out == ""
    assert err.splitlines() == [
        "api: session s1 · scripted",
        "api: · Read a",
        "db/fix #2: · Read b",
        "api: ✓ Read a",
        "db/fix #2: ✗ Read b",
    ]


@pytest.mark.parametrize(
    ("end", "line"),
    [
        (PhaseEnd(stop_reason="end_turn", exit_code=0), "✓ done"),
        (PhaseEnd(stop_reason="end_turn", exit_code=0, exit_marker=True, exit_marker_label="ok"), "✓ done: exit: ok"),
        (PhaseEnd(stop_reason="max_iterations", exit_code=0), "✓ done: max_iterations"),
        (PhaseEnd(stop_reason="refusal", exit_code=2), "✗ failed: refusal"),
        (PhaseEnd(stop_reason="timeout", exit_code=124), "✗ failed: timeout"),
        (PhaseEnd(stop_reason="cancelled", exit_code=130), "⊘ cancelled"),
        (PhaseEnd(stop_reason="blocked", exit_code=5), "⊘ blocked"),
        (PhaseEnd(stop_reason="end_turn", exit_code=5, abort_marker=True, abort_marker_label="a\nb"), "⊘ aborted: a b"),
    ],
)
def test_the_end_of_a_phase_is_told_with_its_reason(end: PhaseEnd, line: str) -> None:
    """In one line, whatever the label holds."""
    renderer = Renderer(shows_text=False, uses_color=False, has_phases=True)
    assert shown(renderer, phased(end, "api"))[1] == f"api: {line}\n"


def test_the_end_of_a_loop_or_team_says_why_it_ended() -> None:
    """The exit reason of the outermost one, with its label."""
    renderer = Renderer(shows_text=False, uses_color=False, has_phases=True)
    _, err = shown(
        renderer,
        LoopEnd(exit_reason="max_iterations", iterations_completed=3, path="inner"),
        TeamEnd(exit_reason="abort", members_completed=1, members_aborted=1, exit_label="no key"),
        RunEnd(status="BLOCKED", exit_code=5, stop_reason="blocked"),
    )
    assert err == "BLOCKED (abort, no key)\n"


def test_a_run_that_ended_within_a_nested_loop_does_not_say_why_that_ended() -> None:
    """The reason is the run's."""
    renderer = Renderer(shows_text=False, uses_color=False, has_phases=True)
    inner = LoopEnd(exit_reason="marker", iterations_completed=3, path="inner")
    lost = RunEnd(status="FAILED", exit_code=1, stop_reason="runtime_lost")
    assert shown(renderer, inner, lost)[1] == "FAILED (runtime_lost)\n"


def test_the_good_end_of_a_loop_is_told_too() -> None:
    """Nothing else says whether it was a marker or the limit."""
    renderer = Renderer(shows_text=False, uses_color=False, has_phases=True)
    end = LoopEnd(exit_reason="max_iterations", iterations_completed=3)
    assert shown(renderer, end, RunEnd(status="DONE", exit_code=0, stop_reason="max_iterations"))[1] == (
        "DONE (max_iterations)\n"
    )


@pytest.mark.parametrize(
    ("resolver", "how"),
    [
        ("control", "  answer it with: avenor control --socket PATH answer-permission perm_1 OPTION\n"),
        ("file", "  answer it with: avenor answer BASE --option OPTION\n"),
        ("none", ""),
    ],
)
def test_a_member_that_asks_says_how_it_is_answered(resolver: Literal["control", "file", "none"], how: str) -> None:
    """By whoever has been asked; the ids that an agent chose are made safe too."""
    renderer = Renderer(shows_text=False, uses_color=False, has_phases=True)
    options = [PermissionOption(option_id="al\x1blow", kind="allow_once")]
    ask = PermissionRequest(request_id="perm_1", tool="sh", question="Run?", options=options, resolver=resolver)
    assert shown(renderer, phased(ask, "api"))[1] == f"api: ? perm_1: Run? (allow)\n{how}"


class Screen:
    """Takes the place of the two streams."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.out = self.err = ""
        monkeypatch.setattr(terminal, "_write_all", self.write)

    def write(self, pieces: Sequence[Piece]) -> None:
        self.out += "".join(piece.text for piece in pieces if piece.stream == "out")
        self.err += "".join(piece.text for piece in pieces if piece.stream == "err")


def publish(view: View, *events: AnyEvent) -> None:
    lines = [wrap_event(encode_event(event)) for event in events]
    names = [str(event.__struct_config__.tag) for event in events]
    view.publish(lines, [EventHead(name, 1, 1) for name in names])


async def test_a_view_shows_what_is_published_and_ends_with_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything is shown when wait_shown returns."""
    screen = Screen(monkeypatch)
    view = View(LineDisplay(plain(), has_status_line=False))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(view.run)
        publish(view, say("hello\n"))
        publish(view, RunEnd(status="KILLED", exit_code=130, stop_reason="cancelled"))
        await view.wait_shown()
        assert (screen.out, screen.err) == ("hello\n", "KILLED (cancelled)\n")


async def test_the_status_line_is_drawn_on_a_line_of_its_own_and_taken_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not in the middle of the agent's text, and not left behind."""
    screen = Screen(monkeypatch)
    view = View(LineDisplay(plain(), has_status_line=True))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(view.run)
        publish(view, ToolCall(toolCallId="t", title="Look"))
        await trio.testing.wait_all_tasks_blocked(0.01)
        publish(view, say("half a line"))
        await trio.testing.wait_all_tasks_blocked(0.01)
        publish(view, RunEnd(status="DONE", exit_code=0, stop_reason="end_turn"))
        await view.wait_shown()
    assert screen.err == "· Look\n[0s]\r\x1b[2K"


class Counting:
    """A display that only counts how often it is asked."""

    tick_seconds = float("inf")
    pause_seconds = 0.1

    def __init__(self) -> None:
        self.taken = self.asked = 0

    def take(self, event: AnyEvent) -> None:
        self.taken += 1

    def pieces(self, *, elapsed_seconds: float, is_over: bool) -> list[Piece]:
        self.asked += 1
        return []


async def test_a_flood_of_events_is_shown_ten_times_a_second_at_most(autojump_clock: trio.testing.MockClock) -> None:
    """None is missed, and the end does not wait for its time."""
    display = Counting()
    view = View(display)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(view.run)
        for _ in range(1000):
            publish(view, say("x"))
            await trio.sleep(0.001)
        assert 1 < display.asked <= 11
        publish(view, RunEnd(status="DONE", exit_code=0, stop_reason="end_turn"))
        ended_at = trio.current_time()
        await view.wait_shown()
        assert trio.current_time() == ended_at
    assert display.taken == 1001


def test_on_a_terminal_the_turn_is_shown_live_in_colour(tmp_path: Path) -> None:
    """A real pseudo-terminal: the text comes once, as text, with its tools around it."""
    text = _on_terminal(tmp_path, {})
    assert text.count("the answer") == 1
    assert "· Look around" in text
    assert "\x1b[2m" in text


def test_no_color_is_respected_on_a_terminal(tmp_path: Path) -> None:
    """NO_COLOR, whatever its value."""
    assert "\x1b[2m" not in _on_terminal(tmp_path, {"NO_COLOR": "1"})


def _on_terminal(directory: Path, environ: dict[str, str]) -> str:
    master, slave = pty.openpty()
    script = script_of(directory, {"do": "tool", "title": "Look around"}, {"do": "say", "text": "the answer"})
    run = OneShot(directory, stdio=slave, environ={"NO_COLOR": "", **environ}, script=script)
    os.close(slave)
    os.set_blocking(master, False)
    seen = bytearray()

    def ended() -> bool:
        try:
            seen.extend(os.read(master, 65536))
        except BlockingIOError:
            return False
        except OSError:  # the other end is closed
            return True
        return False

    eventually_sync(ended)
    assert run.process.wait(timeout=60) == 0
    os.close(master)
    return seen.decode()
