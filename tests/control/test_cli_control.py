"""`avenor control` against a server on a real socket: what it asks, what it prints, how it exits."""

import json
import os
import socket
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from avenor.cli import main
from avenor.host.identity import process_id
from avenor.protocol.methods import Pong
from tests.control.scripted_server import Refusal, ScriptedServer, Then, event_line

Serve = Callable[..., ScriptedServer]


@pytest.fixture
def serve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Starts a server whose socket is the default of the commands in this test."""
    started: list[ScriptedServer] = []

    def start(**replies: Any) -> ScriptedServer:
        server = ScriptedServer(str(tmp_path / "s.sock"), replies)
        started.append(server)
        monkeypatch.setenv("AVENOR_SOCKET", server.path)
        return server

    monkeypatch.delenv("AVENOR_RUNTIME_ID", raising=False)
    yield start
    for server in started:
        server.__exit__()


SPAWNED = {"runtime_id": "rt_1", "session_id": "ses_1", "on_event": "/l", "sentinel_file": "/s"}


@pytest.mark.parametrize(
    ("words", "method", "params", "result", "output"),
    [
        (["status"], "status", {}, {"run_id": "r"}, '{"run_id":"r"}'),
        (["status", "rt_1"], "status", {"runtime_id": "rt_1"}, {"run_id": "ä\n"}, '{"run_id":"ä\\n"}'),
        (["list"], "list", {}, [], "[]"),
        (["list", "--json"], "list", {}, [1], "[1]"),
        (["list", "--fields", "label,dir"], "list", {"fields": ["label", "dir"]}, [{"label": "x"}], '[{"label":"x"}]'),
        (["cancel"], "cancel", {}, {"ok": True, "left": []}, "cancelled"),
        (["cancel", "rt_1", "--force"], "cancel", {"runtime_id": "rt_1", "force": True}, {"ok": True}, "cancelled"),
        (["cancel", "--json"], "cancel", {}, {"ok": True, "left": []}, '{"ok":true,"left":[]}'),
        (["prompt", "Go on"], "prompt", {"text": "Go on"}, {"accepted": True, "queued": 0}, "accepted"),
        (["prompt", "x", "rt_2"], "prompt", {"text": "x", "runtime_id": "rt_2"}, {"queued": 2}, "queued"),
        (["interrupt-and-prompt", "x"], "interrupt_and_prompt", {"text": "x"}, {"accepted": True}, "accepted"),
        (
            ["interrupt-and-prompt", "x", "rt_1", "--keep-queue", "--force"],
            "interrupt_and_prompt",
            {"text": "x", "runtime_id": "rt_1", "keep_queue": True, "force": True},
            {"accepted": True},
            "accepted",
        ),
        (
            ["answer-permission", "perm_1", "once"],
            "answer_permission",
            {"request_id": "perm_1", "option_id": "once"},
            {"accepted": True},
            "accepted",
        ),
        (
            ["answer-permission", "perm_1", "no", "rt_1", "--message", "because"],
            "answer_permission",
            {"request_id": "perm_1", "option_id": "no", "runtime_id": "rt_1", "message": "because"},
            {"accepted": True},
            "accepted",
        ),
        (["result"], "result", {}, {"final_output": "a"}, '{"final_output":"a"}'),
        (["history"], "history", {}, {"events": []}, '{"events":[]}'),
        (
            ["history", "rt_1", "--after-seq", "3", "--limit=2"],
            "history",
            {"runtime_id": "rt_1", "after_seq": 3, "limit": 2},
            {"events": []},
            '{"events":[]}',
        ),
        (["shutdown"], "shutdown", {}, {"shutting_down": True}, "stopping"),
        (["shutdown", "detach"], "shutdown", {"mode": "detach"}, {"shutting_down": True}, "stopping"),
        (["prune", "--keep", "7d"], "prune", {"keep": 604800.0}, {"pruned": ["rt_1", "rt_2"]}, "pruned 2"),
        (
            ["prune", "--keep", "1h", "--dry-run"],
            "prune",
            {"keep": 3600.0, "dry_run": True},
            {"pruned": ["rt_1"]},
            "would prune 1",
        ),
        (["log-level"], "log_level", {}, {"level": "info"}, "info"),
        (["log-level", "debug"], "log_level", {"level": "debug"}, {"level": "debug"}, "debug"),
        (["claim", "rt_1", "--force"], "claim", {"runtime_id": "rt_1", "force": True}, {"owner": "c1"}, "claimed"),
    ],
)
def test_a_command_is_one_call_and_one_line(
    serve: Serve,
    capfd: pytest.CaptureFixture[str],
    words: list[str],
    method: str,
    params: dict[str, Any],
    result: Any,
    output: str,
) -> None:
    """Only what was given is sent; the rest is the server's business."""
    server = serve(**{method: result})
    assert main(["control", *words]) == 0
    assert capfd.readouterr() == (output + "\n", "")
    assert server.requests == [(method, params)]


def test_a_server_that_cannot_be_seen_is_not_shut_down_to_be_waited_for(
    serve: Serve, capfd: pytest.CaptureFixture[str]
) -> None:
    """It is in another container, where its number means another process, or none."""
    me = process_id(os.getpid())
    assert me is not None
    pong = Pong(version="1", pid=me.pid, mode="stable", uptime_ms=1, start_time=me.start_ticks - 1, boot_id=me.boot_id)
    server = serve(ping=msgspec.to_builtins(pong), shutdown={})
    assert main(["control", "shutdown", "--wait"]) == 1
    out, err = capfd.readouterr()
    assert (out, [method for method, _ in server.requests]) == ("", ["ping"])
    assert "cannot see the server's process" in err
    assert "Leave --wait out" in err


def test_a_server_that_says_nothing_of_itself_is_not_shut_down_to_be_waited_for(
    serve: Serve, capfd: pytest.CaptureFixture[str]
) -> None:
    """It is something else."""
    server = serve(ping={"pong": True}, shutdown={})
    assert main(["control", "shutdown", "--wait"]) == 3
    out, err = capfd.readouterr()
    assert (out, [method for method, _ in server.requests]) == ("", ["ping"])
    assert "not avenor, or of another version" in err


def test_spawn_sends_what_was_given_with_an_absolute_dir(
    serve: Serve, capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other paths go as they are: the supervisor takes them relative to `dir`."""
    server = serve(spawn=SPAWNED)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TOKEN", "from here")
    words = (
        "--prompt-file task.md --dir sub --label a --timeout 1m --max-retries 2 --auto-approve --env TOKEN --env B=1=2"
    )
    assert main(["control", "spawn", *words.split(), "--key", "k", "--wait", "started", "--parent-id", "rt_9"]) == 0
    assert json.loads(capfd.readouterr().out) == SPAWNED
    assert server.requests == [
        (
            "spawn",
            {
                "prompt_file": "task.md",
                "dir": str(tmp_path / "sub"),
                "label": "a",
                "timeout": 60.0,
                "max_retries": 2,
                "auto_approve": True,
                "env": {"TOKEN": "from here", "B": "1=2"},
                "key": "k",
                "wait": "started",
                "parent_id": "rt_9",
            },
        )
    ]


def test_spawn_without_dir_means_the_folder_that_we_are_in(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A supervisor does not know its callers' folder."""
    server = serve(spawn=SPAWNED)
    monkeypatch.chdir(tmp_path)
    assert main(["control", "spawn", "--prompt", "x"]) == 0
    assert server.requests == [("spawn", {"prompt": "x", "dir": str(tmp_path)})]


def test_what_an_agent_spawns_at_its_supervisor_is_its_child(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Elsewhere its id means nothing, and is not sent."""
    server = serve(spawn=SPAWNED)
    monkeypatch.setenv("AVENOR_RUNTIME_ID", "rt_7")
    main(["control", "spawn", "--prompt", "x"])
    main(["control", "spawn", "--prompt", "x", "--parent-id", "rt_1"])
    monkeypatch.setenv("AVENOR_SOCKET", str(tmp_path / "other.sock"))
    main(["control", "--socket", server.path, "spawn", "--prompt", "x"])
    assert [params.get("parent_id") for _, params in server.requests] == ["rt_7", "rt_1", None]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["--label", "x"],
            "--prompt TEXT, --prompt-file FILE, --loop-file FILE, --team-file FILE or --manifest FILE is",
        ),
        (["--prompt", "x", "--prompt-file", "y"], "give --prompt or --prompt-file, not both"),
        (["--prompt", "x", "--env", "AVENOR_NOT_SET"], "--env: AVENOR_NOT_SET is not set here"),
        (["--prompt", "x", "--env", "=1"], "--env: '=1' has no name"),
        (["--prompt", "x", "--timeout", "-1s"], "--timeout: "),
        (["--loop-file", "l", "--team-file", "t"], "give --loop-file or --team-file, not both"),
    ],
)
def test_a_spawn_that_makes_no_sense_reaches_no_server(
    serve: Serve, capfd: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    """Status 2, and the usage below the message."""
    server = serve(spawn=SPAWNED)
    assert main(["control", "spawn", *words]) == 2
    out, err = capfd.readouterr()
    assert out == ""
    assert err.startswith(f"avenor control spawn: {message}")
    assert "usage: avenor control" in err
    assert server.requests == []


@pytest.mark.parametrize(
    ("refusal", "lines"),
    [
        (
            Refusal(-32000, "several runtimes are live", reason="no_such_runtime", candidates=["rt_1", "rt_2"]),
            ["avenor control cancel: several runtimes are live [no_such_runtime]", "  candidates: rt_1, rt_2"],
        ),
        (
            Refusal(-32010, "not yours", reason="not_owner", retryable=False, owner="c3"),
            [
                "avenor control cancel: not yours [not_owner]",
                "  owner: c3",
                "  --force takes the ownership over",
            ],
        ),
        (
            Refusal(
                -32000, "bad option", options=[{"optionId": "once", "kind": "allow_once", "name": "Yes"}], gone=None
            ),
            ["avenor control cancel: bad option", "  options:", "    once (allow_once) Yes"],
        ),
        (
            Refusal(-32602, "bad params", errors=["a: too\x1b[31m long", {"path": "$.x"}], retryable=True, list=[]),
            [
                "avenor control cancel: bad params",
                "  errors:",
                "    a: too long",
                '    {"path":"$.x"}',
                "  the same command may succeed later",
            ],
        ),
        (Refusal(-32603, "internal error"), ["avenor control cancel: internal error"]),
        (
            Refusal(-32602, "t.json: $.a: bad\n\x1b[31mthe format: x", reason="invalid_config"),
            ["avenor control cancel: t.json: $.a: bad [invalid_config]", "  the format: x"],
        ),
    ],
)
def test_a_refusal_is_told_on_stderr_with_its_facts(
    serve: Serve, capfd: pytest.CaptureFixture[str], refusal: Refusal, lines: list[str]
) -> None:
    """Status 1; what the data holds is below the message."""
    serve(cancel=refusal)
    assert main(["control", "cancel"]) == 1
    assert capfd.readouterr() == ("", "\n".join(lines) + "\n")


def test_with_json_a_refusal_is_the_error_object(serve: Serve, capfd: pytest.CaptureFixture[str]) -> None:
    """On one line of stderr."""
    refusal = Refusal(-32010, "nö", owner="c3")
    serve(cancel=refusal)
    assert main(["control", "cancel", "--json"]) == 1
    out, err = capfd.readouterr()
    assert out == ""
    assert json.loads(err) == refusal.error
    assert err.count("\n") == 1


def test_a_cancel_that_left_something_says_so(serve: Serve, capfd: pytest.CaptureFixture[str]) -> None:
    """Status 1 when the server did not call it done."""
    serve(cancel={"ok": False, "left": ["7 sleep"], "unverified": "no /proc"})
    assert main(["control", "cancel"]) == 1
    out, err = capfd.readouterr()
    assert out == "not cancelled\n"
    assert "still there: 7 sleep" in err
    assert "not proven that all its processes are gone: no /proc" in err


def test_events_and_notices_before_an_answer_do_not_disturb_it(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A connection may carry more than its answer, in one piece or in many, and in any JSON form."""
    noise = event_line(event="run.start", seq=1) + b'{"jsonrpc":"2.0","method":"notice","params":{"kind":"x"}}\n'
    answer = b'{ "id": 1, "jsonrpc": "2.0", "result": {"a": "\\u00e4"} }\r\n'
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(tmp_path / "s"))
    listener.listen()
    with _in_thread(lambda: _serve_pieces(listener, noise + answer)):
        assert main(["control", "--socket", str(tmp_path / "s"), "status"]) == 0
    assert json.loads(capfd.readouterr().out) == {"a": "ä"}


def _serve_pieces(listener: socket.socket, data: bytes) -> None:
    connection, _ = listener.accept()
    connection.recv(4096)
    for index in range(len(data)):
        connection.send(data[index : index + 1])
    connection.close()
    listener.close()


@contextmanager
def _in_thread(target: Callable[[], None]) -> Generator[None]:
    thread = threading.Thread(target=target, daemon=True)
    thread.start()
    yield
    thread.join(60)
    assert not thread.is_alive()


def test_what_speaks_another_protocol_is_no_server(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Status 3 rather than a traceback."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(tmp_path / "s"))
    listener.listen()
    with _in_thread(lambda: _serve_pieces(listener, b"HTTP/1.1 400 Bad Request\n")):
        assert main(["control", "--socket", str(tmp_path / "s"), "list"]) == 3
    assert "does not speak avenor's protocol" in capfd.readouterr().err


def test_a_server_that_hangs_up_without_an_answer_is_no_server(serve: Serve, capfd: pytest.CaptureFixture[str]) -> None:
    """Status 3: nobody knows whether it was done."""

    def hang_up(_params: dict[str, Any]) -> None:
        server.hang_up()

    server: ScriptedServer = serve(cancel=hang_up)
    assert main(["control", "cancel"]) == 3
    assert "closed the connection before it had answered" in capfd.readouterr().err


def test_no_server_is_status_3_and_names_the_socket(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Whether nothing is there, or a socket that nobody listens on."""
    path = tmp_path / "s.sock"
    assert main(["control", "--socket", str(path), "list"]) == 3
    assert f"no server at {path} (No such file or directory)" in capfd.readouterr().err
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
    assert main(["control", "--socket", str(path), "list"]) == 3
    assert f"no server at {path} (Connection refused)" in capfd.readouterr().err


def test_a_tombstone_says_how_the_last_server_left(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """It is quoted. What is none of ours, empty or a named pipe, tells nothing and is not waited for."""
    path = tmp_path / "s.sock"
    tombstone = Path(f"{path}.dead")
    tombstone.write_text("STOPPED reason=signal pid=7 at=2026-01-01T00:00:00Z\n")
    assert main(["control", "--socket", str(path), "list"]) == 3
    assert "the last one left: STOPPED reason=signal pid=7" in capfd.readouterr().err
    tombstone.write_text("")
    assert main(["control", "--socket", str(path), "list"]) == 3
    tombstone.unlink()
    os.mkfifo(tombstone)
    assert main(["control", "--socket", str(path), "list"]) == 3
    assert capfd.readouterr().err.count("the last one left: .") == 1


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="there is no /proc")
def test_a_path_that_is_too_long_for_a_socket_is_reached_all_the_same(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Through the descriptor of its folder."""
    folder = tmp_path / ("x" * 120)
    folder.mkdir()
    with ScriptedServer(str(folder / "s.sock"), {"list": []}) as server:
        assert main(["control", "--socket", server.path, "list"]) == 0
    assert main(["control", "--socket", str(folder / "nobody.sock"), "list"]) == 3
    assert f"no server at {folder / 'nobody.sock'} (No such file" in capfd.readouterr().err


def test_the_socket_is_the_flag_else_the_environment_else_the_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """In this order, and a relative XDG_RUNTIME_DIR is ignored."""

    def asked(*words: str) -> str:
        assert main(["control", *words, "list"]) == 3
        return capfd.readouterr().err.split("no server at ")[1].split(" (")[0]

    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AVENOR_SOCKET", "/environment")
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/run/x")
    assert asked("--socket", "/flag") == "/flag"
    assert asked() == "/environment"
    monkeypatch.delenv("AVENOR_SOCKET")
    assert asked() == "/run/x/avenor/stable.sock"
    monkeypatch.setenv("XDG_RUNTIME_DIR", "relative")
    assert asked() == f"{tmp_path}/.avenor/stable.sock"
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    assert asked() == f"{tmp_path}/.avenor/stable.sock"


def test_list_ids_prints_only_the_ids(serve: Serve, capfd: pytest.CaptureFixture[str]) -> None:
    """One a line; a run of its own has only a run id."""
    server = serve(list=[{"runtime_id": "rt_1", "run_id": "a"}, {"runtime_id": None, "run_id": "b"}])
    assert main(["control", "list", "--ids"]) == 0
    assert server.requests == [("list", {"fields": ["runtime_id", "run_id"]})]
    assert capfd.readouterr().out == "rt_1\nb\n"


def test_list_ids_gives_up_on_a_server_that_hangs(
    serve: Serve, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Completion must not freeze a shell."""
    monkeypatch.setattr("avenor.cli.control.IDS_TIMEOUT_SECONDS", 0.05)
    release = threading.Event()

    def hang(_params: Any) -> list[Any]:
        release.wait(60)
        return []

    serve(list=hang)
    assert main(["control", "list", "--ids"]) == 3
    assert "no answer" in capfd.readouterr().err
    release.set()


def test_text_that_utf8_cannot_hold_is_printed_with_escapes(
    serve: Serve, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """A lone surrogate is legal in JSON text."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(tmp_path / "odd"))
    listener.listen()
    line = b'{"jsonrpc":"2.0","id":1,"result":{"final_output":"\\ud800"}}\n'
    with _in_thread(lambda: _serve_pieces(listener, line)):
        assert main(["control", "--socket", str(tmp_path / "odd"), "result"]) == 0
    assert json.loads(capfd.readouterr().out) == {"final_output": "\ud800"}


def test_claim_hold_stays_until_another_client_takes_over(serve: Serve, capfd: pytest.CaptureFixture[str]) -> None:
    """Status 1, and who has it now."""
    notice = b'{"jsonrpc":"2.0","method":"notice","params":{"kind":"owner.changed","runtime_id":"rt_1","owner":"c9"}}\n'
    serve(claim=Then({"owner": "c1"}, event_line(event="x", seq=1), notice))
    assert main(["control", "claim", "--hold"]) == 1
    assert capfd.readouterr() == ("claimed\n", "avenor control claim: c9 owns rt_1 now\n")


def test_claim_hold_ends_with_its_server(serve: Serve, capfd: pytest.CaptureFixture[str]) -> None:
    """Status 3: the ownership is gone with it."""
    serve(claim=Then({"owner": "c1"}, close=True))
    assert main(["control", "claim", "--hold"]) == 3
    assert "the server went away" in capfd.readouterr().err
