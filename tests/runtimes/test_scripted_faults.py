"""What the scripted agent does wrong when it is told to, and what it takes from a client that is wrong."""

import json
import os
import random
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers import eventually_sync
from tests.runtimes.acp_client import Client, Message, answer_with, open_client, play
from tests.runtimes.test_scripted import is_alive, read_pid

# --- ends of turns --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reason", ["end_turn", "refusal", "max_tokens", "max_turn_requests", "zz", ""])
def test_any_stop_reason_is_answered(tmp_path: Path, reason: str) -> None:
    """Unknown words too; what follows is not played."""
    script = play({"do": "stop", "reason": reason}, {"do": "say", "text": "too late"})
    with open_client(tmp_path, script, checks=reason in ("end_turn", "refusal")) as client:
        turn = client.open().prompt("x")
        assert (turn.stop_reason, turn.text) == (reason, "")


def test_a_failure_carries_code_message_and_data(tmp_path: Path) -> None:
    """As the script has them; without data there is none."""
    rules = [
        {"match": "a", "steps": [{"do": "fail", "code": 429, "message": "no {turn}", "retry_after": 2.5}]},
        {"match": "b", "steps": [{"do": "fail", "data": {"errorKind": "overloaded"}}]},
        {"match": "d", "steps": [{"do": "fail", "data": {"code": 529, "message": "in words"}}]},
        {"steps": [{"do": "fail", "message": "bare"}]},
    ]
    with open_client(tmp_path, {"rules": rules}) as client:
        client.open()
        assert client.prompt("a").answer["error"] == {"code": 429, "message": "no 1", "data": {"retryAfter": 2.5}}
        assert client.prompt("b").answer["error"]["data"] == {"errorKind": "overloaded"}
        assert client.prompt("d").answer["error"]["data"] == {"code": 529, "message": "in words"}
        assert client.prompt("c").answer["error"] == {"code": -32603, "message": "bare"}


def test_a_script_that_cannot_be_played_fails_only_its_turn(tmp_path: Path) -> None:
    """A value that is not on offer, or a barrier on a file."""
    (tmp_path / "file").touch()
    rules = [
        {"match": "a", "steps": [{"do": "set", "option": "model", "value": "huge"}]},
        {"match": "b", "steps": [{"do": "barrier", "directory": "file", "count": 1}]},
    ]
    with open_client(tmp_path, {"rules": rules}) as client:
        client.open()
        assert "on offer: small, large" in client.prompt("a").answer["error"]["message"]
        assert "could not be played" in client.prompt("b").answer["error"]["message"]
        assert client.prompt("c").text == "c"


@pytest.mark.parametrize(
    ("step", "code"),
    [
        ({"do": "die"}, 1),
        ({"do": "die", "exit_code": 0}, 0),
        ({"do": "die", "exit_code": 3}, 3),
        ({"do": "die", "signal": "SIGKILL"}, -signal.SIGKILL),
        ({"do": "die", "signal": "SIGTERM"}, -signal.SIGTERM),
        ({"do": "die", "signal": "SIGCHLD"}, 128 + signal.SIGCHLD),
    ],
)
def test_dying_ends_the_process_as_told_after_what_was_said(tmp_path: Path, step: Message, code: int) -> None:
    """Exit code or signal; earlier messages are not lost."""
    script = play({"do": "say", "text": "last words"}, {"do": "stderr", "text": "oh {turn}\n"}, step)
    with open_client(tmp_path, script) as client:
        client.open().start_prompt("x")
        assert client.wait_method("session/update")["params"]["update"]["content"]["text"] == "last words"
        assert client.read_line() is None
        assert client.wait_exit() == code
        assert client.stderr() == "oh 1\n"


def test_dying_can_tear_a_line(tmp_path: Path) -> None:
    """Half a message, without its newline."""
    with open_client(tmp_path, play({"do": "die", "mid_line": True})) as client:
        client.open().start_prompt("x")
        line = client.read_line()
        assert line is not None
        assert line.startswith(b'{"jsonrpc"')
        assert not line.endswith(b"\n")
        with pytest.raises(json.JSONDecodeError):
            json.loads(line)
        assert client.wait_exit() == 1


def test_dying_leaves_the_tools_alone(tmp_path: Path) -> None:
    """As a crash does; finding them is the supervisor's work."""
    tool = {"do": "run", "command": "sleep 600 & echo $! >child"}
    with open_client(tmp_path, play(tool, {"do": "die"})) as client:
        client.open().start_prompt("x")
        pid = read_pid(tmp_path / "child")
        assert client.wait_exit() == 1
        assert is_alive(pid)
        os.kill(pid, signal.SIGKILL)


# --- streams --------------------------------------------------------------------------------------------------------


def test_a_flood_comes_complete(tmp_path: Path) -> None:
    """As many chunks of that size as were ordered, and the answer after them."""
    with open_client(tmp_path, play({"do": "flood", "count": 1000, "size": 300, "kind": "thought"})) as client:
        chunks = client.open().prompt("x").of_kind("agent_thought_chunk")
        assert [len(chunk["content"]["text"]) for chunk in chunks] == [300] * 1000


def test_a_flood_that_nobody_reads_is_held_back(tmp_path: Path) -> None:
    """The turn waits for its reader, other turns do not, and the flood goes on when it is read."""
    flood = [{"do": "flood", "count": 200, "size": 100_000}, {"do": "write", "path": "flooded", "text": ""}]
    other = [{"do": "wait", "seconds": 0.1}, {"do": "write", "path": "other", "text": ""}]
    with open_client(tmp_path, {"rules": [{"match": "flood", "steps": flood}, {"steps": other}]}) as client:
        request_id = client.open().start_prompt("flood")
        new = client.start("session/new", {"cwd": str(tmp_path), "mcpServers": []})
        session_ids = eventually_sync(lambda: two_sessions(tmp_path))
        session_ids.remove(client.session_id)
        prompt = [{"type": "text", "text": "x"}]
        client.start("session/prompt", {"sessionId": session_ids[0], "prompt": prompt})
        eventually_sync(lambda: (tmp_path / "other").exists())
        assert not (tmp_path / "flooded").exists()
        answers = {client.wait_answer(number).answer["id"] for number in (new, request_id)}
        assert answers == {new, request_id}
        assert (tmp_path / "flooded").exists()


def two_sessions(directory: Path) -> list[str]:
    """The ids of the sessions on disk, once there are two."""
    found = [path.stem for path in (directory / "state" / "sessions").iterdir()]
    return found if len(found) == 2 else []


def test_an_agent_that_nobody_reads_ends_with_its_stdin(tmp_path: Path) -> None:
    """What is unsent is given up."""
    with open_client(tmp_path, play({"do": "stderr", "text": "."}, {"do": "flood", "count": 10**9})) as client:
        client.open().start_prompt("x")
        assert client.process.stderr is not None
        client.process.stderr.read(1)
        client.close_stdin()
        assert client.wait_exit() == 0


def test_a_line_longer_than_any_pipe_comes_whole(tmp_path: Path) -> None:
    """One message of eight megabytes."""
    with open_client(tmp_path, play({"do": "flood", "count": 1, "size": 8_000_000})) as client:
        assert len(client.open().prompt("x").text) == 8_000_000


def test_noise_is_written_as_it_is(tmp_path: Path) -> None:
    """Banners, colours, blank lines, JSON that is no protocol, and bytes that are no text."""
    script = play(
        {"do": "noise", "text": "\x1b[31mbanner\x1b[0m {turn}\r\n\n"},
        {"do": "noise", "text": '{"level":"info"}\n'},
        {"do": "noise", "base64": "//5hCg=="},
    )
    with open_client(tmp_path, script) as client:
        request_id = client.open().start_prompt("x")
        lines = [client.read_line() for _ in range(4)]
        assert lines == [b"\x1b[31mbanner\x1b[0m 1\r\n", b"\n", b'{"level":"info"}\n', b"\xff\xfea\n"]
        assert client.wait_answer(request_id).stop_reason == "end_turn"


def test_unknown_updates_and_notifications_are_sent_verbatim(tmp_path: Path) -> None:
    """With their placeholders replaced."""
    script = play(
        {"do": "update", "update": {"sessionUpdate": "brand_new", "n": 1, "deep": ["{turn}"]}},
        {"do": "notify", "method": "_x/{turn}", "params": {"sessionId": "{session}"}},
    )
    with open_client(tmp_path, script, checks=False) as client:
        turn = client.open().prompt("x")
    assert turn.updates == [{"sessionUpdate": "brand_new", "n": 1, "deep": ["1"]}]
    assert turn.messages[1]["method"] == "_x/1"
    assert turn.messages[1]["params"] == {"sessionId": client.session_id}


@pytest.mark.parametrize(
    ("reply", "text"),
    [
        ({"result": {"a": [1, 2]}}, 'terminal/create was answered: {"a":[1,2]}'),
        ({"result": None}, "terminal/create was answered: null"),
        ({"error": {"code": -32601, "message": "no such"}}, "terminal/create was refused: -32601 no such"),
    ],
)
def test_the_answer_to_a_request_is_said(tmp_path: Path, reply: Message, text: str) -> None:
    """Whatever the client answers to what it may not know."""
    script = play({"do": "request", "method": "terminal/create", "params": {"sessionId": "{session}"}})
    with open_client(tmp_path, script, checks=False) as client:
        request_id = client.open().start_prompt("x")
        request = client.read()
        assert request["params"] == {"sessionId": client.session_id}
        client.send({"id": 999, "result": "to nothing"})
        client.send({"id": request["id"], **reply})
        assert client.wait_answer(request_id).text == text


def test_waiting_for_a_file_gives_up_after_its_timeout(tmp_path: Path) -> None:
    """And the turn goes on."""
    script = play({"do": "wait_for", "path": "never", "timeout": "50ms"}, {"do": "say", "text": "anyway"})
    with open_client(tmp_path, script) as client:
        assert client.open().prompt("x").text == "anyway"


# --- the end of the agent -------------------------------------------------------------------------------------------


def start_tool(client: Client, directory: Path) -> int:
    """Prompts, and returns the pid of the tool that then runs."""
    client.open().start_prompt("x")
    return read_pid(directory / "shell")


TOOL = {"do": "run", "command": "echo $$ >shell; while :; do sleep 600; done"}


def test_the_end_of_stdin_ends_agent_and_tool(tmp_path: Path) -> None:
    """Cleanly, with code 0."""
    with open_client(tmp_path, play(TOOL)) as client:
        pid = start_tool(client, tmp_path)
        client.close_stdin()
        assert client.wait_exit() == 0
        assert not is_alive(pid)
        assert client.stderr() == ""


def test_sigterm_ends_agent_and_tool(tmp_path: Path) -> None:
    """As the end of stdin does."""
    with open_client(tmp_path, play(TOOL)) as client:
        pid = start_tool(client, tmp_path)
        client.process.terminate()
        assert client.wait_exit() == 0
        assert not is_alive(pid)


def test_a_client_that_stops_reading_for_good_ends_the_agent(tmp_path: Path) -> None:
    """A broken pipe is the end, without a traceback."""
    with open_client(tmp_path, play({"do": "flood", "count": 10**9})) as client:
        client.open()
        assert client.process.stdout is not None
        client.process.stdout.close()
        client.start_prompt("x")
        assert client.wait_exit() == 0
        assert client.stderr() == ""


def test_a_stubborn_agent_ends_only_when_it_is_killed(tmp_path: Path) -> None:
    """It ignores the end of stdin and SIGTERM, and its turn goes on."""
    script = play(
        {"do": "wait_for", "path": "go"},
        {"do": "write", "path": "done", "text": "x"},
        ignores=["stdin_close", "sigterm"],
    )
    with open_client(tmp_path, script) as client:
        client.open().start_prompt("x")
        client.close_stdin()
        client.process.terminate()
        (tmp_path / "go").touch()
        eventually_sync(lambda: (tmp_path / "done").exists())
        assert client.process.poll() is None
        client.process.kill()
        assert client.wait_exit() == -signal.SIGKILL


def test_one_socket_can_be_both_stdin_and_stdout(tmp_path: Path) -> None:
    """Some clients start agents so; more than the socket holds goes through."""
    ours, theirs = socket.socketpair()
    env = {**os.environ, "AVENOR_SCRIPTED_STATE": str(tmp_path / "state")}
    script = tmp_path / "script.json"
    script.write_text(json.dumps(play({"do": "flood", "count": 1, "size": 3_000_000})))
    command = [sys.executable, "-m", "avenor.runtimes.scripted", "--script", str(script)]
    with ours, subprocess.Popen(command, stdin=theirs.fileno(), stdout=theirs.fileno(), env=env) as process:
        theirs.close()
        ours.settimeout(60)
        with ours.makefile("rwb") as stream:

            def ask(method: str, params: object) -> list[Message]:
                stream.write(
                    json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).encode() + b"\n"
                )
                stream.flush()
                messages: list[Message] = [json.loads(stream.readline())]
                while "id" not in messages[-1]:
                    messages.append(json.loads(stream.readline()))
                return messages

            ask("initialize", {"protocolVersion": 1})
            session_id = ask("session/new", {"cwd": str(tmp_path), "mcpServers": []})[0]["result"]["sessionId"]
            prompt = [{"type": "text", "text": "x"}]
            messages = ask("session/prompt", {"sessionId": session_id, "prompt": prompt})
            assert len(messages[0]["params"]["update"]["content"]["text"]) == 3_000_000
        ours.shutdown(socket.SHUT_RDWR)
        assert process.wait(60) == 0


# --- handshake ------------------------------------------------------------------------------------------------------


def with_handshake(**handshake: object) -> Message:
    return {"handshake": handshake}


def test_a_wrong_protocol_version_is_answered(tmp_path: Path) -> None:
    """Any number will do."""
    with open_client(tmp_path, with_handshake(protocol_version=99)) as client:
        assert client.initialize()["result"]["protocolVersion"] == 99


def test_noise_and_delay_come_before_the_answer(tmp_path: Path) -> None:
    """A banner on stdout and words on stderr, then a proper handshake."""
    script = with_handshake(noise="Welcome!\n", stderr="warming up\n", delay="20ms")
    with open_client(tmp_path, script) as client:
        request_id = client.start("initialize", {"protocolVersion": 1})
        assert client.read_line() == b"Welcome!\n"
        assert client.wait_answer(request_id).answer["result"]["protocolVersion"] == 1
        client.close_stdin()
        assert client.wait_exit() == 0
        assert client.stderr() == "warming up\n"


@pytest.mark.parametrize("at", ["initialize", "session"])
def test_a_handshake_can_fail_hang_and_die(tmp_path: Path, at: str) -> None:
    """At `initialize`, or when a session is opened."""
    new: Message = {"cwd": str(tmp_path), "mcpServers": []}

    def open_badly(client: Client) -> int:
        if at == "initialize":
            return client.start("initialize", {"protocolVersion": 1})
        client.initialize()
        return client.start("session/new", new)

    error = {"do": "fail", "code": -32000, "message": "Authentication required"}
    with open_client(tmp_path, with_handshake(at=at, fault="error", error=error)) as client:
        answer = client.wait_answer(open_badly(client)).answer
        assert answer["error"] == {"code": -32000, "message": "Authentication required"}
    with open_client(tmp_path, with_handshake(at=at, fault="die", exit_code=7, stderr="no key\n")) as client:
        open_badly(client)
        assert client.wait_exit() == 7
        assert client.stderr() == "no key\n"
    with open_client(tmp_path, with_handshake(at=at, fault="hang")) as client:
        open_badly(client)
        assert "error" in client.call("nothing/of/this/name", {})
        client.close_stdin()
        assert client.wait_exit() == 0


def test_a_start_can_die_or_hang_before_anything_is_read(tmp_path: Path) -> None:
    """A program that never gets as far as its protocol; a hanging one has to be killed."""
    with open_client(tmp_path, with_handshake(at="start", fault="die", exit_code=9, stderr="broken\n")) as client:
        assert client.wait_exit() == 9
        assert client.stderr() == "broken\n"
    with open_client(tmp_path, with_handshake(at="start", fault="hang", noise="starting\n")) as client:
        assert client.read_line() == b"starting\n"
        client.close_stdin()
        client.process.terminate()
        assert client.wait_exit() == -signal.SIGTERM
    with open_client(tmp_path, with_handshake(at="start", delay=0.01, noise="slow\n")) as client:
        assert client.read_line() == b"slow\n"
        assert client.initialize()["result"]["protocolVersion"] == 1


def test_a_faulty_handshake_can_be_limited_to_the_first_starts_of_a_run(tmp_path: Path) -> None:
    """The third start is sound, which rehearses retries."""
    script = with_handshake(fault="die", exit_code=5, times=2)
    for code in (5, 5, 0):
        with open_client(tmp_path, script, env={"AVENOR_RUN_ID": "r1"}) as client:
            request_id = client.start("initialize", {"protocolVersion": 1})
            if code == 0:
                assert "result" in client.wait_answer(request_id).answer
                client.close_stdin()
            assert client.wait_exit() == code


# --- bad clients ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "code", "answer_id"),
    [
        (b"nonsense", -32700, None),
        (b"\xff\xfe\x00", -32700, None),
        (b'{"jsonrpc":"2.0","id":5,', -32700, None),
        (b"[" * 100_000, -32700, None),
        (b"[]", -32600, None),
        (b"3", -32600, None),
        (b"{}", -32600, None),
        (b'{"jsonrpc":"2.0","id":"a","method":3}', -32600, "a"),
        (b'{"jsonrpc":"2.0","id":"b","method":"no/such"}', -32601, "b"),
        (b'{"jsonrpc":"2.0","id":"c","method":"session/prompt"}', -32602, "c"),
        (b'{"jsonrpc":"2.0","id":"d","method":"session/prompt","params":[]}', -32602, "d"),
        (b'{"jsonrpc":"2.0","id":"e","method":"session/new","params":{"cwd":3,"mcpServers":[]}}', -32602, "e"),
        (b'{"jsonrpc":"2.0","id":"f","method":"session/new","params":{"cwd":"/"}}', -32602, "f"),
    ],
)
def test_a_malformed_line_gets_its_error_and_harms_nothing(
    tmp_path: Path, line: bytes, code: int, answer_id: object
) -> None:
    """The next request is answered as if nothing had been."""
    with open_client(tmp_path, {}) as client:
        client.open()
        client.write(line + b"\n")
        answer = client.read()
        assert (answer["error"]["code"], answer["id"]) == (code, answer_id)
        assert client.prompt("still there").text == "still there"


def test_blank_lines_unknown_notifications_and_stray_answers_are_passed_over(tmp_path: Path) -> None:
    """Nothing is answered to them."""
    with open_client(tmp_path, {}) as client:
        client.open()
        client.write(b'\n\r\n  \n{"jsonrpc":"2.0","method":"$/cancel_request","params":{}}\n')
        client.write(b'{"jsonrpc":"2.0","id":77,"result":null}\n')
        turn = client.prompt("x")
        assert len(turn.messages) == 1


def test_an_over_long_line_is_refused_and_skipped(tmp_path: Path) -> None:
    """Above 64 MiB; the agent goes on after its newline."""
    with open_client(tmp_path, {}) as client:
        client.open()
        piece = b"x" * (1 << 20)
        for _ in range(65):
            client.write(piece)
        client.write(b"\n")
        assert client.read()["error"]["code"] == -32700
        assert client.prompt("still there").text == "still there"


def test_a_request_that_comes_byte_by_byte_is_understood(tmp_path: Path) -> None:
    """With characters cut in the middle, and carriage returns."""
    with open_client(tmp_path, {}, checks=False) as client:
        client.open()
        prompt = [{"type": "text", "text": "grüße"}]
        params = {"sessionId": client.session_id, "prompt": prompt}
        message = {"jsonrpc": "2.0", "id": 50, "method": "session/prompt", "params": params}
        for byte in json.dumps(message, ensure_ascii=False).encode() + b"\r\n":
            client.write(bytes([byte]))
        assert client.wait_answer(50).text == "grüße"


def test_a_command_in_a_directory_that_is_gone_is_a_failed_tool(tmp_path: Path) -> None:
    """The turn goes on."""
    directory = tmp_path / "gone"
    directory.mkdir()
    with open_client(tmp_path, play({"do": "run", "command": "true"}, {"do": "say", "text": "on"})) as client:
        client.initialize()
        answer = client.call("session/new", {"cwd": str(directory), "mcpServers": []})
        client.session_id = answer["result"]["sessionId"]
        directory.rmdir()
        turn = client.prompt("x")
        assert (turn.of_kind("tool_call_update")[-1]["status"], turn.text) == ("failed", "on")


def test_random_garbage_does_not_end_the_agent(tmp_path: Path) -> None:
    """Two thousand lines of it, from a fixed seed, some of them mutations of a real request."""
    source = random.Random(20)
    real = b'{"jsonrpc":"2.0","id":1,"method":"session/prompt","params":{"sessionId":"x","prompt":[]}}'
    with open_client(tmp_path, {}) as client:
        client.open()
        for _ in range(2000):
            line = bytearray(source.choice((real, source.randbytes(40))))
            for _ in range(source.randrange(6)):
                line[source.randrange(len(line))] = source.randrange(256)
            client.write(bytes(line).replace(b"\n", b" ") + b"\n")
        request_id = client.start_prompt("still there")
        text = ""
        while (message := client.read()).get("id") != request_id or "method" in message:
            if message.get("method") == "session/update":
                text += message["params"]["update"]["content"]["text"]
        assert text == "still there"


def test_nothing_is_done_before_initialize(tmp_path: Path) -> None:
    """A client that skips the handshake is told so."""
    with open_client(tmp_path, {}) as client:
        error = client.call("session/new", {"cwd": str(tmp_path), "mcpServers": []})["error"]
        assert (error["code"], error["message"]) == (-32600, "initialize comes first")
        assert client.call("initialize", {})["error"]["code"] == -32602


def test_permissions_of_two_sessions_are_told_apart(tmp_path: Path) -> None:
    """Two pending at once, answered in the other order."""
    tool = {
        "do": "tool",
        "title": "t",
        "ask": {"on_allow": [{"do": "say", "text": "yes"}], "on_reject": [{"do": "say", "text": "no"}]},
    }
    with open_client(tmp_path, play(tool)) as client:
        first = client.open().start_prompt("x")
        asked_first = client.wait_method("session/request_permission")
        second = client.open().start_prompt("x")
        asked_second = client.wait_method("session/request_permission")
        client.send({"id": asked_second["id"], **answer_with("once")(asked_second)})
        assert client.wait_answer(second).text == "yes"
        client.send({"id": asked_first["id"], **answer_with("reject")(asked_first)})
        assert client.wait_answer(first).text == "no"
