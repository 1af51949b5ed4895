"""The page of a report."""

from html.parser import HTMLParser
from typing import Any

import pytest

from avenor.control.figures import figures_of
from avenor.control.pageparts import duration_text
from avenor.control.reportpage import report_page

VOID = ("meta", "br")


class Page(HTMLParser):
    """A page's elements and texts; its elements must be nested rightly."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] != "style" and data.strip():
            self.texts.append(data.strip())

    def attributes(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]

    def rows(self) -> int:
        return sum(tag == "tr" for tag, _ in self.elements)


def event(at: int, name: str, **members: Any) -> dict[str, Any]:
    return {"event": name, "ts": at, **members}


def a_run(**start: Any) -> list[dict[str, Any]]:
    """A run in which everything happens that a page shows."""
    place = {"phase": "build", "path": "outer"}
    return [
        event(0, "run.start", run_id="run_a", kind="loop", backend="scripted", dir="/d", **start),
        event(1000, "session.start", **place),
        event(1000, "avenor.phase.start", kind="loop", iteration=1, **place),
        event(1000, "turn.start", text="Build\nit", source="run", **place),
        event(2000, "permission.request", request_id="p1", tool="execute", question="rm -r x", phase="build"),
        event(4000, "permission.response", request_id="p1", kind="allow", option_id="once", source="control"),
        event(4100, "tool.call", toolCallId="t", status="failed", **place),
        event(
            5000, "turn.end", stop_reason="x", error="crashed", usage={"total_tokens": 1234, "cost_usd": 0.5}, **place
        ),
        event(5000, "avenor.phase.end", stop_reason="x", exit_code=1, retried=True, **place),
        event(5000, "avenor.retry", attempt=2, delay_ms=1000, phase="build", **{"class": "crash"}),
        event(6000, "avenor.phase.start", kind="loop", iteration=1, attempt=2, **place),
        event(7000, "avenor.error", source="log", message="disk full"),
        event(8000, "run.resumed", cut="a", goes_on="b"),
        event(9000, "permission.request", request_id="p2", tool="edit", question=""),
        event(
            9900,
            "avenor.phase.end",
            stop_reason="blocked",
            exit_code=0,
            abort_marker=True,
            abort_marker_label="no",
            **place,
        ),
        event(10000, "run.end", status="BLOCKED", exit_code=5, stop_reason="blocked", reason="no key"),
    ]


def page_of(*runs: list[dict[str, Any]]) -> Page:
    return Page(report_page([figures_of(events) for events in runs]))


def test_the_page_tells_what_happened() -> None:
    """Outcomes with their reasons, who answered, what was waited for, tokens and cost."""
    texts = page_of(a_run(run_label="nightly")).texts
    page = " ".join(texts)
    for told in (
        "Report: nightly",
        "BLOCKED (blocked: no key)",
        "outer/build iteration 1, attempt 2",
        "retried (x)",
        "aborted (blocked, no)",
        "Build it failed (x, crashed)",
        "execute rm -r x build allow (once) control 2.0 s",
        "edit nobody answered",
        "build 2 crash 1.0 s",
        "a permission rm -r x 2.0 s",
        "log disk full",
        "1,234 $0.5000",
        "1, 1 failed",
        "resumed once",
        "1970-01-01 00:00:00 UTC",
    ):
        assert told in page


def test_a_bar_stands_where_its_time_was() -> None:
    """In percent of the run; what it shows is told to those who do not see it."""
    bars = page_of(a_run()).attributes("i")
    assert bars[0]["style"] == "left:10.000%;width:40.000%"
    assert (bars[0]["class"], bars[0]["aria-label"]) == ("waits", "outer/build: retried, 4.0 s")
    assert bars[1]["style"] == "left:60.000%;width:39.000%"
    assert bars[1]["class"] == "failed"
    assert [bar["style"] for bar in bars if "waiting for a permission" in str(bar["title"])] == [
        "left:20.000%;width:20.000%",
        "left:90.000%;width:10.000%",
    ]


def test_the_page_needs_nothing_from_anywhere() -> None:
    """No script, no link, and a policy by which a browser would fetch nothing."""
    page = page_of(a_run())
    assert {"script", "link", "img", "a", "iframe"} & {tag for tag, _ in page.elements} == set()
    policies = [meta["content"] for meta in page.attributes("meta") if "http-equiv" in meta]
    assert policies == ["default-src 'none'; style-src 'unsafe-inline'"]
    text = report_page([figures_of(a_run())])
    assert "http:" not in text
    assert "https:" not in text
    assert "url(" not in text


def test_what_agents_wrote_is_text_on_the_page() -> None:
    """Everywhere: in names, labels, questions, messages and reasons."""
    evil = '"><script>alert(1)</script>\x1b[2J\x00'
    events = [
        {name: evil if isinstance(value, str) and name != "event" else value for name, value in each.items()}
        for each in a_run(run_label="x")
    ]
    page = page_of(events)
    assert "script" not in {tag for tag, _ in page.elements}
    assert {tag for tag, _ in page.elements} == {tag for tag, _ in page_of(a_run()).elements}
    text = report_page([figures_of(events)])
    assert "\x1b" not in text
    assert "\x00" not in text


def test_several_runs_have_an_overview() -> None:
    """One row for each, and each its own part, in the given order."""
    page = page_of(a_run(run_label="one"), a_run(run_label="two"))
    assert page.texts[:3] == ["Report of 2 runs", "Report of 2 runs", "Overview"]
    assert page.rows() == 3 + 2 * (page_of(a_run()).rows())
    assert [text for text in page.texts if text in ("one", "two")] == ["one", "two", "one", "two"]


def test_what_a_run_does_not_have_is_not_on_its_page() -> None:
    """No empty tables, no time line without anything on it; a run that goes on says so."""
    texts = page_of([event(5, "run.start", run_id="run_a")]).texts
    assert "not ended" in texts
    for title in ("Time line", "Phases", "Turns", "Permissions", "Retries", "Waiting", "Errors", "resumed"):
        assert title not in texts


def test_the_turns_are_the_time_line_of_a_run_without_phases() -> None:
    """In one lane."""
    events = [event(0, "run.start"), event(100, "turn.start", text="x"), event(200, "turn.end", stop_reason="end_turn")]
    page = page_of(events)
    assert [bar["aria-label"] for bar in page.attributes("i")] == ["turns: done, 100 ms"]


@pytest.mark.parametrize("ts", [10**14 * 2, 1e300, -1, None])
def test_times_that_no_calendar_has_are_shown_all_the_same(ts: Any) -> None:
    """A foreign log is no reason to fail."""
    page_of([event(ts, "run.start"), event(ts, "run.end", status="DONE")])


@pytest.mark.parametrize(
    ("milliseconds", "text"),
    [
        (0, "0 ms"),
        (999, "999 ms"),
        (1000, "1.0 s"),
        (59_940, "59.9 s"),
        (59_960, "1 min 0 s"),
        (3_599_400, "59 min 59 s"),
        (3_599_600, "1 h 0 min"),
        (90_000_000, "25 h 0 min"),
    ],
)
def test_durations_are_for_people(milliseconds: int, text: str) -> None:
    """In the two largest units."""
    assert duration_text(milliseconds) == text
