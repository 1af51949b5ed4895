"""HTTP as its users have it: curl's requests against real supervisors and runs, with a real client."""

import json
import os
import pty
import re
import socket
import subprocess
import sys
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpcore
import pytest

from tests.e2e.harness import ASK, AVENOR, WAIT_SECONDS, Place, Run, Stable, say, steps
from tests.helpers import eventually_sync

TIMEOUTS = {"timeout": {"connect": WAIT_SECONDS, "read": WAIT_SECONDS, "write": WAIT_SECONDS, "pool": WAIT_SECONDS}}


class Http:
    """A client of one server.

    Args:
        url: Where it is.
        token_file: Where its token is.
    """

    def __init__(self, url: str, token_file: Path) -> None:
        self.url = url
        self.token = token_file.read_text().strip()
        self._pool = httpcore.ConnectionPool()

    def __enter__(self) -> "Http":
        return self

    def __exit__(self, *_exception: object) -> None:
        self._pool.close()

    def ask(self, verb: str, target: str, **members: Any) -> tuple[int, Any]:
        """Status and decoded body of a response."""
        body = json.dumps(members).encode() if members else None
        answer = self._pool.request(verb, self.url + target, headers=self._headers(), content=body, extensions=TIMEOUTS)
        return answer.status, json.loads(answer.content) if answer.content else None

    def get(self, target: str) -> Any:
        """What GET answers, which must be good."""
        status, body = self.ask("GET", target)
        assert status == 200, body
        return body

    def post(self, target: str, **members: Any) -> Any:
        """What POST answers, which must be good."""
        status, body = self.ask("POST", target, **members)
        assert status == 200, body
        return body

    @contextmanager
    def events(self, target: str = "events", last_id: str | None = None) -> "Generator[Stream]":
        """A stream of events that is open, as a browser asks for it: with the token in the address."""
        mark = "&" if "?" in target else "?"
        headers: list[tuple[bytes | str, bytes | str]] = (
            [] if last_id is None else [(b"last-event-id", last_id.encode())]
        )
        url = f"{self.url}{target}{mark}token={self.token}"
        with self._pool.stream("GET", url, headers=headers, extensions=TIMEOUTS) as answer:
            assert answer.status == 200
            yield Stream(answer)

    def _headers(self) -> list[tuple[bytes | str, bytes | str]]:
        return [("x-avenor-token", self.token)]


class Stream:
    """The events of a stream: pairs of id and event."""

    def __init__(self, answer: httpcore.Response) -> None:
        self._events = _events(answer.iter_stream())

    def __iter__(self) -> Iterator[tuple[str, dict[str, Any]]]:
        return self._events

    def until(self, name: str) -> list[tuple[str, dict[str, Any]]]:
        """What comes up to the first event of this name."""
        had: list[tuple[str, dict[str, Any]]] = []
        for event_id, event in self._events:
            had.append((event_id, event))
            if event["event"] == name:
                return had
        raise AssertionError(f"the stream ended without {name}")


def _events(pieces: Iterable[bytes]) -> Iterator[tuple[str, dict[str, Any]]]:
    text = b""
    for piece in pieces:
        *blocks, text = (text + piece).split(b"\n\n")
        for block in blocks:
            found = re.fullmatch(rb"id: (.*)\ndata: (.*)", block)
            if found is not None:
                yield found[1].decode(), json.loads(found[2])


@pytest.fixture
def served(place: Place) -> Generator[tuple[Stable, Http]]:
    """A supervisor with HTTP."""
    stable = Stable(place, "--http-debug", "127.0.0.1:0", "--log-format", "json")
    with Http(_logged_url(stable), Path(f"{stable.socket}.token")) as http:
        yield stable, http


def _logged_url(stable: Stable) -> str:
    assert stable.process.stderr is not None
    for line in stable.process.stderr:
        event = json.loads(line)
        if event["event"] == "http.listening":
            assert event["token_file"] == f"{stable.socket}.token"
            return str(event["url"])
    raise AssertionError("it never listened")


def _told_url(run: Run) -> tuple[str, Path]:
    """What a run says on its standard error, which is no terminal."""
    assert run.process.stderr is not None
    told = re.fullmatch(r"avenor: HTTP is at (\S+), its token in (\S+)\n", run.process.stderr.readline().decode())
    assert told is not None
    return told[1], Path(told[2])


def test_a_permission_is_seen_and_answered_over_http(place: Place, served: tuple[Stable, Http]) -> None:
    """Spawn, follow, answer, prompt again, cancel; each event once, wherever the stream was broken."""
    stable, http = served
    script = place.script(steps(say("one"), ASK, say("two")))
    spawner = stable.connect()
    spawner.spawn(place, script=script)
    spawner.call("release", runtime_id="rt_1")
    with http.events("events?runtime_id=rt_1&after_seq=0") as stream:
        had = stream.until("permission.request")
    asked = had[-1][1]
    assert http.get("status/rt_1")["permission"]["request_id"] == asked["request_id"]
    answer = {"request_id": asked["request_id"], "option_id": asked["options"][0]["optionId"]}
    assert http.post("answer-permission", **answer) == {"accepted": True}
    with http.events("events?runtime_id=rt_1", last_id=had[-1][0]) as stream:
        had += stream.until("turn.end")
    assert http.ask("POST", "answer-permission", **answer)[0] == 409
    assert http.post("prompt/rt_1", text="again")["accepted"] is True
    with http.events("events?runtime_id=rt_1&after_seq=0", last_id=had[-1][0]) as stream:
        had += stream.until("permission.request")
        assert http.post("cancel/rt_1") == {"ok": True, "left": []}
        had += list(stream)
    lines = stable.log_path("rt_1").read_bytes().splitlines()
    assert [event for _, event in had] == [json.loads(line) for line in lines]
    assert [event_id for event_id, _ in had] == [str(seq) for seq in range(1, len(lines) + 1)]
    assert http.ask("GET", f"events?runtime_id=rt_1&after_seq={len(lines)}") == (204, None)
    assert http.get("runtimes")[0]["outcome"] == "KILLED"


def test_a_stream_of_all_goes_on_where_it_was(place: Place, served: tuple[Stable, Http]) -> None:
    """Over runtimes that ended and others that began while nobody listened."""
    stable, http = served
    client = stable.connect()
    with http.events() as stream:
        client.spawn(place)
        client.spawn(place)
        had = [*stream.until("turn.end"), *stream.until("turn.end")]
    cut = len(had) // 2
    had = had[:cut]
    client.call("cancel", runtime_id="rt_1")
    client.spawn(place)
    client.call("wait", runtime_id="rt_3", until="done")
    client.call("cancel", runtime_id="rt_2")
    client.call("cancel", runtime_id="rt_3")
    with http.events(last_id=had[-1][0]) as stream:
        for _ in range(3 - sum(event["event"] == "run.end" for _, event in had)):
            had += stream.until("run.end")
    for runtime_id in ("rt_1", "rt_2", "rt_3"):
        lines = stable.log_path(runtime_id).read_bytes().splitlines()
        came = [event for _, event in had if event["runtime_id"] == runtime_id]
        assert came == [json.loads(line) for line in lines]


def test_a_jockeys_runtime_is_not_taken_silently(place: Place, served: tuple[Stable, Http]) -> None:
    """Only by force; then the jockey is told, and nobody owns it after the request."""
    stable, http = served
    jockey = stable.connect()
    jockey.spawn(place, script=place.script(steps(ASK)))
    owner = http.get("status/rt_1")["owner"]
    status, refusal = http.ask("POST", "prompt/rt_1", text="mine now")
    assert (status, refusal["error"]["code"], refusal["error"]["data"]["owner"]) == (409, -32010, owner)
    assert http.ask("POST", "cancel/rt_1")[0] == 409
    assert http.post("prompt/rt_1", text="mine now", force=True)["accepted"] is True
    assert jockey.notice()["kind"] == "owner.changed"
    eventually_sync(lambda: http.get("status/rt_1")["owner"] is None)
    assert http.post("cancel/rt_1")["ok"] is True


def test_the_token_file_goes_with_the_supervisor(place: Place, served: tuple[Stable, Http]) -> None:
    """It is this user's alone while it is there; a new start has a new token."""
    stable, http = served
    path = Path(f"{stable.socket}.token")
    assert path.stat().st_mode & 0o777 == 0o600
    assert stable.shutdown() == 0
    assert not path.exists()
    again = Stable(place, "--http-debug", ":0", "--http-token-file", "own.token", "--log-level", "error")
    own = place.work / "own.token"
    assert own.read_text().strip() != http.token
    assert again.shutdown() == 0
    assert not own.exists()


def test_the_board_is_served_without_a_token_and_holds_none(served: tuple[Stable, Http]) -> None:
    """It is the same for everybody."""
    _, http = served
    http.token, token = "", http.token
    page = httpcore.request("GET", http.url)
    assert (page.status, dict(page.headers)[b"content-type"]) == (200, b"text/html; charset=utf-8")
    assert token.encode() not in page.content
    assert http.ask("GET", "runtimes")[0] == 401


def test_nobody_who_follows_keeps_an_idle_supervisor(place: Place) -> None:
    """A stream is a client; when it has gone, there is none."""
    stable = Stable(place, "--http-debug", ":0", "--log-format", "json", "--idle-timeout", "3s", wait=False)
    with Http(_logged_url(stable), Path(f"{stable.socket}.token")) as http:
        with http.events():
            assert http.get("runtimes") == []
            assert stable.process.poll() is None
        assert stable.wait_exit() == 0


def test_a_run_without_a_socket_answers_http(place: Place) -> None:
    """Its events to the end, with plain seqs; a cancel ends it, and is answered."""
    run = place.run("--http-debug", ":0", "--script", place.script(steps(say("one"), ASK)), "--prompt", "go")
    url, token_file = _told_url(run)
    with Http(url, token_file) as http:
        with http.events("events?after_seq=0") as stream:
            had = stream.until("permission.request")
            assert [event["run_id"] for event in http.get("runtimes")] == [http.get("status")["run_id"]]
            assert http.post("cancel") == {"ok": True, "left": []}
            had += list(stream)
        assert run.finish() == 130
    assert [event_id for event_id, _ in had] == [str(number) for number in range(1, len(had) + 1)]
    assert [event for _, event in had] == run.events()
    assert run.outcome().status == "KILLED"
    assert not token_file.exists()


def test_a_run_puts_its_token_beside_its_socket(place: Place) -> None:
    """Where the one that is asked for says, else; both go when it ends."""
    own = place.path / "own"
    for path, *flags in ((place.path / "r.sock.token",), (own, "--http-token-file", str(own))):
        script = place.script(steps(ASK))
        sockets = ["--control-socket", str(place.path / "r.sock")]
        run = place.run("--http-debug", ":0", *sockets, *flags, "--script", script, "--prompt", "go")
        url, token_file = _told_url(run)
        assert token_file == path
        with Http(url, path) as http:
            http.post("cancel")
        assert run.finish() == 130
        assert not path.exists()


def test_on_a_terminal_the_address_of_the_board_is_told(place: Place) -> None:
    """With the token, which only the one who looks at it sees."""
    main, side = pty.openpty()
    for command in ("run", "stable"):
        socket_path = str(place.path / f"{command}.sock")
        script = place.script(steps(ASK))
        flags = ["--backend", "scripted", "--script", script, "--prompt", "x"] if command == "run" else []
        process = subprocess.Popen(
            [AVENOR, command, "--http-debug", ":0", "--control-socket", socket_path, *flags],
            cwd=place.work,
            env=place.environ(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=side,
            start_new_session=True,
        )
        place.started.append(process)
        shown = b""
        while (told := re.search(rb"the board is at (http://127\.0\.0\.1:\d+/)#token=(\S+)", shown)) is None:
            shown += os.read(main, 4096)
        assert Path(f"{socket_path}.token").read_bytes().strip() == told[2]
        process.terminate()
        assert process.wait(WAIT_SECONDS) == (130 if command == "run" else 0)
    os.close(main)
    os.close(side)


def test_quiet_says_nothing_of_it(place: Place) -> None:
    """It is there all the same."""
    token_file = place.path / "token"
    flags = ["--quiet", "--http-debug", ":0", "--http-token-file", str(token_file)]
    run = place.run(*flags, "--script", place.script(steps(ASK)), "--prompt", "go")
    eventually_sync(token_file.exists, WAIT_SECONDS)
    run.wait_event("permission.request")
    run.process.terminate()
    assert run.finish() == 130
    assert (run.output, run.complaints) == (b"", b"")


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        (["--http-debug", "0.0.0.0:80"], b"--http-debug: the host '0.0.0.0' is 0.0.0.0, which is no loopback address"),
        (["--http-debug", "8080"], b"--http-debug: '8080' is no HOST:PORT"),
        (["--http-token-file", "t"], b"--http-token-file goes with --http-debug ADDR"),
        (["--http-debug", ":0", "--http-token-file", ""], b"--http-token-file: it is empty"),
    ],
)
def test_flags_that_cannot_be_used_are_usage_errors(place: Place, flags: list[str], problem: bytes) -> None:
    """Of both commands; a run also leaves its sentinel."""
    stable = Stable(place, *flags, wait=False)
    assert stable.wait_exit() == 2
    assert not stable.tombstone.exists()
    run = place.run(*flags, "--prompt", "go")
    assert run.finish() == 1
    assert problem in run.complaints
    assert run.outcome().status == "FAILED"


def test_an_address_that_is_taken_fails_the_start(place: Place) -> None:
    """Of a supervisor, with its tombstone; of a run, with its sentinel. What was made for it is gone."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        where = f":{taken.getsockname()[1]}"
        stable = Stable(place, "--http-debug", where, wait=False)
        assert "--http-debug: cannot listen on 127.0.0.1" in stable.complaints()
        assert stable.process.returncode == 1
        assert "reason=start_failed" in stable.tombstone.read_text()
        run = place.run("--http-debug", where, "--control-socket", str(place.path / "r.sock"), "--prompt", "go")
        assert run.finish() == 1
    assert b"choose another port" in run.complaints
    assert run.outcome().stop_reason == "http_address"
    assert not stable.socket.exists()
    assert not (place.path / "r.sock").exists()


def test_a_token_file_that_cannot_be_written_fails_the_start(place: Place) -> None:
    """With its path."""
    run = place.run("--http-debug", ":0", "--http-token-file", "no/such/folder", "--prompt", "go")
    assert run.finish() == 1
    assert b"--http-token-file: cannot write" in run.complaints


def test_a_spawn_takes_neither_flag(shared: Stable, place: Place) -> None:
    """A runtime has its supervisor's HTTP."""
    for name in ("http_debug", "http_token_file"):
        error = shared.connect().refusal("spawn", prompt="x", dir=str(place.work), backend="scripted", **{name: ":0"})
        assert error["code"] == -32602


def test_who_does_not_ask_for_http_does_not_pay_for_it() -> None:
    """Neither a runtime, nor the zygote that it is forked from, nor a supervisor loads a module of it."""
    program = (
        "import sys, avenor.runtimes.zygote, avenor.runtimes.main, avenor.stable.supervisor, avenor.cli.run\n"
        "import avenor.cli.stable\n"
        "print([name for name in sys.modules if name.startswith(('avenor.control.debug', 'hypercorn', 'h11'))])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
