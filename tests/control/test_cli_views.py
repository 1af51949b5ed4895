"""The table of `list`, and events for eyes."""

import json
import unicodedata
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from avenor.cli.eventview import EventView
from avenor.cli.listing import count_text, elapsed_text, render
from avenor.cli.terminal import Style
from avenor.control.safetext import clip, columns_of, one_line, pad, safe_text
from avenor.protocol.events import PermissionOption, Usage
from avenor.protocol.snapshot import PendingPermission, PhaseState, Snapshot

PLAIN = Style(coloured=False)
COLOURED = Style(coloured=True)
NOW_MS = 1_000_000_000
ASKING = PendingPermission(
    request_id="perm_1",
    tool="execute",
    question="rm -r build",
    options=[PermissionOption(option_id="once", kind="allow_once")],
    resolver="control",
)


def table_of(*snapshots: Snapshot, columns: int = 120) -> list[str]:
    decoded: list[dict[str, Any]] = json.loads(msgspec.json.encode(snapshots))
    return render(decoded, style=PLAIN, columns=columns, now_ms=NOW_MS).splitlines()


def test_the_table_shows_what_each_runtime_is_at() -> None:
    """Status, elapsed time, label, phase, pending permission and tokens."""
    lines = table_of(
        Snapshot(
            runtime_id="rt_1",
            status="running",
            label="review-42",
            phase="working",
            phase_label="reading",
            started_at=NOW_MS - 192_000,
            usage=Usage(total_tokens=12_345),
        ),
        Snapshot(
            runtime_id="rt_2",
            status="running",
            pending_permission=True,
            permission=ASKING,
            permissions=[ASKING, ASKING],
            started_at=NOW_MS - 8_000,
        ),
        Snapshot(
            runtime_id="rt_3",
            status="ended",
            outcome="FAILED",
            exit_code=1,
            phase="done",
            started_at=NOW_MS - 9_000,
            ended_at=NOW_MS - 4_000,
        ),
        Snapshot(run_id="run_x", status="queued"),
    )
    assert [line.split() for line in lines] == [
        ["ID", "STATUS", "ELAPSED", "LABEL", "PHASE", "PERMISSION", "TOKENS"],
        ["rt_1", "running", "3m12s", "review-42", "working:", "reading", "12.3k"],
        ["rt_2", "asking", "8s", "perm_1", "rm", "-r", "build", "(+1)"],
        ["rt_3", "FAILED", "1", "5s"],
        ["run_x", "queued"],
    ]
    assert len({line.index(word) for line, word in zip(lines, ["STATUS", "running", "asking"], strict=False)}) == 1


def test_the_table_names_the_phases_of_loops_and_retries() -> None:
    """Running phases come before what the agent says of itself."""
    phases = [
        PhaseState(path=None, name="plan", kind="pre", iteration=0, state="done", session_id=None),
        PhaseState(path=None, name="api", kind="team", iteration=0, state="running", session_id=None),
        PhaseState(path=None, name="db", kind="team", iteration=0, state="running", session_id=None),
    ]
    [_, line] = table_of(
        Snapshot(
            runtime_id="rt_1",
            status="running",
            phases=phases,
            phase="thinking",
            turn_state="retrying",
            retry_attempt=2,
            max_retries=3,
        )
    )
    assert "retrying 2/3" in line
    assert "api, db: thinking" in line


def test_a_narrow_terminal_gets_a_narrow_table() -> None:
    """Labels and permissions give way, ids and states do not."""
    lines = table_of(
        Snapshot(runtime_id="rt_1", status="idle", label="l" * 90, permission=ASKING, permissions=[ASKING]), columns=60
    )
    assert max(map(len, lines)) <= 60
    assert lines[1].startswith("rt_1  idle")
    assert "…" in lines[1]


def test_an_empty_table_says_so() -> None:
    """Rather than a heading alone."""
    assert render([], style=PLAIN, columns=80, now_ms=0) == "no runtimes\n"


def test_states_have_colours() -> None:
    """Each its own; a failure is red."""
    snapshots = [Snapshot(runtime_id="a", status="running"), Snapshot(runtime_id="b", status="ended", outcome="KILLED")]
    text = render(json.loads(msgspec.json.encode(snapshots)), style=COLOURED, columns=80, now_ms=0)
    assert "\x1b[32mrunning" in text
    assert "\x1b[31mKILLED" in text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-1, "0s"), (59.9, "59s"), (192, "3m12s"), (7500, "2h05m"), (273_600, "3d04h")],
)
def test_elapsed_times_have_two_units(seconds: float, text: str) -> None:
    """Enough to judge by."""
    assert elapsed_text(seconds) == text


@pytest.mark.parametrize(("count", "text"), [(999, "999"), (12_345, "12.3k"), (999_949, "999.9k"), (1_250_000, "1.2M")])
def test_counts_are_short(count: int, text: str) -> None:
    """Three or four characters."""
    assert count_text(count) == text


@given(st.text(), st.integers(0, 20))
def test_clipped_text_fits(text: str, columns: int) -> None:
    """Whatever it is made of; and what fits stays as it is."""
    clipped = clip(text, columns)
    assert columns_of(clipped) <= columns
    if columns_of(text) <= columns:
        assert clipped == text
        assert columns_of(pad(clipped, columns)) == columns


@given(st.text())
def test_text_for_a_terminal_holds_nothing_that_acts_on_it(text: str) -> None:
    """No control characters but newline and tab, and no newline where one line is wanted."""
    kept = safe_text(text)
    assert all(unicodedata.category(c) not in ("Cc", "Cs") or c in "\n\t" for c in kept)
    assert all(unicodedata.category(c) not in ("Cc", "Cs") for c in one_line(text))


def test_escape_sequences_go_as_a_whole() -> None:
    """Colours, titles and clipboard writes leave no rest behind."""
    assert safe_text("a\x1b[31mb\x1b]0;title\x07c\x1b]52;c;eA==\x1b\\d\r\ne") == "abcd\ne"


# ---- events


def view(*, columns: int = 100, names_runtime: bool = False, style: Style = PLAIN) -> EventView:
    return EventView(style, columns=columns, names_runtime=names_runtime)


def chunk(text: str, event: str = "agent.message_chunk", **more: Any) -> dict[str, Any]:
    return {"event": event, "seq": 1, "ts": 0, "content": {"type": "text", "text": text}, **more}


def shown(events: list[dict[str, Any]], **how: Any) -> str:
    viewer = view(**how)
    return "".join(map(viewer.feed, events)) + viewer.finish()


def without_times(text: str) -> list[str]:
    return [line[9:] if line[2:3] == ":" and line[5:6] == ":" else line for line in text.splitlines()]


def test_chunks_of_text_run_on() -> None:
    """They are joined, and what comes next begins on a line of its own."""
    text = shown(
        [chunk("Hel"), chunk("lo\nwor"), chunk("ld"), {"event": "turn.end", "ts": 0, "stop_reason": "end_turn"}]
    )
    assert without_times(text) == ["Hello", "world", "turn ended end_turn"]


def test_thoughts_and_replies_do_not_share_a_line() -> None:
    """Another speaker begins another line."""
    assert shown([chunk("hm", "agent.thought_chunk"), chunk("yes")]) == "hm\nyes\n"


def test_text_says_whose_it_is_where_several_could_speak() -> None:
    """By runtime where several are followed, by phase where there are phases."""
    events = [
        chunk("a", runtime_id="rt_1"),
        chunk("b", runtime_id="rt_2", phase="api"),
        chunk("c", runtime_id="rt_2", phase="api"),
    ]
    assert shown(events, names_runtime=True) == "rt_1:\na\nrt_2 api:\nbc\n"


@pytest.mark.parametrize(
    ("event", "line"),
    [
        (
            {"event": "run.start", "run_id": "run_a", "run_label": "x", "backend": "acp", "dir": "/d"},
            "run run_a x: acp in /d",
        ),
        ({"event": "session.start", "session_id": "ses_1", "model": "m", "resumed": True}, "session ses_1 m resumed"),
        (
            {"event": "session.end", "stop_reason": "end_turn", "left_processes": ["7 x"], "unverified": "no /proc"},
            "session ended end_turn; left 7 x; no /proc",
        ),
        ({"event": "session.usage", "used": 2040, "size": 200_000}, "usage 2.0k of 200.0k tokens"),
        ({"event": "turn.start", "text": "do\nit"}, "prompt do it"),
        ({"event": "prompt.queued", "text": "more"}, "queued more"),
        (
            {"event": "turn.end", "stop_reason": "error", "usage": {"total_tokens": 1500}, "error": "no model"},
            "turn ended error, 1.5k tokens: no model",
        ),
        (
            {"event": "tool.call", "toolCallId": "t", "title": "ls", "kind": "execute", "status": "pending"},
            "tool ls [execute] pending",
        ),
        (
            {
                "event": "permission.request",
                "request_id": "perm_1",
                "tool": "x",
                "question": "",
                "options": [{"optionId": "once"}],
            },
            "permission? perm_1 x [once]",
        ),
        (
            {
                "event": "permission.response",
                "request_id": "perm_1",
                "kind": "allow",
                "option_id": "once",
                "source": "file",
            },
            "permission perm_1 allow (once) by file",
        ),
        ({"event": "agent.status", "phase": "working", "label": "reading"}, "status working reading"),
        ({"event": "agent.stderr", "text": "warn"}, "stderr warn"),
        ({"event": "avenor.phase.start", "phase": "b", "path": "a", "iteration": 2}, "phase a/b (iteration 2)"),
        (
            {"event": "avenor.phase.end", "phase": "b", "stop_reason": "end_turn", "exit_code": 0},
            "phase ended b: end_turn",
        ),
        ({"event": "avenor.retry", "attempt": 2, "delay_ms": 4000, "class": "crash"}, "retry attempt 2 in 4s (crash)"),
        ({"event": "avenor.error", "source": "log", "message": "disk full"}, "error log: disk full"),
        (
            {"event": "run.end", "status": "BLOCKED", "stop_reason": "blocked", "reason": "r"},
            "run ended BLOCKED blocked: r",
        ),
        ({"event": "session.mode", "currentModeId": "plan", "seq": 1}, "session.mode currentModeId=plan"),
        ({"event": "session.plan", "entries": [{"content": "x"}]}, 'session.plan entries=[{"content":"x"}]'),
    ],
)
def test_an_event_is_one_line(event: dict[str, Any], line: str) -> None:
    """What it is, and what matters of it."""
    assert without_times(shown([{"ts": 0, **event}])) == [line]


def test_updates_of_a_tool_carry_its_title() -> None:
    """Updates without a new status are not shown."""
    events: list[dict[str, Any]] = [
        {"event": "tool.call", "ts": 0, "toolCallId": "t", "title": "make test", "status": "pending"},
        {"event": "tool.call_update", "ts": 0, "toolCallId": "t", "content": []},
        {"event": "tool.call_update", "ts": 0, "toolCallId": "t", "status": "failed"},
    ]
    assert without_times(shown(events)) == ["tool make test [other] pending", "tool make test: failed"]
    assert "\x1b[31mtool" in shown(events, style=COLOURED)


def test_a_line_fits_the_terminal() -> None:
    """Long details are cut."""
    [line] = shown([{"event": "turn.start", "ts": 0, "text": "word " * 100}], columns=60).splitlines()
    assert len(line) == 60
    assert line.endswith("…")


def test_every_event_of_the_protocol_can_be_shown() -> None:
    """The checked-in sample of each; none is an error, and none acts on the terminal."""
    sample = Path(__file__).parents[1] / "data" / "events.ndjson"
    viewer = view()
    lines = sample.read_bytes().splitlines()
    text = "".join(map(viewer.feed_line, lines)) + viewer.finish()
    assert len(without_times(text)) == len(lines) + 1  # one is of a phase, and says so above its text
    assert "\x1b" not in text


@given(st.dictionaries(st.text(max_size=8), st.none() | st.integers() | st.text() | st.lists(st.integers())), st.data())
def test_an_event_of_any_shape_can_be_shown(fields: dict[str, Any], data: st.DataObject) -> None:
    """A newer server's events, or a broken log's, are no reason to stop."""
    sample = Path(__file__).parents[1] / "data" / "events.ndjson"
    known = [json.loads(line)["event"] for line in sample.read_bytes().splitlines()]
    names = st.sampled_from(["options", "usage", "content", "status", "title", "toolCallId", "delay_ms", "iteration"])
    odd = data.draw(st.dictionaries(names, st.none() | st.text() | st.lists(st.text()) | st.integers()))
    line = json.dumps({**fields, **odd, "event": data.draw(st.sampled_from(known))})
    assert "\x1b" not in view().feed_line(line.encode())


@pytest.mark.parametrize(
    "line",
    [b"not json", b"[1]", b"\xff", b"null", b'{"event":"avenor.retry","delay_ms":"x"}', b'{"event":"x","ts":1e300}'],
)
def test_what_is_no_event_is_shown_as_it_is(line: bytes) -> None:
    """And safely."""
    assert view().feed_line(line) == line.decode(errors="replace") + "\n"
