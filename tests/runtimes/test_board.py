"""The board of a loop or team: what is folded of events, how it is written, and how it is drawn on a terminal."""

import fcntl
import json
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar
from unicodedata import east_asian_width

import msgspec
import pytest

from avenor.control.safetext import columns_of
from avenor.protocol.events import (
    AgentStatus,
    AnyEvent,
    Error,
    Event,
    KindStamped,
    LoopEnd,
    LoopStart,
    MessageChunk,
    OwnKind,
    PermissionOption,
    PermissionRequest,
    PermissionResponse,
    PhaseEnd,
    PhaseKind,
    PhaseStart,
    Retry,
    RunEnd,
    RunKind,
    RunStart,
    SessionStart,
    TeamEnd,
    TeamStart,
    ToolCall,
    ToolCallUpdate,
    TurnEnd,
    Usage,
    decode_event,
    encode_event,
)
from avenor.runtimes.board import ROW_LIMIT, Board
from avenor.runtimes.boardtext import board_lines
from avenor.runtimes.terminal import BoardDisplay
from tests.helpers import eventually_sync
from tests.runtimes.run_driver import OneShot, script_of

E = TypeVar("E", bound=Event)

START_MS = 1_700_000_000_000


class Phase:
    """Stamps events as those of one phase."""

    def __init__(self, name: str, kind: PhaseKind = "team", *, path: str | None = None, iteration: int = 0) -> None:
        self.name = name
        self.kind = kind
        self.path = path
        self.iteration = iteration

    def __call__(self, event: E, *, attempt: int | None = None, seconds: float = 0) -> E:
        event.ts = START_MS + round(seconds * 1000)
        event.iteration = self.iteration
        if self.path is not None:
            event.path, event.depth = self.path, self.path.count("/") + 2
        if attempt is not None:
            event.attempt = attempt
        if isinstance(event, AgentStatus):
            event.run_phase, event.kind = self.name, self.kind
            return event
        event.phase = self.name
        if isinstance(event, OwnKind):
            event.phase_kind = self.kind
        elif isinstance(event, KindStamped):
            event.kind = self.kind
        return event

    def begin(self, *, attempt: int | None = None, seconds: float = 0) -> list[Event]:
        """As far as its first prompt."""
        start = SessionStart(backend="scripted", dir="/", session_id=f"s-{self.name}")
        return [self(each, attempt=attempt, seconds=seconds) for each in (start, PhaseStart())]

    def end(self, *, seconds: float = 0, stop_reason: str = "end_turn", exit_code: int = 0) -> PhaseEnd:
        """Its end without markers."""
        return self(PhaseEnd(stop_reason=stop_reason, exit_code=exit_code), seconds=seconds)

    def says(self, text: str) -> MessageChunk:
        """Some text of its agent."""
        return self(MessageChunk(content=msgspec.Raw(msgspec.json.encode({"type": "text", "text": text}))))

    def asks(self, request_id: str = "perm_1") -> PermissionRequest:
        """A question that somebody has to answer."""
        options = [PermissionOption(option_id="allow", kind="allow_once")]
        return self(
            PermissionRequest(
                request_id=request_id, tool="sh", question="Run make?", options=options, resolver="control"
            )
        )


AUTH, API, DB = Phase("auth"), Phase("api"), Phase("db")


def run_start(kind: RunKind = "team", label: str = "nightly") -> RunStart:
    return RunStart(ts=START_MS, run_id="run_1", run_label=label, kind=kind, backend="scripted", dir="/", version="1")


def team_start(*, members: int = 3, path: str | None = None) -> TeamStart:
    event = TeamStart(pre_phase_count=0, team_member_count=members, post_phase_count=0)
    if path is not None:
        event.path = path
    return event


def loop_start(*, path: str | None = None) -> LoopStart:
    event = LoopStart(max_iterations=10, pre_phase_count=0, loop_phase_count=1, post_phase_count=0)
    if path is not None:
        event.path = path
    return event


def team_end(exit_reason: str = "end_turn") -> TeamEnd:
    return TeamEnd(exit_reason=exit_reason, members_completed=0, members_aborted=0)


def trio_of_members() -> list[Event]:
    """A team of three that all have begun."""
    return [run_start(), team_start(), *AUTH.begin(), *API.begin(), *DB.begin()]


def board_of(*events: Event) -> Board:
    """A board that has had these, as they come over the wire."""
    board = Board()
    for event in events:
        board.apply(decode_event(encode_event(event)))
    return board


def lines_of(
    *events: Event, seconds: float = 5, columns: int = 100, height: int = 24, uses_color: bool = False
) -> list[str]:
    now_ms = START_MS + round(seconds * 1000)
    return board_lines(board_of(*events), now_ms=now_ms, columns=columns, height=height, uses_color=uses_color)


def words_of(line: str) -> list[str]:
    return line.split()


# ---- what a row says


def test_the_members_of_a_team_have_a_row_each_in_the_order_in_which_they_began() -> None:
    """With mark, name, kind, state, elapsed time, tokens and what they do, each its own."""
    header, *rows = lines_of(
        *trio_of_members(),
        API(AgentStatus(phase="working", label="parsing", source="agent")),
        API(ToolCall(toolCallId="t", title="Read api.py")),
        DB(AgentStatus(phase="thinking", source="avenor")),
        AUTH.says("First line\nSecond"),
        AUTH.says(" line\n\n"),
        AUTH(TurnEnd(stop_reason="end_turn", usage=Usage(total_tokens=900))),
        AUTH(TurnEnd(stop_reason="end_turn", usage=Usage(total_tokens=11_400))),
        AUTH.end(seconds=2),
        seconds=65,
    )
    assert header == "nightly · team · 1/3 members done · 1m5s"
    assert rows == [
        "✓ auth  team  done        2s  12.3k  Second line",
        "▶ api   team  working   1m5s         parsing · Read api.py",
        "▶ db    team  thinking  1m5s",
    ]


def test_a_phase_has_a_row_from_the_first_event_of_its_session_on() -> None:
    """Before its agent has given it a session."""
    _, row = lines_of(run_start(), team_start(), AUTH(Error(source="agent", message="slow start")))
    assert words_of(row) == ["▶", "auth", "team", "starting", "5s", "slow", "start"]


def test_a_tool_call_ends_a_line_of_text_and_a_new_title_replaces_the_old() -> None:
    """What comes after it is not the rest of the line before."""
    call = API(ToolCall(toolCallId="t", title="Read"))
    retitled = API(ToolCallUpdate(toolCallId="t", title="Read api.py"))
    assert lines_of(*API.begin(), API.says("before "), call, retitled)[1].endswith("  Read api.py")
    assert lines_of(*API.begin(), API.says("before "), call, API.says("after"))[1].endswith("  after")


def test_an_event_of_no_phase_has_no_row() -> None:
    """A problem of the run as a whole."""
    assert len(lines_of(run_start(), Error(source="log", message="disk full"))) == 1


def test_a_member_that_asks_is_marked_until_it_has_its_answer() -> None:
    """With two questions, until it has both."""
    asking = [*API.begin(), API(AgentStatus(phase="working", source="avenor")), API.asks(), API.asks("perm_2")]
    answers = [
        API(PermissionResponse(request_id=request_id, option_id="allow", kind="allow", source="control"))
        for request_id in ("perm_1", "perm_2")
    ]
    assert words_of(lines_of(*asking)[1]) == ["?", "api", "team", "asking", "5s", "Run", "make?"]
    assert lines_of(*asking, answers[0])[1].startswith("? ")
    assert words_of(lines_of(*asking, *answers)[1])[:4] == ["▶", "api", "team", "working"]
    assert lines_of(*asking, API(TurnEnd(stop_reason="cancelled")))[1].startswith("▶ ")


def test_a_permission_that_is_granted_automatically_asks_nobody() -> None:
    """Its row stays as it is."""
    ask = API.asks()
    ask.resolver = "automatic"
    assert lines_of(*API.begin(), ask)[1].startswith("▶ ")


def test_a_phase_that_is_tried_again_keeps_its_row_and_is_not_done_meanwhile() -> None:
    """Its time goes on from its first attempt, its tokens are those of both."""
    failed = [
        *trio_of_members(),
        API(TurnEnd(stop_reason="error", usage=Usage(total_tokens=100), error="model is gone")),
        API.end(seconds=2, stop_reason="error", exit_code=1),
    ]
    retry = API(Retry(max_retries=3, delay_ms=4000, retry_class="crash"), attempt=2, seconds=2)
    again = API.begin(attempt=2, seconds=6)
    tokens = API(TurnEnd(stop_reason="end_turn", usage=Usage(total_tokens=50)), attempt=2)

    header, _, row, _ = lines_of(*failed)
    assert "1/3 members" in header
    assert words_of(row) == ["✗", "api", "team", "failed", "2s", "100", "error", "·", "model", "is", "gone"]

    header, _, row, _ = lines_of(*failed, retry)
    assert "0/3 members" in header
    assert row.startswith("↻ api   team  retrying  5s  100  attempt 2 in 4s (crash)")

    header, _, row, _ = lines_of(*failed, retry, *again, tokens, seconds=9)
    assert "0/3 members" in header
    assert words_of(row)[:6] == ["▶", "api", "team", "starting", "9s", "150"]
    assert "1/3 members" in lines_of(*failed, retry, *again, API.end())[0]


@pytest.mark.parametrize(
    ("end", "mark", "words"),
    [
        (PhaseEnd(stop_reason="end_turn", exit_code=0), "✓", "done"),
        (PhaseEnd(stop_reason="end_turn", exit_code=0, exit_marker=True, exit_marker_label="ok"), "✓", "done exit: ok"),
        (PhaseEnd(stop_reason="end_turn", exit_code=0, exit_marker=True), "✓", "done exit"),
        (PhaseEnd(stop_reason="refusal", exit_code=2), "✗", "failed refusal"),
        (PhaseEnd(stop_reason="timeout", exit_code=124), "✗", "failed timeout"),
        (PhaseEnd(stop_reason="cancelled", exit_code=130), "⊘", "cancelled"),
        (PhaseEnd(stop_reason="blocked", exit_code=5), "⊘", "blocked"),
        (
            PhaseEnd(stop_reason="end_turn", exit_code=0, abort_marker=True, abort_marker_label="no key"),
            "⊘",
            "aborted no key",
        ),
    ],
)
def test_each_way_to_end_has_its_mark_and_word(end: PhaseEnd, mark: str, words: str) -> None:
    """And the reason, if it is not in the word."""
    row = lines_of(*API.begin(), API(end))[1].replace(" 0s", "")
    assert words_of(row) == [mark, "api", "team", *words.split()]


def test_an_abort_shows_who_aborted_and_who_was_cancelled() -> None:
    """And the exit reason of the team in the header."""
    aborted = AUTH(PhaseEnd(stop_reason="end_turn", exit_code=0, abort_marker=True, abort_marker_label="no key"))
    cancelled = [member.end(stop_reason="cancelled", exit_code=130) for member in (API, DB)]
    header, *rows = lines_of(*trio_of_members(), aborted, *cancelled, team_end("abort"))
    assert [row.split()[0] for row in rows] == ["⊘", "⊘", "⊘"]
    assert rows[0].endswith("no key")
    assert "abort" in header


def test_skipped_members_have_rows_once_the_members_begin_and_are_not_waited_for() -> None:
    """The marker acts when its phase has ended, and the markers of its last attempt count."""
    plan = Phase("plan", "pre")
    wrong = plan(PhaseEnd(stop_reason="error", exit_code=1, skips=["db"]))
    retry = plan(Retry(max_retries=1, delay_ms=2000, retry_class="unknown"), attempt=2)
    right = plan(PhaseEnd(stop_reason="end_turn", exit_code=0, skips=["auth"]))
    before = [run_start(), team_start(), *plan.begin(), wrong, retry, *plan.begin(attempt=2)]
    assert len(lines_of(*before, plan.end(), *API.begin(), *DB.begin())) == 4
    header, *rows = lines_of(*before, right, *API.begin(), *DB.begin())
    assert header.startswith("nightly · team · 0/2 members done, 1 skipped")
    assert [words_of(row)[:4] for row in rows] == [
        ["✓", "plan", "pre", "done"],
        ["–", "auth", "team", "skipped"],
        ["▶", "api", "team", "starting"],
        ["▶", "db", "team", "starting"],
    ]
    assert words_of(rows[1]) == ["–", "auth", "team", "skipped"], "it took no time"


def test_a_team_of_which_all_are_skipped_shows_them_when_it_ends() -> None:
    """No member ever begins."""
    plan = Phase("plan", "pre")
    end = plan(PhaseEnd(stop_reason="end_turn", exit_code=0, skips=["auth"]))
    header, _, row = lines_of(run_start(), team_start(members=1), *plan.begin(), end, team_end())
    assert "0/0 members done, 1 skipped · end_turn" in header
    assert row.startswith("– auth")


# ---- loops and nesting


def test_each_iteration_of_a_loop_phase_has_a_row_and_the_header_counts_them() -> None:
    """With its own state: the one before stays as it ended."""
    first, second = (Phase("fix", "loop", iteration=iteration) for iteration in (1, 2))
    before = [run_start("loop"), loop_start()]
    assert lines_of(*before)[0] == "nightly · loop · 5s"
    header, *rows = lines_of(*before, *first.begin(), first.end(seconds=1), *second.begin(seconds=1))
    assert header == "nightly · loop · iteration 2 of 10 · 5s"
    assert [words_of(row)[:6] for row in rows] == [
        ["✓", "fix", "#1", "loop", "done", "1s"],
        ["▶", "fix", "#2", "loop", "starting", "4s"],
    ]


def test_the_exit_reason_of_a_loop_is_in_the_header() -> None:
    """And its time stops with the run."""
    end = LoopEnd(exit_reason="max_iterations", iterations_completed=1)
    over = RunEnd(ts=START_MS + 3000, status="DONE", exit_code=0, stop_reason="max_iterations")
    assert lines_of(run_start("loop"), loop_start(), end, over)[0] == "nightly · loop · max_iterations · 3s"


def nested(*more: Event) -> list[Event]:
    """A loop in a team, and a member beside it that began between."""
    fix = Phase("fix", "loop", path="api", iteration=1)
    return [
        run_start(),
        team_start(members=2),
        API(PhaseStart()),
        loop_start(path="api"),
        *AUTH.begin(),
        *fix.begin(),
        *more,
    ]


def test_nested_phases_stand_under_theirs_whatever_began_between() -> None:
    """The outer row says how far the nested run is, and the root's header counts the outer ones only."""
    inner = Phase("fix", "loop", path="api", iteration=1)
    header, *rows = lines_of(*nested(inner.end()))
    assert "0/2 members done" in header
    assert [row[:12].rstrip() for row in rows] == ["▶ api", "✓   fix #1", "▶ auth"]
    assert rows[0].endswith("loop · iteration 1 of 10")
    assert "working" in rows[0]


def test_a_nested_run_says_once_why_it_ended() -> None:
    """Its phase has the same reason."""
    reason = "max_iterations"
    loop_end = LoopEnd(path="api", exit_reason=reason, iterations_completed=10)
    row = lines_of(*nested(loop_end, API.end(stop_reason=reason)))[1]
    assert row.startswith("✓ api")
    assert row.count(reason) == 1


def test_the_same_name_in_two_nested_runs_is_two_phases() -> None:
    """The path tells them apart."""
    inner = [Phase("fix", "loop", path=path, iteration=1) for path in ("api", "db")]
    events = [API(PhaseStart()), DB(PhaseStart()), loop_start(path="api"), loop_start(path="db")]
    _, *rows = lines_of(*events, *inner[0].begin(), *inner[1].begin(), inner[1].end())
    assert [row[0] for row in rows] == ["▶", "▶", "▶", "✓"]


def test_a_nested_team_that_runs_again_begins_anew_under_its_new_row() -> None:
    """Its members have no iteration of their own."""
    rounds = [Phase("fan", "loop", iteration=iteration) for iteration in (1, 2)]
    member = Phase("a", "team", path="fan")
    events: list[Event] = [run_start("loop"), loop_start()]
    for each in rounds:
        events += [each(PhaseStart()), team_start(members=1, path="fan"), *member.begin()]
        if each is rounds[0]:
            events += [member.end(), each.end()]
    _, *rows = lines_of(*events)
    assert [row[:10].rstrip() for row in rows] == ["✓ fan #1", "✓   a", "▶ fan #2", "▶   a"]
    assert rows[2].endswith("team · 0/1 members done")


def test_what_comes_after_the_end_of_a_phase_does_not_bring_it_back() -> None:
    """Such as the last words of an agent that is ended."""
    assert lines_of(*API.begin(), API.end(), API.says("late"), API.asks())[1].startswith("✓ api  team  done")


def test_phases_without_an_end_have_ended_with_the_run() -> None:
    """And their clocks stand."""
    end = RunEnd(ts=START_MS + 2000, status="FAILED", exit_code=1, stop_reason="runtime_lost")
    _, row = lines_of(*API.begin(), API.asks(), end, seconds=50)
    assert words_of(row)[:6] == ["⊘", "api", "team", "ended", "2s", "runtime_lost"]


def test_a_phase_that_begins_again_has_ended_before_though_nobody_saw_it() -> None:
    """A terminal that is stopped for long loses events."""
    first, second = (Phase("fix", "loop", iteration=iteration) for iteration in (1, 2))
    _, *rows = lines_of(loop_start(), *first.begin(), *second.begin(seconds=3), seconds=4)
    assert [words_of(row)[:6] for row in rows] == [
        ["⊘", "fix", "#1", "loop", "ended", "3s"],
        ["▶", "fix", "#2", "loop", "starting", "1s"],
    ]


def test_a_clock_that_steps_back_shows_no_time_below_zero() -> None:
    """The wall clock is not ours."""
    assert words_of(lines_of(*API.begin(), seconds=-100)[1])[4] == "0s"


# ---- room


def iterations(count: int) -> list[Event]:
    """A loop that has done all but the last of so many."""
    events: list[Event] = [run_start("loop"), loop_start()]
    for number in range(1, count + 1):
        phase = Phase("fix", "loop", iteration=number)
        events += phase.begin()
        if number < count:
            events.append(phase.end())
    return events


def test_the_oldest_phases_that_have_ended_fold_into_one_line() -> None:
    """The last ones, and what goes on, stay."""
    lines = lines_of(*iterations(13), height=6)
    assert len(lines) == 6
    assert lines[1] == "… 9 phases done"
    assert [words_of(line)[2] for line in lines[2:]] == ["#10", "#11", "#12", "#13"]


def test_nothing_is_folded_that_has_room() -> None:
    """To the last line."""
    assert len(lines_of(*iterations(5), height=6)) == 6
    assert not any("…" in line for line in lines_of(*iterations(5), height=6))


@pytest.mark.parametrize("height", range(1, 6))
def test_the_board_never_has_more_lines_than_the_terminal(height: int) -> None:
    """Whatever goes on at the same time."""
    events = [run_start(), team_start(members=9)]
    for number in range(9):
        events += Phase(f"m{number}").begin()
    lines = lines_of(*events, height=height)
    assert len(lines) == height
    assert lines[0].startswith("nightly")
    if height > 1:
        assert lines[1] == f"… {9 - (height - 2)} more going on"


def test_a_member_that_asks_is_shown_before_those_that_do_not() -> None:
    """There is room for one row."""
    lines = lines_of(*trio_of_members(), DB.asks(), height=3)
    assert lines[1] == "… 2 more going on"
    assert lines[2].startswith("? db")


def test_a_nested_phase_whose_outer_row_is_folded_away_says_its_path() -> None:
    """Indentation would say nothing."""
    asks = Phase("fix", "loop", path="api", iteration=1).asks()
    assert lines_of(*nested(asks), height=3)[2].startswith("? api/fix #1")


def test_memory_is_bounded_however_long_a_loop_goes_on() -> None:
    """Rows that are gone are counted."""
    board = board_of(*iterations(ROW_LIMIT + 50))
    assert sum(1 for _ in board.root.walk()) == ROW_LIMIT
    assert board_lines(board, now_ms=START_MS, columns=80, height=24, uses_color=False)[1] == "… 428 phases done"


def test_a_line_of_text_without_end_is_kept_to_its_beginning() -> None:
    """Megabytes may come without a newline."""
    board = board_of(*API.begin(), *[API.says("x" * 1000)] * 50)
    row = next(board.root.walk())
    assert len(row.activity) == len(row.unfinished_line) == 1000


@pytest.mark.parametrize("columns", [1, 2, 10, 20, 40, 55, 80, 200])
def test_no_line_is_as_wide_as_the_terminal(columns: int) -> None:
    """In columns, of which wide characters take two and combining ones none."""
    wide = Phase("説明" * 20)
    text = "漢字" * 100 + "e\u0301" * 100
    for line in lines_of(run_start(label="長" * 100), *wide.begin(), wide.says(text), columns=columns):
        assert columns_of(line) < max(columns, 2)


def test_wide_characters_keep_the_table_straight() -> None:
    """The columns after a name of them begin where the others' do."""
    _, wide, combined, plain = lines_of(*[e for name in ("説明", "yie\u0301z", "yiez") for e in Phase(name).begin()])
    assert wide.replace("説明", "yiez") == combined.replace("\u0301", "") == plain


def test_a_narrow_terminal_keeps_state_and_name() -> None:
    """What it leaves out is the least of it."""
    events = [*API.begin(), API(TurnEnd(stop_reason="end_turn", usage=Usage(total_tokens=77))), API.says("a" * 50)]
    assert lines_of(*events, columns=45)[1].startswith("▶ api  starting  5s  aaaa")
    assert lines_of(*events, columns=15)[1] == "▶ api  starti…"


# ---- what an agent cannot do


HOSTILE = "a\x1b[2J\x1b]0;title\x07b\u202ec\x9b31md\r\ne\u2028f"


def test_nothing_of_an_agent_acts_on_the_terminal() -> None:
    """Text, titles, labels, questions, reasons and names alike."""
    evil = Phase(HOSTILE)
    rows = [
        *lines_of(run_start(label=HOSTILE), *evil.begin(), evil.says(HOSTILE)),
        *lines_of(*evil.begin(), evil(ToolCall(toolCallId="t", title=HOSTILE))),
        *lines_of(*evil.begin(), evil(AgentStatus(phase=HOSTILE, label=HOSTILE, source="agent"))),
        *lines_of(*evil.begin(), evil(PhaseEnd(stop_reason=HOSTILE, exit_code=1))),
        *lines_of(run_start(), team_start(), team_end(HOSTILE)),
    ]
    for row in rows:
        assert not re.search("[\x00-\x1f\x7f-\x9f\u2028-\u202e]", row), row
    assert "ab c 31md e f" in rows[0], "the sequences are gone and the text is there"


def test_half_characters_do_not_stop_the_board() -> None:
    """Names from the command line can hold bytes that are no text."""
    board = Board()
    board.apply(run_start(label="a\ud800b\udcffc"))
    assert board_lines(board, now_ms=START_MS, columns=80, height=24, uses_color=False) == ["a b c · team · 0s"]


def test_content_that_is_no_text_is_no_activity() -> None:
    """An image, or something that is not even an object."""
    for content in (b'{"type":"image","data":"x"}', b"7"):
        assert words_of(lines_of(*API.begin(), API(MessageChunk(content=msgspec.Raw(content))))[1])[-1] == "5s"


def test_colour_is_only_used_where_it_was_asked_for() -> None:
    """And takes no columns."""
    coloured = lines_of(*trio_of_members(), API.asks(), uses_color=True, columns=40)
    assert all("\x1b[" in line for line in coloured)
    assert [re.sub("\x1b\\[[0-9;]*m", "", line).rstrip() for line in coloured] == lines_of(
        *trio_of_members(), API.asks(), columns=40
    )


# ---- drawing


class Terminal:
    """What a terminal shows of what is written to it: as much as a board uses of one."""

    _CODE = re.compile(r"\x1b\[(\??[0-9;]*)([A-Za-z])")

    def __init__(self, *, columns: int = 60, height: int = 10) -> None:
        self.columns = columns
        self.height = height
        self.lines = [""]
        self.row = 0
        self.column = 0
        self.wraps = True
        self.wide = "WF"

    def write(self, text: str) -> None:
        """Takes what a program writes."""
        while text:
            if code := self._CODE.match(text):
                self._obey(code[1], code[2])
                text = text[code.end() :]
                continue
            self._put(text[0])
            text = text[1:]

    @property
    def shown(self) -> list[str]:
        """All lines, those that have been scrolled away too, without blanks at their ends."""
        return [line.rstrip() for line in self.lines]

    def _obey(self, numbers: str, what: str) -> None:
        if what == "A":
            top = max(0, len(self.lines) - self.height)
            self.row = max(top, self.row - int(numbers))
        elif what == "J":
            self.lines[self.row] = self.lines[self.row][: self.column]
            del self.lines[self.row + 1 :]
        elif (numbers, what) == ("2", "K"):
            self.lines[self.row] = ""
        elif numbers == "?7":
            self.wraps = what == "h"
        else:
            assert what == "m", (numbers, what)

    def _put(self, character: str) -> None:
        assert ord(character) >= 32 or character in "\r\n", repr(character)
        if character == "\r":
            self.column = 0
        elif character == "\n":
            self._next_line()
        else:
            width = 2 if east_asian_width(character) in self.wide else 1
            if self.column + width > self.columns:
                if not self.wraps:
                    return
                self._next_line()
            line = self.lines[self.row].ljust(self.column)
            self.lines[self.row] = line[: self.column] + character + line[self.column + 1 :]
            self.column += width

    def _next_line(self) -> None:
        self.row += 1
        self.column = 0
        if self.row == len(self.lines):
            self.lines.append("")


class Drawn:
    """A display and the terminal that it draws on."""

    def __init__(self, *, columns: int = 60, height: int = 10) -> None:
        self.terminal = Terminal(columns=columns, height=height)
        self.display = BoardDisplay(uses_color=True, size=self._size, now=lambda: START_MS / 1000 + 5)

    def _size(self) -> os.terminal_size:
        return os.terminal_size((self.terminal.columns, self.terminal.height))

    def draw(self, *events: Event, is_over: bool = False) -> list[str]:
        """What the terminal shows once these have come."""
        for event in events:
            self.display.take(decode_event(encode_event(event)))
        pieces = self.display.pieces(elapsed_seconds=5, is_over=is_over)
        assert {piece.stream for piece in pieces} == {"err"}, "agent text of a team goes nowhere"
        self.terminal.write("".join(piece.text for piece in pieces))
        return self.terminal.shown


def test_the_board_is_redrawn_in_place_and_what_should_not_be_missed_stays_above_it() -> None:
    """However often, and whether it grows or shrinks."""
    drawn = Drawn()
    assert drawn.draw(run_start(), team_start(members=2), *API.begin()) == [
        "nightly · team · 0/2 members done · 5s",
        "▶ api  starting  5s",
    ]
    drawn.draw(API.says("hello"))
    assert drawn.draw(*DB.begin(), API.asks()) == [
        "api: ? perm_1: Run make? (allow)",
        "  answer it with: avenor control --socket PATH answer-permis",
        "sion perm_1 OPTION",
        "nightly · team · 0/2 members done · 5s",
        "? api  asking    5s  Run make?",
        "▶ db   starting  5s",
    ]
    answer = API(PermissionResponse(request_id="perm_1", option_id="allow", kind="allow", source="control"))
    shown = drawn.draw(answer, DB.end(seconds=1, stop_reason="refusal", exit_code=2))
    assert shown[2:] == [
        "sion perm_1 OPTION",
        "api:   perm_1: allow, by control",
        "db: ✗ failed: refusal",
        "nightly · team · 1/2 members done · 5s",
        "▶ api  starting  5s  Run make?",
        "✗ db   failed    1s  refusal",
    ]


def test_what_is_no_news_is_not_kept_above_the_board() -> None:
    """Tools, text, and permissions that nobody was asked for."""
    drawn = Drawn()
    automatic = API.asks()
    automatic.resolver = "automatic"
    granted = API(PermissionResponse(request_id="perm_1", option_id="allow", kind="allow", source="avenor"))
    shown = drawn.draw(*API.begin(), API(ToolCall(toolCallId="t", title="Look")), API.says("x\n"), automatic, granted)
    assert len(shown) == 2


def test_retries_and_errors_stay_above_the_board() -> None:
    """With the phase that they are about."""
    failure = API(TurnEnd(stop_reason="error", error="model is gone"))
    retry = API(Retry(max_retries=3, delay_ms=4000, retry_class="crash"), attempt=2)
    error = Error(source="log", message="disk full")
    shown = Drawn().draw(*API.begin(), failure, API.end(stop_reason="error", exit_code=1), retry, error)
    assert shown[:4] == [
        "api: turn failed: model is gone",
        "api: ✗ failed: error",
        "api: retry 2 in 4s (crash)",
        "! log: disk full",
    ]


def test_at_the_end_the_board_stays_and_one_line_says_how_it_went() -> None:
    """Status and exit reason, with the cursor on a line of its own."""
    drawn = Drawn()
    drawn.draw(run_start(), team_start(members=1), *API.begin())
    end = RunEnd(ts=START_MS + 4000, status="DONE", exit_code=0, stop_reason="end_turn")
    assert drawn.draw(API.end(seconds=4), team_end(), end, is_over=True) == [
        "api: ✓ done",
        "nightly · team · 1/1 members done · end_turn · 4s",
        "✓ api  done  4s",
        "DONE (end_turn)",
        "",
    ]


def test_a_board_as_high_as_the_terminal_is_redrawn_in_place() -> None:
    """Nothing of it is scrolled away."""
    drawn = Drawn(height=4)
    events = [run_start(), team_start(members=9)]
    for number in range(9):
        events += Phase(f"m{number}").begin()
    drawn.draw(*events)
    first = drawn.draw()
    assert len(first) == 4
    assert drawn.draw() == first


def test_a_terminal_of_another_size_gets_a_board_of_that_size() -> None:
    """Which replaces the old one, though the terminal has wrapped its lines."""
    drawn = Drawn(columns=60)
    drawn.draw(run_start(), team_start(), *API.begin(), API.says("word " * 20))
    drawn.terminal = narrow = Terminal(columns=30)
    narrow.write("kept\n" + "x" * 38 + "\n" + "y" * 59)  # as a terminal wraps the two lines that were there
    assert len(narrow.shown) == 5
    shown = drawn.draw()
    assert shown[0] == "kept"
    assert len(shown) == 3
    assert all(columns_of(line) < 30 for line in shown)


def test_lines_whose_width_the_terminal_sees_otherwise_do_not_spoil_the_board() -> None:
    """A terminal on which some of our characters take two columns cuts the line and does not wrap it."""
    drawn = Drawn(columns=40)
    drawn.terminal.wide = "WFA"
    first = drawn.draw(run_start(), team_start(), *API.begin(), API.says("·" * 60))
    assert len(first) == 2
    assert drawn.draw() == first
    assert drawn.terminal.wraps, "what is written afterwards is not cut"


# ---- on a real terminal


_PROGRAM = """
import sys, trio
from avenor.protocol.events import decode_head
from avenor.protocol.methods import wrap_event
from avenor.runtimes.terminal import make_view

async def main():
    view = make_view(quiet=False, is_board=True)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(view.run)
        while line := (await trio.to_thread.run_sync(sys.stdin.buffer.readline)).strip():
            view.publish([wrap_event(line)], [decode_head(line)])
        await view.wait_shown()

trio.run(main)
"""


class Shown:
    """A program that shows the events which it is sent on a terminal."""

    def __init__(self, process: "subprocess.Popen[bytes]", fd: int) -> None:
        self._process = process
        self._fd = fd
        self._raw = b""

    def send(self, *events: AnyEvent | Event) -> None:
        """What happens next."""
        assert self._process.stdin is not None
        self._process.stdin.write(b"".join(encode_event(event) + b"\n" for event in events))
        self._process.stdin.flush()

    def raw(self) -> str:
        """All that it has written."""
        while True:
            try:
                piece = os.read(self._fd, 65536)
            except OSError:  # nothing there now (EAGAIN), or the terminal's other side is closed (EIO)
                piece = b""
            if not piece:
                return self._raw.decode(errors="ignore")
            self._raw += piece

    def lines(self) -> list[str]:
        """What is to be seen, as far as it is there."""
        terminal = Terminal(columns=60, height=10)
        terminal.write(self.raw().replace("\r\n", "\n").rpartition("\x1b[?7h")[0])
        return terminal.shown

    def finish(self) -> int:
        """Its exit code, once it has no more to show."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        eventually_sync(lambda: (self.raw(), self._process.poll())[1] is not None)
        return self._process.returncode


@contextmanager
def on_terminal(*, columns: int = 60, height: int = 10, **environ: str) -> Generator[Shown]:
    outer, inner = pty.openpty()
    fcntl.ioctl(inner, termios.TIOCSWINSZ, struct.pack("HHHH", height, columns, 0, 0))
    os.set_blocking(outer, False)
    inherited = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
    process = subprocess.Popen(
        [sys.executable, "-c", _PROGRAM],
        stdin=subprocess.PIPE,
        stdout=inner,
        stderr=inner,
        env={**inherited, "TERM": "xterm", **environ},
    )
    os.close(inner)
    try:
        yield Shown(process, outer)
    finally:
        process.kill()
        process.wait()
        if process.stdin is not None:
            process.stdin.close()
        os.close(outer)


def test_a_terminal_shows_the_board_while_it_runs_and_leaves_it_at_the_end() -> None:
    """A real pseudo-terminal, of which the board is never wider."""
    with on_terminal() as shown:
        shown.send(run_start(), team_start(members=2), *API.begin(), *DB.begin(), API.says("hello " * 50))
        eventually_sync(lambda: any("hello" in line for line in shown.lines()))
        lines = shown.lines()
        assert [line[:5] for line in lines[1:]] == ["▶ api", "▶ db "]
        assert all(columns_of(line) < 60 for line in lines)
        assert "\x1b[32m" in shown.raw()
        shown.send(API.end(), DB.end(), team_end(), RunEnd(status="DONE", exit_code=0, stop_reason="end_turn"))
        assert shown.finish() == 0
        assert shown.raw().endswith("DONE (end_turn)\x1b[0m\r\n")
        assert [line[:5] for line in shown.lines()[-2:]] == ["✓ api", "✓ db "]


def test_a_terminal_that_does_not_know_its_size_gets_a_board_of_the_usual_one() -> None:
    """As behind a serial line: 80 columns."""
    with on_terminal(columns=0, height=0, NO_COLOR="1") as shown:
        shown.send(*API.begin(), API.says("x" * 99), RunEnd(status="DONE", exit_code=0, stop_reason="end_turn"))
        assert shown.finish() == 0
        rows = [line for line in shown.raw().splitlines() if "xxx" in line]
        assert rows
        assert all(columns_of(row.replace("\x1b[2K", "").split("\x1b")[0]) == 79 for row in rows)


def test_no_color_leaves_the_board_without_colours() -> None:
    """It still is a board."""
    with on_terminal(NO_COLOR="1") as shown:
        shown.send(run_start(), RunEnd(status="DONE", exit_code=0, stop_reason="end_turn"))
        assert shown.finish() == 0
        assert "\x1b[2K" in shown.raw()
        assert not re.search("\x1b\\[[0-9;]*m", shown.raw())


def test_a_terminal_that_can_move_no_cursor_gets_lines() -> None:
    """TERM=dumb, as in an editor's shell."""
    with on_terminal(TERM="dumb", NO_COLOR="1") as shown:
        end = RunEnd(status="DONE", exit_code=0, stop_reason="end_turn")
        shown.send(run_start(), *API.begin(), API.says("mixed up"), API.end(), end)
        assert shown.finish() == 0
        assert "api: ✓ done\r\n" in shown.raw()
        assert "nightly" not in shown.raw()
        assert "mixed up" not in shown.raw()


def test_piped_there_is_no_board_and_no_text_of_the_members() -> None:
    """Only lines on stderr, each with its phase."""
    events = [
        *trio_of_members(),
        API.says("secret text"),
        API.end(),
        team_end(),
        RunEnd(status="DONE", exit_code=0, stop_reason="end_turn"),
    ]
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM],
        input=b"".join(encode_event(event) + b"\n" for event in events),
        capture_output=True,
        timeout=60,
        check=True,
    )
    assert done.stdout == b""
    assert done.stderr.decode().splitlines() == [
        "auth: session s-auth · scripted",
        "api: session s-api · scripted",
        "db: session s-db · scripted",
        "api: ✓ done",
        "DONE (end_turn)",
    ]


# ---- a real run


def run_team(folder: Path, *, stdio: int = subprocess.PIPE) -> OneShot:
    """Runs a team of three that meet when all of them run, on the scripted agent."""
    team = folder / "team.json"
    team.write_text(json.dumps({"team": [{"name": name, "prompt": name} for name in ("auth", "api", "db")]}))
    meet = {"do": "barrier", "directory": str(folder / "barrier"), "count": 3}
    script = script_of(folder, meet, {"do": "usage", "output_tokens": 1500}, {"do": "say", "text": "all here"})
    environ = {"TERM": "xterm", "NO_COLOR": "1"}
    return OneShot(folder, stdio=stdio, environ=environ, prompt=None, team_file=str(team), script=script)


def test_a_team_that_is_run_on_a_terminal_has_its_board(tmp_path: Path) -> None:
    """Each member with what it came to, and below it what the team has to say."""
    outer, inner = pty.openpty()
    fcntl.ioctl(inner, termios.TIOCSWINSZ, struct.pack("HHHH", 10, 60, 0, 0))
    os.set_blocking(outer, False)
    run = run_team(tmp_path, stdio=inner)
    os.close(inner)
    seen = bytearray()

    def has_ended() -> bool:
        try:
            seen.extend(os.read(outer, 65536))
        except BlockingIOError:
            return False
        except OSError:  # the other end is closed
            return True
        return False

    eventually_sync(has_ended)
    assert run.process.wait(timeout=60) == 0
    os.close(outer)
    terminal = Terminal(columns=60, height=10)
    terminal.write(seen.decode().replace("\r\n", "\n"))
    end = terminal.shown.index("DONE (end_turn)")
    header, *rows = terminal.shown[end - 4 : end]
    assert "team · 3/3 members done · end_turn" in header
    assert sorted(words_of(row)[1] for row in rows) == ["api", "auth", "db"]
    assert all(row.startswith("✓") and "1.5k" in row and row.endswith("all here") for row in rows), rows
    assert terminal.shown[end + 1 : end + 3] == ["## auth", "all here"]


def test_a_team_that_is_run_in_a_pipe_has_none(tmp_path: Path) -> None:
    """Stdout has the final reply and nothing else."""
    code, out, err = run_team(tmp_path).finish()
    assert code == 0
    assert [line for line in out.splitlines() if line] == [
        "## auth",
        "all here",
        "## api",
        "all here",
        "## db",
        "all here",
    ]
    assert "\x1b" not in err
    assert "members done" not in err
    assert sorted(line for line in err.splitlines() if "✓" in line) == ["api: ✓ done", "auth: ✓ done", "db: ✓ done"]
