"""Requests over HTTP: who is let in, what is asked of the control server, and how its answers are said."""

import json
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

import pytest
import trio
from structlog.testing import capture_logs
from trio.testing import wait_all_tasks_blocked

from avenor.control.debug import app, requests
from avenor.control.debug.requests import Body, Gone, read_params
from avenor.control.hub import SingleHub
from avenor.control.rpc import Call
from avenor.protocol.errors import (
    AvenorError,
    BrokenError,
    Ended,
    InternalError,
    LimitReached,
    NoPendingPermission,
    NotOwner,
    Unsupported,
)
from avenor.protocol.methods import Accepted, AnswerParams, OwnerTarget, PromptParams
from tests.control.debug_kit import HOST, KEY, TOKEN, Fleet, Site, site
from tests.control.served import Writer

ROUTES = [
    ("GET", "/status"),
    ("GET", "/runtimes"),
    ("GET", "/events"),
    ("POST", "/cancel"),
    ("POST", "/answer-permission"),
    ("POST", "/prompt"),
]


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    """One runtime."""
    fleet = Fleet(tmp_path)
    fleet.add()
    return fleet


def steer(opened: Site, calls: list[tuple[str, object]]) -> None:
    """Has the control server take what steers, and note who asked for what."""

    def note(call: Call, params: object) -> Accepted:
        calls.append((call.client_id, params))
        return Accepted()

    opened.table.add("prompt", PromptParams, note)
    opened.table.add("answer_permission", AnswerParams, note)
    opened.table.add("cancel", OwnerTarget, note)


async def _forever() -> None:
    await trio.sleep_forever()


async def test_snapshots_are_those_of_the_control_protocol(fleet: Fleet) -> None:
    """As the methods of the same names give them; also for HEAD, whose body the server leaves out."""
    async with site(fleet.hubs) as opened:
        alone, named, listed = [await opened.get(path) for path in ("/status", "/status/rt_1", "/runtimes")]
        head = await opened.ask("HEAD", "/status")
    assert alone.status == named.status == listed.status == head.status == 200
    assert alone.json["runtime_id"] == named.json["runtime_id"] == listed.json[0]["runtime_id"] == "rt_1"
    assert alone.headers["content-type"] == "application/json"


async def test_steering_is_passed_on_with_its_params(fleet: Fleet) -> None:
    """Each request is a client of its own, which has left when it is answered, so that it owns nothing then."""
    calls: list[tuple[str, Any]] = []
    async with site(fleet.hubs) as opened:
        steer(opened, calls)
        await opened.post("/prompt/rt_1", text="go", force=True)
        await opened.post("/answer-permission", request_id="p", option_id="o", message="m", runtime_id="rt_1")
        assert (await opened.post("/cancel")).json == {"accepted": True}
        await wait_all_tasks_blocked()
        assert opened.left == [client for client, _ in calls]
    assert [params for _, params in calls] == [
        PromptParams(text="go", force=True, runtime_id="rt_1"),
        AnswerParams(request_id="p", option_id="o", message="m", runtime_id="rt_1"),
        OwnerTarget(),
    ]
    assert len({client for client, _ in calls}) == 3
    assert all(client.startswith("h") for client, _ in calls)


@pytest.mark.parametrize(("verb", "path"), ROUTES)
@pytest.mark.parametrize("keys", [(), (KEY, KEY), ((b"x-avenor-token", b"wrong"),), ((b"x-avenor-token", b""),)])
async def test_no_data_without_the_token(
    fleet: Fleet, verb: str, path: str, keys: tuple[tuple[bytes, bytes], ...]
) -> None:
    """Missing, wrong, or given twice: nothing is asked, and the refusal does not tell what it is."""
    calls: list[tuple[str, object]] = []
    async with site(fleet.hubs) as opened:
        steer(opened, calls)
        answer = await opened.ask(verb, path, headers=(HOST, *keys))
    assert answer.status == 401
    assert answer.error["data"]["field"] == "X-Avenor-Token"
    assert answer.headers["www-authenticate"] == "X-Avenor-Token"
    assert TOKEN.encode() not in answer.body
    assert calls == []


@pytest.mark.parametrize(("verb", "path"), [route for route in ROUTES if route[1] != "/events"])
async def test_only_events_take_the_token_in_the_address(fleet: Fleet, verb: str, path: str) -> None:
    """Addresses are kept in histories; and what else is in a query is refused too."""
    async with site(fleet.hubs) as opened:
        steer(opened, [])
        without = await opened.ask(verb, f"{path}?token={TOKEN}", headers=(HOST,))
        both = await opened.ask(verb, f"{path}?token={TOKEN}")
    assert (without.status, both.status) == (401, 400)
    assert both.error["data"]["field"] == "query"


@pytest.mark.parametrize(
    ("query", "keys"), [(f"token={TOKEN}&token={TOKEN}", ()), (f"token={TOKEN}", (KEY,)), ("token=", ()), ("", ())]
)
async def test_events_take_one_token(fleet: Fleet, query: str, keys: tuple[tuple[bytes, bytes], ...]) -> None:
    """In the header or in the address, not in both."""
    async with site(fleet.hubs) as opened:
        answer = await opened.get(f"/events?{query}", headers=(HOST, *keys))
        assert answer.status == 401
        stream = opened.begin("GET", f"/events?token={TOKEN}", headers=(HOST,))
        await stream.start()
        assert stream.status == 200


@pytest.mark.parametrize(
    "headers",
    [
        (KEY,),
        (HOST, HOST, KEY),
        ((b"host", b"evil.example:8080"), KEY),
        ((b"host", b"127.0.0.1:8081"), KEY),
        (HOST, (b"origin", b"http://evil.example"), KEY),
        (HOST, (b"origin", b"null"), KEY),
        (HOST, (b"origin", b"https://127.0.0.1:8080"), KEY),
        (HOST, (b"origin", b"http://127.0.0.1:8080"), (b"origin", b"http://127.0.0.1:8080"), KEY),
    ],
)
async def test_pages_of_others_are_refused(fleet: Fleet, headers: tuple[tuple[bytes, bytes], ...]) -> None:
    """By the host that they think they ask, or by where they come from; the token does not help."""
    async with site(fleet.hubs) as opened:
        for path in ("/status", "/"):
            answer = await opened.get(path, headers=headers)
            assert answer.status == 403
            assert answer.error["data"]["field"] in ("Host", "Origin")


async def test_the_page_needs_no_token_and_takes_only_reads(fleet: Fleet) -> None:
    """Its own origin may ask for it."""
    async with site(fleet.hubs) as opened:
        page = await opened.get("/", headers=(HOST, (b"origin", b"http://127.0.0.1:8080")))
        script = await opened.ask("HEAD", "/board.js", headers=(HOST,))
        posted = await opened.ask("POST", "/", headers=(HOST,))
    assert (page.status, page.body, page.headers["content-type"]) == (200, b"<p>board</p>", "text/html")
    assert script.status == 200
    assert (posted.status, posted.headers["allow"]) == (405, "GET, HEAD")


async def test_every_response_is_guarded(fleet: Fleet) -> None:
    """Whatever it is: kept by nobody, framed by nobody, no scripts but ours, nothing for other sites."""
    async with site(fleet.hubs) as opened:
        answers = [
            await opened.get("/"),
            await opened.get("/status"),
            await opened.get("/nope"),
            await opened.ask("OPTIONS", "/status"),
        ]
    for answer in answers:
        policy = answer.headers["content-security-policy"]
        assert "default-src 'self'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "no-referrer"
        assert answer.headers["cache-control"] == "no-store"
        assert not any(name.startswith("access-control") for name in answer.headers)
    assert [answer.status for answer in answers] == [200, 200, 404, 405]


async def test_refused_params_are_named_with_their_value(fleet: Fleet) -> None:
    """Field, value, and the code of the control protocol."""
    async with site(fleet.hubs) as opened:
        steer(opened, [])
        wrong = await opened.post("/prompt", text=5)
        unknown = await opened.post("/cancel", forse=True)
        nobody = await opened.get("/status/rt_9")
        two = await opened.post("/cancel/rt_1", runtime_id="rt_2")
    assert [answer.status for answer in (wrong, unknown, nobody, two)] == [400, 400, 404, 400]
    assert wrong.error["code"] == -32602
    assert (wrong.error["data"]["field"], wrong.error["data"]["value"]) == ("text", 5)
    assert (unknown.error["data"]["field"], unknown.error["data"]["value"]) == ("forse", True)
    assert (nobody.error["data"]["field"], nobody.error["data"]["value"]) == ("runtime_id", "rt_9")
    assert (two.error["data"]["field"], two.error["data"]["value"]) == ("runtime_id", "rt_2")


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (NotOwner("client c1 owns this run", data={"owner": "c1"}), 409),
        (NoPendingPermission("no"), 409),
        (Ended("over"), 409),
        (Unsupported("cannot"), 501),
        (LimitReached("full"), 503),
        (BrokenError("lost"), 503),
        (InternalError("fault"), 500),
    ],
)
async def test_refusals_have_a_status_and_say_the_rest_themselves(
    fleet: Fleet, error: AvenorError, status: int
) -> None:
    """The JSON-RPC error object, as it is."""

    def refuse(_call: Call, _params: OwnerTarget) -> object:
        raise error

    async with site(fleet.hubs) as opened:
        opened.table.add("cancel", OwnerTarget, refuse)
        answer = await opened.post("/cancel")
    assert answer.status == status
    assert answer.error["code"] == error.code
    assert answer.error["message"] == error.message
    assert answer.error["data"] == {"reason": error.reason_word, "retryable": error.retryable, **error.data}


@pytest.mark.parametrize(
    ("body", "code"), [(b"{", -32700), (b"\xff", -32700), (b'{"a":' * 10000, -32700), (b"[]", -32602), (b"5", -32602)]
)
async def test_a_body_is_a_json_object(fleet: Fleet, body: bytes, code: int) -> None:
    """Anything else is shown back, in part."""
    async with site(fleet.hubs) as opened:
        answer = await opened.ask("POST", "/cancel", body=body)
    assert (answer.status, answer.error["code"], answer.error["data"]["field"]) == (400, code, "body")


def test_no_body_has_no_members() -> None:
    """Blanks are none either."""
    assert read_params(b" \n") == {}


async def test_a_body_that_is_too_large_is_refused(fleet: Fleet) -> None:
    """What is left of it is not read for ever, and the connection is not used again."""
    async with site(fleet.hubs) as opened:
        answer = await opened.ask("POST", "/prompt", body=b"x" * (requests.BODY_LIMIT_BYTES + 1))
    assert (answer.status, answer.headers["connection"]) == (413, "close")
    assert answer.error["code"] == -32700


async def test_a_body_that_does_not_come_is_refused(autojump_clock: object) -> None:
    """After a while; what comes too late is read a little further, and no longer."""

    async def receive() -> dict[str, Any]:
        await trio.sleep(4)
        return {"type": "http.request", "body": b"x", "more_body": True}

    body = Body(receive)
    began = trio.current_time()
    with pytest.raises(Exception, match="did not come within 10 s"):
        await body.read()
    await body.discard()
    assert trio.current_time() - began == 11


async def test_a_client_that_leaves_amid_its_body_is_gone() -> None:
    """Nothing is answered."""

    async def receive() -> dict[str, Any]:
        return {"type": "http.disconnect"}

    with pytest.raises(Gone):
        await Body(receive).read()
    async with site(Fleet(Path()).hubs) as opened:

        async def send(_message: object) -> None:
            raise AssertionError("something was answered")

        await opened.app({"type": "http"}, receive, send)


async def test_a_client_that_leaves_ends_its_call(fleet: Fleet) -> None:
    """Its connection to the control server goes, and so whatever it owned is free."""
    waiting = trio.Event()

    def wait(_call: Call, _params: OwnerTarget) -> Awaitable[None]:
        waiting.set()
        return _forever()

    async with site(fleet.hubs) as opened:
        opened.table.add("cancel", OwnerTarget, wait)
        exchange = opened.begin("POST", "/cancel")
        await waiting.wait()
        assert opened.left == []
        exchange.gone.set()
        await wait_all_tasks_blocked()
        assert len(opened.left) == 1


async def test_so_many_calls_and_no_more(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next is told to come again, and does when one is over."""
    monkeypatch.setattr(app, "CALL_LIMIT", 2)

    def wait(_call: Call, _params: OwnerTarget) -> Awaitable[None]:
        return _forever()

    async with site(fleet.hubs) as opened:
        opened.table.add("cancel", OwnerTarget, wait)
        first, _ = opened.begin("POST", "/cancel"), opened.begin("POST", "/cancel")
        await wait_all_tasks_blocked()
        refused = await opened.get("/status")
        first.gone.set()
        await wait_all_tasks_blocked()
        assert (await opened.get("/status")).status == 200
    assert (refused.status, refused.error["data"]["reason"], refused.error["data"]["retryable"]) == (
        503,
        "limit_reached",
        True,
    )


async def test_when_the_control_server_closes_calls_are_refused(fleet: Fleet) -> None:
    """Those that wait, and those that come."""

    def wait(_call: Call, _params: OwnerTarget) -> Awaitable[None]:
        return _forever()

    async with site(fleet.hubs) as opened:
        opened.table.add("cancel", OwnerTarget, wait)
        exchange = opened.begin("POST", "/cancel")
        await wait_all_tasks_blocked()
        await opened.server.close()
        await exchange.start()
        assert exchange.status == 503
        assert json.loads(await exchange.whole())["error"]["data"]["reason"] == "closed"


async def test_a_control_server_that_is_cut_off_answers_nothing(fleet: Fleet) -> None:
    """What nobody will answer any more is refused, not waited for."""

    def cut(call: Call, _params: OwnerTarget) -> Awaitable[None]:
        call.connection.cut()
        return _forever()

    async with site(fleet.hubs) as opened:
        opened.table.add("cancel", OwnerTarget, cut)
        answer = await opened.post("/cancel")
    assert (answer.status, answer.error["data"]["reason"]) == (503, "closed")


async def test_without_descriptors_it_is_to_be_asked_later(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    """The request fails, and the server does not."""
    async with site(fleet.hubs) as opened:

        def fail() -> None:
            raise OSError(24, "Too many open files")

        with monkeypatch.context() as patched:
            patched.setattr("socket.socketpair", fail)
            answer = await opened.get("/status")
        assert (await opened.get("/status")).status == 200
    assert (answer.status, answer.error["data"]["retryable"]) == (503, True)


async def test_a_large_prompt_reaches_the_control_server_whole(fleet: Fleet) -> None:
    """More than a socket takes at once."""
    calls: list[tuple[str, Any]] = []
    async with site(fleet.hubs) as opened:
        steer(opened, calls)
        assert (await opened.post("/prompt", text="é" * 150_000)).status == 200
    assert calls[0][1].text == "é" * 150_000


async def test_other_protocols_are_refused(fleet: Fleet) -> None:
    """HTTP/2, which the server would speak if asked to, and web sockets."""
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        raise AssertionError("nothing is to be read")

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    async with site(fleet.hubs) as opened:
        assert (await opened.get("/status", version="2")).status == 505
        await opened.app({"type": "websocket"}, receive, send)
    assert sent == [{"type": "websocket.close"}]


async def test_a_fault_of_ours_is_told_without_its_details(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are in the log."""

    def fail(_verb: str, _path: str) -> None:
        raise RuntimeError("a secret")

    monkeypatch.setattr(app, "find_route", fail)
    with capture_logs() as logged:
        async with site(fleet.hubs) as opened:
            answer = await opened.get("/status")
    assert (answer.status, answer.error["code"]) == (500, -32603)
    assert b"secret" not in answer.body
    assert [each["event"] for each in logged if each["log_level"] == "error"] == ["http.answer_failed"]


async def test_requests_are_logged_without_what_is_secret(fleet: Fleet) -> None:
    """One line each, with method, path and status; a query may have the token, a body anything."""
    with capture_logs() as logged:
        async with site(fleet.hubs) as opened:
            steer(opened, [])
            await opened.post("/prompt/rt_1", text="a secret")
            await opened.get(f"/status?token={TOKEN}")
    assert logged == [
        {"event": "http.request", "log_level": level, "method": verb, "path": path, "status": status}
        for level, verb, path, status in (("info", "POST", "/prompt/rt_1", 200), ("debug", "GET", "/status", 400))
    ]


async def test_one_runtime_needs_no_name(tmp_path: Path) -> None:
    """On a run's own server there is no other."""
    writer = Writer(tmp_path)
    async with site(SingleHub(writer.hub, KeyError), follows_one=True) as opened:
        assert (await opened.get("/status")).json["runtime_id"] is None
