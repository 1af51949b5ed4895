"""The past of a run, as the log of its lost process tells it."""

from collections.abc import Sequence

import msgspec
import pytest
from msgspec import UNSET

from avenor.protocol.events import (
    Event,
    LoopEnd,
    LoopStart,
    MessageChunk,
    PermissionRequest,
    PermissionResponse,
    PhaseEnd,
    PhaseKind,
    PhaseStart,
    PromptQueued,
    Retry,
    RunKind,
    RunResumed,
    RunStart,
    SessionStart,
    TeamStart,
    TurnEnd,
    TurnStart,
    encode_event,
)
from avenor.protocol.snapshot import Fold, Snapshot
from avenor.runtimes.phase_marks import Scope
from avenor.runtimes.prompts import Prompt
from avenor.runtimes.replay import Key, Past, read_past


def past_of(*events: Event, kind: RunKind = "single", parks: bool = False, step_ms: int = 1000) -> Past:
    """The past of a log that begins and has these events, each a second after the one before it."""
    start = RunStart(kind=kind, backend="scripted", dir="/", version="1", parks=parks)
    lines: list[bytes] = []
    for number, event in enumerate((start, *events), 1):
        event.seq, event.ts, event.run_id = number, event.ts or number * step_ms, "r"
        lines.append(encode_event(event))
    past = read_past(lines, Fold(Snapshot()))
    assert past is not None
    return past


def of_phase(
    events: Sequence[Event], phase: str, *, iteration: int = 0, path: str = "", kind: PhaseKind = "pre"
) -> list[Event]:
    """The events, as those of a phase."""
    for event in events:
        event.phase, event.iteration, event.path = phase, iteration, path or UNSET
        if not isinstance(event, (RunStart, PermissionResponse)):
            event.kind = kind  # type: ignore[attr-defined]
    return list(events)


def session(session_id: str = "s") -> SessionStart:
    """A session was opened."""
    return SessionStart(backend="scripted", dir="/", session_id=session_id)


def said(text: str) -> MessageChunk:
    """A piece of a message."""
    return MessageChunk(content=msgspec.Raw(msgspec.json.encode({"type": "text", "text": text})))


def turn(text: str = "go", source: str = "run") -> TurnStart:
    """A prompt went out."""
    return TurnStart(text=text, source=source)


def clean(output: str = "fine") -> TurnEnd:
    """A turn ended as it should."""
    return TurnEnd(stop_reason="end_turn", final_output=output)


def queued(text: str, *, keep_queue: bool | None = None) -> PromptQueued:
    """A client has said something; with `keep_queue`, to cut the turn short."""
    return PromptQueued(text=text, source="control", queued=1, keep_queue=UNSET if keep_queue is None else keep_queue)


def texts(prompts: list[Prompt]) -> list[str]:
    """What they say."""
    return [prompt.text for prompt in prompts]


def test_a_log_without_events_is_no_past() -> None:
    """What cannot be read is none."""
    assert read_past([], Fold(Snapshot())) is None
    assert read_past([b"{}", b'{"event":"of.tomorrow","seq":1,"ts":1}'], Fold(Snapshot())) is None


def test_a_run_that_had_said_nothing_begins() -> None:
    """Its agent was still starting."""
    talk = past_of().whole
    assert (talk.has_started, talk.is_cut, talk.last) == (False, False, None)


def test_a_turn_that_has_no_end_was_cut() -> None:
    """Its session goes on; nothing was answered in it yet."""
    past = past_of(session(), turn())
    assert (past.whole.session_id, past.whole.is_cut, past.whole.has_history) == ("s", True, False)
    assert past.describe() == ("a turn", "session s")


def test_a_parked_run_is_parked() -> None:
    """With all that it has said, however long."""
    past = past_of(session(), turn(), clean("x" * 9999), parks=True)
    assert (past.is_parked, past.final_output) == (True, "x" * 9999)
    assert past.describe() == ("nothing", "parked")


def test_a_prompt_that_was_sent_waits_no_more() -> None:
    """Those behind it do, in their order; the same text twice is two prompts."""
    past = past_of(session(), turn(), queued("a"), queued("b"), queued("a"), clean(), turn("a", "control"))
    assert texts(past.whole.queued) == ["b", "a"]


@pytest.mark.parametrize(("keep", "left"), [(True, ["now", "a", "b"]), (False, ["now"])])
def test_an_interrupting_prompt_is_the_first(keep: bool, left: list[str]) -> None:
    """The others wait behind it, or were dropped."""
    past = past_of(session(), turn(), queued("a"), queued("b"), queued("now", keep_queue=keep))
    assert texts(past.whole.queued) == left
    assert past.whole.was_interrupted


@pytest.mark.parametrize("is_told", [False, True])
def test_a_prompt_that_interrupts_the_wait_for_a_retry_is_said_instead(is_told: bool) -> None:
    """Nobody waits for the next attempt any more, though its retry was told."""
    told = [Retry(max_retries=3, delay_ms=2000, retry_class="crash", attempt=2)] if is_told else []
    events = [session(), turn("go"), TurnEnd(stop_reason="error", error="x"), *told]
    assert past_of(*events, queued("now", keep_queue=False)).whole.was_interrupted
    assert not past_of(*events, queued("later")).whole.was_interrupted


def test_each_prompt_of_a_single_run_has_its_own_attempts() -> None:
    """What was tried again before it does not count, and going on in it is no new one."""
    retry = Retry(max_retries=3, delay_ms=2000, retry_class="crash", attempt=2)
    begun = [session(), turn("go"), TurnEnd(stop_reason="error", error="x"), retry, turn("go")]
    assert past_of(*begun, RunResumed(cut="a turn", goes_on="s"), turn("go on", "resume")).whole.attempt == 2
    assert past_of(*begun, clean(), turn("more", "control")).whole.attempt == 1


def test_a_retry_that_was_told_comes() -> None:
    """With its number, and with what is said again."""
    retry = Retry(max_retries=3, delay_ms=2000, retry_class="crash", attempt=2)
    talk = past_of(session(), turn("go"), TurnEnd(stop_reason="error", error="x"), retry).whole
    assert (talk.attempt, talk.is_retrying, talk.prompt) == (2, True, Prompt(text="go", source="run"))


def test_what_is_left_of_the_wait_for_a_retry_is_known() -> None:
    """Not more than there was of it, though the clock was set back; nothing where nobody waits."""
    retry = Retry(max_retries=3, delay_ms=2000, retry_class="crash", attempt=2)
    talk = past_of(session(), turn("go"), TurnEnd(stop_reason="error", error="x"), retry).whole
    assert [talk.wait_seconds(retry.ts + later) for later in (-5000, 0, 500, 2000, 5000)] == [2.0, 2.0, 1.5, 0.0, 0.0]
    assert past_of(session()).whole.wait_seconds(0) == 0.0


def test_another_session_has_no_past() -> None:
    """What was said in the first is said again."""
    talk = past_of(session("one"), turn(), clean(), queued("a"), turn("a", "control"), session("two")).whole
    assert (talk.session_id, talk.has_history, texts(talk.queued)) == ("two", False, ["a"])


def test_questions_that_nobody_has_settled_are_known() -> None:
    """The others are not."""

    def ask(request_id: str) -> PermissionRequest:
        return PermissionRequest(request_id=request_id, tool="t", question="q", options=[], resolver="control")

    answer = PermissionResponse(request_id="p1", option_id="y", kind="allow", source="control")
    assert list(past_of(session(), turn(), ask("p1"), ask("p2"), answer).asked) == ["p2"]


def test_time_without_a_process_is_not_used() -> None:
    """A second before the loss, and two after it."""
    resumed = RunResumed(cut="a turn", goes_on="session s")
    resumed.ts = 1_000_000
    later = session()
    later.ts = 1_002_000
    assert past_of(session(), resumed, later).used_ms == 3000


def test_a_follow_up_gets_its_time_anew() -> None:
    """From when it was accepted."""
    past = past_of(session(), turn(), clean(), queued("more"), turn("more", "control"), parks=True)
    assert past.used_ms == 1000


def test_the_end_of_a_phase_counts_unless_it_is_tried_again() -> None:
    """The attempt that follows has nothing of the one before, but what clients have said."""
    failed = PhaseEnd(stop_reason="error", exit_code=1, retried=True)
    retry = Retry(max_retries=1, delay_ms=0, retry_class="crash", attempt=2)
    events = [
        session(),
        PhaseStart(session_id="s"),
        turn(),
        said("[loop: exit]\n"),
        clean(),
        queued("a"),
        turn("a", "control"),
        TurnEnd(stop_reason="error", error="x"),
        failed,
        retry,
    ]
    past = past_of(*of_phase(events, "p"), kind="loop")
    talk = past.talks[Key.of(Scope(), "p", 0)]
    assert (talk.end, talk.attempt, talk.has_started, talk.directives) == (None, 2, False, [])
    assert texts(talk.queued) == ["a"]


def test_markers_of_all_turns_of_a_phase_are_read_again() -> None:
    """Also of the one that was cut."""
    events = [
        session(),
        PhaseStart(session_id="s"),
        turn(),
        said("[loop: "),
        said("exit]\n"),
        clean(),
        turn("more", "control"),
        said("[loop: abort | why]\n"),
    ]
    talk = past_of(*of_phase(events, "p", iteration=1, kind="loop"), kind="loop").talks[Key("", "p", 1)]
    assert [(each.kind, each.label) for each in talk.directives] == [("exit", None), ("abort", "why")]
    assert talk.is_cut


def test_what_was_said_between_phases_goes_to_the_next() -> None:
    """And no longer to the one after it."""
    events = [
        queued("early"),
        *of_phase([session(), PhaseStart(session_id="s")], "one"),
        *of_phase([turn(), clean(), turn("early", "control"), clean(), PhaseEnd(stop_reason="x", exit_code=0)], "one"),
        queued("late"),
        *of_phase([session("t"), PhaseStart(session_id="t"), turn()], "two"),
    ]
    past = past_of(*events, kind="loop")
    assert texts(past.talks[Key("", "two", 0)].queued) == ["late"]
    assert past.waiting == []


def test_what_was_said_before_a_team_goes_to_every_member() -> None:
    """Also to one whose agent was still starting."""
    events = [queued("all"), *of_phase([session(), PhaseStart(session_id="s"), turn()], "a", kind="team")]
    past = past_of(*events, kind="team")
    assert texts(past.talks[Key("", "a", 0)].queued) == ["all"]
    assert texts(past.waiting) == ["all"]


def test_a_nested_loop_that_begins_again_has_no_past() -> None:
    """What it came to in an earlier iteration around it counts no more."""
    inner = [session(), PhaseStart(session_id="s"), turn(), clean(), PhaseEnd(stop_reason="end_turn", exit_code=0)]
    loop = LoopStart(max_iterations=1, pre_phase_count=0, loop_phase_count=1, post_phase_count=0, path="outer")
    over = LoopEnd(exit_reason="max_iterations", iterations_completed=1, path="outer")
    events = [
        *of_phase([PhaseStart()], "outer", iteration=1, kind="loop"),
        loop,
        *of_phase(inner, "p", iteration=1, path="outer", kind="loop"),
        over,
        *of_phase([PhaseEnd(stop_reason="end_turn", exit_code=0)], "outer", iteration=1, kind="loop"),
        *of_phase([PhaseStart()], "outer", iteration=2, kind="loop"),
    ]
    past = past_of(*events, kind="loop")
    assert set(past.talks) == {Key("", "outer", 1), Key("", "outer", 2)}
    assert (past.begun, past.over) == (set(), {})


def test_people_are_told_which_phases_go_on() -> None:
    """By their whole names; what is around them is not named."""
    events = [
        TeamStart(pre_phase_count=0, team_member_count=2, post_phase_count=0),
        *of_phase([PhaseStart()], "nested", kind="team"),
        LoopStart(max_iterations=1, pre_phase_count=0, loop_phase_count=1, post_phase_count=0, path="nested"),
        *of_phase([session(), PhaseStart(session_id="s"), turn()], "p", iteration=1, path="nested", kind="loop"),
        *of_phase([session(), PhaseStart(session_id="s"), turn(), clean()], "a", kind="team"),
    ]
    assert past_of(*events, kind="team").describe() == ("phase nested/p", "phase nested/p, phase a")
    assert past_of(kind="team").describe() == ("nothing", "the next phase")
