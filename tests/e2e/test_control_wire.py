"""Families: malformed requests, line limits, slow and dead subscribers, floods from one client."""

import json
import socket
from collections.abc import Generator
from typing import Any

import psutil
import pytest

from tests.e2e.harness import WAIT_SECONDS, Client, Stable, read_log, say, steps
from tests.helpers import eventually_sync

_LIMIT = 16 * 1024 * 1024
_MEBIBYTE = 1024 * 1024


@pytest.fixture
def bystander(shared: Stable) -> Generator[Client, None, None]:
    """Another client, which must not notice anything."""
    with Client(shared.socket) as connected:
        connected.call("ping")
        yield connected
        assert "result" in connected.ask("ping")
        assert (connected.strays, connected.events, connected.notices) == ([], [], [])


def ask_raw(client: Client, line: bytes) -> Any:
    """What comes back for a line as it stands, in front of the answer to a good request."""
    client.sock.sendall(line + b"\n")
    client.call("ping")
    return client.strays.pop(0) if client.strays else None


def code_of(answer: Any) -> tuple[object, object]:
    """Id and error code of an answer."""
    return answer["id"], answer["error"]["code"]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (b"{", (None, -32700)),
        (b"\xff\xfe", (None, -32700)),
        (b'{"jsonrpc":"2.0","id":"\xff","method":"ping"}', (None, -32700)),
        (b"[" * 100_000, (None, -32700)),
        (b'{"a":' * 5_000, (None, -32700)),
        (b"1" * 5_000, (None, -32700)),
        (b"null", (None, -32600)),
        (b'"ping"', (None, -32600)),
        (b"[]", (None, -32600)),
        (b"{}", (None, -32600)),
        (b'{"jsonrpc":"1.0","id":"a","method":"ping"}', ("a", -32600)),
        (b'{"id":"a","method":"ping"}', ("a", -32600)),
        (b'{"jsonrpc":"2.0","id":"a"}', ("a", -32600)),
        (b'{"jsonrpc":"2.0","id":"a","method":7}', ("a", -32600)),
        (b'{"jsonrpc":"2.0","id":{},"method":"ping"}', (None, -32600)),
        (b'{"jsonrpc":"2.0","id":"a","method":"ping","params":7}', ("a", -32600)),
        (b'{"jsonrpc":"2.0","id":"a","method":"nothing"}', ("a", -32601)),
        (b'{"jsonrpc":"2.0","id":"a","method":""}', ("a", -32601)),
        (b'{"jsonrpc":"2.0","id":"a","method":"router.hello"}', ("a", -32601)),
        (b'{"jsonrpc":"2.0","id":"a","method":"router.call","params":{"client":"c1","method":"list"}}', ("a", -32601)),
        (b'{"jsonrpc":"2.0","id":"a","method":"status","params":{"x":1}}', ("a", -32602)),
        (b'{"jsonrpc":"2.0","id":"a","method":"status","params":{"runtime_id":7}}', ("a", -32602)),
        (b'{"jsonrpc":"2.0","id":"a","method":"wait","params":{}}', ("a", -32602)),
        (b'{"jsonrpc":"2.0","id":"a","method":"wait","params":{"until":"never"}}', ("a", -32602)),
        (b'{"jsonrpc":"2.0","id":"a","method":"subscribe","params":{"on_lag":"panic"}}', ("a", -32602)),
        (b'{"jsonrpc":"2.0","id":"a","method":"subscribe","params":{"after_seq":"x"}}', ("a", -32602)),
        (b'{"jsonrpc":"2.0","id":"a","method":"shutdown","params":{"mode":"later"}}', ("a", -32602)),
        (b'{"jsonrpc":"2.0","id":"a","method":"prune","params":{"keep":"-1s"}}', ("a", -32602)),
        (b'{"jsonrpc":"2.0","id":"a","method":"prune","params":{"keep":1e999}}', ("a", -32602)),
        (b'{"jsonrpc":"2.0","id":"a","method":"history","params":{"limit":1e300}}', ("a", -32602)),
        (b'{"jsonrpc":"2.0","id":"a","method":"history","params":[]}', ("a", -32602)),
        (b'{"jsonrpc":"2.0","id":"a","method":"unsubscribe","params":{"id":"sub_none"}}', ("a", -32000)),
    ],
    ids=lambda value: value.decode(errors="replace")[:70] if isinstance(value, bytes) else None,
)
def test_a_malformed_request_gets_its_error(
    client: Client, bystander: Client, line: bytes, expected: tuple[object, int]
) -> None:
    """Each kind has its code and the id where one could be read; the connection goes on, and nobody else notices."""
    answer = ask_raw(client, line)
    assert answer is not None
    assert code_of(answer) == expected
    assert "Traceback" not in json.dumps(answer)


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"   ",
        b"\r",
        b'{"jsonrpc":"2.0","method":"ping"}',
        b'{"jsonrpc":"2.0","method":"nothing"}',
        b'{"jsonrpc":"2.0","method":"status","params":{"x":1}}',
        b'[{"jsonrpc":"2.0","method":"ping"},{"jsonrpc":"2.0","method":"nothing"}]',
        b'{"jsonrpc":"2.0","id":"z","result":{}}',
    ],
    ids=repr,
)
def test_what_wants_no_answer_gets_none(client: Client, bystander: Client, line: bytes) -> None:
    """Blank lines, notifications, and answers to nothing that was asked."""
    answer = ask_raw(client, line)
    assert answer is None or line == b'{"jsonrpc":"2.0","id":"z","result":{}}'


def test_a_batch_is_answered_as_one(client: Client, bystander: Client) -> None:
    """Good and bad requests and notifications together: one array, an answer for each that wants one."""
    batch = [
        {"jsonrpc": "2.0", "id": "a", "method": "ping"},
        {"jsonrpc": "2.0", "method": "ping"},
        7,
        {"jsonrpc": "2.0", "id": "b", "method": "nothing"},
        {"jsonrpc": "2.0", "id": "c", "method": "list"},
    ]
    answers = ask_raw(client, json.dumps(batch).encode())
    by_id = {each["id"]: each for each in answers}
    assert len(answers) == 4
    assert by_id["a"]["result"]["mode"] == "stable"
    assert by_id["b"]["error"]["code"] == -32601
    assert by_id[None]["error"]["code"] == -32600
    assert isinstance(by_id["c"]["result"], list)


@pytest.mark.parametrize("cut", [1, 2, 3, 7])
def test_requests_may_come_in_any_pieces(client: Client, bystander: Client, cut: int) -> None:
    """One byte at a time, multibyte characters cut, and two requests in one piece."""
    text = '{"jsonrpc":"2.0","id":"é","method":"ping"}\r\n{"jsonrpc":"2.0","id":"日本","method":"ping"}\n'
    data = text.encode()
    for start in range(0, len(data), cut):
        client.sock.sendall(data[start : start + cut])
    assert {client.stray()["id"], client.stray()["id"]} == {"é", "日本"}


def padded(size: int) -> bytes:
    """A `ping` that is so many bytes long, its newline not counted."""
    head, tail = b'{"jsonrpc":"2.0","id":"big","method":"ping","padding":"', b'"}'
    return head + b"x" * (size - len(head) - len(tail)) + tail


@pytest.mark.parametrize("size", [65535, 65536, 65537, _LIMIT])
def test_lines_up_to_the_limit_are_read(client: Client, bystander: Client, size: int) -> None:
    """Around 64 KiB and at 16 MiB."""
    assert ask_raw(client, padded(size))["id"] == "big"


@pytest.mark.parametrize("size", [_LIMIT + 1, 3 * _LIMIT])
def test_a_longer_line_is_refused_and_skipped(shared: Stable, client: Client, bystander: Client, size: int) -> None:
    """One byte more is an error without an id; the connection goes on, and the memory is not the sender's to fill."""
    assert code_of(ask_raw(client, padded(size))) == (None, -32700)
    assert psutil.Process(shared.process.pid).memory_info().rss < 200 * _MEBIBYTE


def test_a_prompt_of_the_full_size_arrives(shared: Stable, client: Client) -> None:
    """A spawn and a prompt of nearly 16 MiB reach the agent unchanged, or are refused; nothing breaks."""
    script = shared.place.script(steps(say("ok")))
    runtime_id = client.spawn(shared.place, script=script, prompt="p" * (15 * _MEBIBYTE))["runtime_id"]
    client.call("wait", runtime_id=runtime_id, until="done")
    client.call("prompt", runtime_id=runtime_id, text="é" * (7 * _MEBIBYTE))
    eventually_sync(
        lambda: [e["event"] for e in read_log(shared.log_path(runtime_id))].count("turn.end") == 2, WAIT_SECONDS
    )
    assert client.call("wait", runtime_id=runtime_id, until="done")["outcome"] == "DONE"
    assert client.call("cancel", runtime_id=runtime_id) == {"ok": True, "left": []}


def line_of(size: int, method: str, **params: str) -> bytes:
    """A request of exactly so many bytes, its newline not counted, filled up in the last of its params."""
    name, _ = list(params.items())[-1]
    request = {"jsonrpc": "2.0", "id": 1_000_000, "method": method, "params": params}
    params[name] += "x" * (size - len(json.dumps(request)))
    return json.dumps(request).encode()


def test_a_call_at_the_limit_is_answered_through_the_supervisor(shared: Stable, client: Client) -> None:
    """What the supervisor reads it must be able to pass on: a prompt in a line of 16 MiB is run, or refused by name."""
    runtime_id = client.spawn(shared.place, script=shared.place.script(steps(say("ok"))))["runtime_id"]
    client.call("wait", runtime_id=runtime_id, until="done")
    for size in (_LIMIT - 1, _LIMIT):
        client.sock.sendall(line_of(size, "prompt", runtime_id=runtime_id, text="") + b"\n")
        answer = client.answer(1_000_000)
        assert "result" in answer or answer["error"]["code"] in (-32602, -32000), answer
    assert client.call("status", runtime_id=runtime_id)["runtime_id"] == runtime_id


def test_an_unfinished_request_harms_nobody(shared: Stable, bystander: Client) -> None:
    """A client that sends half a request and leaves, or stays silent, or resets the connection."""
    half = [Client(shared.socket) for _ in range(20)]
    for each in half:
        each.sock.sendall(b'{"jsonrpc":"2.0","id":1,"meth')
    bystander.call("list")
    for each in half[:10]:
        each.sock.shutdown(socket.SHUT_WR)
    for each in half:
        each.close()
    bystander.call("list")


def test_a_client_that_only_stops_writing_gets_its_answers(shared: Stable, client: Client) -> None:
    """`printf … | nc`: the requests are sent, the writing side is closed, and the answers still come."""
    client.sock.sendall(b'{"jsonrpc":"2.0","id":1,"method":"list"}\n{"jsonrpc":"2.0","id":2,"method":"ping"}\n')
    client.sock.shutdown(socket.SHUT_WR)
    assert {json.loads(client.read_line())["id"], json.loads(client.read_line())["id"]} == {1, 2}


def test_one_clients_flood_leaves_the_others_served(shared: Stable, client: Client, bystander: Client) -> None:
    """100,000 pipelined requests whose answers nobody reads: others are answered, and memory stays bounded."""
    client.sock.setblocking(False)
    line = b'{"jsonrpc":"2.0","id":1,"method":"list"}\n' * 500
    sent = 0
    before = psutil.Process(shared.process.pid).memory_info().rss
    for _ in range(200):
        try:
            sent += client.sock.send(line)
        except BlockingIOError:
            bystander.call("ping")
    assert sent > 0
    for _ in range(50):
        bystander.call("ping")
    assert psutil.Process(shared.process.pid).memory_info().rss < before + 50 * _MEBIBYTE
    client.sock.settimeout(WAIT_SECONDS)


def test_a_lagging_subscriber_is_told_or_catches_up(shared: Stable, client: Client) -> None:
    """While one reads nothing, the run and the others go on; `drop` counts what it lost, `disk` gets every event."""
    count = 20_000
    script = shared.place.script(steps({"do": "flood", "count": count, "size": 300}))
    droppy, thorough, gone = (Client(shared.socket) for _ in range(3))
    droppy.call("subscribe", on_lag="drop")
    thorough.call("subscribe", on_lag="disk")
    gone.call("subscribe", on_lag="disk")
    before = psutil.Process(shared.process.pid).memory_info().rss
    spawned = client.spawn(shared.place, script=script)
    runtime_id = spawned["runtime_id"]
    gone.close()
    assert client.call("wait", runtime_id=runtime_id, until="done")["outcome"] == "DONE"
    assert psutil.Process(shared.process.pid).memory_info().rss < before + 60 * _MEBIBYTE
    log = [event["seq"] for event in read_log(shared.log_path(runtime_id))]
    thorough.wait_event("turn.end", runtime_id)
    seen = [event["seq"] for event in thorough.events if event.get("runtime_id") == runtime_id]
    assert seen == log[: len(seen)]
    assert len(seen) > count
    droppy.wait_event("turn.end", runtime_id)
    kept = [event["seq"] for event in droppy.events if event.get("runtime_id") == runtime_id]
    dropped = sum(notice["dropped_count"] for notice in droppy.notices if notice["kind"] == "subscriber.lagged")
    assert kept == sorted(set(kept))
    assert dropped > 0
    assert len(kept) + dropped == len(seen)
    droppy.close()
    thorough.close()


def test_a_few_huge_events_do_not_beat_the_count_limit(shared: Stable, client: Client) -> None:
    """Fifty events of 2 MiB for subscribers that read nothing: memory stays bounded by bytes, not only by number."""
    script = shared.place.script(steps({"do": "flood", "count": 50, "size": 2 * _MEBIBYTE}))
    deaf = [Client(shared.socket) for _ in range(5)]
    for number, each in enumerate(deaf):
        each.call("subscribe", on_lag="disk" if number % 2 else "drop")
    before = psutil.Process(shared.process.pid).memory_info().rss
    runtime_id = client.spawn(shared.place, script=script)["runtime_id"]
    assert client.call("wait", runtime_id=runtime_id, until="done")["outcome"] == "DONE"
    assert psutil.Process(shared.process.pid).memory_info().rss < before + 120 * _MEBIBYTE
    for each in deaf:
        each.close()
