"""The model gateway: what passes, what is counted, and what an agent cannot get past."""

import gzip
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpcore
import msgspec
import pytest
import trio

from avenor.protocol.manifest.roster import Dialect, Endpoint
from avenor.runtimes.manifest import gateway, gateway_exchange
from avenor.runtimes.manifest.gateway_log import GatewayLine, read_gateway_log
from tests.helpers import eventually
from tests.runtimes.desk_kit import KEY, STREAM_END, STREAM_HEAD, Scene, answer, chunk, event, open_scene

CHAT = "/chat/completions"
CALL_PATHS: list[tuple[Dialect, str]] = [
    ("openai", CHAT),
    ("openai", "/v1/responses"),
    ("anthropic", "/v1/messages"),
]


def read_log(path: Path) -> list[GatewayLine]:
    return read_gateway_log(path.read_bytes())


# --- passing on -----------------------------------------------------------------------------------------------------


async def test_a_request_reaches_the_service_with_its_key_in_place_of_the_token() -> None:
    """Path, query, body and headers are passed on; the token and what belongs to the connection are not."""
    async with open_scene() as scene:
        given = scene.admit()
        body = b'{"model":"m","messages":[{"role":"user","content":"h\\u00e9"}],"n":1e2}'
        headers = [
            ("X-Own", "yes"),
            ("Connection", "X-Hop"),
            ("X-Hop", "no"),
            ("Accept-Encoding", "gzip"),
            ("Cookie", "c"),
        ]
        await scene.ask(
            f"{given.gateway_url}{CHAT}?beta=true&x=%2F", token=given.gateway_token, body=body, headers=headers
        )
        (asked,) = scene.service.asked
        assert (asked.method, asked.target, asked.body) == ("POST", "/base/chat/completions?beta=true&x=%2F", body)
        assert asked.header("authorization") == f"Bearer {KEY}"
        assert asked.header("host") == f"127.0.0.1:{scene.service.port}"
        assert asked.header("x-own") == "yes"
        assert asked.header("accept-encoding") == "identity"
        assert [asked.header(name) for name in ("x-hop", "cookie", "x-api-key")] == [None, None, None]
        assert given.gateway_token not in str(asked)


async def test_the_key_goes_into_the_header_in_which_the_token_came() -> None:
    """Anthropic's clients have two ways to give a key, and its services differ."""
    async with open_scene() as scene:
        given = scene.admit(dialect="anthropic")
        await scene.ask(f"{given.gateway_url}/v1/messages", headers=[("X-Api-Key", given.gateway_token)])
        (asked,) = scene.service.asked
        assert (asked.target, asked.header("x-api-key"), asked.header("authorization")) == (
            "/base/v1/messages",
            KEY,
            None,
        )


async def test_a_service_without_a_key_gets_no_token_either() -> None:
    """A model on loopback needs none."""
    async with open_scene() as scene:
        endpoint = Endpoint(dialect="openai", url=f"http://127.0.0.1:{scene.service.port}/")
        given = scene.desk.admit("reader.1", endpoint)
        await scene.ask(f"{given.gateway_url}{CHAT}", token=given.gateway_token)
        (asked,) = scene.service.asked
        assert (asked.target, asked.header("authorization"), asked.header("x-api-key")) == (CHAT, None, None)


async def test_an_answer_is_passed_byte_for_byte_with_its_headers() -> None:
    """Whatever is in it, and however it is written."""
    async with open_scene() as scene:
        body = b'{ "usage" : {"prompt_tokens": 1} ,\n "x":"\xc3\xa9" }  '
        headers = "X-Request-Id: r1\r\nSet-Cookie: a\r\nKeep-Alive: timeout=5\r\n"
        scene.service.answers = [[answer(body, status="201 Created", kind="application/json; x=y", headers=headers)]]
        given = scene.admit()
        answered = await scene.ask(f"{given.gateway_url}{CHAT}", token=given.gateway_token)
        assert (answered.status, answered.body) == (201, body)
        assert answered.headers["content-type"] == "application/json; x=y"
        assert answered.headers["x-request-id"] == "r1"
        assert "keep-alive" not in answered.headers


async def test_a_stream_is_passed_as_it_comes() -> None:
    """The agent has the first event while the service has not yet sent the second."""
    go_on = trio.Event()
    first, second = event({"delta": "a"}) + b": comment\n\n", b"data: {not json\n\ndata: [DONE]\r\n\r\n"
    async with open_scene() as scene:
        scene.service.answers = [[STREAM_HEAD, chunk(first), go_on, chunk(second), STREAM_END]]
        given = scene.admit()
        async with scene.open(f"{given.gateway_url}{CHAT}", token=given.gateway_token) as answered:
            pieces = answered.aiter_stream()
            assert await anext(pieces) == first
            go_on.set()
            assert b"".join([piece async for piece in pieces]) == second


@pytest.mark.parametrize(("dialect", "path"), [("openai", CHAT), ("anthropic", "/v1/messages")])
async def test_an_error_of_the_service_is_passed_on_and_charged(dialect: Dialect, path: str) -> None:
    """An agent that tries again for ever is bounded by its calls."""
    async with open_scene() as scene:
        scene.service.answers = [[answer(b'{"e":1}', status="529 Overloaded", headers="Retry-After: 7\r\n")]]
        given = scene.admit(dialect=dialect)
        answered = await scene.ask(f"{given.gateway_url}{path}", token=given.gateway_token)
        assert (answered.status, answered.headers["retry-after"], answered.body) == (529, "7", b'{"e":1}')
        assert scene.meter.charged == [("reader.1", 0, 0, 0)]


@pytest.mark.parametrize(
    ("dialect", "method", "path"),
    [
        ("openai", "GET", "/files"),
        ("openai", "POST", "/v1/messages"),
        ("openai", "POST", "/batches"),
        ("openai", "DELETE", "/models/m"),
        ("openai", "GET", "/models/../files"),
        ("openai", "GET", "/models/%2e%2e/files"),
        ("openai", "GET", "/models/a%2F..%5Cfiles"),
        ("openai", "GET", "/models//files"),
        ("anthropic", "POST", "/v1/chat/completions"),
        ("anthropic", "POST", "/v1/messages/batches"),
    ],
)
async def test_what_is_no_model_request_is_not_passed_on(dialect: Dialect, method: str, path: str) -> None:
    """The service's key may open more than models."""
    async with open_scene() as scene:
        given = scene.admit(dialect=dialect)
        answered = await scene.ask(f"{given.gateway_url}{path}", token=given.gateway_token, method=method)
        assert answered.status == 404
        assert answered.json()["error"]["type"] == "not_found_error"
        assert scene.service.asked == []


@pytest.mark.parametrize(
    ("dialect", "method", "path"),
    [
        ("openai", "GET", "/models"),
        ("openai", "GET", "/v1/models/vendor/m"),
        ("openai", "POST", "/responses/input_tokens"),
        ("anthropic", "GET", "/v1/models"),
        ("anthropic", "POST", "/v1/messages/count_tokens"),
    ],
)
async def test_listing_models_and_counting_tokens_are_no_model_calls(dialect: Dialect, method: str, path: str) -> None:
    """They are passed on without a look at the budget."""
    async with open_scene(limit=0) as scene:
        scene.service.answers = [[answer(b'{"input_tokens": 5}')]]
        given = scene.admit(dialect=dialect)
        answered = await scene.ask(f"{given.gateway_url}{path}", token=given.gateway_token, method=method)
        assert (answered.status, answered.body) == (200, b'{"input_tokens": 5}')
        assert (scene.meter.passed, scene.meter.charged) == ([], [])


# --- counting -------------------------------------------------------------------------------------------------------

CHAT_USAGE = {"prompt_tokens": 100, "completion_tokens": 7, "prompt_tokens_details": {"cached_tokens": 40}}
RESPONSES_USAGE = {"input_tokens": 100, "output_tokens": 7, "input_tokens_details": {"cached_tokens": 40}}
MESSAGE_USAGE = {
    "input_tokens": 50,
    "cache_creation_input_tokens": 10,
    "cache_read_input_tokens": 40,
    "output_tokens": 1,
}


@pytest.mark.parametrize(
    ("dialect", "path", "body", "kind"),
    [
        ("openai", CHAT, msgspec.json.encode({"usage": CHAT_USAGE}), "application/json"),
        ("openai", CHAT, event({"usage": None}) + event({"choices": [], "usage": CHAT_USAGE}), "text/event-stream"),
        ("openai", "/responses", msgspec.json.encode({"usage": RESPONSES_USAGE}), "application/json; charset=utf-8"),
        (
            "openai",
            "/responses",
            event({"response": {"usage": None}})
            + event({"response": {"usage": RESPONSES_USAGE}}, "response.completed"),
            "text/event-stream; charset=utf-8",
        ),
        (
            "anthropic",
            "/v1/messages",
            msgspec.json.encode({"usage": {**MESSAGE_USAGE, "output_tokens": 7}}),
            "application/json",
        ),
        (
            "anthropic",
            "/messages",
            event({"message": {"usage": MESSAGE_USAGE}}) + event({"delta": {}, "usage": {"output_tokens": 7}}).rstrip(),
            "text/event-stream",
        ),
    ],
)
async def test_every_dialect_tells_what_a_call_has_used(
    tmp_path: Path, dialect: Dialect, path: str, body: bytes, kind: str
) -> None:
    """The same tokens in six forms; the log says what was charged."""
    log = tmp_path / "gateway.ndjson"
    async with open_scene(log=str(log)) as scene:
        scene.service.answers = [[answer(body, kind=kind)]]
        given = scene.admit(dialect=dialect)
        await scene.ask(f"{given.gateway_url}{path}", token=given.gateway_token)
        assert scene.meter.charged == [("reader.1", 100, 7, 40)]
    (line,) = read_log(log)
    assert (line.attempt_id, line.path, line.end, line.status) == ("reader.1", path, "passed", 200)
    assert msgspec.to_builtins(line.used) == {"input_tokens": 100, "output_tokens": 7, "cached_read_tokens": 40}


@pytest.mark.parametrize(
    ("given", "options"),
    [
        ({"stream": True}, {"include_usage": True}),
        ({"stream": True, "stream_options": None}, {"include_usage": True}),
        ({"stream": True, "stream_options": {"include_usage": False, "x": 1}}, {"include_usage": True, "x": 1}),
        ({"stream": False}, None),
        ({}, None),
    ],
)
async def test_a_stream_is_made_to_tell_its_tokens(given: dict[str, Any], options: dict[str, Any] | None) -> None:
    """Chat completions tell them only to those who ask."""
    async with open_scene() as scene:
        credentials = scene.admit()
        body = msgspec.json.encode({"model": "m", **given})
        await scene.ask(f"{credentials.gateway_url}{CHAT}", token=credentials.gateway_token, body=body)
        (asked,) = scene.service.asked
        assert msgspec.json.decode(asked.body).get("stream_options") == options


async def test_of_a_member_that_stands_twice_the_service_gets_one() -> None:
    """What the gateway has judged is what the service reads."""
    async with open_scene() as scene:
        given = scene.admit()
        body = b'{"stream":false,"stream":true}'
        await scene.ask(f"{given.gateway_url}{CHAT}", token=given.gateway_token, body=body)
        assert scene.service.asked[0].body == b'{"stream":true,"stream_options":{"include_usage":true}}'


@pytest.mark.parametrize(
    ("body", "encoding"),
    [
        (b'{"background":true}', ""),
        (b"[1]", ""),
        (b"{not json", ""),
        (b"\xff", ""),
        (gzip.compress(b"{}", mtime=0), "gzip"),
    ],
)
async def test_a_call_that_cannot_be_metered_is_refused(body: bytes, encoding: str) -> None:
    """It costs nothing and reaches nobody."""
    async with open_scene() as scene:
        given = scene.admit()
        headers = [("content-encoding", encoding)] if encoding else []
        answered = await scene.ask(
            f"{given.gateway_url}/responses", token=given.gateway_token, body=body, headers=headers
        )
        assert (answered.status, answered.json()["error"]["type"]) == (400, "invalid_request_error")
        assert (scene.service.asked, scene.meter.passed) == ([], [])


# --- the budget -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("dialect", "path"), CALL_PATHS)
async def test_a_call_beyond_the_budget_is_refused_before_it_happens(
    tmp_path: Path, dialect: Dialect, path: str
) -> None:
    """429 in the words of the dialect; nothing reaches the service, and nothing is charged."""
    log = tmp_path / "gateway.ndjson"
    async with open_scene(limit=0, log=str(log)) as scene:
        given = scene.admit(dialect=dialect)
        answered = await scene.ask(f"{given.gateway_url}{path}", token=given.gateway_token)
        assert answered.status == 429
        error = answered.json()["error"]
        assert error["type"] == "budget_exhausted"
        assert error["message"] == "the budget of reader.1 is spent: 0 model calls"
        if dialect == "openai":
            assert error["code"] == "budget_exhausted"
        else:
            assert answered.json()["type"] == "error"
        assert answered.headers["x-should-retry"] == "false"
        assert (scene.service.asked, scene.meter.charged) == ([], [])
    (line,) = read_log(log)
    assert (line.end, line.status, line.used) == ("refused", 429, None)


async def test_an_agent_that_keeps_asking_is_told_to_be_quick_only_at_first() -> None:
    """Agents that try again a few times are done at once; one that never stops is slowed by its own back-off."""
    async with open_scene(limit=0) as scene:
        given, other = scene.admit(), scene.admit("other.1")
        answers = [
            await scene.ask(f"{given.gateway_url}{CHAT}", token=given.gateway_token)
            for _ in range(gateway.QUICK_REFUSALS + 1)
        ]
        assert all(answered.headers["retry-after-ms"] == "0" for answered in answers[:-1])
        assert "retry-after-ms" not in answers[-1].headers
        assert "retry-after" not in answers[-1].headers
        fresh = await scene.ask(f"{other.gateway_url}{CHAT}", token=other.gateway_token)
        assert fresh.headers["retry-after"] == "0"


async def test_of_calls_that_come_together_exactly_the_allowed_number_passes() -> None:
    """Twelve at once against a budget of five, all in flight before the first has ended."""
    go_on = trio.Event()
    statuses: list[int] = []
    async with open_scene(limit=5) as scene:
        scene.service.answers = [[go_on, answer(msgspec.json.encode({"usage": CHAT_USAGE}))]]
        given = scene.admit()

        async def ask() -> None:
            answered = await scene.ask(f"{given.gateway_url}{CHAT}", token=given.gateway_token)
            statuses.append(answered.status)

        async with trio.open_nursery() as nursery:
            for _ in range(12):
                nursery.start_soon(ask)
            await eventually(lambda: (len(scene.service.asked), statuses) == (5, [429] * 7))
            go_on.set()
        assert sorted(statuses) == [200] * 5 + [429] * 7
        assert scene.meter.charged == [("reader.1", 100, 7, 40)] * 5


async def test_each_call_is_charged_to_the_attempt_whose_token_it_has(tmp_path: Path) -> None:
    """Two attempts at the same service; the log and the charges are the same."""
    log = tmp_path / "gateway.ndjson"
    async with open_scene(log=str(log)) as scene:
        scene.service.answers = [[answer(msgspec.json.encode({"usage": {"prompt_tokens": n}}))] for n in (1, 2, 3)]
        tokens = {name: scene.admit(name) for name in ("a.1", "b.1")}
        for name in ("a.1", "b.1", "a.1"):
            await scene.ask(f"{tokens[name].gateway_url}{CHAT}", token=tokens[name].gateway_token)
        assert scene.meter.charged == [("a.1", 1, 0, 0), ("b.1", 2, 0, 0), ("a.1", 3, 0, 0)]
    lines = read_log(log)
    assert [(line.attempt_id, line.used and line.used.input_tokens) for line in lines] == [
        ("a.1", 1),
        ("b.1", 2),
        ("a.1", 3),
    ]


async def test_a_call_is_charged_before_its_agent_can_make_the_next() -> None:
    """Agents go on at the last event, and do not wait for the end of the stream."""
    last = event({"usage": {"prompt_tokens": 8}}) + b"data: [DONE]\n\n"
    async with open_scene() as scene:
        scene.service.answers = [[STREAM_HEAD, chunk(last), trio.Event()]]
        given = scene.admit()
        seen: list[tuple[bytes, list[tuple[str, int, int, int]]]] = []
        with suppress(httpcore.RemoteProtocolError):
            async with scene.open(f"{given.gateway_url}{CHAT}", token=given.gateway_token) as answered:
                async for piece in answered.aiter_stream():
                    seen.append((piece, list(scene.meter.charged)))
                    scene.desk.revoke("reader.1")
        assert seen == [(last, [("reader.1", 8, 0, 0)])]
        await eventually(lambda: scene.service.left == 1)
        assert scene.meter.charged == [("reader.1", 8, 0, 0)]


# --- what breaks ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("dialect", "path"), CALL_PATHS)
async def test_a_service_that_is_not_there_is_told_in_the_words_of_the_dialect(
    tmp_path: Path, dialect: Dialect, path: str
) -> None:
    """502; the attempt was charged for trying."""
    log = tmp_path / "gateway.ndjson"
    async with open_scene(log=str(log)) as scene:
        given = scene.desk.admit("reader.1", Endpoint(dialect=dialect, url="http://127.0.0.1:1"))
        answered = await scene.ask(f"{given.gateway_url}{path}", token=given.gateway_token)
        assert (answered.status, answered.json()["error"]["type"]) == (502, "upstream_unreachable")
        assert scene.meter.charged == [("reader.1", 0, 0, 0)]
    assert [(line.end, line.status) for line in read_log(log)] == [("unreachable", 502)]


async def test_a_service_that_dies_in_the_middle_leaves_an_answer_that_shows_it(tmp_path: Path) -> None:
    """The agent sees that the stream is not whole; the call is charged with what it told."""
    log = tmp_path / "gateway.ndjson"
    begun = event({"message": {"usage": {"input_tokens": 9}}}) + b'data: {"usage": {"output_to'
    async with open_scene(log=str(log)) as scene:
        scene.service.answers = [[STREAM_HEAD, chunk(begun)]]
        given = scene.admit(dialect="anthropic")
        with pytest.raises(httpcore.RemoteProtocolError):
            await scene.ask(f"{given.gateway_url}/v1/messages", token=given.gateway_token)
        await eventually(lambda: scene.meter.charged == [("reader.1", 9, 0, 0)])
    assert [(line.end, line.status) for line in read_log(log)] == [("broken", 200)]


async def begin(scene: Scene, nursery: trio.Nursery, url: str, token: str) -> trio.Event:
    """Starts a call whose stream never ends; the event is set when the agent has seen that it was cut."""
    was_cut = trio.Event()
    has_begun = trio.Event()
    scene.service.answers = [[STREAM_HEAD, chunk(event({"usage": {"prompt_tokens": 3}})), trio.Event()]]

    async def read() -> None:
        try:
            async with scene.open(url, token=token) as answered:
                async for _ in answered.aiter_stream():
                    has_begun.set()
        except httpcore.RemoteProtocolError:
            was_cut.set()

    nursery.start_soon(read)
    await has_begun.wait()
    return was_cut


async def test_an_agent_that_leaves_in_the_middle_ends_the_call_at_the_service(tmp_path: Path) -> None:
    """The connection to the service is closed; what was told so far is charged."""
    log = tmp_path / "gateway.ndjson"
    async with open_scene(log=str(log)) as scene:
        given = scene.admit()
        async with trio.open_nursery() as nursery:
            await begin(scene, nursery, f"{given.gateway_url}{CHAT}", given.gateway_token)
            nursery.cancel_scope.cancel()
        await eventually(lambda: (scene.service.left, scene.meter.charged) == (1, [("reader.1", 3, 0, 0)]))
    assert [line.end for line in read_log(log)] == ["cut"]


async def test_a_revocation_cuts_a_stream_and_closes_the_door(tmp_path: Path) -> None:
    """The agent sees the cut, the service too, and the token opens nothing any more."""
    log = tmp_path / "gateway.ndjson"
    async with open_scene(log=str(log)) as scene:
        given, other = scene.admit(), scene.admit("other.1")
        url = f"{given.gateway_url}{CHAT}"
        async with trio.open_nursery() as nursery:
            was_cut = await begin(scene, nursery, url, given.gateway_token)
            scene.desk.revoke("reader.1")
            await was_cut.wait()
        await eventually(lambda: scene.service.left == 1)
        assert scene.meter.charged == [("reader.1", 3, 0, 0)]
        assert (await scene.ask(url, token=given.gateway_token)).status == 401
        scene.service.answers = [[answer(b"{}")]]
        assert (await scene.ask(url, token=other.gateway_token)).status == 200
    assert [line.end for line in read_log(log)] == ["cut", "passed"]


async def test_a_revocation_before_the_answer_is_told_as_one() -> None:
    """Not as a fault of the server, which agents would try again."""
    async with open_scene() as scene:
        scene.service.answers = [[trio.Event()]]
        given = scene.admit()
        async with trio.open_nursery() as nursery:
            statuses: list[int] = []

            async def ask() -> None:
                answered = await scene.ask(f"{given.gateway_url}{CHAT}", token=given.gateway_token)
                statuses.append(answered.status)

            nursery.start_soon(ask)
            await eventually(lambda: len(scene.service.asked) == 1)
            scene.desk.revoke("reader.1")
        assert statuses == [401]
        assert scene.meter.charged == [("reader.1", 0, 0, 0)]


@pytest.mark.parametrize(("dialect", "path"), CALL_PATHS)
async def test_a_body_over_the_limit_is_refused_and_passed_to_nobody(
    monkeypatch: pytest.MonkeyPatch, dialect: Dialect, path: str
) -> None:
    """The agent gets to read the refusal, since its body is read to the end."""
    monkeypatch.setattr(gateway, "BODY_LIMIT_BYTES", 1000)
    async with open_scene() as scene:
        given = scene.admit(dialect=dialect)
        answered = await scene.ask(f"{given.gateway_url}{path}", token=given.gateway_token, body=b"x" * 5_000_000)
        assert (answered.status, answered.json()["error"]["type"]) == (413, "request_too_large")
        assert (scene.service.asked, scene.meter.passed) == ([], [])


async def test_a_body_without_an_end_is_not_read_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond a second limit the refusal is sent while the body still comes."""
    monkeypatch.setattr(gateway, "BODY_LIMIT_BYTES", 1000)
    monkeypatch.setattr(gateway_exchange, "_DRAIN_BYTES", 2000)
    async with open_scene() as scene:
        given = scene.admit()
        port = given.gateway_url.split(":")[2].partition("/")[0]
        stream = await trio.open_tcp_stream("127.0.0.1", int(port))
        lines = [f"POST /model{CHAT} HTTP/1.1", f"Host: 127.0.0.1:{port}", f"X-Api-Key: {given.gateway_token}"]
        await stream.send_all("\r\n".join([*lines, "Transfer-Encoding: chunked", "", ""]).encode())

        async def send() -> None:
            with suppress(trio.BrokenResourceError):
                while True:
                    await stream.send_all(chunk(b"x" * 65536))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(send)
            assert (await stream.receive_some()).startswith(b"HTTP/1.1 413 ")
            nursery.cancel_scope.cancel()
        await stream.aclose()
        assert (scene.service.asked, scene.meter.passed) == ([], [])


# --- the log --------------------------------------------------------------------------------------------------------


async def test_a_log_that_cannot_be_written_does_not_stop_the_calls() -> None:
    """A full disk is told on stderr."""
    async with open_scene(log="/dev/full") as scene:
        given = scene.admit()
        assert (await scene.ask(f"{given.gateway_url}{CHAT}", token=given.gateway_token)).status == 200
        assert len(scene.meter.charged) == 1


async def test_a_run_that_goes_on_appends_to_its_log(tmp_path: Path) -> None:
    """A line that the killed process did not finish is passed over by readers."""
    log = tmp_path / "gateway.ndjson"
    for _ in range(2):
        async with open_scene(log=str(log)) as scene:
            given = scene.admit()
            await scene.ask(f"{given.gateway_url}{CHAT}", token=given.gateway_token)
    with log.open("ab") as file:
        file.write(b'{"ts_ms": 1')
    assert [line.end for line in read_log(log)] == ["passed", "passed"]
