"""`avenor top`: its table, its keys, and what it asks a server."""

import json
import re
from typing import Any

import msgspec
import pytest

from avenor.cli.listing import MEMBERS, render
from avenor.cli.terminal import Style
from avenor.cli.top_keys import Keys
from avenor.cli.top_runs import EVENTS_KEPT, Runs
from avenor.cli.top_screen import wrapped
from avenor.cli.top_table import HEADINGS, name_of, silent_text, table_lines, total_line, tree_order
from avenor.control.safetext import columns_of
from avenor.protocol.events import Usage
from avenor.protocol.snapshot import PendingPermission, PhaseState, Snapshot
from tests.control.scripted_server import event_line

NOW_MS = 1_000_000
PLAIN = Style(coloured=False)


def snapshot(runtime_id: str | None, **more: Any) -> dict[str, Any]:
    """As `list` answers it."""
    facts: dict[str, Any] = {"run_id": "r", "status": "running", "started_at": NOW_MS - 65_000, **more}
    made: dict[str, Any] = json.loads(msgspec.json.encode(Snapshot(runtime_id=runtime_id, **facts)))
    return made


def names(rows: list[tuple[int, dict[str, Any]]]) -> list[str]:
    """The rows as `depth id`."""
    return [f"{depth} {row['runtime_id']}" for depth, row in rows]


# The table


def test_a_run_stands_below_the_one_that_has_started_it() -> None:
    """However deep, in the server's order; one whose parent is not there stands at the root."""
    runs = [
        snapshot("rt_1"),
        snapshot("rt_2", parent_id="rt_1"),
        snapshot("rt_3", parent_id="rt_9"),
        snapshot("rt_4", parent_id="rt_2"),
        snapshot("rt_5", parent_id="rt_1"),
    ]
    assert names(tree_order(runs)) == ["0 rt_1", "1 rt_2", "2 rt_4", "1 rt_5", "0 rt_3"]


def test_a_tree_with_something_alive_comes_before_the_others() -> None:
    """A live child keeps its ended parent above."""
    runs = [
        snapshot("rt_1", status="ended"),
        snapshot("rt_2", status="ended"),
        snapshot("rt_3", parent_id="rt_2"),
        snapshot("rt_4"),
    ]
    assert names(tree_order(runs)) == ["0 rt_2", "1 rt_3", "0 rt_4", "0 rt_1"]


def test_runs_that_are_their_own_ancestors_are_shown_all_the_same() -> None:
    """At the root, each once."""
    runs = [snapshot("rt_1", parent_id="rt_2"), snapshot("rt_2", parent_id="rt_1"), snapshot("rt_3", parent_id="rt_3")]
    assert sorted(names(tree_order(runs))) == ["0 rt_1", "0 rt_2", "0 rt_3"]


def test_a_very_deep_tree_is_put_in_order_without_recursion() -> None:
    """And its labels stay in the picture."""
    runs = [snapshot(f"rt_{n}", parent_id=f"rt_{n - 1}") for n in range(3000)]
    rows = tree_order(runs)
    assert rows[-1][0] == 2999
    (_, line) = table_lines(rows[-1:], style=PLAIN, columns=200, now_ms=NOW_MS)
    assert line.index("rt_2999") < 20


FULL = snapshot(
    "rt_1",
    label="review",
    phase="working",
    phase_label="reading",
    phases=[
        PhaseState(path=None, name="scope", kind="pre", iteration=0, state="done", session_id=None),
        PhaseState(path=None, name="tests", kind="team", iteration=0, state="running", session_id=None),
    ],
    usage=Usage(total_tokens=12_345, cost_usd=1.5),
    retry_attempt=1,
    max_retries=3,
    updated_at=NOW_MS - 9_000,
)


def test_a_row_tells_what_a_run_is_at() -> None:
    """One cell for each heading."""
    heading, row = table_lines([(0, FULL)], style=PLAIN, columns=200, now_ms=NOW_MS)
    assert heading.split() == list(HEADINGS)
    assert row.split("  ") != []
    assert re.split(r"\s{2,}", row) == [
        "rt_1 review", "running", "tests", "working: reading", "9s", "12.3k", "$1.50", "1/3", "1m05s",
    ]  # fmt: skip


def test_the_tables_need_no_more_than_what_is_asked_for() -> None:
    """Of a run that asks and works, and of one that has ended."""
    asks = PendingPermission(request_id="perm_1", tool="sh", question="Run ls?", options=[], resolver="none")
    whole = [FULL, snapshot("rt_2", pending_permission=True, permission=asks), snapshot("rt_3", status="ended")]
    narrow = [{name: run[name] for name in MEMBERS} for run in whole]
    rows = [table_lines(tree_order(runs), style=PLAIN, columns=200, now_ms=NOW_MS) for runs in (whole, narrow)]
    assert rows[0] == rows[1]
    tables = [render(runs, style=PLAIN, columns=200, now_ms=NOW_MS) for runs in (whole, narrow)]
    assert tables[0] == tables[1]


def test_a_run_that_asks_is_not_silent_and_shows_what_it_asks() -> None:
    """A person's time is not counted."""
    asks = PendingPermission(request_id="perm_1", tool="sh", question="Run ls?", options=[], resolver="none")
    run = snapshot("rt_1", pending_permission=True, permission=asks, permissions=[asks, asks], updated_at=1)
    assert silent_text(run, NOW_MS) == ""
    (_, row) = table_lines([(0, run)], style=PLAIN, columns=200, now_ms=NOW_MS)
    assert "asking" in row
    assert "perm_1 Run ls? (+1)" in row


@pytest.mark.parametrize("columns", range(30, 130, 7))
def test_every_line_fits_the_terminal(columns: int) -> None:
    """Wide characters count twice; what cannot be shown is left out, the run and its status last."""
    run = {**FULL, "label": "日本語のラベル" * 5, "phase_label": "ö" * 90}
    lines = table_lines([(0, FULL), (3, run)], style=PLAIN, columns=columns, now_ms=NOW_MS, selected=1)
    assert max(map(columns_of, lines)) <= columns
    assert lines[0].split()[:2] == ["RUN", "STATUS"]
    assert lines[1].startswith("  rt_1")
    assert lines[2].startswith("> ")


def test_what_has_nothing_in_it_is_left_out_first_where_it_is_narrow() -> None:
    """So that a permission is seen on 60 columns."""
    asks = PendingPermission(request_id="perm_1", tool="sh", question="Run ls?", options=[], resolver="none")
    run = snapshot("rt_1", pending_permission=True, permission=asks, permissions=[asks])
    (heading, row) = table_lines([(0, run)], style=PLAIN, columns=50, now_ms=NOW_MS)
    assert heading.split() == ["RUN", "STATUS", "PHASE", "PERMISSION", "ELAPSED"]
    assert "perm_1 Run ls?" in row


def test_text_of_agents_cannot_act_on_the_terminal() -> None:
    """Labels, phases and questions are cleaned."""
    evil = "a\x1b]0;title\x07\x1b[2Jb\nc\u202ed"
    asks = PendingPermission(request_id="perm_1", tool="sh", question=evil, options=[], resolver="none")
    phase = PhaseState(path=None, name=evil, kind=None, iteration=0, state="running", session_id=None)
    run = snapshot(
        "rt_1", label=evil, phase="working", phase_label=evil, phases=[phase], permission=asks, permissions=[asks]
    )
    (_, row) = table_lines([(0, run)], style=PLAIN, columns=300, now_ms=NOW_MS)
    assert row.isprintable()
    assert row.count("ab c d") == 4
    assert name_of(run).isprintable()


def test_the_last_line_adds_up() -> None:
    """Runs by what they are at, tokens and cost."""
    runs = [FULL, snapshot("rt_2", status="ended", outcome="DONE", usage=Usage(total_tokens=655, cost_usd=0.25)), FULL]
    assert total_line(runs) == "3 runs: 2 running, 1 DONE · 25.3k tokens · $3.25"
    assert total_line([snapshot("rt_1", status="idle")]) == "1 run: 1 idle"
    assert total_line([]) == "0 runs"


def test_a_cost_that_is_no_number_is_none() -> None:
    """A snapshot comes from elsewhere."""
    run = {**FULL, "usage": {"total_tokens": None, "cost_usd": "much"}}
    assert total_line([run]) == "1 run: 1 running"
    assert "$" not in table_lines([(0, run)], style=PLAIN, columns=200, now_ms=NOW_MS)[1]


# Keys


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"jk", ["down", "up"]),
        (b"\x1b[A\x1bOB\x1b[1;5A", ["up", "down", "up"]),
        (b"\x1b[5~\x1b[6~\x1b[1~\x1b[4~", ["page up", "page down", "first", "last"]),
        (b"\r?q", ["open", "help", "quit"]),
        (b"x\x1b[Z\x1b[15~\xff", []),
    ],
)
def test_bytes_are_keys(data: bytes, expected: list[str]) -> None:
    """Wherever they are cut apart; others are nothing."""
    assert Keys().feed(data) == expected
    piecewise = Keys()
    assert [name for byte in data for name in piecewise.feed(bytes([byte]))] == expected


def test_escape_is_a_key_when_nothing_follows_it() -> None:
    """And the beginning of another one until then."""
    keys = Keys()
    assert keys.feed(b"\x1b") == []
    assert keys.is_waiting
    assert keys.flush() == ["back"]
    assert not keys.is_waiting
    assert keys.feed(b"\x1b[") == []
    assert keys.flush() == []


def test_a_sequence_without_end_is_given_up() -> None:
    """No input fills the memory."""
    keys = Keys()
    keys.feed(b"\x1b[" + b"1" * 100)
    assert not keys.is_waiting


# What is asked


class Talk:
    """A `Runs`, and what it has sent."""

    def __init__(self) -> None:
        self.runs = Runs()
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self._id = 0
        self.send()

    def send(self) -> None:
        """What it wants to ask now."""
        request = self.runs.next_request()
        if request is not None:
            call = json.loads(request)
            self._id = call["id"]
            self.asked.append((call["method"], call.get("params", {})))

    def answer(self, result: Any) -> None:
        """Answers what was asked last."""
        self._feed({"result": result})

    def refuse(self, code: int) -> None:
        """The same with an error."""
        self._feed({"error": {"code": code, "message": "no"}})

    def event(self, **fields: Any) -> None:
        """An event comes."""
        self.runs.feed(event_line(**fields))
        self.send()

    def start(self, *snapshots: dict[str, Any]) -> None:
        """Up to the first list."""
        self.answer({"id": "s", "subscribed": True})
        self.answer(list(snapshots))

    def _feed(self, message: dict[str, Any]) -> None:
        self.runs.feed(json.dumps({"jsonrpc": "2.0", **message, "id": self._id}).encode() + b"\n")
        self.send()


def test_it_subscribes_before_it_lists() -> None:
    """What happens in between is told twice rather than never."""
    talk = Talk()
    talk.start(snapshot("rt_1"), snapshot("rt_2"))
    assert [method for method, _ in talk.asked] == ["subscribe", "list"]
    assert list(talk.runs.known) == ["rt_1", "rt_2"]
    assert talk.runs.is_listed


def test_an_event_that_changes_a_run_asks_for_this_run_only() -> None:
    """Once for several that come together; text asks for nothing and ends the silence."""
    talk = Talk()
    talk.start(snapshot("rt_1", updated_at=5, latest_seq=1), snapshot("rt_2"))
    talk.event(event="agent.message_chunk", seq=2, ts=70, runtime_id="rt_1", content={"type": "text", "text": "x"})
    assert len(talk.asked) == 2
    assert talk.runs.known["rt_1"]["updated_at"] == 70
    talk.event(event="turn.end", seq=3, ts=80, runtime_id="rt_1")
    talk.event(event="agent.status", seq=4, ts=80, runtime_id="rt_2")
    talk.event(event="agent.status", seq=5, ts=80, runtime_id="rt_2")
    talk.answer(snapshot("rt_1", status="idle"))
    talk.answer(snapshot("rt_2"))
    assert talk.asked[2:] == [("status", {"runtime_id": "rt_1"}), ("status", {"runtime_id": "rt_2"})]
    assert talk.runs.known["rt_1"]["status"] == "idle"


@pytest.mark.parametrize(
    "news",
    [
        {"event": "run.start", "runtime_id": "rt_1"},
        {"event": "run.end", "runtime_id": "rt_1"},
        {"event": "turn.start", "runtime_id": "rt_new"},
    ],
)
def test_a_start_an_end_and_a_stranger_ask_for_the_list(news: dict[str, Any]) -> None:
    """Runs that wait for a place have no events, and of those that are forgotten nobody tells."""
    talk = Talk()
    talk.start(snapshot("rt_1"))
    talk.event(seq=2, ts=1, **news)
    assert talk.asked[-1] == ("list", {"fields": list(MEMBERS)})
    talk.answer([snapshot("rt_new")])
    assert list(talk.runs.known) == ["rt_new"]


def test_lost_events_ask_for_the_list() -> None:
    """What they were about is not known."""
    talk = Talk()
    talk.start(snapshot("rt_1"))
    notice = {"kind": "subscriber.lagged", "dropped_count": 3, "runtime_id": "rt_1"}
    talk.runs.feed(json.dumps({"jsonrpc": "2.0", "method": "notice", "params": notice}).encode() + b"\n")
    talk.send()
    assert talk.asked[-1][0] == "list"


def test_an_event_that_cannot_be_read_is_passed_over() -> None:
    """A newer server may send what this version does not know."""
    talk = Talk()
    talk.start(snapshot("rt_1"))
    talk.event(event=["new"], seq="one")
    talk.event(event="turn.end", seq=2, ts=1, runtime_id="rt_1")
    assert talk.asked[-1] == ("status", {"runtime_id": "rt_1"})


def test_a_run_that_is_not_there_any_more_leaves_the_table() -> None:
    """While a refused list ends it all."""
    talk = Talk()
    talk.start(snapshot("rt_1"), snapshot("rt_2"))
    talk.event(event="turn.end", seq=2, ts=1, runtime_id="rt_2")
    talk.refuse(-32004)
    assert list(talk.runs.known) == ["rt_1"]
    talk.runs.read_again()
    talk.send()
    with pytest.raises(Exception, match="no"):
        talk.refuse(-32010)


def test_a_look_at_a_run_joins_its_past_with_what_comes() -> None:
    """Each event once, the last ones kept, a huge one as its name only; looking away forgets them."""
    talk = Talk()
    talk.start(snapshot("rt_1", latest_seq=EVENTS_KEPT + 50))
    talk.runs.look_at("rt_1")
    talk.send()
    assert talk.asked[-1] == ("history", {"runtime_id": "rt_1", "after_seq": 50, "limit": EVENTS_KEPT})
    talk.event(event="tool.call", seq=EVENTS_KEPT + 51, ts=1, runtime_id="rt_1", title="x" * 100_000)
    past = [{"event": "agent.noise", "seq": 50 + n, "ts": 1, "text": "t"} for n in range(1, EVENTS_KEPT + 2)]
    talk.answer({"events": past, "latest_seq": EVENTS_KEPT + 51, "complete": True})
    seqs = [seq for seq, _ in talk.runs.events]
    assert seqs == list(range(52, EVENTS_KEPT + 52))
    assert json.loads(talk.runs.events[-1][1]) == {
        "event": "tool.call", "seq": EVENTS_KEPT + 51, "ts": 1, "omitted_bytes": talk_bytes(talk),
    }  # fmt: skip
    talk.event(event="tool.call", seq=999, ts=1, runtime_id="rt_other")
    assert len(talk.runs.events) == EVENTS_KEPT
    talk.runs.look_away()
    assert not talk.runs.events


def talk_bytes(talk: Talk) -> int:
    """What the last event says of itself."""
    size: int = json.loads(talk.runs.events[-1][1])["omitted_bytes"]
    assert size > 100_000
    return size


def test_of_a_snapshot_only_what_is_shown_is_kept() -> None:
    """The agent's words, and labels without end, fill no memory."""
    talk = Talk()
    talk.start(snapshot("rt_1", final_output="w" * 2000, label="l" * 9000, phase_label="p" * 9000))
    assert len(json.dumps(talk.runs.known)) < 3000


def test_a_new_connection_begins_again() -> None:
    """What was known stays until the new list is there; a look goes on."""
    talk = Talk()
    talk.start(snapshot("rt_1"))
    talk.runs.look_at("rt_1")
    talk.runs.restart()
    talk.send()
    assert list(talk.runs.known) == ["rt_1"]
    talk.start(snapshot("rt_1"), snapshot("rt_2"))
    assert [method for method, _ in talk.asked] == ["subscribe", "list", "subscribe", "list", "history"]
    talk.refuse(-32004)  # the look's run is gone: nothing to end for
    assert list(talk.runs.known) == ["rt_1", "rt_2"]


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("abc\nd", ["abc", "d"]),
        ("abcdef", ["abcd", "ef"]),
        ("日本語", ["日本", "語"]),
        ("", [""]),
        ("\tx", ["    ", "x"]),
    ],
)
def test_long_lines_are_wrapped_by_columns(text: str, lines: list[str]) -> None:
    """Wide characters are not cut in two."""
    assert wrapped(text, 4) == lines
