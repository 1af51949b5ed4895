"""The loop in virtual time: which phase comes when, how it ends, and what each phase is given."""

from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from avenor.protocol.errors import AgentExited, Ended
from avenor.protocol.events import (
    AgentStatus,
    Error,
    LoopEnd,
    LoopStart,
    MessageChunk,
    PermissionResponse,
    PhaseEnd,
    PhaseStart,
    PromptQueued,
    Retry,
    RunStart,
    SessionStart,
    ToolCall,
    TurnStart,
)
from avenor.protocol.methods import LINE_LIMIT_BYTES
from avenor.protocol.outcomes import Status
from avenor.runtimes.backends.base import BackendRefused, TurnStop
from avenor.runtimes.endings import Cause
from tests.runtimes.fake_backend import FakeSession
from tests.runtimes.phased_rig import (
    Act,
    Acts,
    FakeGit,
    course,
    crashes,
    dies_when_cancelled,
    end_of,
    git,
    hangs,
    ignores_cancel,
    loop,
    phase,
    phases,
    rig_for,
    says,
    team,
    waits,
)
from tests.runtimes.run_rig import inline_threads

pytestmark = pytest.mark.usefixtures("inline_threads", "git")

__all__ = ["git", "inline_threads"]


async def test_a_loop_runs_pre_once_then_iterations_then_post_once(tmp_path: Path, autojump_clock: MockClock) -> None:
    """Until its limit, which is a clean end with a word of its own."""
    rig = rig_for(tmp_path, loop("test", "fix", pre=("build",), post=("report",), max_iterations=2))
    outcome = await rig.run()
    assert course(rig) == [
        "+build",
        "-build end_turn 0",
        "+test#1",
        "-test#1 end_turn 0",
        "+fix#1",
        "-fix#1 end_turn 0",
        "+test#2",
        "-test#2 end_turn 0",
        "+fix#2",
        "-fix#2 end_turn 0",
        "+report",
        "-report end_turn 0",
    ]
    assert (outcome.status, outcome.exit_code, outcome.stop_reason) == (Status.DONE, 0, "max_iterations")
    assert outcome.session_id == "s6"
    (start,) = rig.only(LoopStart)
    assert (start.max_iterations, start.pre_phase_count, start.loop_phase_count, start.post_phase_count) == (2, 1, 2, 1)
    assert (end_of(rig).exit_reason, end_of(rig).iterations_completed) == ("max_iterations", 2)
    assert rig.only(RunStart)[0].kind == "loop"
    assert rig.names[-1] == "run.end"


async def test_a_loop_without_loop_phases_ends_with_end_turn(tmp_path: Path, autojump_clock: MockClock) -> None:
    """Pre and post phases alone are a loop too."""
    rig = rig_for(tmp_path, loop(pre=("build",), post=("report",)))
    outcome = await rig.run()
    assert (outcome.status, outcome.stop_reason) == (Status.DONE, "end_turn")
    assert (end_of(rig).exit_reason, end_of(rig).iterations_completed) == ("end_turn", 0)


async def test_exit_ends_the_loop_after_its_phase_and_post_phases_run(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """The rest of the iteration does not run; the label is the marker's."""
    acts = Acts(test=[says("not yet"), says("[loop: exit | all green]\n")])
    rig = rig_for(tmp_path, loop("test", "fix", post=("report",)), acts)
    outcome = await rig.run()
    assert course(rig)[-4:] == ["+test#2", "-test#2 end_turn 0", "+report", "-report end_turn 0"]
    end = end_of(rig)
    assert (end.exit_reason, end.exit_label, end.iterations_completed) == ("marker", "all green", 2)
    assert (outcome.status, outcome.stop_reason) == (Status.DONE, "end_turn")
    marked = [event for event in rig.only(PhaseEnd) if event.exit_marker is True]
    assert [(event.phase, event.exit_marker_label) for event in marked] == [("test", "all green")]


@pytest.mark.parametrize("where", ["pre", "post"])
async def test_exit_means_nothing_outside_the_loop_list(tmp_path: Path, autojump_clock: MockClock, where: str) -> None:
    """A pre or post phase that says it is like any other."""
    acts = Acts(outside=says("[loop: exit]\n"))
    config = loop("test", pre=("outside",) if where == "pre" else (), post=("outside", "more"), max_iterations=1)
    rig = rig_for(tmp_path, config, acts)
    await rig.run()
    assert end_of(rig).exit_reason == "max_iterations"
    assert "+more" in course(rig)
    assert not any(event.exit_marker is True for event in rig.only(PhaseEnd))


async def test_a_marker_cuts_nothing_short(tmp_path: Path, autojump_clock: MockClock) -> None:
    """What the agent does after its marker is part of the phase, and so are prompts that wait."""
    go = trio.Event()

    async def act(session: FakeSession) -> TurnStop:
        session.say("[loop: exit]\n")
        await go.wait()
        session.say("more after it")
        return TurnStop(stop_reason="end_turn")

    acts = Acts(test=act)
    rig = rig_for(tmp_path, loop("test", "fix"), acts)
    async with trio.open_nursery() as nursery:
        await rig.start(nursery)
        rig.host.accept_prompt("and this", "control")
        go.set()
    assert acts.prompts == ["do test", "and this"]
    assert end_of(rig).exit_reason == "marker"


async def test_a_failed_phase_is_a_failure_though_it_said_exit(tmp_path: Path, autojump_clock: MockClock) -> None:
    """An exit marker hides nothing."""
    rig = rig_for(tmp_path, loop("test", post=("report",)), Acts(test=crashes(text="[loop: exit]\n")))
    outcome = await rig.run()
    assert end_of(rig).exit_reason == "phase_failure"
    assert (outcome.status, outcome.exit_code, outcome.stop_reason) == (Status.FAILED, 1, "error")
    assert outcome.reason == "boom"
    assert "+report" not in course(rig)


@pytest.mark.parametrize(
    ("stop_reason", "code"),
    [("refusal", 2), ("max_tokens", 3), ("max_turn_requests", 4), ("zz", 1), ("cancelled", 130)],
)
@pytest.mark.parametrize("where", ["pre", "loop", "post"])
async def test_a_stop_that_is_not_clean_fails_the_run_with_its_code(
    tmp_path: Path, autojump_clock: MockClock, stop_reason: str, code: int, where: str
) -> None:
    """The phase's word and code are the run's, and a phase's own 130 is FAILED, not KILLED."""
    lists = {"pre": ("a",), "loop": ("b",), "post": ("c",)}
    name = lists[where][0]
    config = loop(*lists["loop"], pre=lists["pre"], post=lists["post"], max_iterations=1)
    rig = rig_for(tmp_path, config, Acts(**{name: says("x", stop_reason=stop_reason)}))
    outcome = await rig.run()
    assert (outcome.status, outcome.exit_code, outcome.stop_reason) == (Status.FAILED, code, stop_reason)
    assert end_of(rig).exit_reason == "phase_failure"
    assert course(rig)[-1].startswith(f"-{name}")
    assert rig.sentinel == outcome.__class__(
        status=Status.FAILED,
        exit_code=code,
        stop_reason=stop_reason,
        session_id=outcome.session_id,
        run_id="run_1",
        reason=rig.sentinel.reason if rig.sentinel else None,
    )


@pytest.mark.parametrize("where", ["pre", "loop", "post"])
async def test_abort_blocks_the_run_wherever_it_is_said(tmp_path: Path, autojump_clock: MockClock, where: str) -> None:
    """BLOCKED with the label, and nothing runs after it."""
    acts = Acts(**{where: says("<|workflow: abort | ask a human |>\n")})
    rig = rig_for(tmp_path, loop("loop", pre=("pre",), post=("post",), max_iterations=1), acts)
    outcome = await rig.run()
    assert (outcome.status, outcome.exit_code, outcome.stop_reason) == (Status.BLOCKED, 5, "blocked")
    assert outcome.reason == "ask a human"
    assert (end_of(rig).exit_reason, end_of(rig).exit_label) == ("abort", "ask a human")
    assert course(rig)[-1].startswith(f"-{where}")
    (ended,) = [event for event in rig.only(PhaseEnd) if event.abort_marker is True]
    assert ended.abort_marker_label == "ask a human"


async def test_a_marker_counts_in_a_message_that_is_too_long_to_be_sent(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """The event is cut; what the agent said is read whole."""
    said = "x" * LINE_LIMIT_BYTES + "\n[loop: abort | stop here]\n"
    rig = rig_for(tmp_path, loop("test", max_iterations=1), Acts(test=says(said)))
    outcome = await rig.run()
    assert (outcome.status, outcome.reason) == (Status.BLOCKED, "stop here")
    assert any("too long to send" in event.message for event in rig.only(Error))


async def test_abort_without_a_label_has_no_reason(tmp_path: Path, autojump_clock: MockClock) -> None:
    """Neither in the event nor in the sentinel."""
    rig = rig_for(tmp_path, loop("test"), Acts(test=says("[loop: abort]\n")))
    outcome = await rig.run()
    assert outcome.reason is None
    assert not isinstance(end_of(rig).exit_label, str)
    assert "\nREASON=" not in rig.sentinel_path.read_text()


async def test_the_most_severe_marker_wins_and_the_first_of_its_kind(tmp_path: Path, autojump_clock: MockClock) -> None:
    """Abort before exit before continue."""
    acts = Acts(test=says("[loop: continue]\n[loop: exit | e]\n[loop: abort | one]\n[loop: abort | two]\n"))
    rig = rig_for(tmp_path, loop("test"), acts)
    outcome = await rig.run()
    assert (outcome.status, outcome.reason) == (Status.BLOCKED, "one")


async def test_a_thought_is_no_marker(tmp_path: Path, autojump_clock: MockClock) -> None:
    """Only what the agent says to us counts; a marker within prose does not."""
    rig = rig_for(tmp_path, loop("test", max_iterations=1), Acts(test=says("please [loop: abort] now\n")))
    outcome = await rig.run()
    assert outcome.stop_reason == "max_iterations"


async def test_the_limit_is_a_failure_where_it_was_asked_to_be(tmp_path: Path, autojump_clock: MockClock) -> None:
    """--fail-on-max-iterations: FAILED with 1, and no post phase."""
    rig = rig_for(tmp_path, loop("test", post=("report",), max_iterations=2), fail_on_max_iterations=True)
    outcome = await rig.run()
    assert (outcome.status, outcome.exit_code, outcome.stop_reason) == (Status.FAILED, 1, "max_iterations")
    assert "+report" not in course(rig)


async def test_an_exit_at_the_limit_is_no_failure(tmp_path: Path, autojump_clock: MockClock) -> None:
    """--fail-on-max-iterations is about loops that nothing ends."""
    acts = Acts(test=[says("no"), says("[loop: exit]\n")])
    rig = rig_for(tmp_path, loop("test", max_iterations=2), acts, fail_on_max_iterations=True)
    outcome = await rig.run()
    assert (outcome.status, outcome.stop_reason) == (Status.DONE, "end_turn")


# ---- what a phase is given


async def test_templates_see_the_state_when_their_phase_begins(tmp_path: Path, autojump_clock: MockClock) -> None:
    """Run, phase, directory, iteration and limit."""
    acts = Acts()
    prompt = "{{.RunID}} {{.Phase}} {{.WorkDir}} {{.Iteration}}/{{.MaxIterations}}"
    config = loop(phase("test", prompt=prompt), pre=(phase("first", "pre", prompt=prompt),), max_iterations=2)
    await rig_for(tmp_path, config, acts).run()
    assert acts.prompts == [
        f"run_1 first {tmp_path} 0/2",
        f"run_1 test {tmp_path} 1/2",
        f"run_1 test {tmp_path} 2/2",
    ]


async def test_the_git_delta_tells_what_the_phase_before_has_changed(
    tmp_path: Path, autojump_clock: MockClock, git: FakeGit
) -> None:
    """Empty before the first phase; then from where the phase before began, over iterations too."""
    acts = Acts()
    prompt = "<{{.PrevPhaseCommit}}|{{.DiffStat}}|{{.ChangedFiles}}>"
    config = loop(phase("a", prompt=prompt), phase("b", prompt=prompt), max_iterations=2)
    rig = rig_for(tmp_path, config, acts)
    await rig.run()
    assert acts.prompts == [
        "<||>",
        "<c2|stat c1|files c1>",
        "<c3|stat c2|files c2>",
        "<c4|stat c3|files c3>",
    ]
    assert [event.commit for event in rig.only(PhaseEnd)] == ["c2", "c3", "c4", "c5"]


async def test_the_prompt_of_the_command_line_is_never_a_template(tmp_path: Path, autojump_clock: MockClock) -> None:
    """Braces in it are text."""
    acts = Acts()
    initial = phase("(initial)", "pre", prompt="use {{braces}} {{.RunID}}", is_literal=True)
    await rig_for(tmp_path, loop("test", pre=(initial,), max_iterations=1), acts).run()
    assert acts.prompts[0] == "use {{braces}} {{.RunID}}"


async def test_a_template_that_fails_when_it_runs_fails_its_phase_for_good(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """No agent is started, and no retry can help."""
    rig = rig_for(tmp_path, loop(phase("test", prompt="{{index .RunID 99}}")), max_retries=3)
    outcome = await rig.run()
    assert (outcome.status, outcome.stop_reason) == (Status.FAILED, "template_error")
    assert "index" in (outcome.reason or "")
    assert course(rig) == ["+test#1", "-test#1 template_error 1"]
    assert rig.backend.opened == []


async def test_resume_goes_on_in_the_session_of_the_phase_before_within_one_iteration(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """The first phase of an iteration starts fresh."""
    config = loop(phase("a", resume_from_previous=True), phase("b", resume_from_previous=True), max_iterations=2)
    rig = rig_for(tmp_path, config)
    await rig.run()
    assert [params.resume for params in rig.backend.opened] == [None, "s1", None, "s3"]


async def test_a_resume_that_fails_fails_the_phase_and_is_not_tried_again(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """Never silently fresh."""
    config = loop("a", phase("b", resume_from_previous=True), max_iterations=1)
    rig = rig_for(tmp_path, config, max_retries=2)
    refusal = BackendRefused("cannot load s1", reason="resume_failed")
    plays = rig.backend.play

    async def play(session: FakeSession, text: str) -> TurnStop:
        rig.backend.open_errors = [refusal]
        return await plays(session, text)

    rig.backend.play = play
    outcome = await rig.run()
    assert (outcome.status, outcome.stop_reason) == (Status.FAILED, "resume_failed")
    assert len(rig.backend.opened) == 2
    assert course(rig)[-2:] == ["+b#1", "-b#1 resume_failed 1"]


# ---- retries


async def test_a_phase_that_fails_is_tried_again_as_it_was(tmp_path: Path, autojump_clock: MockClock) -> None:
    """Its own start and end for each attempt, the end before the retry, a fresh session, the same prompt."""
    acts = Acts(test=[crashes(), crashes(), says("ok")])
    rig = rig_for(tmp_path, loop("test", max_iterations=1), acts, max_retries=2)
    outcome = await rig.run()
    assert outcome.status is Status.DONE
    told = [event for event in rig.events if isinstance(event, PhaseStart | PhaseEnd | Retry)]
    assert [(type(event).__name__, event.attempt) for event in told if isinstance(event.attempt, int)] == [
        ("Retry", 2),
        ("PhaseStart", 2),
        ("PhaseEnd", 2),
        ("Retry", 3),
        ("PhaseStart", 3),
        ("PhaseEnd", 3),
    ]
    assert [type(event).__name__ for event in told[:3]] == ["PhaseStart", "PhaseEnd", "Retry"]
    assert acts.prompts == ["do test"] * 3
    assert [params.resume for params in rig.backend.opened] == [None, None, None]
    assert {event.phase for event in rig.only(Retry)} == {"test"}


async def test_a_phase_that_was_lost_while_it_waited_for_its_next_attempt_waits_on(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """For what is left of the time that was told, or until the run ends."""
    config = loop("a", max_iterations=1)
    first = rig_for(tmp_path, config, Acts(a=[crashes(retry_after=1000.0), says("ok")]), max_retries=1)
    await first.run()
    lost = first.log_path.read_bytes().splitlines()[: first.names.index("avenor.retry") + 1]
    for cause in (None, Cause(stop_reason="cancelled", reason="test")):
        rig = rig_for(tmp_path, config, lost=lost, max_retries=1)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(rig.run)
            await trio.sleep(900)
            assert rig.backend.opened == []
            if cause is not None:
                rig.host.end(cause)
        assert len(rig.backend.sessions) == (cause is None)
        assert end_of(rig).exit_reason == ("max_iterations" if cause is None else "cancelled")


async def test_retries_are_counted_per_phase(tmp_path: Path, autojump_clock: MockClock) -> None:
    """Each phase has all of them; what is left of one is not the next one's."""
    acts = Acts(a=[crashes(), says("ok")], b=[crashes(), says("ok")])
    outcome = await rig_for(tmp_path, loop("a", "b", max_iterations=1), acts, max_retries=1).run()
    assert outcome.status is Status.DONE


async def test_markers_of_the_last_attempt_count(tmp_path: Path, autojump_clock: MockClock) -> None:
    """What a failed attempt said is gone with it."""
    acts = Acts(test=[crashes(text="[loop: abort]\n"), says("[loop: exit]\n")])
    rig = rig_for(tmp_path, loop("test"), acts, max_retries=1)
    outcome = await rig.run()
    assert (outcome.status, end_of(rig).exit_reason) == (Status.DONE, "marker")


async def test_a_retried_phase_is_told_again_what_clients_said_in_it(tmp_path: Path, autojump_clock: MockClock) -> None:
    """An accepted prompt is not lost with the attempt that had it."""
    go = trio.Event()
    acts = Acts(test=[waits(go, says("ok")), says("second")], more=[crashes(), says("ok")])
    rig = rig_for(tmp_path, loop("test", max_iterations=1), acts, max_retries=1)
    async with trio.open_nursery() as nursery:
        await rig.start(nursery)
        rig.host.accept_prompt("do more", "control")
        go.set()
    assert acts.prompts == ["do test", "do more", "do test", "do more"]
    assert rig.outcome is not None
    assert rig.outcome.status is Status.DONE


# ---- what clients say


async def test_a_prompt_runs_after_the_current_turn_of_the_phase_that_runs(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """In the same session, and the answer names it."""
    go = trio.Event()
    acts = Acts(a=waits(go, says("ok")))
    rig = rig_for(tmp_path, loop("a", "b", max_iterations=1), acts)
    async with trio.open_nursery() as nursery:
        await rig.start(nursery)
        accepted = rig.host.accept_prompt("extra", "control")
        go.set()
    assert (accepted.queued, accepted.sessions) == (1, ["s1"])
    assert acts.prompts == ["do a", "extra", "do b"]
    assert rig.backend.sessions[0].prompts == ["do a", "extra"]
    assert [event.phase for event in rig.only(PromptQueued)] == ["a"]


async def test_a_prompt_between_phases_goes_to_the_next_after_its_own(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """While the agent of one phase ends, the next one's session is meant."""
    acts = Acts()
    rig = rig_for(tmp_path, loop("a", "b", max_iterations=1), acts)
    rig.backend.may_close = trio.Event()
    async with trio.open_nursery() as nursery:
        await rig.start(nursery)
        accepted = rig.host.accept_prompt("extra", "control")
        rig.backend.may_close.set()
    assert not isinstance(accepted.sessions, list)
    assert acts.prompts == ["do a", "do b", "extra"]


async def test_a_prompt_after_the_last_phase_is_refused(tmp_path: Path, autojump_clock: MockClock) -> None:
    """As soon as it is known that no phase follows, though its agent has still to end."""
    rig = rig_for(tmp_path, loop("a", max_iterations=1))
    rig.backend.may_close = trio.Event()
    async with trio.open_nursery() as nursery:
        await rig.start(nursery)
        with pytest.raises(Ended) as refusal:
            rig.host.accept_prompt("extra", "control")
        rig.backend.may_close.set()
    assert refusal.value.reason_word == "run_ending"


@pytest.mark.parametrize("said", ["[loop: exit]\n", "[loop: abort]\n"])
async def test_a_prompt_after_the_marker_that_ends_it_is_refused(
    tmp_path: Path, autojump_clock: MockClock, said: str
) -> None:
    """The phase that said it was the last, whatever the config has after it."""
    rig = rig_for(tmp_path, loop("a", "b"), Acts(a=says(said)))
    rig.backend.may_close = trio.Event()
    async with trio.open_nursery() as nursery:
        await rig.start(nursery)
        with pytest.raises(Ended):
            rig.host.accept_prompt("extra", "control")
        rig.backend.may_close.set()


async def test_a_prompt_that_interrupts_cuts_the_turn_and_not_the_phase(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """The phase goes on with it, and ends as that turn ends."""
    acts = Acts(a=hangs)
    rig = rig_for(tmp_path, loop("a", "b", max_iterations=1), acts)
    async with trio.open_nursery() as nursery:
        await rig.start(nursery)
        rig.host.interrupt_and_prompt("instead", "control", keep_queue=False)
    assert acts.prompts == ["do a", "instead", "do b"]
    assert course(rig)[1] == "-a#1 end_turn 0"


@pytest.mark.parametrize("act", [ignores_cancel, dies_when_cancelled])
async def test_an_interrupted_phase_whose_agent_does_not_go_on_gets_another_that_resumes(
    tmp_path: Path, autojump_clock: MockClock, act: Act
) -> None:
    """The prompt is sent to a new process, in the session of the phase."""
    rig = rig_for(tmp_path, loop("a", "b", max_iterations=1), Acts(a=act))
    async with trio.open_nursery() as nursery:
        await rig.start(nursery)
        rig.host.interrupt_and_prompt("instead", "control", keep_queue=False)
    assert [(session.session_id, session.prompts) for session in rig.backend.sessions] == [
        ("s1", ["do a"]),
        ("s1", ["instead"]),
        ("s3", ["do b"]),
    ]
    assert course(rig) == ["+a#1", "-a#1 end_turn 0", "+b#1", "-b#1 end_turn 0"]
    assert rig.outcome is not None
    assert rig.outcome.status is Status.DONE


async def test_a_phase_that_is_interrupted_while_its_agent_fails_to_open_goes_on(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """What was accepted is sent."""
    rig = rig_for(tmp_path, loop("a", max_iterations=1))
    rig.backend.open_seconds = 5.0
    rig.backend.open_errors = [AgentExited("died", retryable=True)]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(rig.run)
        await trio.sleep(1)
        rig.host.interrupt_and_prompt("instead", "control", keep_queue=False)
    assert rig.backend.last.prompts == ["instead"]
    assert course(rig) == ["+a#1", "-a#1 end_turn 0"]


async def test_what_was_accepted_and_cannot_be_sent_is_told(tmp_path: Path, autojump_clock: MockClock) -> None:
    """A phase that fails for good takes its waiting prompts with it."""
    go = trio.Event()
    rig = rig_for(tmp_path, loop("a"), Acts(a=waits(go, crashes())))
    async with trio.open_nursery() as nursery:
        await rig.start(nursery)
        rig.host.accept_prompt("extra", "control")
        go.set()
    assert any("1 accepted prompts were not sent" in event.message for event in rig.only(Error))


# ---- ends from outside


@pytest.mark.parametrize(
    ("cause", "status", "reason"),
    [
        (Cause(stop_reason="cancelled", reason="test"), Status.KILLED, "cancelled"),
        (Cause(stop_reason="timeout", reason="test"), Status.TIMEOUT, "timeout"),
    ],
)
@pytest.mark.parametrize("moment", ["opening", "turn", "retry"])
async def test_a_cause_ends_the_loop_at_any_moment(
    tmp_path: Path, autojump_clock: MockClock, cause: Cause, status: Status, reason: str, moment: str
) -> None:
    """Every end is told: the phase's, the loop's and the run's."""
    acts = Acts(a=crashes() if moment == "retry" else hangs)
    rig = rig_for(tmp_path, loop("a", "b"), acts, max_retries=1)
    if moment == "opening":
        rig.backend.open_seconds = 1000
    async with trio.open_nursery() as nursery:
        nursery.start_soon(rig.run)
        await trio.sleep(1)
        rig.host.end(cause)
    assert rig.outcome is not None
    assert (rig.outcome.status, rig.outcome.stop_reason) == (status, cause.stop_reason)
    assert end_of(rig).exit_reason == reason
    assert [name for name in rig.names if name.startswith("avenor.phase")] == ["avenor.phase.start", "avenor.phase.end"]
    assert rig.names[-2:] == ["avenor.loop.end", "run.end"]


def stops_marks(git: FakeGit, act: Act) -> Act:
    """Does something, after which nothing goes on until the run is cancelled."""

    async def stopping(session: FakeSession) -> TurnStop:
        git.may_mark = trio.Event()
        return await act(session)

    return stopping


@pytest.mark.parametrize(
    ("act", "status", "reason"),
    [
        (says("ok"), Status.DONE, "max_iterations"),
        (says("[loop: exit]\n"), Status.DONE, "marker"),
        (says("[loop: abort]\n"), Status.BLOCKED, "abort"),
        (crashes(), Status.FAILED, "phase_failure"),
    ],
)
async def test_a_cancel_after_the_last_phase_stands_comes_too_late(
    tmp_path: Path, autojump_clock: MockClock, git: FakeGit, act: Act, status: Status, reason: str
) -> None:
    """The first cause wins: what the run comes to is certain, though it has still to end."""
    rig = rig_for(tmp_path, loop("a", max_iterations=1), Acts(a=stops_marks(git, act)))
    async with trio.open_nursery() as nursery:
        await rig.start(nursery)
        assert not rig.host.end(Cause(stop_reason="cancelled", reason="test"))
        git.may_mark.set()
    assert rig.outcome is not None
    assert rig.outcome.status is status
    assert rig.sentinel is not None
    assert rig.sentinel.status is status
    assert end_of(rig).exit_reason == reason


async def test_a_cancel_between_phases_starts_no_other_and_is_told_the_same_everywhere(
    tmp_path: Path, autojump_clock: MockClock, git: FakeGit
) -> None:
    """In the events as in the outcome."""
    rig = rig_for(tmp_path, loop("a", "b", max_iterations=1), Acts(a=stops_marks(git, says("ok"))))
    async with trio.open_nursery() as nursery:
        await rig.start(nursery)
        rig.host.end(Cause(stop_reason="cancelled", reason="test"))
    assert course(rig) == ["+a#1", "-a#1 end_turn 0"]
    assert end_of(rig).exit_reason == "cancelled"
    assert rig.outcome is not None
    assert (rig.outcome.status, rig.outcome.session_id) == (Status.KILLED, "s1")


async def test_the_progress_timeout_of_a_phase_is_the_phases_failure(tmp_path: Path, autojump_clock: MockClock) -> None:
    """A phase's own 124 is FAILED: TIMEOUT is for the run's."""
    rig = rig_for(tmp_path, loop("a"), Acts(a=hangs), progress_timeout=10.0)
    outcome = await rig.run()
    assert (outcome.status, outcome.exit_code, outcome.stop_reason) == (Status.FAILED, 124, "progress_timeout")
    assert end_of(rig).exit_reason == "phase_failure"


# ---- events


async def test_every_event_of_a_phases_session_says_which_phase(tmp_path: Path, autojump_clock: MockClock) -> None:
    """Under names that no event uses for something else."""

    async def act(session: FakeSession) -> TurnStop:
        session.call_tool("build it")
        await session.ask(trusted=True)
        session.say("ok")
        return TurnStop(stop_reason="end_turn")

    rig = rig_for(tmp_path, loop("a", max_iterations=1), Acts(a=act), auto_approve=True)
    await rig.run()
    for with_kind in (SessionStart, TurnStart, MessageChunk, PhaseStart):
        assert [(event.phase, event.kind, event.iteration) for event in rig.only(with_kind)] == [("a", "loop", 1)]
    for own_kind in (ToolCall, PermissionResponse):
        assert [(event.phase, event.phase_kind, event.iteration) for event in rig.only(own_kind)] == [("a", "loop", 1)]
    for event in rig.only(AgentStatus):
        assert (event.run_phase, event.kind) == ("a", "loop")
        assert event.phase in ("thinking", "working", "done")


async def test_phase_start_comes_with_the_session_and_before_the_first_prompt(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """And without one directly before the end, where none could be opened."""
    rig = rig_for(tmp_path, loop("a", "b", max_iterations=1))
    plays = rig.backend.play

    async def play(session: FakeSession, text: str) -> TurnStop:
        rig.backend.open_errors = [BackendRefused("no such model", reason="unknown_model")]
        return await plays(session, text)

    rig.backend.play = play
    await rig.run()
    first, second = rig.only(PhaseStart)
    assert (first.session_id, isinstance(second.session_id, str)) == ("s1", False)
    names = [name for name in rig.names if name != "agent.status"]
    assert names[2:5] == ["session.start", "avenor.phase.start", "turn.start"]
    at = len(names) - 1 - names[::-1].index("avenor.phase.start")
    assert names[at : at + 2] == ["avenor.phase.start", "avenor.phase.end"]


async def test_the_snapshot_shows_the_phases(tmp_path: Path, autojump_clock: MockClock) -> None:
    """One entry each, with what it is at."""
    rig = rig_for(tmp_path, loop("a", pre=("p",)), Acts(a=hangs))
    async with trio.open_nursery() as nursery:
        await rig.start(nursery)
        shown = [(each.name, each.kind, each.iteration, each.state) for each in rig.fold.state.phases]
        assert shown == [("p", "pre", 0, "done"), ("a", "loop", 1, "running")]
        assert (rig.fold.state.kind, rig.fold.state.status) == ("loop", "running")
        rig.host.end(Cause(stop_reason="cancelled", reason="test"))
    assert rig.fold.state.phases[-1].state == "failed"


async def test_the_result_is_what_the_last_phase_said(tmp_path: Path, autojump_clock: MockClock) -> None:
    """Of the post phases, if there are any."""
    rig = rig_for(tmp_path, loop("a", post=("z",), max_iterations=1), Acts(z=says("the end")))
    await rig.run()
    assert (rig.host.result.final_output, rig.host.result.stop_reason) == ("the end", "max_iterations")
    assert end_of(rig).final_output == "the end"


# ---- nested


async def test_a_nested_loop_runs_inside_its_phase_with_its_own_events(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """Path and depth tell them apart; one run.end, and its exit ends only itself."""
    inner = loop("x", max_iterations=3)
    acts = Acts(x=[says("no"), says("[loop: exit]\n")])
    config = loop(phase("outer", nested=inner), "after", max_iterations=1)
    rig = rig_for(tmp_path, config, acts)
    outcome = await rig.run()
    assert course(rig) == [
        "+outer#1",
        "+outer/x#1",
        "-outer/x#1 end_turn 0",
        "+outer/x#2",
        "-outer/x#2 end_turn 0",
        "-outer#1 end_turn 0",
        "+after#1",
        "-after#1 end_turn 0",
    ]
    inner_end, outer_end = rig.only(LoopEnd)
    assert (inner_end.path, inner_end.depth, inner_end.exit_reason) == ("outer", 2, "marker")
    assert (isinstance(outer_end.path, str), outer_end.exit_reason) == (False, "max_iterations")
    assert outcome.status is Status.DONE


async def test_an_inner_abort_blocks_the_whole_run_with_its_label(tmp_path: Path, autojump_clock: MockClock) -> None:
    """Through every level."""
    inner = loop(phase("deep", nested=team(phase("x", "team"))))
    config = loop(phase("outer", nested=inner), "after")
    rig = rig_for(tmp_path, config, Acts(x=says("[loop: abort | stuck]\n")))
    outcome = await rig.run()
    assert (outcome.status, outcome.reason, outcome.session_id) == (Status.BLOCKED, "stuck", "s1")
    assert course(rig)[-2:] == ["-outer/deep#1 blocked 5", "-outer#1 blocked 5"]


async def test_an_inner_failure_fails_the_phase_with_its_code(tmp_path: Path, autojump_clock: MockClock) -> None:
    """And it is not tried again: its own phases were."""
    inner = loop("x")
    rig = rig_for(tmp_path, loop(phase("outer", nested=inner)), Acts(x=crashes()), max_retries=1)
    outcome = await rig.run()
    assert (outcome.status, outcome.exit_code) == (Status.FAILED, 1)
    assert [line for line in course(rig) if line.startswith("+outer/x")] == ["+outer/x#1", "+outer/x#1"]
    assert course(rig)[-1] == "-outer#1 error 1"


async def test_a_nested_phase_is_not_gone_on_with(tmp_path: Path, autojump_clock: MockClock) -> None:
    """It has no one session: the phase after it starts fresh."""
    config = loop(
        phase("outer", nested=loop("x", max_iterations=1)), phase("b", resume_from_previous=True), max_iterations=1
    )
    rig = rig_for(tmp_path, config)
    await rig.run()
    assert [params.resume for params in rig.backend.opened] == [None, None]


async def test_a_prompt_in_the_last_nested_phase_is_refused_once_it_stands(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """Whether anything follows is known through every level."""
    rig = rig_for(tmp_path, loop(phase("outer", nested=loop("x", max_iterations=1)), max_iterations=1))
    rig.backend.may_close = trio.Event()
    async with trio.open_nursery() as nursery:
        await rig.start(nursery)
        with pytest.raises(Ended):
            rig.host.accept_prompt("extra", "control")
        rig.backend.may_close.set()


async def test_a_prompt_between_a_nested_phase_and_the_next_waits_for_that(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """The outer loop has more to do, though the inner one has not."""
    acts = Acts()
    config = loop(phase("outer", nested=loop("x", max_iterations=1)), "after", max_iterations=1)
    rig = rig_for(tmp_path, config, acts)
    rig.backend.may_close = trio.Event()
    async with trio.open_nursery() as nursery:
        await rig.start(nursery)
        rig.host.accept_prompt("extra", "control")
        rig.backend.may_close.set()
    assert acts.prompts == ["do x", "do after", "extra"]


def test_phases_of_a_short_config_have_their_kind() -> None:
    """The rig itself."""
    assert [each.kind for each in phases("post", "a", "b")] == ["post", "post"]
