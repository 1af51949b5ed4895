"""The scripted agent as its own process: handshake, steps, permissions, tools and cancels."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.helpers import eventually_sync
from tests.runtimes.acp_client import Client, Message, answer_with, open_client, play

ASKING: Message = {
    "do": "tool",
    "title": "Change {cwd}",
    "kind": "edit",
    "ask": {
        "on_allow": [{"do": "say", "text": "allowed "}],
        "on_reject": [{"do": "say", "text": "rejected "}],
    },
}


def is_alive(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    found = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False)
    return found.stdout.strip() not in ("", "Z", "Zs", "Z+")


@contextmanager
def killed_at_the_end(pid: int) -> Generator[int]:
    try:
        yield pid
    finally:
        os.kill(pid, signal.SIGKILL)


def read_pid(path: Path) -> int:
    return int(eventually_sync(lambda: path.exists() and path.read_text().strip()))


# --- handshake ------------------------------------------------------------------------------------------------------


def test_the_handshake_offers_everything_by_default(tmp_path: Path) -> None:
    """Version, capabilities, options and modes as real agents announce them."""
    with open_client(tmp_path) as client:
        result = client.initialize()["result"]
        assert result["protocolVersion"] == 1
        assert result["agentCapabilities"]["loadSession"] is True
        assert set(result["agentCapabilities"]["sessionCapabilities"]) == {"list", "resume", "close"}
        setup = client.call("session/new", {"cwd": str(tmp_path), "mcpServers": []})["result"]
        current = {option["id"]: option["currentValue"] for option in setup["configOptions"]}
        assert current == {"model": "small", "mode": "build", "thought_level": "low"}
        assert setup["modes"]["currentModeId"] == "build"


def test_what_is_switched_off_is_neither_announced_nor_done(tmp_path: Path) -> None:
    """Each capability can be taken away."""
    names = ["load", "resume", "list", "close", "config_options", "modes", "set_model", "usage"]
    script = play({"do": "say", "text": "hi"}, capabilities=dict.fromkeys(names, False))
    with open_client(tmp_path, script) as client:
        capabilities = client.initialize()["result"]["agentCapabilities"]
        assert (capabilities["loadSession"], capabilities["sessionCapabilities"]) == (False, {})
        setup = client.call("session/new", {"cwd": str(tmp_path), "mcpServers": []})["result"]
        assert list(setup) == ["sessionId"]
        client.session_id = setup["sessionId"]
        assert client.prompt("x").answer["result"] == {"stopReason": "end_turn"}
        for method in ("load", "resume", "list", "close", "set_config_option", "set_mode", "set_model"):
            assert client.call(f"session/{method}", {})["error"]["code"] == -32601


def test_the_program_imports_neither_trio_nor_what_only_tools_need() -> None:
    """It starts fast and stays small."""
    code = (
        "import sys, avenor.runtimes.scripted.__main__\n"
        "print([name for name in ('trio', 'structlog', 'asyncio', 'subprocess') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def run_program(*arguments: str) -> "subprocess.CompletedProcess[str]":
    program = [sys.executable, "-m", "avenor.runtimes.scripted", *arguments]
    return subprocess.run(program, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL, timeout=60)


def test_a_bad_script_is_refused_at_the_start_with_every_mistake(tmp_path: Path) -> None:
    """Exit 2, and stderr names file and paths."""
    path = tmp_path / "bad.json"
    path.write_text('{"rules":[{"steps":[{"do":"dance"}]}],"zebra":1}')
    done = run_program("--script", str(path))
    assert done.returncode == 2
    assert f"{path}: $.rules[0].steps[0].do: 'dance'" in done.stderr
    assert "$.zebra" in done.stderr


@pytest.mark.parametrize("arguments", [("--script", "missing.json"), ("--script",), ("--what",), ("--script=",)])
def test_a_bad_command_line_is_refused(arguments: tuple[str, ...]) -> None:
    """Exit 2 and a message, before anything is read."""
    done = run_program(*arguments)
    assert done.returncode == 2
    assert done.stderr.startswith("scripted agent: ")


def test_help_is_printed() -> None:
    """`--help` shows the usage with an example."""
    done = run_program("--help")
    assert done.returncode == 0
    assert "example:" in done.stdout


# --- the default script ---------------------------------------------------------------------------------------------


def test_the_default_script_answers_any_prompt(tmp_path: Path) -> None:
    """A thought, a tool, a message and tokens, without a script being given."""
    with open_client(tmp_path) as client:
        turn = client.open().prompt("Review the code.\n[loop: exit]\nThen {cwd}.")
        assert turn.stop_reason == "end_turn"
        assert turn.of_kind("agent_thought_chunk")
        assert turn.of_kind("tool_call_update")[-1]["status"] == "completed"
        assert "“Review the code.”" in turn.text
        assert "[loop: exit]" not in turn.text
        usage = turn.answer["result"]["usage"]
        assert usage["totalTokens"] == usage["inputTokens"] + usage["outputTokens"] + usage["cachedReadTokens"]


@pytest.mark.parametrize(
    ("prompt", "code", "says"),
    [("fail", -32603, "rehearsed"), ("Please be overloaded", -32603, "overloaded"), ("rate limit", -32603, "429")],
)
def test_the_default_script_fails_on_demand(tmp_path: Path, prompt: str, code: int, says: str) -> None:
    """A prompt that starts with the word rehearses the failure."""
    with open_client(tmp_path) as client:
        error = client.open().prompt(prompt).answer["error"]
        assert error["code"] == code
        assert says in error["message"]


def test_the_default_script_does_not_fail_because_a_prompt_speaks_of_failing(tmp_path: Path) -> None:
    """Real prompts are rehearsed too."""
    with open_client(tmp_path) as client:
        assert client.open().prompt("Fix the tests that fail, and do not crash or hang.").stop_reason == "end_turn"


def test_the_default_script_asks_recalls_plans_and_refuses(tmp_path: Path) -> None:
    """The other words of the default script."""
    with open_client(tmp_path) as client:
        client.open().on_permission = answer_with("once")
        assert client.prompt("Ask me first.").text.endswith("it is done.")
        client.on_permission = answer_with("reject")
        assert client.prompt("ask again").text.endswith("I leave it.")
        assert "1. Ask me first.\n2. ask again" in client.prompt("recall, please").text
        assert len(client.prompt("plan").of_kind("plan")[0]["entries"]) == 3
        assert client.prompt("refuse").stop_reason == "refusal"


# --- rules ----------------------------------------------------------------------------------------------------------


def counting(per: str) -> Message:
    return {
        "rules": [
            {"match": "^go$", "times": 2, "per": per, "steps": [{"do": "say", "text": "counted"}]},
            {"match": "(?i)GO", "steps": [{"do": "say", "text": "second rule"}]},
        ]
    }


def test_the_first_rule_that_fits_is_played_and_without_one_the_prompt_is_echoed(tmp_path: Path) -> None:
    """Order decides; the fallback is an echo."""
    with open_client(tmp_path, counting("session")) as client:
        client.open()
        said = [client.prompt(text).text for text in ("go", "let us Go", "go", "go", "{cwd} stop")]
    assert said == ["counted", "second rule", "counted", "second rule", "{cwd} stop"]


def test_times_counts_in_a_session_across_a_load(tmp_path: Path) -> None:
    """A session that is loaded goes on counting; a new one begins anew."""
    with open_client(tmp_path, counting("session")) as client:
        session_id = client.open().session_id
        client.prompt("go")
    with open_client(tmp_path, counting("session")) as client:
        client.initialize()
        client.restore("session/resume", session_id)
        assert [client.prompt("go").text for _ in range(2)] == ["counted", "second rule"]
        client.open()
        assert client.prompt("go").text == "counted"


def test_times_counts_in_a_run_across_its_agents(tmp_path: Path) -> None:
    """All agents of one AVENOR_RUN_ID count together, other runs apart."""
    said: list[str] = []
    for run_id in ("run 1/ä", "run 1/ä", "run 1/ä", "r2"):
        with open_client(tmp_path, counting("run"), env={"AVENOR_RUN_ID": run_id}) as client:
            said.append(client.open().prompt("go").text)
    assert said == ["counted", "counted", "second rule", "counted"]


def test_times_counts_in_the_process_without_a_run(tmp_path: Path) -> None:
    """Two sessions of one process count together, another process begins anew."""
    with open_client(tmp_path, counting("run")) as client:
        said = [client.open().prompt("go").text for _ in range(3)]
    with open_client(tmp_path, counting("run")) as client:
        said.append(client.open().prompt("go").text)
    assert said == ["counted", "counted", "second rule", "counted"]


# --- text -----------------------------------------------------------------------------------------------------------


def test_a_message_is_cut_into_chunks_of_one_message_id(tmp_path: Path) -> None:
    """As many chunks as wanted, as even as it goes, none empty."""
    script = play({"do": "say", "text": "grüße", "chunks": 3, "every": 0.001}, {"do": "say", "text": "ab", "chunks": 9})
    with open_client(tmp_path, script) as client:
        chunks = client.open().prompt("x").of_kind("agent_message_chunk")
    assert [chunk["content"]["text"] for chunk in chunks] == ["g", "rü", "ße", "a", "b"]
    ids = [chunk["messageId"] for chunk in chunks]
    assert len(set(ids[:3])) == 1
    assert len(set(ids)) == 2


def test_message_ids_can_be_given_and_left_out(tmp_path: Path) -> None:
    """For agents that send none, or one for several texts."""
    script = play(
        {"do": "say", "text": "a", "message_id": None},
        {"do": "say", "text": "b", "message_id": "m"},
        {"do": "think", "text": "c", "message_id": "m"},
    )
    with open_client(tmp_path, script) as client:
        assert [update.get("messageId") for update in client.open().prompt("x").updates] == [None, "m", "m"]


def test_placeholders_are_replaced_once_and_other_braces_stay(tmp_path: Path) -> None:
    """What a placeholder brings in is not looked at again."""
    text = "{prompt}|{excerpt}|{cwd}|{session}|{turn}|{model}|{mode}|{thought_level}|{env:WHO}|{env:NOBODY}|{x}{{}"
    with open_client(tmp_path, play({"do": "say", "text": text}), env={"WHO": "me"}) as client:
        said = client.open().prompt("\n{cwd} " + "y" * 100).text
        expected = [f"\n{{cwd}} {'y' * 100}", "{cwd} " + "y" * 73 + "…", str(tmp_path), client.session_id, "1"]
    assert said == "|".join([*expected, "small", "build", "low", "me", "", "{x}{{}"])


def test_a_prompt_of_several_blocks_is_one_text(tmp_path: Path) -> None:
    """Texts, links, embedded files and what is no text."""
    blocks: list[Message] = [
        {"type": "text", "text": "look at"},
        {"type": "resource_link", "uri": "file:///a", "name": "a"},
        {"type": "resource", "resource": {"uri": "file:///b", "text": "content"}},
        {"type": "resource", "resource": {"uri": "file:///c", "blob": "AA=="}},
        {"type": "image", "data": "AA==", "mimeType": "image/png"},
    ]
    with open_client(tmp_path, {}) as client:
        client.open()
        request_id = client.start("session/prompt", {"sessionId": client.session_id, "prompt": blocks})
        assert client.wait_answer(request_id).text == "look at\nfile:///a\ncontent\nfile:///c\n[image]"


# --- permission -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reply", "status", "text"),
    [
        ({"result": {"outcome": {"outcome": "selected", "optionId": "once"}}}, "completed", "allowed end"),
        ({"result": {"outcome": {"outcome": "selected", "optionId": "reject"}}}, "failed", "rejected end"),
        ({"result": {"outcome": {"outcome": "selected", "optionId": "nonsense"}}}, "failed", "rejected end"),
        ({"result": {"outcome": {"outcome": "cancelled"}}}, "failed", "rejected end"),
        ({"result": 3}, "failed", "rejected end"),
        ({"error": {"code": -32601, "message": "no"}}, "failed", "rejected end"),
    ],
)
def test_an_answer_to_a_permission_decides_what_is_played(
    tmp_path: Path, reply: Message, status: str, text: str
) -> None:
    """Only a known allowing option allows; anything else is a refusal, after which the turn goes on."""
    with open_client(tmp_path, play(ASKING, {"do": "say", "text": "end"})) as client:
        client.open().on_permission = lambda request: reply
        turn = client.prompt("x")
    assert turn.text == text
    assert turn.of_kind("tool_call_update")[-1]["status"] == status


def test_a_permission_request_names_tool_and_options(tmp_path: Path) -> None:
    """What a person decides on is in the request, and the tool call comes before it."""
    with open_client(tmp_path, play(ASKING)) as client:
        client.open().start_prompt("x")
        announced = client.wait_method("session/update")["params"]["update"]
        params = client.wait_method("session/request_permission")["params"]
    assert announced["sessionUpdate"] == "tool_call"
    assert params["toolCall"]["toolCallId"] == announced["toolCallId"]
    assert params["toolCall"]["title"] == f"Change {tmp_path}"
    assert [option["optionId"] for option in params["options"]] == ["once", "always", "reject"]


def test_always_is_remembered_for_the_kind_of_tool(tmp_path: Path) -> None:
    """The second edit is not asked for; another kind is."""
    other = {**ASKING, "kind": "fetch"}
    with open_client(tmp_path, play(ASKING, ASKING, other)) as client:
        client.open().on_permission = answer_with("always")
        turn = client.prompt("x")
    asked = [message for message in turn.messages if message["method"] == "session/request_permission"]
    assert [request["params"]["toolCall"]["kind"] for request in asked] == ["edit", "fetch"]


def test_a_refusal_can_end_the_turn_and_options_can_have_steps_of_their_own(tmp_path: Path) -> None:
    """`stop` in the refusal's steps, and steps by option id."""
    option = [{"id": name, "kind": kind, "name": name} for name, kind in (("a", "allow_once"), ("r", "reject_once"))]
    ask = {
        "options": option,
        "on_option": {"a": [{"do": "say", "text": "special"}]},
        "on_reject": [{"do": "stop", "reason": "cancelled"}],
    }
    script = play({"do": "run", "command": "echo ran", "ask": ask}, {"do": "say", "text": " end"})
    with open_client(tmp_path, script) as client:
        client.open().on_permission = answer_with("a")
        assert client.prompt("x").text == "special end"
        client.on_permission = answer_with("r")
        turn = client.prompt("x")
        assert (turn.stop_reason, turn.text) == ("cancelled", "")


# --- tools ----------------------------------------------------------------------------------------------------------


def test_a_tool_plays_its_steps_while_it_is_in_progress(tmp_path: Path) -> None:
    """Announced, in progress, its steps, then completed with its output."""
    tool = {
        "do": "tool",
        "id": "t1",
        "title": "Look",
        "kind": "search",
        "input": {"where": "{cwd}", "many": [1, "{turn}"]},
        "locations": ["a.txt"],
        "steps": [{"do": "say", "text": "within"}],
        "output": "found {turn}",
        "status": "failed",
    }
    with open_client(tmp_path, play(tool)) as client:
        updates = client.open().prompt("x").updates
    assert [update["sessionUpdate"] for update in updates] == [
        "tool_call",
        "tool_call_update",
        "agent_message_chunk",
        "tool_call_update",
    ]
    assert updates[0]["rawInput"] == {"where": str(tmp_path), "many": [1, "1"]}
    assert updates[0]["locations"] == [{"path": str(tmp_path / "a.txt")}]
    assert (updates[-1]["toolCallId"], updates[-1]["status"]) == ("t1", "failed")
    assert updates[-1]["content"][0]["content"]["text"] == "found 1"


def test_a_file_is_written_and_shown_as_a_diff(tmp_path: Path) -> None:
    """Folders are made, old text is shown, appending appends, and a failure is a failed tool."""
    script = play(
        {"do": "write", "path": "new/{turn}.txt", "text": "one\n"},
        {"do": "write", "path": "new/{turn}.txt", "text": "two {prompt}\n", "append": True},
        {"do": "write", "path": "new", "text": "no"},
    )
    with open_client(tmp_path, script) as client:
        done = [update for update in client.open().prompt("x").of_kind("tool_call_update") if "content" in update]
    path = tmp_path / "new" / "1.txt"
    assert path.read_text() == "one\ntwo x\n"
    assert done[0]["content"] == [{"type": "diff", "path": str(path), "oldText": None, "newText": "one\n"}]
    assert done[1]["content"][0]["oldText"] == "one\n"
    assert done[1]["content"][0]["newText"] == "one\ntwo x\n"
    assert [update["status"] for update in done] == ["completed", "completed", "failed"]


def test_a_command_runs_in_a_session_of_its_own(tmp_path: Path) -> None:
    """As tools of real agents do, out of reach of a signal to the agent's group."""
    script = play({"do": "run", "command": "echo $$ $(ps -o sid= -p $$) in $PWD; echo more >&2"})
    with open_client(tmp_path, script) as client:
        output = client.open().prompt("x").of_kind("tool_call_update")[-1]["rawOutput"]
    pid, sid, *rest = output["output"].split()
    assert pid == sid
    assert rest == ["in", str(tmp_path), "more"]
    assert output["exit"] == 0


def test_a_failing_or_talkative_command_is_reported(tmp_path: Path) -> None:
    """The exit status makes a failed tool; a full pipe does not block, and output is cut."""
    script = play({"do": "run", "command": "exit 7"}, {"do": "run", "command": "head -c 3000000 /dev/zero"})
    with open_client(tmp_path, script) as client:
        done = [update for update in client.open().prompt("x").of_kind("tool_call_update") if "rawOutput" in update]
    assert (done[0]["status"], done[0]["rawOutput"]["exit"]) == ("failed", 7)
    assert (done[1]["status"], len(done[1]["rawOutput"]["output"])) == ("completed", 64 * 1024)


def test_a_command_ends_although_what_it_left_holds_its_pipe(tmp_path: Path) -> None:
    """The tool is over when its shell is."""
    with open_client(tmp_path, play({"do": "run", "command": "sleep 600 & echo $!"})) as client:
        update = client.open().prompt("x").of_kind("tool_call_update")[-1]
    with killed_at_the_end(int(update["rawOutput"]["output"])) as pid:
        assert is_alive(pid)


def test_a_command_that_closes_its_output_is_still_waited_for(tmp_path: Path) -> None:
    """The end of the pipe is not the end of the tool."""
    command = "exec >&- 2>&-; while [ ! -e go ]; do sleep 0.01; done; touch gone"
    with open_client(tmp_path, play({"do": "run", "command": command})) as client:
        request_id = client.open().start_prompt("x")
        client.wait_method("session/update")
        (tmp_path / "go").touch()
        assert client.wait_answer(request_id).stop_reason == "end_turn"
        assert (tmp_path / "gone").exists()


def test_a_background_command_outlives_turn_and_agent(tmp_path: Path) -> None:
    """An orphan for those who must find it."""
    script = play({"do": "run", "command": "exec sleep 600", "background": True}, {"do": "run", "command": "true"})
    with open_client(tmp_path, script) as client:
        done = [update for update in client.open().prompt("x").of_kind("tool_call_update") if "rawOutput" in update]
        with killed_at_the_end(done[0]["rawOutput"]["pid"]) as pid:
            client.close_stdin()
            assert client.wait_exit() == 0
            assert is_alive(pid)


def test_a_background_command_that_ends_leaves_no_zombie(tmp_path: Path) -> None:
    """The agent collects it although no turn waits for it."""
    with open_client(tmp_path, play({"do": "run", "command": "true", "background": True})) as client:
        pid = client.open().prompt("x").of_kind("tool_call_update")[-1]["rawOutput"]["pid"]
        found = ["ps", "-o", "stat=", "-p", str(pid)]
        eventually_sync(lambda: not subprocess.run(found, capture_output=True, check=False).stdout.strip())


# --- cancel ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "step",
    [
        {"do": "hang"},
        {"do": "wait", "seconds": "1h"},
        {"do": "wait_for", "path": "never"},
        {"do": "barrier", "directory": "meet", "count": 2},
        {"do": "say", "text": "slowly", "chunks": 6, "every": "1h"},
        {"do": "flood", "count": 1_000_000_000},
    ],
)
def test_a_cancel_ends_the_turn_where_it_waits(tmp_path: Path, step: Message) -> None:
    """Stop reason cancelled, and the session goes on."""
    script = {"rules": [{"match": "^x$", "steps": [{"do": "say", "text": "started"}, step]}]}
    with open_client(tmp_path, script) as client:
        request_id = client.open().start_prompt("x")
        client.wait_method("session/update")
        client.cancel()
        assert client.wait_answer(request_id).stop_reason == "cancelled"
        assert client.prompt("still there").text == "still there"


def test_a_cancel_that_comes_with_the_prompt_ends_it(tmp_path: Path) -> None:
    """Before the first step was played; cancels for nothing change nothing."""
    with open_client(tmp_path, play({"do": "hang"})) as client:
        client.open().cancel()
        client.send({"method": "session/cancel", "params": {"sessionId": "nobody"}})
        client.send({"method": "session/cancel", "params": 3})
        request_id = client.start_prompt("x")
        client.cancel()
        client.cancel()
        assert client.wait_answer(request_id).stop_reason == "cancelled"


def test_a_cancel_kills_the_group_of_the_running_command(tmp_path: Path) -> None:
    """Shell and children; the tool is shown as failed before the turn ends."""
    command = "sleep 600 & echo $! >child; echo $$ >shell; wait"
    with open_client(tmp_path, play({"do": "run", "command": command})) as client:
        request_id = client.open().start_prompt("x")
        child, shell = read_pid(tmp_path / "child"), read_pid(tmp_path / "shell")
        client.cancel()
        turn = client.wait_answer(request_id)
    assert turn.stop_reason == "cancelled"
    assert turn.of_kind("tool_call_update")[-1]["status"] == "failed"
    eventually_sync(lambda: not is_alive(child) and not is_alive(shell))


def test_a_cancel_while_a_permission_is_pending_ends_the_turn(tmp_path: Path) -> None:
    """Without waiting for the client's answer, which may come late and is dropped."""
    with open_client(tmp_path, play(ASKING)) as client:
        request_id = client.open().start_prompt("x")
        permission = client.wait_method("session/request_permission")
        client.cancel()
        assert client.wait_answer(request_id).stop_reason == "cancelled"
        client.send({"id": permission["id"], "result": {"outcome": {"outcome": "cancelled"}}})
        client.on_permission = answer_with("once")
        assert client.prompt("x").text == "allowed "


def test_a_turn_can_ignore_a_cancel(tmp_path: Path) -> None:
    """From its `ignore_cancel` on; the next turn can be cancelled."""
    steps: list[Message] = [{"do": "ignore_cancel"}, {"do": "say", "text": "deaf"}, {"do": "wait_for", "path": "go"}]
    script = {"rules": [{"match": "^x$", "steps": steps}, {"steps": [{"do": "say", "text": "on"}, {"do": "hang"}]}]}
    with open_client(tmp_path, script) as client:
        request_id = client.open().start_prompt("x")
        client.wait_method("session/update")
        client.cancel()
        assert client.call("session/list", {})["result"]["sessions"]
        (tmp_path / "go").touch()
        assert client.wait_answer(request_id).stop_reason == "end_turn"
        request_id = client.start_prompt("y")
        client.wait_method("session/update")
        client.cancel()
        assert client.wait_answer(request_id).stop_reason == "cancelled"


def test_a_script_can_ignore_all_cancels(tmp_path: Path) -> None:
    """`ignores` at the top of the script."""
    with open_client(tmp_path, play({"do": "wait_for", "path": "go"}, ignores=["cancel"])) as client:
        request_id = client.open().start_prompt("x")
        client.cancel()
        assert client.call("session/list", {})["result"]["sessions"]
        (tmp_path / "go").touch()
        assert client.wait_answer(request_id).stop_reason == "end_turn"


# --- several sessions -----------------------------------------------------------------------------------------------


def test_sessions_play_at_once_and_a_busy_one_refuses_a_second_prompt(tmp_path: Path) -> None:
    """One waits while another answers."""
    script = {"rules": [{"match": "wait", "steps": [{"do": "wait_for", "path": "go"}, {"do": "say", "text": "first"}]}]}
    with open_client(tmp_path, script) as client:
        first_session = client.open().session_id
        first = client.start_prompt("wait")
        refused = client.prompt("another").answer["error"]
        assert (refused["code"], "busy" in refused["message"]) == (-32600, True)
        assert client.open().session_id != first_session
        assert client.prompt("hello").text == "hello"
        (tmp_path / "go").touch()
        assert client.wait_answer(first).text == "first"


def test_turns_of_two_agents_meet_at_a_barrier(tmp_path: Path) -> None:
    """Neither goes on before both are there."""
    script = play({"do": "barrier", "directory": "meet", "count": 2}, {"do": "say", "text": "both"})
    with open_client(tmp_path, script) as one, open_client(tmp_path, script) as two:
        first = one.open().start_prompt("x")
        eventually_sync(lambda: (tmp_path / "meet").exists() and os.listdir(tmp_path / "meet"))
        assert one.call("session/list", {})["result"]["sessions"]
        assert two.open().prompt("x").text == "both"
        assert one.wait_answer(first).text == "both"


def test_every_step_keeps_to_the_schema(tmp_path: Path) -> None:
    """Plan, usage and option changes, whose messages the client checks."""
    script = play(
        {"do": "plan", "entries": ["a {turn}", {"content": "b", "priority": "low", "status": "in_progress"}]},
        {"do": "usage", "input_tokens": 5, "output_tokens": 6, "cached_read_tokens": 7, "cost": 0.25},
        {"do": "usage", "input_tokens": 1, "context_size": 9},
        {"do": "set", "option": "mode", "value": "plan"},
        {"do": "set", "option": "model", "value": "large"},
    )
    with open_client(tmp_path, script) as client:
        turn = client.open().prompt("x")
        again = client.prompt("x")
    assert turn.of_kind("plan")[0]["entries"][0] == {"content": "a 1", "priority": "medium", "status": "pending"}
    first, second = turn.of_kind("usage_update")
    assert (first["used"], first["cost"]) == (18, {"amount": 0.25, "currency": "USD"})
    assert (second["used"], second["size"], second["cost"]["amount"]) == (19, 9, 0.25)
    assert again.of_kind("usage_update")[0]["cost"]["amount"] == 0.5
    usage = {"inputTokens": 6, "outputTokens": 6, "cachedReadTokens": 7, "totalTokens": 19}
    assert turn.answer["result"]["usage"] == usage
    assert turn.of_kind("current_mode_update") == [{"sessionUpdate": "current_mode_update", "currentModeId": "plan"}]
    options: list[dict[str, Any]] = turn.of_kind("config_option_update")[-1]["configOptions"]
    assert {option["id"]: option["currentValue"] for option in options}["model"] == "large"


def test_a_default_state_directory_is_used_without_a_variable(tmp_path: Path) -> None:
    """Under the XDG state directory, private."""
    env = {"AVENOR_SCRIPTED_STATE": "", "XDG_STATE_HOME": str(tmp_path / "xdg")}
    with open_client(tmp_path, {}, env=env) as client:
        session_id = client.open().session_id
    path = tmp_path / "xdg" / "avenor" / "scripted" / "sessions" / f"{session_id}.ndjson"
    assert json.loads(path.read_text())["session_id"] == session_id
    assert path.stat().st_mode & 0o777 == 0o600


def test_two_clients_do_not_share_what_they_are(tmp_path: Path) -> None:
    """Session ids of two agents differ."""
    with open_client(tmp_path, {}) as one, open_client(tmp_path, {}) as two:
        clients: list[Client] = [one.open(), two.open()]
        assert len({client.session_id for client in clients}) == 2
