"""`--on-crash resume`: a run whose process was killed goes on in a new one, and nothing of it is lost or done twice."""

import json
import os
import re
import signal
from pathlib import Path
from typing import Any, cast

from tests.e2e.harness import ASK, Client, Place, Stable, is_alive, read_log, say, steps
from tests.helpers import eventually_sync, kill_each

RECALL: dict[str, Any] = {"do": "recall"}
LOST = "^Your process was lost"


def kill_runtime(stable: Stable, runtime_id: str) -> int:
    """SIGKILL for the process of a runtime; returns which it was."""
    pid = stable.runtime_pid(runtime_id)
    os.kill(pid, signal.SIGKILL)
    return pid


def kill_all(stable: Stable) -> None:
    """SIGKILL for the supervisor and all that it started, as if the power had failed."""
    kill_each([stable.process.pid, *stable.place.processes()])
    stable.wait_exit()
    eventually_sync(lambda: not stable.place.processes())


def gate(path: Path) -> dict[str, Any]:
    """A step that waits for a file."""
    return {"do": "wait_for", "path": str(path), "timeout": "60s"}


def in_turn(client: Client, runtime_id: str, text: str, **members: Any) -> None:
    """Return when the agent has said this."""

    def has_said() -> bool:
        return any(text in str(event.get("content")) for event in client.events if fits(event))

    def fits(event: dict[str, Any]) -> bool:
        return ({"runtime_id": runtime_id} | members).items() <= event.items()

    while not has_said():
        client.take()


def whole_log(stable: Stable, runtime_id: str) -> list[dict[str, Any]]:
    """The log, in which no number is missing and none comes twice, and whose end comes once, if at all."""
    events = read_log(stable.log_path(runtime_id))
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    ends = [event for event in events if event["event"] == "run.end"]
    assert ends in ([], events[-1:])
    return events


def only(events: list[dict[str, Any]], name: str, **members: Any) -> list[dict[str, Any]]:
    """The events that fit."""
    wanted = {"event": name, **members}
    return [event for event in events if wanted.items() <= event.items()]


def watcher(stable: Stable) -> Client:
    """A client that gets all events."""
    client = stable.connect()
    client.call("subscribe", on_lag="disk")
    return client


def test_a_single_run_goes_on_in_its_session(place: Place) -> None:
    """The agent is told to continue, in the session that it had, and the run ends as if nothing had happened."""
    hold, go = place.path / "hold", place.path / "go"
    script = place.script(
        steps(RECALL, gate(go), say("|went on"), match=LOST), steps(say("began"), gate(hold), match="build it")
    )
    stable = Stable(place, "--on-crash", "resume")
    client = watcher(stable)
    run = client.spawn(place, prompt="build it", script=script)
    in_turn(client, "rt_1", "began")
    killed = kill_runtime(stable, "rt_1")
    client.wait_event("run.resumed", cut="a turn")
    assert not Path(run["sentinel_file"]).exists()
    go.touch()
    client.wait_event("turn.end", stop_reason="end_turn")
    state = client.call("status", runtime_id="rt_1")
    assert (state["status"], state["session_id"]) == ("idle", run["session_id"])
    assert state["pid"] != killed
    events = whole_log(stable, "rt_1")
    assert [event["source"] for event in only(events, "turn.start")] == ["run", "resume"]
    assert only(events, "session.start")[-1]["resumed"] is True
    assert "build it" in state["final_output"]
    assert state["final_output"].endswith("|went on")
    assert stable.sentinel("rt_1").status == "DONE"
    assert stable.shutdown() == 0


def test_a_parked_run_stays_parked_and_remembers(place: Place) -> None:
    """No turn was cut, so none is run: the next prompt opens the session again."""
    script = place.script(steps(RECALL, match="what"), steps(say("fine")))
    stable = Stable(place, "--on-crash", "resume")
    client = watcher(stable)
    run = client.spawn(place, prompt="remember me", script=script)
    client.wait_event("turn.end")
    before = Path(run["sentinel_file"]).stat()
    kill_runtime(stable, "rt_1")
    client.wait_event("run.resumed", goes_on="parked", cut="nothing")
    state = client.call("status", runtime_id="rt_1")
    assert (state["status"], state["outcome"], state["final_output"]) == ("idle", "DONE", "fine")
    assert Path(run["sentinel_file"]).stat() == before
    assert client.call("prompt", runtime_id="rt_1", text="what was it?")["accepted"]
    client.wait_event("turn.end", final_output="Earlier prompts of this session:\n1. remember me")
    assert len(only(whole_log(stable, "rt_1"), "turn.start")) == 2


def test_prompts_that_were_accepted_are_sent_after_the_turn_that_was_cut(place: Place) -> None:
    """What was acknowledged is not lost with the process that had it in memory."""
    hold = place.path / "hold"
    script = place.script(
        steps(say("went on"), match=LOST), steps(say("began"), gate(hold), match="build"), steps(RECALL)
    )
    stable = Stable(place, "--on-crash", "resume")
    client = watcher(stable)
    client.spawn(place, prompt="build", script=script)
    in_turn(client, "rt_1", "began")
    for text in ("second", "third"):
        client.call("prompt", runtime_id="rt_1", text=text)
    kill_runtime(stable, "rt_1")
    eventually_sync(lambda: client.call("status", runtime_id="rt_1")["status"] == "idle")
    sent = [event["text"] for event in only(whole_log(stable, "rt_1"), "turn.start")]
    assert sent[0] == "build"
    assert re.match(LOST, sent[1])
    assert sent[2:] == ["second", "third"]


def test_an_interrupting_prompt_is_what_a_cut_turn_goes_on_with(place: Place) -> None:
    """The turn was to be cut short anyway; its replacement was accepted, and the queue before it dropped."""
    hold = place.path / "hold"
    script = place.script(
        steps({"do": "ignore_cancel"}, say("began"), gate(hold), match="build"), steps(RECALL), ignores=["cancel"]
    )
    stable = Stable(place, "--on-crash", "resume")
    client = watcher(stable)
    client.spawn(place, prompt="build", script=script)
    in_turn(client, "rt_1", "began")
    client.call("prompt", runtime_id="rt_1", text="dropped")
    client.call("interrupt_and_prompt", runtime_id="rt_1", text="this instead")
    kill_runtime(stable, "rt_1")
    eventually_sync(lambda: client.call("status", runtime_id="rt_1")["status"] == "idle")
    assert [event["text"] for event in only(whole_log(stable, "rt_1"), "turn.start")] == ["build", "this instead"]


def test_a_question_of_the_lost_agent_is_settled_and_asked_anew(place: Place) -> None:
    """Its answer could reach nobody; the agent that goes on asks again, and that answer counts."""
    script = place.script(steps(ASK, say("allowed"), match=LOST), steps(ASK, say("never")))
    stable = Stable(place, "--on-crash", "resume")
    client = watcher(stable)
    client.spawn(place, script=script)
    first = client.wait_event("permission.request")["request_id"]
    kill_runtime(stable, "rt_1")
    client.wait_event("permission.response", request_id=first, kind="cancelled")
    request = eventually_sync(lambda: client.call("status", runtime_id="rt_1")["permission"])
    assert request["request_id"] != first
    assert client.refusal("answer_permission", request_id=first, option_id="once", runtime_id="rt_1")["code"] == -32001
    client.call("answer_permission", request_id=request["request_id"], option_id="once", runtime_id="rt_1")
    client.wait_event("turn.end", final_output="allowed")


def write_config(place: Place, **config: Any) -> str:
    """Write a config; returns its path."""
    path = place.path / "config.json"
    path.write_text(json.dumps(config))
    return str(path)


def phases(**prompts: str) -> list[dict[str, str]]:
    """Phases by name and prompt."""
    return [{"name": name, "prompt": prompt} for name, prompt in prompts.items()]


def test_a_team_goes_on_with_what_has_not_ended(place: Place) -> None:
    """A member that had ended is not run again; one that was cut goes on in its session; the post phase knows both."""
    hold = place.path / "hold"
    script = place.script(
        steps(RECALL, say("|slow went on"), match=LOST),
        steps(say("slow began"), gate(hold), match="^slow work"),
        steps(say("quick is done"), match="^quick work"),
        steps({"do": "echo"}),
    )
    team = write_config(
        place,
        pre=phases(plan="plan it"),
        team=phases(quick="quick work", slow="slow work"),
        post=phases(merge="merge\n{{.TeamOutput}}"),
    )
    stable = Stable(place, "--on-crash", "resume")
    client = watcher(stable)
    client.spawn(place, prompt=None, team_file=team, script=script)
    in_turn(client, "rt_1", "slow began")
    client.wait_event("avenor.phase.end", phase="quick")
    kill_runtime(stable, "rt_1")
    client.wait_event("run.end")
    events = whole_log(stable, "rt_1")
    assert only(events, "run.resumed")[0]["goes_on"] == "phase slow"
    turns = sorted(event["phase"] for event in only(events, "turn.start"))
    assert turns == ["merge", "plan", "quick", "slow", "slow"]
    for name in ("avenor.phase.start", "avenor.phase.end"):
        assert sorted(event["phase"] for event in only(events, name)) == ["merge", "plan", "quick", "slow"]
    output = only(events, "avenor.team.end")[0]["final_output"]
    assert "## quick\nquick is done" in output
    assert "1. slow work|slow went on" in output
    assert only(events, "avenor.team.end")[0]["members_completed"] == 2
    assert len(only(events, "avenor.team.start")) == 1
    assert stable.sentinel("rt_1").status == "DONE"


def test_a_loop_goes_on_in_the_iteration_in_which_it_was_cut(place: Place) -> None:
    """Iterations that had ended count; a marker that was said before the loss counts, too."""
    hold = place.path / "hold"
    script = place.script(
        steps(say("finished"), match=LOST),
        steps(say("tried"), match="try 1"),
        steps(say("[loop: exit | enough]\n\ntrying"), gate(hold), match="try 2"),
        steps(say("reported")),
    )
    loop = write_config(
        place, loop=phases(attempt="try {{.Iteration}}", check="check {{.Iteration}}"), post=phases(report="report")
    )
    stable = Stable(place, "--on-crash", "resume")
    client = watcher(stable)
    client.spawn(place, prompt=None, loop_file=loop, script=script)
    in_turn(client, "rt_1", "trying", iteration=2)
    kill_runtime(stable, "rt_1")
    client.wait_event("run.end", status="DONE")
    events = whole_log(stable, "rt_1")
    told = [(event["phase"], event["iteration"]) for event in only(events, "avenor.phase.end")]
    assert told == [("attempt", 1), ("check", 1), ("attempt", 2), ("report", 0)]
    end = only(events, "avenor.loop.end")[0]
    assert (end["exit_reason"], end["exit_label"], end["iterations_completed"]) == ("marker", "enough", 2)


def test_what_is_nested_goes_on_too(place: Place) -> None:
    """Of a loop inside a member of a team only the phase that was cut runs on."""
    hold = place.path / "hold"
    script = place.script(
        steps(say("went on"), match=LOST), steps(say("began"), gate(hold), match="inner 2"), steps({"do": "echo"})
    )
    inner = place.path / "inner.json"
    inner.write_text(json.dumps({"loop": phases(step="inner {{.Iteration}}"), "max_iterations": 2}))
    team = write_config(
        place,
        pre=phases(plan="plan"),
        team=[*phases(alone="alone"), {"name": "nested", "loop_file": str(inner)}],
        post=phases(merge="merge"),
    )
    stable = Stable(place, "--on-crash", "resume")
    client = watcher(stable)
    client.spawn(place, prompt=None, team_file=team, script=script)
    in_turn(client, "rt_1", "began")
    client.wait_event("avenor.phase.end", phase="alone")
    kill_runtime(stable, "rt_1")
    client.wait_event("run.end", status="DONE")
    events = whole_log(stable, "rt_1")
    told = [event.get("path", "") + ":" + event["phase"] for event in only(events, "avenor.phase.end")]
    assert sorted(told) == [":alone", ":merge", ":nested", ":plan", "nested:step", "nested:step"]
    assert len(only(events, "avenor.phase.start", phase="nested")) == 1
    assert len(only(events, "avenor.loop.start")) == 1
    assert len(only(events, "turn.start", phase="step")) == 3


def test_a_run_that_was_being_cancelled_is_settled_as_cancelled(place: Place) -> None:
    """The cancel was written down before anything was done about it; that it could not be finished changes nothing."""
    script = place.script(
        steps({"do": "ignore_cancel"}, say("began"), gate(place.path / "never")),
        ignores=["cancel", "stdin_close", "sigterm"],
    )
    stable = Stable(place, "--on-crash", "resume")
    client = watcher(stable)
    client.spawn(place, script=script)
    in_turn(client, "rt_1", "began")
    asked = client.send("cancel", runtime_id="rt_1")
    client.wait_event("run.ending", stop_reason="cancelled", status="KILLED")
    kill_runtime(stable, "rt_1")
    assert client.answer(asked)["result"] == {"ok": True, "left": []}
    assert stable.sentinel("rt_1").status == "KILLED"
    assert only(whole_log(stable, "rt_1"), "run.resumed") == []
    assert not place.processes_like("avenor.runtimes.scripted")


def test_a_run_that_dies_again_and_again_has_failed(place: Place) -> None:
    """At most so often within the window; then it stays failed, and says why."""
    script = place.script(steps(say("again"), gate(place.path / "never")))
    stable = Stable(place, "--on-crash", "resume", "--max-resumes", "2", "--resume-window", "1h")
    client = watcher(stable)
    client.spawn(place, script=script)
    for count in (1, 2, 3):
        wait_turns(client, "rt_1", count)
        kill_runtime(stable, "rt_1")
    client.wait_event("run.end", status="FAILED", stop_reason="runtime_lost")
    state = client.call("status", runtime_id="rt_1")
    assert "it had been resumed 2 times within 1h" in state["reason"]
    assert len(only(whole_log(stable, "rt_1"), "run.resumed")) == 2
    assert stable.sentinel("rt_1").stop_reason == "runtime_lost"


def client_events(client: Client, runtime_id: str) -> list[dict[str, Any]]:
    """What the log of a runtime holds now, as the server tells it."""
    return cast("list[dict[str, Any]]", client.call("history", runtime_id=runtime_id, limit=1000)["events"])


def wait_turns(client: Client, runtime_id: str, count: int) -> None:
    """Return when so many turns have begun."""
    eventually_sync(lambda: len(only(client_events(client, runtime_id), "turn.start")) == count)


def test_after_everything_has_died_the_next_supervisor_goes_on(place: Place) -> None:
    """Each as it was asked for: one goes on in its session, a parked one is parked, the third has failed."""
    script = place.script(
        steps(RECALL, match=LOST), steps(say("began"), gate(place.path / "never"), match="work"), steps(say("fine"))
    )
    stable = Stable(place)
    client = watcher(stable)
    client.spawn(place, prompt="work", script=script, on_crash="resume")
    client.spawn(place, prompt="rest", script=script, on_crash="resume")
    client.spawn(place, prompt="work on", script=script)
    for runtime_id in ("rt_1", "rt_3"):
        in_turn(client, runtime_id, "began")
    client.wait_event("turn.end", "rt_2")
    kill_all(stable)
    stable = Stable(place)
    client = stable.connect()
    eventually_sync(lambda: [each["status"] for each in client.call("list")] == ["idle", "idle", "ended"])
    first, second, third = client.call("list")
    assert "1. work" in first["final_output"]
    assert second["outcome"] == "DONE"
    assert (third["outcome"], third["stop_reason"]) == ("FAILED", "runtime_lost")
    for runtime_id in ("rt_1", "rt_2", "rt_3"):
        whole_log(stable, runtime_id)


def test_what_was_queued_is_queued_again(place: Place) -> None:
    """A spawn that waited for a place when its supervisor died still waits for one, in its order, under its id."""
    hold = place.path / "hold"
    script = place.script(steps(say("began"), gate(hold), match="first"), steps(say("fine")))
    stable = Stable(place, "--max-runtimes", "1")
    client = watcher(stable)
    client.spawn(place, prompt="first", script=script)
    for text in ("second", "third"):
        client.send("spawn", prompt=text, dir=str(place.work), backend="scripted", script=script)
    eventually_sync(lambda: len(client.call("list")) == 3)
    stable.signal(signal.SIGKILL)
    stable.wait_exit()
    stable = Stable(place, "--max-runtimes", "1")
    client = watcher(stable)
    assert [each["status"] for each in client.call("list")] == ["running", "queued", "queued"]
    hold.touch()
    eventually_sync(lambda: [each["status"] for each in client.call("list")] == ["idle"] * 3)
    started = [client_events(client, f"rt_{number}")[0]["ts"] for number in (1, 2, 3)]
    assert started == sorted(started)


def test_a_queued_run_can_be_cancelled_by_the_next_supervisor(place: Place) -> None:
    """It never starts, and its end is told."""
    script = place.script(steps(say("began"), gate(place.path / "never")))
    stable = Stable(place, "--max-runtimes", "1")
    client = watcher(stable)
    client.spawn(place, script=script)
    client.send("spawn", prompt="x", dir=str(place.work), backend="scripted", script=script)
    eventually_sync(lambda: len(client.call("list")) == 2)
    assert stable.shutdown("detach") == 0
    stable = Stable(place, "--max-runtimes", "1")
    with Client(stable.socket) as client:
        assert client.call("cancel", runtime_id="rt_2")["ok"]
    assert stable.sentinel("rt_2").status == "KILLED"
    assert stable.shutdown() == 0


def forgetful(place: Place, *rules: dict[str, Any]) -> str:
    """The script of an agent that can restore no session."""
    return place.script(*rules, capabilities={"load": False, "resume": False})


def test_a_first_turn_whose_session_cannot_be_restored_begins_anew(place: Place) -> None:
    """Nothing was answered yet, so nothing is lost by it; and it is told."""
    hold = place.path / "hold"
    script = forgetful(place, steps(say("began"), gate(hold), times=1), steps({"do": "echo"}))
    stable = Stable(place, "--on-crash", "resume")
    client = watcher(stable)
    run = client.spawn(place, prompt="build it", script=script)
    in_turn(client, "rt_1", "began")
    kill_runtime(stable, "rt_1")
    client.wait_event("turn.end", final_output="build it")
    events = whole_log(stable, "rt_1")
    assert "starting a new session" in only(events, "avenor.error", source="session")[0]["message"]
    assert only(events, "session.start")[-1]["session_id"] != run["session_id"]


def test_a_session_with_a_past_is_never_silently_replaced(place: Place) -> None:
    """It cannot be restored, so the run has failed: a fresh one would know nothing of what was said."""
    script = forgetful(place, steps(say("fine")))
    stable = Stable(place, "--on-crash", "resume")
    client = watcher(stable)
    client.spawn(place, script=script)
    client.wait_event("turn.end")
    kill_runtime(stable, "rt_1")
    client.wait_event("run.resumed", goes_on="parked")
    client.call("prompt", runtime_id="rt_1", text="and now?")
    client.wait_event("run.end", status="FAILED", stop_reason="resume_failed")


def test_a_phase_whose_session_cannot_be_restored_begins_anew(place: Place) -> None:
    """With its own prompt, with what clients have said in it, and without the markers of the session that is lost."""
    hold = place.path / "hold"
    script = forgetful(
        place,
        steps(say("[loop: abort]\n\nbegan"), gate(hold), match="talk", times=1),
        steps(say("began again"), match="talk"),
        steps(say("heard"), match="listen"),
    )
    stable = Stable(place, "--on-crash", "resume")
    client = watcher(stable)
    client.spawn(place, prompt=None, loop_file=write_config(place, pre=phases(only="talk")), script=script)
    in_turn(client, "rt_1", "began")
    client.call("prompt", runtime_id="rt_1", text="listen")
    kill_runtime(stable, "rt_1")
    client.wait_event("run.end", status="DONE")
    events = whole_log(stable, "rt_1")
    assert [event["text"] for event in only(events, "turn.start")] == ["talk", "talk", "listen"]
    assert len(only(events, "avenor.phase.start")) == len(only(events, "avenor.phase.end")) == 1


def test_tools_of_the_lost_process_are_ended_before_the_run_goes_on(place: Place) -> None:
    """Nothing of the old process works on beside the new one."""
    tool = place.sleeper()
    script = place.script(
        steps(say("went on"), match=LOST),
        steps(
            {"do": "run", "command": f"setsid {tool}", "background": True},
            say("began"),
            gate(place.path / "never"),
        ),
    )
    stable = Stable(place, "--on-crash", "resume")
    client = watcher(stable)
    client.spawn(place, script=script)
    in_turn(client, "rt_1", "began")
    eventually_sync(lambda: place.processes_like(tool))
    agents = place.processes_like("avenor.runtimes.scripted")
    kill_runtime(stable, "rt_1")
    client.wait_event("run.resumed")
    assert not place.processes_like(tool)
    assert not any(is_alive(pid) for pid in agents)
    client.wait_event("turn.end", final_output="went on")


def test_a_copy_of_the_log_goes_on_where_it_was(place: Place) -> None:
    """`--on-event` elsewhere holds the same lines as the log, across the loss."""
    copy = place.path / "copy.ndjson"
    script = place.script(steps(say("went on"), match=LOST), steps(say("began"), gate(place.path / "never")))
    stable = Stable(place, "--on-crash", "resume")
    client = watcher(stable)
    client.spawn(place, script=script, on_event=str(copy))
    in_turn(client, "rt_1", "began")
    kill_runtime(stable, "rt_1")
    client.wait_event("turn.end", final_output="went on")
    client.call("cancel", runtime_id="rt_1")
    assert copy.read_bytes() == stable.log_path("rt_1").read_bytes()


def test_a_torn_line_is_cut_before_the_run_goes_on(place: Place) -> None:
    """Half a line that the killed process left is no part of any event."""
    script = place.script(steps(say("went on"), match=LOST), steps(say("began"), gate(place.path / "never")))
    stable = Stable(place, "--on-crash", "resume")
    client = watcher(stable)
    client.spawn(place, script=script)
    in_turn(client, "rt_1", "began")
    kill_all(stable)
    with stable.log_path("rt_1").open("ab") as log:
        log.write(b'{"event":"agent.message_chunk","seq":99,"ts":17')
    stable = Stable(place)
    client = watcher(stable)
    eventually_sync(lambda: client.call("status", runtime_id="rt_1")["status"] == "idle")
    assert whole_log(stable, "rt_1")[-1]["event"] != "run.end"


def test_a_run_that_is_lost_while_its_failed_agent_ends_is_tried_again(place: Place) -> None:
    """The turn's end is told, and its retry is not: that is the next process's to tell."""
    script = place.script(
        steps({"do": "fail", "message": "overloaded"}, times=1), steps(say("done")), ignores=["stdin_close", "sigterm"]
    )
    stable = Stable(place, "--on-crash", "resume")
    client = watcher(stable)
    client.spawn(place, prompt="build", script=script, max_retries=1)
    client.wait_event("turn.end", stop_reason="error")
    kill_runtime(stable, "rt_1")
    client.wait_event("turn.end", stop_reason="end_turn")
    names = [event["event"] for event in whole_log(stable, "rt_1")]
    assert names.index("run.resumed") < names.index("avenor.retry")
    assert names.count("turn.start") == 2
    assert stable.sentinel("rt_1").status == "DONE"


def test_a_run_goes_on_again_and_again(place: Place) -> None:
    """Twice lost in one turn, the third process still knows what the first was told."""
    script = place.script(
        steps(say("began"), gate(place.path / "one"), match="build"),
        steps(say("once more"), gate(place.path / "two"), match=LOST, times=1),
        steps(RECALL, match=LOST),
    )
    stable = Stable(place, "--on-crash", "resume")
    client = watcher(stable)
    client.spawn(place, prompt="build", script=script)
    in_turn(client, "rt_1", "began")
    kill_runtime(stable, "rt_1")
    in_turn(client, "rt_1", "once more")
    kill_runtime(stable, "rt_1")
    end = client.wait_event("turn.end")
    assert "1. build" in end["final_output"]
    assert len(only(whole_log(stable, "rt_1"), "run.resumed")) == 2
