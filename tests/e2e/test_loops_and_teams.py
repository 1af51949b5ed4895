"""Loops and teams as users run them: real processes, real files, and every way in which one can end."""

import contextlib
import json
import os
import shlex
import shutil
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.harness import ASK, AVENOR, WAIT_SECONDS, Client, Place, Run, Stable, read_log, say, steps
from tests.helpers import eventually_sync

_TEAM = Path(__file__).parents[1] / "data" / "team.json"
_HANG = {"do": "hang"}
_STOPPED = {"do": "stop", "reason": "refusal"}
_GIT = {f"GIT_{who}_{what}": "an@example" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}

Acts = Mapping[str, tuple[dict[str, Any], ...]]


def phase(name: str, **members: Any) -> dict[str, Any]:
    """A phase whose prompt is `do NAME`."""
    return {"name": name, **({} if "loop_file" in members else {"prompt": f"do {name}"}), **members}


def team(place: Place, *members: dict[str, Any], name: str = "team.json", **lists: list[dict[str, Any]]) -> str:
    """The path of a team of these members."""
    return write(place.path / name, {"team": list(members), **lists})


def loop(place: Place, *phases: dict[str, Any], name: str = "loop.json", **members: Any) -> str:
    """The path of a loop over these phases."""
    return write(place.path / name, {"loop": list(phases), **members})


def write(path: Path, config: object) -> str:
    """The path of a file that holds this."""
    path.write_text(json.dumps(config))
    return str(path)


def acts(place: Place, by_phase: Acts | None = None, name: str = "script.json") -> str:
    """A script with these steps for the phases of these names; all others say that they are done."""
    rules = [steps(*each, match=f"^do {phase}\\b") for phase, each in (by_phase or {}).items()]
    return place.script(*rules, steps(say("Done.")), name=name)


def told(events: list[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    """The events of this name."""
    return [event for event in events if event["event"] == name]


def wait_saying(run: Run, *phases: str) -> None:
    """Return when each of these phases has said something."""
    for each in phases:
        run.wait_event("agent.message_chunk", phase=each)


def ended(run: Run) -> tuple[str, int, str, str | None]:
    """How a run ended: the same by exit code, sentinel and the last line of its log."""
    code = run.finish()
    outcome = run.outcome()
    last = run.events()[-1]
    assert (last["event"], last["status"], last["exit_code"]) == ("run.end", outcome.status, code), run.complaints
    assert outcome.exit_code == code
    return outcome.status, code, outcome.stop_reason, outcome.reason


# ---- as the team document shows it


def test_the_quick_start_as_it_stands(place: Place) -> None:
    """One plan, three members, one review; one sentinel, and the review's reply alone on standard output."""
    shutil.copy(_TEAM, place.work / "team.json")
    typed = "avenor run --team-file team.json --auto-approve --sentinel-file run.done --backend scripted"
    process = place.start(*shlex.split(typed)[1:])
    output, complaints = process.communicate(timeout=WAIT_SECONDS)
    assert process.returncode == 0, complaints
    assert (place.work / "run.done").read_text().splitlines()[0] == "DONE"
    opened = [line.split(":")[0] for line in complaints.decode().splitlines() if ": session " in line]
    assert (opened[0], set(opened[1:4]), opened[4:]) == ("plan", {"auth-tests", "api-tests", "db-tests"}, ["review"])
    (reply,) = output.decode().splitlines()
    assert "Review the tests written by all three agents." in reply
    assert place.processes() == {}


def test_every_end_has_its_status_and_its_code(place: Place) -> None:
    """The table of sentinel outcomes, row by row; post phases run only after clean ends."""
    members = (phase("a"), phase("b"))
    config = team(place, *members, post=[phase("last")])
    a, b, aborts = say("A."), say("B."), say("Stuck.\n<|workflow: abort | no service|>\n")
    bare = say("Stuck.\n<|workflow: abort|>\n")
    scripts: dict[str, Acts] = {
        "blocked": {"a": (a, _HANG), "b": (aborts,)},
        "bare": {"a": (a, _HANG), "b": (bare,)},
        "failed": {"a": (a,), "b": (b, _STOPPED)},
        "timeout": {"a": (a, _HANG), "b": (b, _HANG)},
        "killed": {"a": (a, _HANG), "b": (b, _HANG)},
    }
    limits = {"timeout": ["--timeout", "4"]}
    runs = {
        name: place.run("--team-file", config, "--script", acts(place, each, name), *limits.get(name, []), name=name)
        for name, each in scripts.items()
    }
    wait_saying(runs["killed"], "a", "b")
    runs["killed"].process.send_signal(signal.SIGINT)
    assert {name: ended(run) for name, run in runs.items()} == {
        "blocked": ("BLOCKED", 5, "blocked", "no service"),
        "bare": ("BLOCKED", 5, "blocked", None),
        "failed": ("FAILED", 2, "refusal", None),
        "timeout": ("TIMEOUT", 124, "timeout", None),
        "killed": ("KILLED", 130, "cancelled", None),
    }
    reasons = {name: told(run.events(), "avenor.team.end")[0]["exit_reason"] for name, run in runs.items()}
    assert reasons == {
        "blocked": "abort",
        "bare": "abort",
        "failed": "phase_failure",
        "timeout": "timeout",
        "killed": "cancelled",
    }
    assert not any(event.get("phase") == "last" for run in runs.values() for event in run.events())
    assert "\nREASON=" not in runs["bare"].sentinel.read_text()
    assert place.processes() == {}


def test_the_prompt_of_the_command_line_comes_first_and_as_it_is(place: Place) -> None:
    """`--prompt` beside a config is the pre phase `(initial)`; braces in it are text."""
    prompt = "keep {{.Phase}} and {{ as they are"
    config = team(place, phase("a"), pre=[phase("first", prompt="I am {{.Phase}}")])
    run = place.run("--team-file", config, "--prompt", prompt, "--script", acts(place))
    assert ended(run)[:2] == ("DONE", 0)
    starts = [(event["phase"], event["kind"], event["text"]) for event in told(run.events(), "turn.start")]
    assert starts == [("(initial)", "pre", prompt), ("first", "pre", "I am first"), ("a", "team", "do a")]


# ---- what is refused


def test_what_excludes_each_other_is_refused(place: Place) -> None:
    """A team with a loop, and either with a session to resume: code 1, a message, FAILED, no agent."""
    one, other = team(place, phase("a")), loop(place, phase("b"))
    pairs = [
        ["--team-file", one, "--loop-file", other],
        ["--team-file", one, "--resume", "ses_1"],
        ["--loop-file", other, "--resume", "ses_1"],
    ]
    for number, (run, flags) in enumerate([(place.run(*pair, name=f"r{i}"), pair) for i, pair in enumerate(pairs)]):
        assert run.finish() == 1
        assert run.outcome().status == "FAILED"
        named = [flag.removeprefix("--").replace("-", "[-_]") for flag in flags[::2]]
        assert all(_found(word, run.complaints.decode()) for word in named), (number, run.complaints)
        assert told(run.events(), "session.start") == []


def _found(pattern: str, text: str) -> bool:
    return any(pattern.replace("[-_]", dash) in text for dash in "-_")


def mistaken(place: Place) -> str:
    """A team with four mistakes, in two files."""
    write(place.path / "inner.json", {"loop": [phase("x", prompt="{{.Nothing}}")], "max_iterations": 0})
    return team(
        place,
        phase("twice"),
        phase("twice"),
        phase("inner", loop_file="inner.json"),
        post=[phase("(initial)")],
        name="wrong.json",
    )


_MISTAKES = ("twice", "(initial)", "Nothing", "max_iterations")


def test_all_mistakes_of_a_config_are_told_at_once(place: Place) -> None:
    """Each is on standard error with its file; FAILED, code 1, and the agent's program is never started."""
    started = place.path / "started"
    run = place.run("--team-file", mistaken(place), "--agent-command", f"touch {started}", backend="acp")
    assert run.finish() == 1
    complaints = run.complaints.decode()
    assert [word for word in _MISTAKES if word not in complaints] == []
    assert "wrong.json" in complaints
    assert "inner.json" in complaints
    assert run.outcome().status == "FAILED"
    assert not started.exists()
    assert run.events() == []


def test_a_spawn_of_a_wrong_config_is_refused_with_all_mistakes(shared: Stable, client: Client) -> None:
    """−32602 with each mistake in `data.errors`; the sentinel that was named says FAILED, and no id is used."""
    place = shared.place
    before = client.spawn(place)["runtime_id"]
    sentinel = place.path / "wrong.done"
    error = client.refusal(
        "spawn", team_file=mistaken(place), dir=str(place.work), backend="scripted", sentinel_file=str(sentinel)
    )
    assert error["code"] == -32602
    found = json.dumps(error["data"]["errors"])
    assert len(error["data"]["errors"]) >= len(_MISTAKES)
    assert [word for word in _MISTAKES if word not in found] == []
    assert sentinel.read_text().splitlines()[0] == "FAILED"
    after = client.spawn(place)["runtime_id"]
    assert int(after.removeprefix("rt_")) == int(before.removeprefix("rt_")) + 1


# ---- members at the same time


def test_members_run_at_the_same_time_and_their_events_can_be_told_apart(place: Place) -> None:
    """Three members, one of them a loop, meet where nobody goes on alone; each event says whose it is."""
    meet = {"do": "barrier", "directory": "meeting", "count": 3}
    loop(place, phase("inner"), name="inner.json", max_iterations=1)
    config = team(place, phase("a"), phase("b"), phase("c", loop_file="inner.json"))
    acting: Acts = {name: (meet, say(f"I am {name}.")) for name in ("a", "b", "inner")}
    run = place.run("--team-file", config, "--script", acts(place, acting))
    assert ended(run) == ("DONE", 0, "end_turn", None)
    owners: dict[str, set[tuple[str | None, str]]] = {}
    for event in run.events():
        if "session_id" in event and not event["event"].startswith(("avenor.", "run.")):
            owner = (event.get("path"), event.get("run_phase", event["phase"]))
            owners.setdefault(event["session_id"], set()).add(owner)
    assert len(owners) == 3
    assert sorted(map(repr, owners.values())) == sorted(map(repr, ({(None, "a")}, {(None, "b")}, {("c", "inner")})))
    assert run.output.decode() == "## a\nI am a.\n\n## b\nI am b.\n\n## c\nI am inner.\n"


def test_members_that_ask_at_once_are_answered_one_after_the_other(place: Place) -> None:
    """Three open questions share one BASE: one `.req` at a time, each answered by `avenor answer`, all three go on."""
    meet = {"do": "barrier", "directory": "meeting", "count": 3}
    names = ("a", "b", "c")
    script = acts(place, {name: (meet, ASK, say("Thanks.")) for name in names})
    base = place.path / "perm"
    run = place.run(
        "--team-file", team(place, *map(phase, names)), "--script", script, "--permission-handler", f"file:{base}"
    )
    eventually_sync(lambda: len(told(run.events(), "permission.request")) == 3, WAIT_SECONDS)
    request = Path(f"{base}.req")
    answered: list[str] = []

    def next_request() -> dict[str, Any] | None:
        with contextlib.suppress(OSError):
            asked: dict[str, Any] = json.loads(request.read_text())
            return asked if asked["request_id"] not in answered else None
        return None

    for count in range(3):
        asked = eventually_sync(next_request, WAIT_SECONDS)
        assert asked is not None
        assert len(told(run.events(), "permission.response")) <= count
        answered.append(asked["request_id"])
        answer = [AVENOR, "answer", str(base), "--option", "once"]
        assert subprocess.run(answer, capture_output=True, timeout=WAIT_SECONDS).returncode == 0
    assert ended(run)[:2] == ("DONE", 0)
    settled = told(run.events(), "permission.response")
    assert [event["request_id"] for event in settled] == answered
    assert {(event["phase"], event["source"]) for event in settled} == {(name, "file") for name in names}
    assert len({event["session_id"] for event in settled}) == 3
    assert not request.exists()


# ---- loops


def test_a_loop_that_nothing_ends_may_be_a_failure(place: Place) -> None:
    """At its limit a loop is done, and failed with `--fail-on-max-iterations`."""
    flags = ["--loop-file", loop(place, phase("a"), max_iterations=2), "--script", acts(place)]
    runs = [place.run(*flags, name="done"), place.run(*flags, "--fail-on-max-iterations", name="failed")]
    assert [ended(run)[:3] for run in runs] == [("DONE", 0, "max_iterations"), ("FAILED", 1, "max_iterations")]
    assert [event["iteration"] for event in told(runs[0].events(), "avenor.phase.end")] == [1, 2]


def test_the_commit_of_each_phase_is_told_and_known_to_the_next(place: Place) -> None:
    """In a real repository: what a phase committed is in its end event, and the next phase's template has it."""
    subprocess.run(["git", "init", "-q"], cwd=place.work, env=place.environ(), check=True)
    commit = "git commit -q --allow-empty -m x && git rev-parse HEAD > ../commits && cat ../commits >> ../all"
    script = acts(place, {"a": ({"do": "run", "command": commit}, say("Committed."))})
    config = loop(place, phase("a", prompt="do a after {{.PrevPhaseCommit}}"), max_iterations=3)
    run = place.run("--loop-file", config, "--script", script, environ=_GIT)
    assert ended(run)[:2] == ("DONE", 0)
    commits = (place.path / "all").read_text().split()
    assert len(set(commits)) == 3
    assert [event["commit"] for event in told(run.events(), "avenor.phase.end")] == commits
    prompts = [event["text"] for event in told(run.events(), "turn.start")]
    assert prompts == ["do a after ", f"do a after {commits[0]}", f"do a after {commits[1]}"]


def test_the_next_phase_is_told_what_the_one_before_has_changed(place: Place) -> None:
    """In a real repository: committed, uncommitted and untracked files alike, and the statistics of the commits."""
    subprocess.run(["git", "init", "-q"], cwd=place.work, env=place.environ(), check=True)
    commit = "git commit -qm x --allow-empty"
    subprocess.run(commit.split(), cwd=place.work, env=place.environ(**_GIT), check=True)
    change = f"echo 1 > kept && git add kept && {commit} && echo 2 > loose"
    script = acts(place, {"a": ({"do": "run", "command": change}, say("Done."))})
    config = loop(place, phase("a"), phase("b", prompt="b: {{.ChangedFiles}} | {{.DiffStat}}"), max_iterations=1)
    run = place.run("--loop-file", config, "--script", script, environ=_GIT)
    assert ended(run)[:2] == ("DONE", 0)
    files, _, statistics = told(run.events(), "turn.start")[1]["text"].removeprefix("b: ").partition(" | ")
    assert files.split() == ["kept", "loose"]
    assert "kept" in statistics
    assert "loose" not in statistics


def test_a_phase_whose_agent_died_is_tried_again(place: Place) -> None:
    """SIGKILL in the middle of a turn: the phase ends and starts once more, with a new agent, as its second attempt."""
    dying = steps(say("Half"), {"do": "die", "signal": "SIGKILL"}, match="^do b", times=1)
    script = place.script(dying, steps(say("Whole.")))
    run = place.run("--team-file", team(place, phase("a"), phase("b")), "--script", script, "--max-retries", "1")
    assert ended(run) == ("DONE", 0, "end_turn", None)
    names = {"avenor.phase.start", "avenor.phase.end", "avenor.retry"}
    seen = [event for event in run.events() if event.get("phase") == "b" and event["event"] in names]
    assert [(event["event"], event.get("attempt")) for event in seen] == [
        ("avenor.phase.start", None),
        ("avenor.phase.end", None),
        ("avenor.retry", 2),
        ("avenor.phase.start", 2),
        ("avenor.phase.end", 2),
    ]
    assert (seen[1]["exit_code"], seen[2]["class"], seen[4]["exit_code"]) == (1, "crash", 0)
    assert run.output.decode() == "## a\nWhole.\n\n## b\nWhole.\n"


# ---- under a supervisor


def spawn_team(client: Client, place: Place, config: str, script: str) -> str:
    """Spawn a team; its answer names no session. Returns the runtime's id."""
    answer = client.call("spawn", team_file=config, script=script, dir=str(place.work), backend="scripted")
    assert answer["session_id"] == ""
    assert Path(answer["on_event"]).exists()
    return str(answer["runtime_id"])


def wait_phases(client: Client, runtime_id: str, **states: str) -> dict[str, Any]:
    """The snapshot in which these phases are in these states."""

    def found() -> dict[str, Any] | None:
        (snapshot,) = [each for each in client.call("list") if each["runtime_id"] == runtime_id]
        now = {each["name"]: each["state"] for each in snapshot["phases"]}
        return snapshot if states.items() <= now.items() else None

    snapshot = eventually_sync(found, WAIT_SECONDS)
    assert snapshot is not None
    return snapshot


def test_a_prompt_to_a_spawned_team_reaches_every_member(shared: Stable, client: Client) -> None:
    """`list` shows a team and its phases; both members that run get the prompt, the answer names their sessions."""
    place = shared.place
    go = place.path / "go"
    waiting = ({"do": "wait_for", "path": str(go)}, say("First."))
    script = acts(place, {"a": waiting, "b": waiting}, "prompted.json")
    config = team(place, phase("a"), phase("b"), pre=[phase("first")], name="prompted.team.json")
    runtime_id = spawn_team(client, place, config, script)
    snapshot = wait_phases(client, runtime_id, first="done", a="running", b="running")
    assert (snapshot["kind"], snapshot["status"]) == ("team", "running")
    assert (snapshot["phases"][0]["name"], snapshot["phases"][0]["kind"]) == ("first", "pre")
    sessions = {each["session_id"] for each in snapshot["phases"] if each["kind"] == "team"}
    answer = client.call("prompt", runtime_id=runtime_id, text="and this as well")
    assert answer["accepted"] is True
    assert set(answer["sessions"]) == sessions
    go.touch()
    done = client.call("wait", runtime_id=runtime_id, until="done")
    assert (done["outcome"], done["exit_code"]) == ("DONE", 0)
    starts = told(read_log(shared.log_path(runtime_id)), "turn.start")
    prompted = {event["session_id"] for event in starts if event["text"] == "and this as well"}
    assert prompted == sessions
    assert client.call("result", runtime_id=runtime_id) == {
        "final_output": "## a\nDone.\n\n## b\nDone.\n",
        "stop_reason": "end_turn",
    }


def hard_to_end(place: Place, number: int) -> tuple[dict[str, Any], ...]:
    """A member's turn that leaves a process of its own behind and never ends."""
    return ({"do": "run", "command": place.sleeper(), "background": True}, say(f"Member {number}."), _HANG)


def test_cancel_ends_the_processes_of_all_members(shared: Stable, client: Client) -> None:
    """Agents and what they started in the background: nothing is left, and KILLED is told."""
    place = shared.place
    script = acts(place, {"a": hard_to_end(place, 1), "b": hard_to_end(place, 2)}, "cancelled.json")
    config = team(place, phase("a"), phase("b"), post=[phase("last")], name="cancelled.team.json")
    before = set(place.processes_like("avenor.runtimes.scripted"))
    runtime_id = spawn_team(client, place, config, script)
    client.call("subscribe", runtime_id=runtime_id, replay=True)
    for name in ("a", "b"):
        client.wait_event("agent.message_chunk", runtime_id, phase=name)
    assert place.processes_like("sleep ") != []
    assert client.call("cancel", runtime_id=runtime_id) == {"ok": True, "left": []}
    assert place.processes_like("sleep ") == []
    assert set(place.processes_like("avenor.runtimes.scripted")) == before
    outcome = shared.sentinel(runtime_id)
    assert (outcome.status, outcome.exit_code, outcome.stop_reason) == ("KILLED", 130, "cancelled")
    assert client.call("result", runtime_id=runtime_id)["stop_reason"] == "cancelled"
    (end,) = told(read_log(shared.log_path(runtime_id)), "avenor.team.end")
    assert (end["exit_reason"], end["members_cancelled"]) == ("cancelled", 2)


def test_a_team_whose_runtime_is_killed_is_lost_and_leaves_nothing(place: Place) -> None:
    """SIGKILL of the runtime in the middle of a team: its supervisor tells it and ends what every member started."""
    stable = Stable(place)
    client = stable.connect()
    script = acts(place, {"a": hard_to_end(place, 1), "b": hard_to_end(place, 2)})
    runtime_id = spawn_team(client, place, team(place, phase("a"), phase("b")), script)
    client.call("subscribe", runtime_id=runtime_id, replay=True)
    for name in ("a", "b"):
        client.wait_event("agent.message_chunk", runtime_id, phase=name)
    os.kill(stable.runtime_pid(runtime_id), signal.SIGKILL)
    assert client.call("wait", runtime_id=runtime_id, until="done")["outcome"] == "FAILED"
    outcome = stable.sentinel(runtime_id)
    assert (outcome.status, outcome.exit_code, outcome.stop_reason) == ("FAILED", 1, "runtime_lost")
    last = read_log(stable.log_path(runtime_id))[-1]
    assert (last["event"], last["stop_reason"]) == ("run.end", "runtime_lost")
    assert place.processes_like("sleep ") == []
    assert place.processes_like("avenor.runtimes.scripted") == []


def test_a_loop_is_spawned_and_ends_by_its_marker(shared: Stable, client: Client) -> None:
    """`loop_file` over the socket: the first round goes on, the second says exit, and the runtime ends."""
    place = shared.place
    script = place.script(
        steps(say("Not yet."), match="^do again", times=1), steps(say("[loop: exit | green]\n")), name="again.json"
    )
    config = loop(place, phase("again"), name="again.loop.json")
    answer = client.call("spawn", loop_file=config, script=script, dir=str(place.work), backend="scripted")
    assert answer["session_id"] == ""
    done = client.call("wait", runtime_id=answer["runtime_id"], until="done")
    assert (done["kind"], done["status"], done["outcome"]) == ("loop", "ended", "DONE")
    (end,) = told(read_log(Path(answer["on_event"])), "avenor.loop.end")
    assert (end["exit_reason"], end["exit_label"], end["iterations_completed"]) == ("marker", "green", 2)


@pytest.mark.parametrize("flag", ["--team-file", "--loop-file"])
def test_the_command_line_spawns_both(shared: Stable, client: Client, flag: str) -> None:
    """`avenor control spawn` takes both flags."""
    place = shared.place
    name = flag.removeprefix("--").removesuffix("-file")
    config = team(place, phase("a")) if name == "team" else loop(place, phase("a"), max_iterations=1)
    words = ["control", "--socket", str(shared.socket), "spawn", flag, config, "--backend", "scripted"]
    done = place.start(*words, "--dir", str(place.work)).communicate(timeout=WAIT_SECONDS)
    spawned = json.loads(done[0])
    assert spawned["session_id"] == ""
    snapshot = client.call("wait", runtime_id=spawned["runtime_id"], until="done")
    assert (snapshot["kind"], snapshot["outcome"]) == (name, "DONE")
