"""The board's models, in the browser that they are written for, on events that real runs seldom have."""

import json
from collections.abc import Generator
from typing import Any

import pytest
from playwright.sync_api import Browser, Page

from tests.browser.boards import BoardProcess
from tests.e2e.harness import Place, Stable

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def page(browser: Browser, place_of_module: Place) -> Generator[Page, None, None]:
    """A page from which the modules can be loaded."""
    stable = Stable(place_of_module)
    board = BoardProcess(place_of_module, "--socket", str(stable.socket))
    opened = browser.new_page()
    opened.goto(board.url)
    yield opened
    opened.close()


def event(name: str, seq: int, **members: Any) -> dict[str, Any]:
    """An event of a phase's session, a second after the one before."""
    head = {"event": name, "seq": seq, "ts": 1000 * seq, "run_id": "r", "session_id": "s"}
    return {**head, "phase": "fix", "iteration": 1, "kind": "loop", **members}


def lanes_of(page: Page, *events: dict[str, Any]) -> list[dict[str, Any]]:
    """The lanes that these events make."""
    code = """async (events) => {
      const {Lanes} = await import("/lanes.js");
      const lanes = new Lanes();
      lanes.add(events);
      return lanes.lanes;
    }"""
    found: list[dict[str, Any]] = page.evaluate(code, list(events))
    return found


def segments(lane: dict[str, Any]) -> list[tuple[str, int, int | None]]:
    """State, beginning and end of each segment, in seconds."""
    return [(s["state"], s["from"] // 1000, s["to"] and s["to"] // 1000) for s in lane["segments"]]


def items_of(page: Page, older: list[dict[str, Any]], newer: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The items of a transcript that has read `newer` first and `older` afterwards."""
    code = """async ([older, newer]) => {
      const {Transcript} = await import("/transcript.js");
      const transcript = new Transcript();
      transcript.add(newer);
      transcript.prepend(older);
      return transcript.items;
    }"""
    found: list[dict[str, Any]] = page.evaluate(code, [older, newer])
    return found


def test_a_retried_phase_and_later_iterations_are_marked_in_one_lane(page: Page) -> None:
    """Attempts and iterations of a phase share its lane, with their number."""
    (lane,) = lanes_of(
        page,
        event("avenor.phase.start", 1),
        event("avenor.phase.end", 2, stop_reason="error", exit_code=1, retried=True),
        event("avenor.retry", 3, attempt=2),
        event("avenor.phase.start", 5, attempt=2),
        event("avenor.phase.end", 6, stop_reason="end_turn", exit_code=0, attempt=2),
        event("avenor.phase.start", 8, iteration=2),
    )
    assert segments(lane) == [("working", 1, 2), ("retrying", 2, 5), ("working", 5, 6), ("working", 8, None)]
    assert [segment["mark"] for segment in lane["segments"]] == [None, None, "2", "2"]
    assert lane["state"] == "working"


def test_a_lane_asks_until_its_last_request_is_settled(page: Page) -> None:
    """Whatever the agent says of itself meanwhile; the same request again is not another one."""
    (lane,) = lanes_of(
        page,
        event("turn.start", 1),
        event("permission.request", 2, request_id="a"),
        event("permission.request", 3, request_id="b"),
        event("permission.request", 4, request_id="a"),
        event("agent.status", 5, phase="waiting", run_phase="fix"),
        event("permission.response", 6, request_id="a", kind="allow"),
        event("permission.response", 7, request_id="b", kind="allow"),
    )
    assert segments(lane) == [("thinking", 1, 2), ("asking", 2, 7), ("working", 7, None)]


def test_what_a_phase_came_to_ends_its_lane(page: Page) -> None:
    """Aborted, cancelled, failed, skipped; the run's end ends the rest."""
    lanes = lanes_of(
        page,
        *(event("avenor.phase.start", n, phase=name) for n, name in enumerate(("a", "b", "c", "d"), 1)),
        event("avenor.phase.end", 5, phase="a", exit_code=0, abort_marker=True, skips=["e"]),
        event("avenor.phase.end", 6, phase="b", exit_code=130),
        event("avenor.phase.end", 7, phase="c", exit_code=1),
        {"event": "run.end", "seq": 8, "ts": 8000, "run_id": "r", "status": "FAILED", "exit_code": 1},
    )
    states = {lane["name"]: lane["state"] for lane in lanes}
    assert states == {"a": "aborted", "b": "cancelled", "c": "failed", "d": "failed", "e": "skipped"}
    assert all(lane["isOver"] for lane in lanes)
    assert {lane["segments"][-1]["to"] for lane in lanes if lane["name"] == "d"} == {8000}


def test_nested_phases_have_lanes_of_their_own(page: Page) -> None:
    """A phase of the same name inside another is not the same lane."""
    lanes = lanes_of(page, event("turn.start", 1), event("turn.start", 2, path="outer"))
    assert [lane["name"] for lane in lanes] == ["fix", "outer/fix"]


def test_nested_lanes_stand_below_the_phase_that_they_are_in(page: Page) -> None:
    """Whenever they began, and without its name before theirs."""
    code = """async (names) => {
      const {Lanes} = await import("/lanes.js");
      const lanes = new Lanes();
      for (const name of names) lanes.lane({}, name);
      return lanes.tree().map(({lane, level, title}) => [lane.name, level, title]);
    }"""
    rows = page.evaluate(code, ["a", "b", "b/x", "a/y", "a/y/z", "c/d"])
    assert rows == [
        ["a", 0, "a"],
        ["a/y", 1, "y"],
        ["a/y/z", 2, "z"],
        ["b", 0, "b"],
        ["b/x", 1, "x"],
        ["c/d", 0, "c/d"],
    ]


def test_what_lasts_but_a_moment_becomes_what_follows_it(page: Page) -> None:
    """The number of an attempt or iteration stays; a request is shown however soon it was answered."""
    (lane,) = lanes_of(
        page,
        event("avenor.phase.start", 1, iteration=3),
        event("turn.start", 2, ts=1002),
        event("permission.request", 3, request_id="a"),
        event("permission.response", 4, ts=3010, request_id="a", kind="allow"),
    )
    assert [(segment["state"], segment["mark"]) for segment in lane["segments"]] == [
        ("thinking", "3"),
        ("asking", None),
        ("working", None),
    ]


def chunk(seq: int, text: str, **members: Any) -> dict[str, Any]:
    """A piece of a message."""
    return event("agent.message_chunk", seq, content={"type": "text", "text": text}, **members)


EVENTS = [
    event("turn.start", 1, text="go"),
    chunk(2, "one ", messageId="m1"),
    chunk(3, "message", messageId="m1"),
    event("tool.call", 4, toolCallId="t", title="a tool", kind="read", status="pending", rawInput={"path": "x"}),
    event("tool.call_update", 5, toolCallId="t", status="in_progress"),
    event("permission.request", 6, request_id="p", question="may I?", tool="read", options=[]),
    event("permission.response", 7, request_id="p", option_id="once", kind="allow", source="control"),
    event("tool.call_update", 8, toolCallId="t", status="completed", rawOutput={"output": "y"}),
    chunk(9, "another", messageId="m2"),
]


@pytest.mark.parametrize("cut", range(len(EVENTS) + 1))
def test_a_transcript_is_the_same_wherever_older_events_join(page: Page, cut: int) -> None:
    """What begins in older events and goes on in newer ones is one item."""
    kept = ("type", "text", "title", "status", "input", "output", "question", "answer")
    shown = [{name: item.get(name) for name in kept} for item in items_of(page, EVENTS[:cut], EVENTS[cut:])]
    whole = [{name: item.get(name) for name in kept} for item in items_of(page, [], EVENTS)]
    assert shown == whole
    assert [item["type"] for item in whole] == ["prompt", "message", "tool", "permission", "message"]


def test_chunks_of_parallel_members_do_not_mix(page: Page) -> None:
    """Each speaker has a message of its own, even with ids that are alike."""
    items = items_of(
        page,
        [],
        [
            chunk(1, "a1 ", phase="a", session_id="x", messageId="m"),
            chunk(2, "b1 ", phase="b", session_id="y", messageId="m"),
            chunk(3, "a2", phase="a", session_id="x", messageId="m"),
            chunk(4, "b2", phase="b", session_id="y", messageId="m"),
        ],
    )
    assert [(item["lane"], item["text"]) for item in items] == [("a", "a1 a2"), ("b", "b1 b2")]


def test_a_stream_of_events_may_be_cut_anywhere(page: Page) -> None:
    """Comments, notices and what is no JSON are left out."""
    text = (
        'retry: 1000\n\n: keep-alive\n\nid: 1\ndata: {"seq":1,"t":"ä😀"}\n\nevent: notice\ndata: {"kind":"reset"}\n\n'
        'id: 2\ndata: nonsense\n\nid: 3\ndata: {"seq":3}\n\n'
    )
    code = """async (text) => {
      const {EventSplitter} = await import("/sse.js");
      return [...Array(text.length).keys()].map((cut) => {
        const splitter = new EventSplitter();
        return [...splitter.feed(text.slice(0, cut)), ...splitter.feed(text.slice(cut))];
      });
    }"""
    results: list[Any] = page.evaluate(code, text)
    assert len(results) == len(text.encode("utf-16-le")) // 2
    assert {json.dumps(result, ensure_ascii=False) for result in results} == {'[{"seq": 1, "t": "ä😀"}, {"seq": 3}]'}


# A server with a log of 100 events, which gives them 10 at a time, and events as they come that leave some out.
# Each stream of its log ends after so many pieces.
_FOLLOWED = """async ({after, latest, live, pieces}) => {
  const {Follow} = await import("/follow.js");
  const log = Array.from({length: 100}, (_, index) => ({seq: index + 1}));
  const api = {async *log(_id, afterSeq) {
    const end = Math.min(log.length, afterSeq + 10 * pieces);
    for (let at = afterSeq; at < end; at += 10) yield log.slice(at, at + 10);
  }};
  const [newer, older] = [[], []];
  await new Promise((ready) => {
    const follow = new Follow(api, "rt_1", after, latest, {
      newer: (events) => newer.push(...events.map((event) => event.seq)),
      older: (events) => older.push(...events.map((event) => event.seq)),
      ready: async () => {
        for (const seq of live) {
          follow.take({seq});
          await new Promise((done) => setTimeout(done));
        }
        if (after > 0) await follow.older();
        ready();
      },
    });
  });
  return {newer, older};
}"""


@pytest.mark.parametrize("pieces", [1, 100])
def test_a_gap_in_what_comes_live_is_filled_from_the_log(page: Page, pieces: int) -> None:
    """Each event once and in order, also those that came twice or while the log was read, and over streams that end."""
    live = [58, 61, 62, 75, 76, 76, 99]
    result = page.evaluate(_FOLLOWED, {"after": 40, "latest": 60, "live": live, "pieces": pieces})
    assert result["newer"] == list(range(41, result["newer"][-1] + 1))
    assert result["newer"][-1] >= 99
    assert result["older"] == list(range(1, 41))
