"""The team in virtual time. Test by test the sentences of the team document: see `docs/reference/team-tests.md`."""

from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from avenor.protocol.configs import ResolvedConfig
from avenor.protocol.errors import Ended
from avenor.protocol.events import LoopEnd, PhaseEnd, PhaseStart, PromptQueued, RunStart, TeamEnd, TeamStart
from avenor.protocol.outcomes import Status
from avenor.runtimes.backends.base import OpenParams, SessionSink, TurnStop
from avenor.runtimes.endings import Cause
from avenor.runtimes.teams import OUTPUT_LIMIT_BYTES
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
    later,
    loop,
    phase,
    rig_for,
    says,
    team,
    waits,
)
from tests.runtimes.run_rig import RunRig, inline_threads

pytestmark = pytest.mark.usefixtures("inline_threads", "git")

__all__ = ["git", "inline_threads"]

CANCEL = Cause(stop_reason="cancelled", reason="test")


class Barrier:
    """Opens when so many have come, as only members that run at the same time can."""

    def __init__(self, count: int) -> None:
        self.left = count
        self._open = trio.Event()

    async def act(self, session: FakeSession) -> TurnStop:
        """Waits for the others."""
        self.left -= 1
        if not self.left:
            self._open.set()
        await self._open.wait()
        return await says("met")(session)


async def aborts_when_cancelled(session: FakeSession) -> TurnStop:
    """Works until it is cancelled, and then says that it aborts."""
    await session.cancelled.wait()
    session.say("[loop: abort | second]\n")
    return TurnStop(stop_reason="cancelled")


def counts(rig: RunRig) -> dict[str, int]:
    """The members of the outermost team by what they came to, zeroes left out."""
    end = end_of(rig)
    found = {
        "completed": end.members_completed,
        "aborted": end.members_aborted,
        "failed": end.members_failed,
        "cancelled": end.members_cancelled,
        "skipped": end.members_skipped,
    }
    return {name: count for name, count in found.items() if count}


async def test_a_team_runs_pre_then_all_members_then_post(tmp_path: Path, autojump_clock: MockClock) -> None:
    """Pre once and first, every member after that, post when all have ended; one sentinel."""
    rig = rig_for(tmp_path, team("a", "b", "c", pre=("plan",), post=("review",)))
    outcome = await rig.run()
    lines = course(rig)
    assert lines[:2] == ["+plan", "-plan end_turn 0"]
    assert set(lines[2:-2]) == {line for name in "abc" for line in (f"+{name}", f"-{name} end_turn 0")}
    assert lines[-2:] == ["+review", "-review end_turn 0"]
    assert (outcome.status, outcome.exit_code, outcome.stop_reason) == (Status.DONE, 0, "end_turn")
    assert outcome.session_id == rig.only(PhaseEnd)[-1].session_id
    assert rig.sentinel == outcome
    (start,) = rig.only(TeamStart)
    assert (start.pre_phase_count, start.team_member_count, start.post_phase_count) == (1, 3, 1)
    assert end_of(rig).exit_reason == "end_turn"
    assert counts(rig) == {"completed": 3}
    assert rig.only(RunStart)[0].kind == "team"
    assert rig.names.index("avenor.team.start") < rig.names.index("avenor.phase.start")


async def test_all_members_start_at_the_same_time(tmp_path: Path, autojump_clock: MockClock) -> None:
    """Each waits for all others: one that was started later would never come."""
    barrier = Barrier(5)
    names = [f"m{number}" for number in range(5)]
    rig = rig_for(tmp_path, team(*names), Acts(**dict.fromkeys(names, barrier.act)), timeout=60.0)
    outcome = await rig.run()
    assert outcome.status is Status.DONE
    assert barrier.left == 0


async def test_each_member_has_a_session_of_its_own(tmp_path: Path, autojump_clock: MockClock) -> None:
    """Named in its phase.start and phase.end."""
    rig = rig_for(tmp_path, team("a", "b"))
    await rig.run()
    starts = {event.phase: event.session_id for event in rig.only(PhaseStart)}
    assert sorted(starts.values()) == ["s1", "s2"]
    assert {event.phase: event.session_id for event in rig.only(PhaseEnd)} == starts


async def test_members_have_iteration_zero_and_their_kind(tmp_path: Path, autojump_clock: MockClock) -> None:
    """As the event reference shows."""
    rig = rig_for(tmp_path, team("a", pre=("p",), post=("z",)))
    await rig.run()
    assert [(event.phase, event.kind, event.iteration) for event in rig.only(PhaseStart)] == [
        ("p", "pre", 0),
        ("a", "team", 0),
        ("z", "post", 0),
    ]


@pytest.mark.parametrize(("stop_reason", "code"), [("refusal", 2), ("max_tokens", 3), ("zz", 1), ("cancelled", 130)])
async def test_a_pre_phase_that_does_not_end_clean_fails_the_run_before_the_team(
    tmp_path: Path, autojump_clock: MockClock, stop_reason: str, code: int
) -> None:
    """The team never starts."""
    rig = rig_for(tmp_path, team("a", pre=("p", "q"), post=("z",)), Acts(p=says("x", stop_reason=stop_reason)))
    outcome = await rig.run()
    assert course(rig) == ["+p", f"-p {stop_reason} {code}"]
    assert (outcome.status, outcome.exit_code) == (Status.FAILED, code)
    assert end_of(rig).exit_reason == "pre_failure"
    assert counts(rig) == {"cancelled": 1}


async def test_a_post_phase_that_does_not_end_clean_fails_the_run(tmp_path: Path, autojump_clock: MockClock) -> None:
    """With a reason of its own."""
    rig = rig_for(tmp_path, team("a", post=("y", "z")), Acts(y=says("x", stop_reason="refusal")))
    outcome = await rig.run()
    assert (outcome.status, outcome.exit_code) == (Status.FAILED, 2)
    assert end_of(rig).exit_reason == "post_failure"
    assert course(rig)[-1] == "-y refusal 2"


async def test_a_member_that_fails_does_not_stop_the_others_and_post_is_skipped(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """The first failed one in the config's order gives code and session, not the first in time."""
    go = trio.Event()

    async def fails_early(session: FakeSession) -> TurnStop:
        go.set()
        return await says("x", stop_reason="max_tokens")(session)

    acts = Acts(a=waits(go, says("x", stop_reason="refusal")), b=fails_early)
    rig = rig_for(tmp_path, team("c", "a", "b", post=("z",)), acts)
    outcome = await rig.run()
    assert (outcome.status, outcome.exit_code, outcome.stop_reason) == (Status.FAILED, 2, "refusal")
    assert outcome.session_id == next(e.session_id for e in rig.only(PhaseEnd) if e.phase == "a")
    assert end_of(rig).exit_reason == "phase_failure"
    assert counts(rig) == {"completed": 1, "failed": 2}
    assert "+z" not in course(rig)


# ---- conditional members


CONDITIONAL = (phase("auth", "team", conditional=True), phase("api", "team", conditional=True), phase("sum", "team"))


@pytest.mark.parametrize("marker", ["<|team: skip | auth|>", "[team: skip | AUTH]", "  <|team: skip|Auth |>  "])
async def test_a_pre_phase_skips_a_conditional_member(tmp_path: Path, autojump_clock: MockClock, marker: str) -> None:
    """By name, in either spelling and any case."""
    rig = rig_for(tmp_path, team(*CONDITIONAL, pre=("triage",)), Acts(triage=says(f"well:\n{marker}\n")))
    outcome = await rig.run()
    assert outcome.status is Status.DONE
    assert {event.phase for event in rig.only(PhaseStart)} == {"triage", "api", "sum"}
    assert counts(rig) == {"completed": 2, "skipped": 1}
    assert rig.only(PhaseEnd)[0].skips == ["auth"]


@pytest.mark.parametrize(
    "said",
    [
        "<|team: skip | sum|>\n",
        "<|team: skip | nobody|>\n",
        "so <|team: skip | auth|> it is\n",
        "[loop: skip | auth]\n",
    ],
)
async def test_what_skips_nobody_is_ignored(tmp_path: Path, autojump_clock: MockClock, said: str) -> None:
    """Members that are not conditional, unknown names, and markers within prose."""
    rig = rig_for(tmp_path, team(*CONDITIONAL, pre=("triage",)), Acts(triage=says(said)))
    await rig.run()
    assert counts(rig) == {"completed": 3}
    assert not isinstance(rig.only(PhaseEnd)[0].skips, list)


async def test_a_member_cannot_skip_another(tmp_path: Path, autojump_clock: MockClock) -> None:
    """Only pre phases can."""
    rig = rig_for(tmp_path, team(*CONDITIONAL, pre=("triage",)), Acts(sum=says("<|team: skip | api|>\n")))
    await rig.run()
    assert counts(rig) == {"completed": 3}


async def test_any_pre_phase_can_skip_and_more_than_once(tmp_path: Path, autojump_clock: MockClock) -> None:
    """What they say adds up."""
    acts = Acts(p=says("<|team: skip | auth|>\n"), q=says("<|team: skip | api|>\n<|team: skip | api|>\n"))
    rig = rig_for(tmp_path, team(*CONDITIONAL, pre=("p", "q")), acts)
    await rig.run()
    assert counts(rig) == {"completed": 1, "skipped": 2}


async def test_skips_of_a_failed_attempt_do_not_count(tmp_path: Path, autojump_clock: MockClock) -> None:
    """Those of the last one do."""
    acts = Acts(triage=[crashes(text="<|team: skip | auth|>\n"), says("<|team: skip | api|>\n")])
    rig = rig_for(tmp_path, team(*CONDITIONAL, pre=("triage",)), acts, max_retries=1)
    await rig.run()
    assert {event.phase for event in rig.only(PhaseStart)} == {"triage", "auth", "sum"}


async def test_the_last_pre_phase_with_a_prompt_is_told_how_to_skip(tmp_path: Path, autojump_clock: MockClock) -> None:
    """The conditional members and the marker; other phases are told nothing."""
    acts = Acts()
    nested = phase("nested", "pre", nested=loop("x", max_iterations=1))
    await rig_for(tmp_path, team(*CONDITIONAL, pre=("p", "q", nested)), acts).run()
    told = [text for text in acts.prompts if "skip" in text]
    assert len(told) == 1
    assert told[0].startswith("do q\n")
    assert "- auth\n- api\n" in told[0]
    assert "- sum" not in told[0]
    assert "\n<|team: skip | NAME|>\n" in told[0]


async def test_a_team_without_conditional_members_adds_nothing_to_prompts(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """What is in the config is what the agent gets."""
    acts = Acts()
    await rig_for(tmp_path, team("a", pre=("p",)), acts).run()
    assert acts.prompts == ["do p", "do a"]


async def test_the_given_prompt_can_skip_too(tmp_path: Path, autojump_clock: MockClock) -> None:
    """(initial) is a pre phase like any other."""
    initial = phase("(initial)", "pre", prompt="do initial", is_literal=True)
    rig = rig_for(tmp_path, team(*CONDITIONAL, pre=(initial,)), Acts(initial=says("[team: skip | api]\n")))
    await rig.run()
    assert counts(rig) == {"completed": 2, "skipped": 1}


async def test_when_all_members_are_skipped_post_phases_run_and_the_end_is_clean(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """Straight from pre to post."""
    acts = Acts(triage=says("[team: skip | a]\n"))
    rig = rig_for(tmp_path, team(phase("a", "team", conditional=True), pre=("triage",), post=("z",)), acts)
    outcome = await rig.run()
    assert course(rig) == ["+triage", "-triage end_turn 0", "+z", "-z end_turn 0"]
    assert (outcome.status, outcome.stop_reason) == (Status.DONE, "end_turn")
    assert counts(rig) == {"skipped": 1}


async def test_a_team_without_members_is_its_pre_and_post_phases(tmp_path: Path, autojump_clock: MockClock) -> None:
    """An empty list is no error where there is something before it."""
    rig = rig_for(tmp_path, team(pre=("p",), post=("z",)))
    outcome = await rig.run()
    assert outcome.status is Status.DONE
    assert course(rig) == ["+p", "-p end_turn 0", "+z", "-z end_turn 0"]


# ---- abort


async def test_an_abort_cancels_the_others_and_blocks_the_run(tmp_path: Path, autojump_clock: MockClock) -> None:
    """Those in flight are asked to cancel; post phases do not run; the label is the reason."""
    acts = Acts(a=hangs, b=later(says("<|workflow: abort | no service|>\n")), c=hangs)
    rig = rig_for(tmp_path, team("a", "b", "c", post=("z",)), acts)
    outcome = await rig.run()
    assert (outcome.status, outcome.exit_code, outcome.stop_reason) == (Status.BLOCKED, 5, "blocked")
    assert outcome.reason == "no service"
    assert outcome.session_id == next(e.session_id for e in rig.only(PhaseEnd) if e.phase == "b")
    assert (end_of(rig).exit_reason, end_of(rig).exit_label) == ("abort", "no service")
    assert counts(rig) == {"aborted": 1, "cancelled": 2}
    assert all(session.cancelled.is_set() for session in rig.backend.sessions if session.prompts[0] != "do b")
    assert "+z" not in course(rig)
    assert rig.sentinel_path.read_text().splitlines()[:4] == [
        "BLOCKED",
        f"SESSION={outcome.session_id}",
        "STOP_REASON=blocked",
        "REASON=no service",
    ]


async def test_a_member_that_has_not_started_when_another_aborts_does_not_start(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its agent gets no prompt."""
    slow = phase("b", "team", model="slow")
    rig = rig_for(tmp_path, team("a", slow), Acts(a=says("[loop: abort]\n")))
    opening = rig.backend.open

    async def open_slowly(params: OpenParams, sink: SessionSink, nursery: trio.Nursery) -> FakeSession:
        await trio.sleep(1000.0 if params.model == "slow" else 0.0)
        return await opening(params, sink, nursery)

    monkeypatch.setattr(rig.backend, "open", open_slowly)
    await rig.run()
    assert [session.prompts for session in rig.backend.sessions] == [["do a"]]
    assert counts(rig) == {"aborted": 1, "cancelled": 1}


async def test_the_first_abort_wins_and_later_ones_are_counted(tmp_path: Path, autojump_clock: MockClock) -> None:
    """By time, not by place in the config; the label of the second is not kept."""
    acts = Acts(a=aborts_when_cancelled, b=later(says("[loop: abort | first]\n")))
    rig = rig_for(tmp_path, team("a", "b"), acts)
    outcome = await rig.run()
    assert (outcome.reason, end_of(rig).exit_label) == ("first", "first")
    assert counts(rig) == {"aborted": 2}


async def test_a_member_that_waits_to_be_tried_again_is_cancelled_by_an_abort(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """It has not failed for good, and now it never will."""
    rig = rig_for(tmp_path, team("a", "b"), Acts(a=crashes(), b=later(says("[loop: abort]\n"))), max_retries=1)
    outcome = await rig.run()
    assert outcome.status is Status.BLOCKED
    assert counts(rig) == {"aborted": 1, "cancelled": 1}


async def test_members_do_not_own_what_runs_below_the_process_and_all_are_swept_after(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """The end of one must not end what another has started; phases one after the other own everything."""
    rig = rig_for(tmp_path, team("a", phase("n", "team", nested=loop("x", max_iterations=1)), pre=("p",), post=("z",)))
    await rig.run()
    owns = {session.prompts[0]: session.params.owns_process for session in rig.backend.sessions}
    assert owns == {"do p": True, "do a": False, "do x": False, "do z": True}
    assert rig.swept == 1


async def test_a_member_that_had_ended_before_the_abort_is_completed(tmp_path: Path, autojump_clock: MockClock) -> None:
    """What is done is done."""
    rig = rig_for(tmp_path, team("a", "b"), Acts(b=later(says("[loop: abort]\n"))))
    await rig.run()
    assert counts(rig) == {"completed": 1, "aborted": 1}


@pytest.mark.parametrize("where", ["pre", "post"])
async def test_an_abort_in_pre_or_post_blocks_too(tmp_path: Path, autojump_clock: MockClock, where: str) -> None:
    """Anywhere in the run."""
    rig = rig_for(tmp_path, team("a", pre=("pre",), post=("post",)), Acts(**{where: says("[loop: abort | stop]\n")}))
    outcome = await rig.run()
    assert (outcome.status, outcome.reason) == (Status.BLOCKED, "stop")
    assert end_of(rig).exit_reason == "abort"


async def test_a_cancel_after_an_abort_does_not_change_why_the_run_ended(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """The first cause wins, however long the other members take to end, and however deep the abort was."""
    inner = team(phase("x", "team"), phase("y", "team"))

    async def is_slow_to_cancel(session: FakeSession) -> TurnStop:
        await session.cancelled.wait()
        await trio.sleep(1)
        return TurnStop(stop_reason="cancelled")

    for config in (team("x", "y"), team(phase("n", "team", nested=inner))):
        rig = rig_for(tmp_path, config, Acts(x=later(says("[loop: abort | stuck]\n")), y=is_slow_to_cancel))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(rig.run)
            await trio.sleep(1.5)
            assert not rig.host.end(CANCEL)
        assert rig.outcome is not None
        assert (rig.outcome.status, rig.outcome.reason) == (Status.BLOCKED, "stuck")
        assert counts(rig)["cancelled" if config.team[0].nested is None else "aborted"] == 1


async def test_a_member_that_fails_while_an_abort_elsewhere_ends_its_team_changes_nothing(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """What clients had said in it cannot be said again, for no prompt is taken any more; the abort stands."""

    async def is_slow_to_cancel(session: FakeSession) -> TurnStop:
        await session.cancelled.wait()
        await trio.sleep(2)
        return TurnStop(stop_reason="cancelled")

    async def fails_in_b(session: FakeSession) -> TurnStop:
        return await (later(crashes(), 1.2) if session.prompts[0] == "do b" else says("ok"))(session)

    inner = team(phase("x", "team"), phase("y", "team"))
    acts = Acts(
        x=later(says("[loop: abort | stuck]\n")),
        y=is_slow_to_cancel,
        b=later(says("ok"), 0.8),
        extra=fails_in_b,
    )
    rig = rig_for(tmp_path, team(phase("n", "team", nested=inner), "b"), acts, max_retries=1)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(rig.run)
        await trio.sleep(0.5)
        rig.host.accept_prompt("do extra", "control")
    assert rig.outcome is not None
    assert (rig.outcome.status, rig.outcome.reason) == (Status.BLOCKED, "stuck")


async def test_an_abort_after_the_cancel_does_not_change_why_the_run_ended(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """The first cause wins."""

    async def aborts_late(session: FakeSession) -> TurnStop:
        await session.cancelled.wait()
        session.say("[loop: abort | late]\n")
        return TurnStop(stop_reason="end_turn")

    rig = rig_for(tmp_path, team("a", "b"), Acts(a=aborts_late, b=hangs))
    async with trio.open_nursery() as nursery:
        await rig.start(nursery)
        rig.host.end(CANCEL)
    assert rig.outcome is not None
    assert (rig.outcome.status, rig.outcome.stop_reason) == (Status.KILLED, "cancelled")
    assert end_of(rig).exit_reason == "cancelled"


# ---- ends from outside


@pytest.mark.parametrize(("stop_reason", "status"), [("cancelled", Status.KILLED), ("timeout", Status.TIMEOUT)])
async def test_a_cause_reaches_every_member_at_once(
    tmp_path: Path, autojump_clock: MockClock, stop_reason: str, status: Status
) -> None:
    """All are asked to cancel, and all ends are told."""
    names = ["a", "b", "c"]
    rig = rig_for(tmp_path, team(*names, post=("z",)), Acts(**dict.fromkeys(names, hangs)))
    async with trio.open_nursery() as nursery:
        await rig.start(nursery)
        rig.host.end(Cause(stop_reason=stop_reason, reason="test"))
        await trio.testing.wait_all_tasks_blocked()
        assert all(session.cancelled.is_set() for session in rig.backend.sessions)
    assert rig.outcome is not None
    assert (rig.outcome.status, rig.outcome.stop_reason) == (status, stop_reason)
    assert end_of(rig).exit_reason == stop_reason
    assert counts(rig) == {"cancelled": 3}
    assert len(rig.only(PhaseEnd)) == 3
    assert "+z" not in course(rig)


async def test_the_timeout_is_for_the_whole_run(tmp_path: Path, autojump_clock: MockClock) -> None:
    """Pre phases included: members get what is left."""

    async def slow(session: FakeSession) -> TurnStop:
        await trio.sleep(8)
        return await says("ok")(session)

    rig = rig_for(tmp_path, team("a", pre=("p",)), Acts(p=slow, a=hangs), timeout=10.0)
    began = trio.current_time()
    outcome = await rig.run()
    assert (outcome.status, outcome.exit_code) == (Status.TIMEOUT, 124)
    assert trio.current_time() - began == pytest.approx(10.0, abs=0.5)


async def test_a_silent_member_fails_alone(tmp_path: Path, autojump_clock: MockClock) -> None:
    """Others that talk do not hide its silence, and its 124 does not end them."""

    async def talks(session: FakeSession) -> TurnStop:
        for _ in range(10):
            await trio.sleep(5)
            session.say("still here")
        return TurnStop(stop_reason="end_turn")

    rig = rig_for(tmp_path, team("a", "b"), Acts(a=hangs, b=talks), progress_timeout=12.0)
    outcome = await rig.run()
    assert (outcome.status, outcome.exit_code, outcome.stop_reason) == (Status.FAILED, 124, "progress_timeout")
    assert counts(rig) == {"completed": 1, "failed": 1}


async def test_a_question_of_one_member_does_not_excuse_anothers_silence(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """Who waits for a person is not silent; who does not is."""

    async def asks(session: FakeSession) -> TurnStop:
        await session.ask()
        return TurnStop(stop_reason="end_turn")

    rig = rig_for(tmp_path, team("a", "b"), Acts(a=asks, b=hangs), progress_timeout=12.0)
    async with trio.open_nursery() as nursery:
        await rig.start(nursery)
        await trio.sleep(60)
        ended = [event.phase for event in rig.only(PhaseEnd)]
        rig.host.broker.answer(rig.fold.state.permissions[0].request_id, "allow", None)
    assert ended == ["b"]
    assert counts(rig) == {"completed": 1, "failed": 1}


async def test_several_members_ask_at_once_and_each_gets_its_own_answer(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """The snapshot shows both; an end of one does not settle the other's."""
    answers: dict[str, str | None] = {}

    def asks(name: str) -> Act:
        async def act(session: FakeSession) -> TurnStop:
            answers[name] = (await session.ask()).option_id
            return TurnStop(stop_reason="end_turn")

        return act

    rig = rig_for(tmp_path, team("a", "b"), Acts(a=asks("a"), b=asks("b")))
    async with trio.open_nursery() as nursery:
        await rig.start(nursery)
        first, second = rig.fold.state.permissions
        rig.host.broker.answer(first.request_id, "allow", None)
        await trio.testing.wait_all_tasks_blocked()
        assert [each.request_id for each in rig.fold.state.permissions] == [second.request_id]
        assert rig.fold.state.turn_state == "permission"
        rig.host.broker.answer(second.request_id, "reject", None)
    assert sorted(answers.items()) == [("a", "allow"), ("b", "reject")] or sorted(answers.items()) == [
        ("a", "reject"),
        ("b", "allow"),
    ]


# ---- what members are given


async def test_members_override_agent_model_and_backend(tmp_path: Path, autojump_clock: MockClock) -> None:
    """Others, and pre and post phases, get the run's."""
    config = team(
        phase("a", "team", agent="tester", model="big", backend="acp"),
        "b",
        pre=(phase("p", "pre", agent="ignored"),),
    )
    rig = rig_for(tmp_path, config, agent="default", model="small")
    await rig.run()
    specs = [(spec.agent, spec.model, spec.backend) for spec in rig.backend.specs]
    assert specs[0] == ("default", "small", "scripted")
    assert sorted(specs[1:]) == [("default", "small", "scripted"), ("tester", "big", "acp")]


async def test_members_share_the_mark_from_before_the_team(
    tmp_path: Path, autojump_clock: MockClock, git: FakeGit
) -> None:
    """All are told what the last pre phase changed; post phases, what the whole team did."""
    prompt = "{{.PrevPhaseCommit}} {{.ChangedFiles}}"
    config = team(
        phase("a", "team", prompt=prompt),
        phase("b", "team", prompt=prompt),
        pre=("p",),
        post=(phase("z", "post", prompt=prompt),),
    )
    acts = Acts()
    await rig_for(tmp_path, config, acts).run()
    assert acts.prompts[1:] == ["c2 files c1", "c2 files c1", "c5 files c2"]


async def test_team_members_always_start_fresh(tmp_path: Path, autojump_clock: MockClock) -> None:
    """resume_from_previous is for pre and post phases; a member has no phase before it."""
    config = team(
        phase("a", "team", resume_from_previous=True),
        pre=("p", phase("q", "pre", resume_from_previous=True)),
        post=(phase("y", "post", resume_from_previous=True), phase("z", "post", resume_from_previous=True)),
    )
    rig = rig_for(tmp_path, config)
    await rig.run()
    resumes = [params.resume for params in rig.backend.opened]
    assert resumes == [None, "s1", None, None, "s4"]


async def test_post_phases_are_told_what_the_members_said(tmp_path: Path, autojump_clock: MockClock) -> None:
    """In the order of the config, whoever was first; those that were skipped are not in it."""
    go = trio.Event()

    async def early(session: FakeSession) -> TurnStop:
        go.set()
        return await says("from b\n")(session)

    acts = Acts(a=waits(go, says("from a")), b=early, p=says("[team: skip | c]\n"))
    config = team(
        "a",
        "b",
        phase("c", "team", conditional=True),
        pre=("p",),
        post=(phase("z", "post", prompt="{{.TeamOutput}}"),),
    )
    await rig_for(tmp_path, config, acts).run()
    assert acts.prompts[-1] == "## a\nfrom a\n\n## b\nfrom b\n"


async def test_a_long_output_is_cut_and_says_so(tmp_path: Path, autojump_clock: MockClock) -> None:
    """64 KiB of each member."""
    acts = Acts(a=says("é" * OUTPUT_LIMIT_BYTES))
    await rig_for(tmp_path, team("a", post=(phase("z", "post", prompt="{{.TeamOutput}}"),)), acts).run()
    text = acts.prompts[-1]
    assert text.count("é") == OUTPUT_LIMIT_BYTES // 2
    assert text.endswith(f"[cut: {OUTPUT_LIMIT_BYTES} more bytes]\n")


async def test_the_result_of_a_team_is_its_last_post_phases_or_all_its_members(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """As `result` gives it."""
    rig = rig_for(tmp_path, team("a", post=("z",)), Acts(z=says("the end")))
    await rig.run()
    assert rig.host.result.final_output == "the end"
    rig = rig_for(tmp_path, team("a", "b"), Acts(a=says("A"), b=says("B")))
    await rig.run()
    assert rig.host.result.final_output == "## a\nA\n\n## b\nB\n"
    assert rig.fold.state.final_output == "## a\nA\n\n## b\nB\n"


# ---- what clients say


async def test_a_prompt_goes_to_every_member_that_runs(tmp_path: Path, autojump_clock: MockClock) -> None:
    """After its current turn; the answer lists their sessions; one that has ended gets nothing."""
    go = trio.Event()
    acts = Acts(a=waits(go, says("ok")), b=waits(go, says("ok")))
    rig = rig_for(tmp_path, team("a", "b", "c"), acts)
    async with trio.open_nursery() as nursery:
        await rig.start(nursery)
        accepted = rig.host.accept_prompt("extra", "control")
        go.set()
    sessions = {session.prompts[0]: session for session in rig.backend.sessions}
    assert accepted.sessions == [sessions["do a"].session_id, sessions["do b"].session_id]
    assert sessions["do a"].prompts == ["do a", "extra"]
    assert sessions["do b"].prompts == ["do b", "extra"]
    assert sessions["do c"].prompts == ["do c"]
    assert sorted(event.phase for event in rig.only(PromptQueued)) == ["a", "b"]


async def test_a_prompt_between_pre_and_team_goes_to_every_member(tmp_path: Path, autojump_clock: MockClock) -> None:
    """After its own prompt."""
    rig = rig_for(tmp_path, team("a", "b", pre=("p",)))
    rig.backend.may_close = trio.Event()
    async with trio.open_nursery() as nursery:
        await rig.start(nursery)
        rig.host.accept_prompt("extra", "control")
        rig.backend.may_close.set()
    assert sorted(tuple(session.prompts) for session in rig.backend.sessions) == [
        ("do a", "extra"),
        ("do b", "extra"),
        ("do p",),
    ]


async def test_a_prompt_while_the_last_agents_end_is_refused_unless_post_phases_follow(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """Not before all members stand."""
    for post, refused in ((), True), (("z",), False):
        acts = Acts()
        rig = rig_for(tmp_path, team("a", "b", post=post), acts)
        rig.backend.may_close = trio.Event()
        async with trio.open_nursery() as nursery:
            await rig.start(nursery)
            if refused:
                with pytest.raises(Ended):
                    rig.host.accept_prompt("extra", "control")
            else:
                rig.host.accept_prompt("extra", "control")
            rig.backend.may_close.set()
        assert acts.prompts[2:] == ([] if refused else ["do z", "extra"])


async def test_an_interrupt_reaches_every_member_that_runs(tmp_path: Path, autojump_clock: MockClock) -> None:
    """Each goes on with the new prompt."""
    acts = Acts(a=hangs, b=hangs)
    rig = rig_for(tmp_path, team("a", "b"), acts)
    async with trio.open_nursery() as nursery:
        await rig.start(nursery)
        rig.host.interrupt_and_prompt("instead", "control", keep_queue=False)
    assert sorted(acts.prompts) == ["do a", "do b", "instead", "instead"]
    assert counts(rig) == {"completed": 2}


@pytest.mark.parametrize("act", [ignores_cancel, dies_when_cancelled])
async def test_an_interrupted_member_whose_agent_does_not_go_on_takes_no_other_with_it(
    tmp_path: Path, autojump_clock: MockClock, act: Act
) -> None:
    """It gets another agent, which resumes its session; the other member goes on in its own."""
    acts = Acts(a=act, b=hangs)
    rig = rig_for(tmp_path, team("a", "b"), acts)
    async with trio.open_nursery() as nursery:
        await rig.start(nursery)
        rig.host.interrupt_and_prompt("instead", "control", keep_queue=False)
    assert sorted(acts.prompts) == ["do a", "do b", "instead", "instead"]
    assert len(rig.backend.sessions) == 3
    resumed = rig.backend.last
    assert (resumed.params.resume, resumed.prompts) == (resumed.session_id, ["instead"])
    assert counts(rig) == {"completed": 2}
    assert rig.outcome is not None
    assert rig.outcome.status is Status.DONE


# ---- nested


async def test_a_member_may_be_a_loop_and_run_beside_the_others(tmp_path: Path, autojump_clock: MockClock) -> None:
    """Its phases meet the other member at a barrier."""
    barrier = Barrier(2)
    config = team(phase("l", "team", nested=loop("x", max_iterations=1)), "b")
    rig = rig_for(tmp_path, config, Acts(x=barrier.act, b=barrier.act), timeout=60.0)
    outcome = await rig.run()
    assert outcome.status is Status.DONE
    assert counts(rig) == {"completed": 2}


async def test_an_abort_in_a_nested_member_ends_the_others(tmp_path: Path, autojump_clock: MockClock) -> None:
    """And a nested member is ended by the abort of another: its own end is told as cancelled."""
    inner = team(phase("x", "team"))
    config = team(phase("n", "team", nested=inner), "b")
    rig = rig_for(tmp_path, config, Acts(x=later(says("[loop: abort | deep]\n")), b=hangs))
    outcome = await rig.run()
    assert (outcome.status, outcome.reason) == (Status.BLOCKED, "deep")
    assert counts(rig) == {"aborted": 1, "cancelled": 1}
    rig = rig_for(tmp_path, config, Acts(x=hangs, b=later(says("[loop: abort | flat]\n"))))
    outcome = await rig.run()
    assert (outcome.status, outcome.reason) == (Status.BLOCKED, "flat")
    assert counts(rig) == {"aborted": 1, "cancelled": 1}
    assert [event.exit_reason for event in rig.only(TeamEnd)] == ["cancelled", "abort"]


@pytest.mark.parametrize("inner", [loop("x", max_iterations=1), team("x", "y")])
async def test_an_abort_in_a_nested_member_acts_when_its_phase_stands(
    tmp_path: Path, autojump_clock: MockClock, inner: ResolvedConfig
) -> None:
    """Not when its agent has ended: the others are cancelled at once; a cancel, or their own abort, comes too late."""
    acts = Acts(x=later(says("[loop: abort | first]\n")), y=hangs, b=aborts_when_cancelled)
    config = team(phase("n", "team", nested=loop(phase("m", nested=inner))), "b")
    rig = rig_for(tmp_path, config, acts)
    rig.backend.may_close = trio.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(rig.run)
        await trio.sleep(1)
        await trio.testing.wait_all_tasks_blocked()
        assert [s.prompts for s in rig.backend.sessions if not s.cancelled.is_set()] == [["do x"]]
        assert not rig.host.end(CANCEL)
        rig.backend.may_close.set()
    assert rig.outcome is not None
    assert (rig.outcome.status, rig.outcome.reason) == (Status.BLOCKED, "first")
    assert {event.exit_reason for event in rig.only(LoopEnd) + rig.only(TeamEnd)} == {"abort"}
    assert course(rig)[-1] == "-n blocked 5"
    assert counts(rig) == {"aborted": 2}


@pytest.mark.parametrize(
    ("act", "reason", "end", "fate"),
    [
        (says("ok"), "end_turn", "-n end_turn 0", "completed"),
        (crashes(), "phase_failure", "-n error 1", "failed"),
    ],
)
async def test_a_cancel_does_not_change_what_a_nested_member_has_come_to(
    tmp_path: Path, autojump_clock: MockClock, act: Act, reason: str, end: str, fate: str
) -> None:
    """Its last phase stands, though its agent has still to end; the team ends by the cancel."""

    async def stays_open(session: FakeSession) -> TurnStop:
        session.backend.may_close = trio.Event()
        return await act(session)

    rig = rig_for(tmp_path, team(phase("n", "team", nested=team("x", pre=("p",))), "b"), Acts(x=stays_open, b=hangs))
    async with trio.open_nursery() as nursery:
        await rig.start(nursery)
        rig.host.end(CANCEL)
        rig.backend.may_close.set()
    inner, outer = rig.only(TeamEnd)
    assert (inner.exit_reason, outer.exit_reason) == (reason, "cancelled")
    assert end in course(rig)
    assert counts(rig) == {fate: 1, "cancelled": 1}


async def test_a_nested_member_that_says_abort_after_the_cancel_is_counted(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """As any member is; the cancel came first."""
    rig = rig_for(tmp_path, team(phase("n", "team", nested=loop("x")), "b"), Acts(x=aborts_when_cancelled, b=hangs))
    async with trio.open_nursery() as nursery:
        await rig.start(nursery)
        rig.host.end(CANCEL)
    assert rig.outcome is not None
    assert rig.outcome.status is Status.KILLED
    assert "-n cancelled 130" in course(rig)
    assert counts(rig) == {"aborted": 1, "cancelled": 1}


async def test_after_a_loss_the_first_abort_is_still_the_first(tmp_path: Path, autojump_clock: MockClock) -> None:
    """Whatever comes first when the ends of the members are read again."""

    config = team(*"abcdef", phase("n", "team", nested=loop("x")))
    acts = Acts(**dict.fromkeys("abcdef", aborts_when_cancelled), x=later(says("[loop: abort | first]\n")))
    first = rig_for(tmp_path, config, acts)
    await first.run()
    lost = first.log_path.read_bytes().splitlines()[: first.names.index("avenor.team.end")]
    rig = RunRig(tmp_path, first.backend, config=config, lost=lost)
    outcome = await rig.run()
    assert (outcome.status, outcome.reason) == (Status.BLOCKED, "first")
    assert counts(rig) == {"aborted": 7}


async def test_a_nested_team_of_which_nothing_runs_holds_nothing_up(tmp_path: Path, autojump_clock: MockClock) -> None:
    """All its members skipped, no phase after them: the run goes on, and takes prompts no longer than it runs."""
    inner = team(phase("x", "team", conditional=True), pre=("t",))
    rig = rig_for(tmp_path, team(phase("n", "team", nested=inner)), Acts(t=says("[team: skip | x]\n")))
    outcome = await rig.run()
    assert outcome.status is Status.DONE
    with pytest.raises(Ended):
        rig.host.accept_prompt("extra", "control")


async def test_fifty_members_are_one_run(tmp_path: Path, autojump_clock: MockClock) -> None:
    """All at the same time."""
    names = [f"m{number}" for number in range(50)]
    barrier = Barrier(50)
    rig = rig_for(tmp_path, team(*names), Acts(**dict.fromkeys(names, barrier.act)), timeout=60.0)
    outcome = await rig.run()
    assert outcome.status is Status.DONE
    assert counts(rig) == {"completed": 50}
    assert len(rig.fold.state.phases) == 50
