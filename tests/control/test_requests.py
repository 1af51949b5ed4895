"""What a control server makes of the lines that clients send."""

import json
import random
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from avenor.control.envelope import BATCH_LIMIT, Rejected, Request, read_line
from avenor.control.rpc import Call
from avenor.protocol.errors import LimitReached
from avenor.protocol.methods import NoParams
from tests.control.served import FakeHubs, Served, Writer, request, serving
from tests.helpers import eventually


class Text(msgspec.Struct, forbid_unknown_fields=True):
    """Params of a method that repeats."""

    text: str


def hubs(folder: Path) -> FakeHubs:
    """One runtime in which nothing happens."""
    return FakeHubs(Writer(folder).hub)


def add_test_methods(served: Served, gate: trio.Event) -> list[str]:
    """Registers `say` (at once), `wait_gate`, `refuse`, `crash` and others; what was said is in the list."""
    said: list[str] = []

    def say(call: Call, params: Text) -> str:
        said.append(params.text)
        return f"{call.client_id}: {params.text}"

    async def wait_gate(_params: NoParams) -> str:
        await gate.wait()
        return "open"

    async def crash_later(_params: NoParams) -> None:
        await trio.lowlevel.checkpoint()
        raise RuntimeError("secret in /home/me")

    def crash(_call: Call, _params: NoParams) -> None:
        raise RuntimeError("secret in /home/me")

    def refuse(_call: Call, _params: NoParams) -> None:
        raise LimitReached("no room", data={"limit": 3})

    served.table.add("say", Text, say)
    served.table.add("wait_gate", NoParams, lambda _, params: wait_gate(params))
    served.table.add("crash_later", NoParams, lambda _, params: crash_later(params))
    served.table.add("crash", NoParams, crash)
    served.table.add("refuse", NoParams, refuse)
    served.table.add("unencodable", NoParams, lambda _call, _params: {"x": object()})
    served.table.add("huge", NoParams, lambda _call, _params: "x" * (17 << 20))
    served.table.add("large", NoParams, lambda _call, _params: "x" * (9 << 20))
    served.table.add("lines", NoParams, lambda _call, _params: msgspec.Raw(b'{"a":\n1}'))
    return said


MALFORMED: list[tuple[bytes, int, Any]] = [
    (b"{", -32700, None),
    (b'{"jsonrpc":"2.0","id":1,"method":"ping"', -32700, None),
    (b"\xff\xfe", -32700, None),
    (b'{"jsonrpc":"2.0","id":1,"method":"say","params":{"text":"\xff"}}', -32700, None),
    (b'{"jsonrpc":"2.0","id":1,"method":"\xff"}', -32700, None),
    (b"[" * 100_000, -32700, None),
    (b'{"jsonrpc":"2.0","id":1,"method":"say","params":' + b'{"a":' * 100_000, -32700, None),
    (b'{"x":' + b"[" * 50_000 + b"]" * 50_000 + b"}", -32700, None),
    (b"1", -32600, None),
    (b'"ping"', -32600, None),
    (b"null", -32600, None),
    (b"{}", -32600, None),
    (b"[]", -32600, None),
    (b'{"id":1,"method":"ping"}', -32600, 1),
    (b'{"jsonrpc":"1.0","id":1,"method":"ping"}', -32600, 1),
    (b'{"jsonrpc":2.0,"id":"a","method":"ping"}', -32600, "a"),
    (b'{"jsonrpc":"2.0","id":1}', -32600, 1),
    (b'{"jsonrpc":"2.0","id":7,"method":5}', -32600, 7),
    (b'{"jsonrpc":"2.0","id":true,"method":"ping"}', -32600, None),
    (b'{"jsonrpc":"2.0","id":[1],"method":"ping"}', -32600, None),
    (b'{"jsonrpc":"2.0","id":{"a":1},"method":"ping"}', -32600, None),
    (b'{"jsonrpc":"2.0","id":1e999,"method":"ping"}', -32700, None),
    (b'{"jsonrpc":"2.0","id":1,"method":"ping","params":"x"}', -32600, 1),
    (b'{"jsonrpc":"2.0","id":1,"method":"ping","params":null}', -32600, 1),
    (b'{"jsonrpc":"2.0","id":1,"method":"ping","params":[]}', -32602, 1),
    (b'{"jsonrpc":"2.0","id":1,"method":"say","params":["a"]}', -32602, 1),
    (b'{"jsonrpc":"2.0","id":1,"result":{}}', -32600, 1),
    (b'{"jsonrpc":"2.0","id":1,"method":"nope"}', -32601, 1),
]


@pytest.mark.parametrize(("line", "code", "request_id"), MALFORMED, ids=[repr(line[:48]) for line, _, _ in MALFORMED])
async def test_a_malformed_request_gets_its_error_and_the_connection_goes_on(
    line: bytes, code: int, request_id: Any, tmp_path: Path
) -> None:
    """Each kind of fault has its code, its id where it has one, and harms nothing else."""
    async with serving(tmp_path, hubs(tmp_path)) as served:
        client = served.client()
        await client.send(line + b"\n" + request(99, "ping"))
        refused, answered = await client.lines(2)
        assert (refused["error"]["code"], refused["id"]) == (code, request_id)
        assert answered["id"] == 99
        assert answered["result"]["version"] == "1"


@pytest.mark.parametrize("request_id", [0, -5, 1.5, "", "é", None, 2**70])
async def test_an_answer_has_the_id_of_its_request(request_id: Any, tmp_path: Path) -> None:
    """Numbers of any size, strings and null are ids."""
    async with serving(tmp_path, hubs(tmp_path)) as served:
        client = served.client()
        await client.send(request(request_id, "ping"))
        assert (await client.line())["id"] == request_id


async def test_unknown_members_and_blank_lines_are_ignored(tmp_path: Path) -> None:
    """Neither an envelope's extra members, nor CRLF, nor empty lines disturb."""
    async with serving(tmp_path, hubs(tmp_path)) as served:
        client = served.client()
        await client.send(b'\r\n \n{"jsonrpc":"2.0","id":1,"method":"ping","meta":{"a":1}}\r\n')
        assert (await client.line())["id"] == 1


@pytest.mark.parametrize(
    ("params", "field"),
    [({}, "text"), ({"text": 5}, "text"), ({"text": "a", "txt": 1}, "txt")],
)
async def test_bad_params_are_refused_with_the_name_of_the_field(params: Any, field: str, tmp_path: Path) -> None:
    """Missing, wrong and unknown members are −32602 with `data.field`."""
    async with serving(tmp_path, hubs(tmp_path)) as served:
        add_test_methods(served, trio.Event())
        error = (await served.client().ask("say", params))["error"]
        assert (error["code"], error["data"]["field"]) == (-32602, field)
        assert error["data"]["reason"] == "invalid_params"


async def test_array_params_are_refused_by_saying_that_an_object_is_needed(tmp_path: Path) -> None:
    """Positional params name what is expected instead."""
    async with serving(tmp_path, hubs(tmp_path)) as served:
        error = (await served.client().ask("ping", [1]))["error"]
        assert "must be an object" in error["message"]


async def test_an_oversized_line_is_refused_and_skipped(tmp_path: Path) -> None:
    """17 MiB without a newline: −32700 with id null, then the next request as usual."""
    async with serving(tmp_path, hubs(tmp_path)) as served:
        client = served.client()
        await client.send(b'{"jsonrpc":"2.0","id":1,"method":"say","params":{"text":"' + b"x" * (17 << 20) + b'"}}\n')
        refused = await client.line()
        assert (refused["error"]["code"], refused["id"]) == (-32700, None)
        assert (await client.ask("ping"))["result"]


async def test_a_request_of_several_megabytes_arrives_whole(tmp_path: Path) -> None:
    """Within the limit, size does not matter, in either direction."""
    async with serving(tmp_path, hubs(tmp_path)) as served:
        add_test_methods(served, trio.Event())
        text = "é" * (2 << 20)
        assert await served.client().call("say", {"text": text}) == f"c1: {text}"


async def test_a_request_may_come_one_byte_at_a_time(tmp_path: Path) -> None:
    """Where the stream is cut means nothing."""
    async with serving(tmp_path, hubs(tmp_path)) as served:
        add_test_methods(served, trio.Event())
        client = served.client()
        for byte in json.dumps({"jsonrpc": "2.0", "id": 1, "method": "say", "params": {"text": "é"}}).encode() + b"\n":
            await client.send(bytes([byte]))
            await trio.lowlevel.checkpoint()
        assert (await client.line())["result"] == "c1: é"


async def test_a_foreign_exception_becomes_a_generic_error(tmp_path: Path) -> None:
    """What a handler raises by mistake is not told to the client, whether it raised at once or later."""
    async with serving(tmp_path, hubs(tmp_path)) as served:
        add_test_methods(served, trio.Event())
        client = served.client()
        for method in ("crash", "crash_later", "unencodable"):
            answer = await client.ask(method)
            assert answer["error"]["code"] == -32603
            assert "secret" not in json.dumps(answer)


async def test_a_refusal_carries_its_code_reason_and_facts(tmp_path: Path) -> None:
    """An AvenorError is told as it is."""
    async with serving(tmp_path, hubs(tmp_path)) as served:
        add_test_methods(served, trio.Event())
        error = (await served.client().ask("refuse"))["error"]
        assert error == {
            "code": -32000,
            "message": "no room",
            "data": {"reason": "limit_reached", "retryable": True, "limit": 3},
        }


async def test_an_answer_that_fits_into_no_line_becomes_a_refusal(tmp_path: Path) -> None:
    """More than 16 MiB are never sent, alone or in a batch."""
    async with serving(tmp_path, hubs(tmp_path)) as served:
        add_test_methods(served, trio.Event())
        client = served.client()
        assert (await client.ask("huge"))["error"]["data"]["reason"] == "answer_too_large"
        large = {"jsonrpc": "2.0", "method": "large"}
        await client.send(json.dumps([{**large, "id": 1}, {**large, "id": 2}]).encode() + b"\n")
        first, second = await client.line()
        assert len(first["result"]) == 9 << 20
        assert (second["id"], second["error"]["data"]["reason"]) == (2, "answer_too_large")


async def test_an_answer_is_one_line_even_if_a_part_of_it_has_line_feeds(tmp_path: Path) -> None:
    """JSON that is passed on as it is may be formatted."""
    async with serving(tmp_path, hubs(tmp_path)) as served:
        add_test_methods(served, trio.Event())
        assert await served.client().call("lines") == {"a": 1}


async def test_a_notification_is_carried_out_and_not_answered(tmp_path: Path) -> None:
    """Nor are its errors told."""
    async with serving(tmp_path, hubs(tmp_path)) as served:
        said = add_test_methods(served, trio.Event())
        client = served.client()
        for params in ({"text": "a"}, {"txt": "a"}, ["a"]):
            await client.send(json.dumps({"jsonrpc": "2.0", "method": "say", "params": params}).encode() + b"\n")
        assert (await client.ask("ping"))["id"] == 1
        assert said == ["a"]


async def test_a_batch_is_answered_as_one_when_all_is_done(tmp_path: Path) -> None:
    """Valid, invalid, waiting requests and notifications together: one array, nothing for notifications."""
    async with serving(tmp_path, hubs(tmp_path)) as served:
        gate = trio.Event()
        said = add_test_methods(served, gate)
        client = served.client()
        batch = [
            {"jsonrpc": "2.0", "id": 1, "method": "wait_gate"},
            {"jsonrpc": "2.0", "id": 2, "method": "say", "params": {"text": "a"}},
            {"jsonrpc": "2.0", "method": "say", "params": {"text": "b"}},
            {"id": 3},
            4,
            [5],
            {"jsonrpc": "2.0", "id": 6, "method": "nope"},
        ]
        await client.send(json.dumps(batch).encode() + b"\n" + request(7, "ping"))
        assert (await client.line())["id"] == 7
        gate.set()
        answers = await client.line()
        assert said == ["a", "b"]
        by_id = {answer["id"]: answer for answer in answers if answer["id"] is not None}
        assert (by_id[1]["result"], by_id[2]["result"]) == ("open", "c1: a")
        assert (by_id[3]["error"]["code"], by_id[6]["error"]["code"]) == (-32600, -32601)
        assert [answer["error"]["code"] for answer in answers if answer["id"] is None] == [-32600, -32600]


async def test_a_batch_of_notifications_is_not_answered(tmp_path: Path) -> None:
    """There is no empty array."""
    async with serving(tmp_path, hubs(tmp_path)) as served:
        client = served.client()
        await client.send(b'[{"jsonrpc":"2.0","method":"ping"}]\n' + request(1, "ping"))
        assert (await client.line())["id"] == 1


def test_a_batch_with_too_many_requests_is_refused_whole() -> None:
    """One short line must not cause an answer of gigabytes."""
    read = read_line(b"[" + b",".join([b"1"] * (BATCH_LIMIT + 1)) + b"]")
    assert isinstance(read, Rejected)
    assert "1001" in read.error.message


async def test_pipelined_requests_take_effect_in_order(tmp_path: Path) -> None:
    """A thousand in one write, each on the one before."""
    async with serving(tmp_path, hubs(tmp_path)) as served:
        said = add_test_methods(served, trio.Event())
        client = served.client()
        await client.send(b"".join(request(i, "say", {"text": str(i)}) for i in range(1000)))
        assert [answer["id"] for answer in await client.lines(1000)] == list(range(1000))
        assert said == [str(i) for i in range(1000)]


async def test_what_waits_does_not_hold_up_what_does_not(tmp_path: Path) -> None:
    """Answers come when they are there."""
    async with serving(tmp_path, hubs(tmp_path)) as served:
        gate = trio.Event()
        add_test_methods(served, gate)
        client = served.client()
        await client.send(request(1, "wait_gate") + request(2, "ping"))
        assert (await client.line())["id"] == 2
        gate.set()
        assert (await client.line())["id"] == 1


async def test_a_client_that_leaves_ends_its_waiting_calls_but_not_detached_ones(tmp_path: Path) -> None:
    """Cancelled at once; a detached one goes on to its end."""
    async with serving(tmp_path, hubs(tmp_path)) as served:
        gate = trio.Event()
        ended: list[str] = []

        async def wait_gate(name: str) -> None:
            try:
                await gate.wait()
                ended.append(f"{name} done")
            except trio.Cancelled:
                ended.append(f"{name} cancelled")
                raise

        def detached(call: Call, _params: NoParams) -> Any:
            call.detach()
            return wait_gate("detached")

        served.table.add("attached", NoParams, lambda _call, _params: wait_gate("attached"))
        served.table.add("detached", NoParams, detached)
        client = served.client()
        await client.send(request(1, "attached") + request(2, "detached") + request(3, "ping"))
        await client.line()
        client.close()
        await eventually(lambda: ended == ["attached cancelled"] and served.left == ["c1"])
        gate.set()
        await eventually(lambda: ended == ["attached cancelled", "detached done"])


async def test_more_than_64_requests_in_flight_are_not_read(tmp_path: Path) -> None:
    """The 66th waits in the socket until there is room; a client that leaves meanwhile is noticed."""
    async with serving(tmp_path, hubs(tmp_path)) as served:
        gate = trio.Event()
        said = add_test_methods(served, gate)
        client, leaver = served.client(), served.client()
        flood = b"".join(request(i, "wait_gate") for i in range(65)) + request(65, "say", {"text": "after"})
        await client.send(flood)
        await leaver.send(flood)
        await leaver.send(b" " * 100)
        assert (await served.client().ask("ping"))["result"]
        leaver.close()
        await eventually(lambda: served.left == ["c2"])
        assert said == []
        gate.set()
        assert {answer["id"] for answer in await client.lines(66)} == set(range(66))
        assert said == ["after"]


async def test_a_client_that_reads_no_answers_is_not_read_further(tmp_path: Path) -> None:
    """After about a mebibyte of unread answers; everything is answered once it reads."""
    async with serving(tmp_path, hubs(tmp_path)) as served:
        said = add_test_methods(served, trio.Event())
        client = served.client()
        text = "x" * 50_000
        sent = 200

        async def send_all() -> None:
            for i in range(sent):
                await client.send(request(i, "say", {"text": text}))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(send_all)
            assert (await served.client().ask("ping"))["result"]
            await eventually(lambda: len(said) > 20)
            held = len(said)
            # What is in the sockets' buffers and the mebibyte, in answers of 50 kB, is far below what was sent.
            assert held < 60
            answers = await client.lines(sent)
        assert [answer["id"] for answer in answers] == list(range(sent))


async def test_a_client_that_only_closes_its_sending_half_gets_its_answers(tmp_path: Path) -> None:
    """As `printf … | nc -N` does."""
    async with serving(tmp_path, hubs(tmp_path)) as served:
        gate = trio.Event()
        add_test_methods(served, gate)
        client = served.client()
        await client.send(request(1, "wait_gate"))
        client.sock.shutdown(1)
        assert (await served.client().ask("ping"))["result"]
        gate.set()
        assert json.loads(await client.rest())["result"] == "open"
        await eventually(lambda: served.left == ["c1"])


async def test_garbage_on_one_connection_is_not_noticed_on_another(tmp_path: Path) -> None:
    """Random bytes, in random pieces, from several clients that also leave amid a line."""
    rng = random.Random(5)
    async with serving(tmp_path, hubs(tmp_path)) as served:
        good = served.client()
        for _ in range(30):
            bad = served.client()
            garbage = bytes(rng.choice(b'{}[]":,\n\r\\ax1\xff\x00 ') for _ in range(rng.randrange(2000)))
            await bad.send(garbage)
            assert (await good.ask("ping"))["result"]
            bad.close()
        await eventually(lambda: len(served.left) == 30)
        assert served.server.clients == ["c1"]


@given(st.binary(max_size=200) | st.text(alphabet='{}[]":,0aeijdmorpsthcn.2 ', max_size=60).map(str.encode))
def test_any_line_is_read_as_something(line: bytes) -> None:
    """Reading never raises, and what is rejected has a code of JSON-RPC."""
    read = read_line(line)
    for item in read if isinstance(read, list) else [read]:
        assert isinstance(item, Request) or item.error.code in (-32700, -32600, -32602)


def test_a_method_cannot_be_registered_twice(tmp_path: Path) -> None:
    """Two parts that claim one name are found at start."""
    from avenor.control.rpc import MethodTable, add_ping

    table = MethodTable()
    add_ping(table, dict)
    with pytest.raises(ValueError, match="twice"):
        add_ping(table, dict)
    assert table.names == ["ping"]
