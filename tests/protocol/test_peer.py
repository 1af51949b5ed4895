"""The sans-IO JSON-RPC peer: `avenor.protocol.peer`."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from avenor.protocol.errors import INTERNAL_ERROR, INVALID_REQUEST, PARSE_ERROR, ErrorObject
from avenor.protocol.peer import (
    IncomingError,
    IncomingNotification,
    IncomingRequest,
    IncomingResult,
    Malformed,
    Peer,
    RequestId,
    Stray,
)

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab", max_size=2), inner, max_size=3),
    max_leaves=8,
)
IDS = st.none() | st.integers(-(2**63), 2**63) | st.text("xyz1", max_size=4)


def decoded(raw: object) -> Any:
    """The value of a part that the peer left encoded."""
    assert isinstance(raw, Raw)
    return msgspec.json.decode(raw)


def peer_with_call() -> Peer:
    """A peer whose call 1 waits for its answer."""
    peer = Peer()
    peer.request("work")
    return peer


@given(params=JSON, method=st.text("ab/é\n", min_size=1))
def test_a_request_arrives_as_it_was_sent(params: object, method: str) -> None:
    """Encode then decode is identity for requests, and the line is one line."""
    request_id, line = Peer(first_id=7).request(method, params)
    assert line.index(b"\n") == len(line) - 1
    incoming = Peer().receive(line[:-1])
    assert isinstance(incoming, IncomingRequest)
    assert (
        (incoming.id, incoming.method, decoded(incoming.params)) == (request_id, method, params) == (7, method, params)
    )


@given(params=JSON)
def test_a_notification_arrives_as_it_was_sent(params: object) -> None:
    """Encode then decode is identity for notifications."""
    incoming = Peer().receive(Peer().notify("tell", params))
    assert isinstance(incoming, IncomingNotification)
    assert (incoming.method, decoded(incoming.params)) == ("tell", params)


@given(result=JSON)
def test_a_result_arrives_as_it_was_sent(result: object) -> None:
    """Encode then decode is identity for results, null included; the call is settled."""
    peer = peer_with_call()
    incoming = peer.receive(Peer().reply(1, result))
    assert isinstance(incoming, IncomingResult)
    assert (incoming.id, decoded(incoming.result), dict(peer.pending)) == (1, result, {})


@given(code=st.integers(-32800, 32800), message=st.text(st.characters(exclude_categories=["Cs"])), data=JSON)
def test_an_error_arrives_as_it_was_sent(code: int, message: str, data: object) -> None:
    """Encode then decode is identity for errors; the call is settled."""
    peer = peer_with_call()
    error = ErrorObject(code=code, message=message, data=Raw(msgspec.json.encode(data)))
    incoming = peer.receive(Peer().reply_error(1, error))
    assert isinstance(incoming, IncomingError)
    assert (incoming.id, incoming.error.code, incoming.error.message) == (1, code, message)
    assert decoded(incoming.error.data) == data
    assert not peer.pending


@given(request_id=IDS)
def test_ids_of_the_peer_are_kept_as_they_are(request_id: RequestId) -> None:
    """A request's id, whatever its type, comes back in the reply."""
    line = msgspec.json.encode({"jsonrpc": "2.0", "id": request_id, "method": "m"})
    incoming = Peer().receive(line)
    assert isinstance(incoming, IncomingRequest)
    assert msgspec.json.decode(Peer().reply(incoming.id, None))["id"] == request_id


def test_the_lines_are_json_rpc_to_the_letter() -> None:
    """Each kind of line has exactly the members that JSON-RPC 2.0 names."""
    peer = Peer()
    assert peer.request("a", {"x": 1}) == (1, b'{"jsonrpc":"2.0","id":1,"method":"a","params":{"x":1}}\n')
    assert peer.request("a") == (2, b'{"jsonrpc":"2.0","id":2,"method":"a"}\n')
    assert peer.notify("b") == b'{"jsonrpc":"2.0","method":"b"}\n'
    assert peer.reply("q", None) == b'{"jsonrpc":"2.0","id":"q","result":null}\n'
    error = ErrorObject(code=-32601, message="no such method")
    assert peer.reply_error(None, error) == (
        b'{"jsonrpc":"2.0","id":null,"error":{"code":-32601,"message":"no such method"}}\n'
    )


def test_raw_parts_cannot_break_the_framing() -> None:
    """Line feeds in parts that are passed on encoded become blanks."""
    line = Peer().notify("m", Raw(b'{\n  "a": "b\\n"\n}'))
    assert line.index(b"\n") == len(line) - 1
    assert msgspec.json.decode(line)["params"] == {"a": "b\n"}


def test_what_cannot_be_encoded_leaves_nothing_pending() -> None:
    """A call that was never sent is not awaited, and its id is not spent."""
    peer = Peer()
    with pytest.raises(TypeError):
        peer.request("m", object())
    assert not peer.pending
    assert peer.request("m")[0] == 1


def test_pending_names_the_unanswered_calls() -> None:
    """Calls stay pending until answered or forgotten, oldest first."""
    peer = Peer(first_id=10)
    for method in ("a", "b", "c"):
        peer.request(method)
    pending = peer.pending
    peer.receive(b'{"jsonrpc":"2.0","id":11,"result":1}')
    assert dict(pending) == {10: "a", 12: "c"}
    assert list(pending) == [10, 12]


def test_an_answer_after_forgetting_is_stray() -> None:
    """A forgotten call no longer awaits anything."""
    peer = peer_with_call()
    assert peer.forget(1)
    assert not peer.forget(1)
    assert peer.receive(b'{"jsonrpc":"2.0","id":1,"result":1}') == Stray(1)


def test_a_second_answer_is_stray() -> None:
    """A call is answered once."""
    peer = peer_with_call()
    answer = b'{"jsonrpc":"2.0","id":1,"result":1}'
    assert isinstance(peer.receive(answer), IncomingResult)
    assert peer.receive(answer) == Stray(1)


@pytest.mark.parametrize("answer_id", [2, "1", None])
def test_an_answer_to_no_call_of_ours_is_stray(answer_id: RequestId) -> None:
    """Made-up ids settle nothing; our ids are ints, so text is another id."""
    peer = peer_with_call()
    assert peer.receive(msgspec.json.encode({"jsonrpc": "2.0", "id": answer_id, "result": 1})) == Stray(answer_id)
    assert 1 in peer.pending


@pytest.mark.parametrize("members", [b'"id":null,', b""])
def test_a_complaint_without_an_id_is_stray_and_keeps_its_error(members: bytes) -> None:
    """An error that names no call is told with what it says."""
    line = b'{"jsonrpc":"2.0",' + members + b'"error":{"code":-32700,"message":"parse"}}'
    assert peer_with_call().receive(line) == Stray(None, ErrorObject(code=-32700, message="parse"))


def test_unknown_members_and_a_missing_header_are_accepted() -> None:
    """What is not needed to understand a message is not looked at."""
    incoming = Peer().receive(b'{"x":[1],"method":"m","params":[1],"_meta":{}}')
    assert isinstance(incoming, IncomingNotification)
    assert (incoming.method, decoded(incoming.params)) == ("m", [1])


def test_missing_params_read_as_an_empty_object() -> None:
    """A struct can be decoded from params that were left out."""
    incoming = Peer().receive(b'{"jsonrpc":"2.0","id":null,"method":"m"}')
    assert isinstance(incoming, IncomingRequest)
    assert (incoming.id, decoded(incoming.params)) == (None, {})


@pytest.mark.parametrize(
    ("members", "kind"),
    [
        (b'"result":{},"error":null', IncomingResult),
        (b'"result":null', IncomingResult),
        (b'"result":null,"error":{"code":1,"message":"m"}', IncomingError),
    ],
)
def test_an_error_that_is_null_is_none(members: bytes, kind: type) -> None:
    """Both members at once, as JSON-RPC 1.0 had it, are told apart by the one that is not null."""
    assert type(peer_with_call().receive(b'{"jsonrpc":"2.0","id":1,' + members + b"}")) is kind


@pytest.mark.parametrize("members", [b"", b',"error":null'])
def test_an_answer_that_says_nothing_settles_its_call(members: bytes) -> None:
    """Nobody waits on for an answer that has come without content."""
    incoming = peer_with_call().receive(b'{"jsonrpc":"2.0","id":1' + members + b"}")
    assert isinstance(incoming, IncomingError)
    assert incoming.error.code == INTERNAL_ERROR


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        ('"quota exceeded"', INTERNAL_ERROR, "quota exceeded"),
        ('{"message":"m"}', INTERNAL_ERROR, "m"),
        ('{"code":"E_BUSY","message":"m"}', INTERNAL_ERROR, "m"),
        ('{"code":true,"message":"m"}', INTERNAL_ERROR, "m"),
        ('{"code":-5,"message":["a"]}', -5, '{"code":-5,"message":["a"]}'),
        ("[1]", INTERNAL_ERROR, "[1]"),
    ],
)
def test_an_error_of_any_shape_settles_its_call(error: str, code: int, message: str) -> None:
    """What can be understood of an error is; the whole of it is kept as data."""
    peer = peer_with_call()
    incoming = peer.receive(f'{{"jsonrpc":"2.0","id":1,"error":{error}}}'.encode())
    assert isinstance(incoming, IncomingError)
    assert (incoming.error.code, incoming.error.message) == (code, message)
    assert decoded(incoming.error.data) == msgspec.json.decode(error)
    assert not peer.pending


def test_ids_written_as_floats_are_the_ints_they_equal() -> None:
    """A peer for which all numbers are floats is understood, in calls and in answers."""
    assert isinstance(peer_with_call().receive(b'{"jsonrpc":"2.0","id":1.0,"result":1}'), IncomingResult)
    request = Peer().receive(b'{"jsonrpc":"2.0","id":5e0,"method":"m","params":[2]}')
    assert isinstance(request, IncomingRequest)
    assert (request.id, decoded(request.params)) == (5, [2])


@pytest.mark.parametrize(
    ("line", "code"),
    [
        (b"", PARSE_ERROR),
        (b"Starting agent ...", PARSE_ERROR),
        (b"\x1b[32mok\x1b[0m", PARSE_ERROR),
        (b"\xff\xfe", PARSE_ERROR),
        (b'{"method":"m"', PARSE_ERROR),
        (b'{"method":"m"} x', PARSE_ERROR),
        (b'{"method":' + b"[" * 200_000, PARSE_ERROR),
        (b'{"x":' + b"[" * 200_000 + b"]" * 200_000 + b"}", PARSE_ERROR),
        (b'{"x":NaN,"y":1e999}', PARSE_ERROR),
        (b"[]", INVALID_REQUEST),
        (b'[{"jsonrpc":"2.0","method":"m"}]', INVALID_REQUEST),
        (b"42", INVALID_REQUEST),
        (b"null", INVALID_REQUEST),
        (b"{}", INVALID_REQUEST),
        (b'{"jsonrpc":"2.0"}', INVALID_REQUEST),
        (b'{"jsonrpc":"2.0","result":1}', INVALID_REQUEST),
        (b'{"jsonrpc":"2.0","id":true,"method":"m"}', INVALID_REQUEST),
        (b'{"jsonrpc":"2.0","id":1.5,"method":"m"}', INVALID_REQUEST),
        (b'{"jsonrpc":"2.0","id":{},"method":"m"}', INVALID_REQUEST),
        (b'{"jsonrpc":"2.0","method":1}', INVALID_REQUEST),
        (b'{"level":"info","msg":"a log line"}', INVALID_REQUEST),
        (b'{"level":"info","id":1}', INVALID_REQUEST),
        (b'{"level":"error","id":1,"error":"boom"}', INVALID_REQUEST),
    ],
)
def test_what_is_no_message_is_malformed(line: bytes, code: int) -> None:
    """Noise, JSON log lines among it, settles nothing and is told with its reason and code."""
    peer = peer_with_call()
    incoming = peer.receive(line)
    assert isinstance(incoming, Malformed)
    assert (incoming.line, incoming.code, bool(incoming.reason)) == (line, code, True)
    assert 1 in peer.pending


def test_a_malformed_call_keeps_the_id_to_answer_with() -> None:
    """A call whose method is no text can still be refused by its id."""
    incoming = Peer().receive(b'{"jsonrpc":"2.0","id":"q","method":{}}')
    assert isinstance(incoming, Malformed)
    assert incoming.id == "q"


@pytest.mark.parametrize(
    ("written", "read"),
    [
        (b'"a\xffb"', "a�b"),
        (b'"a\xc3"', "a�"),
        (b'"\\ud83d"', "�"),
        (b'"\\ude00\\ud83d"', "��"),
        (b'"\\ud83d\\ude00"', "😀"),
        (b'"a\tb\x00"', "a\tb\x00"),
        (b"NaN", None),
        ("\"\\ud83d é 😀\"".encode(), "� é 😀"),
    ],
)  # fmt: skip
def test_broken_text_is_mended_not_lost(written: bytes, read: object) -> None:
    """A message whose only fault is its text arrives, with replacement characters where the text was broken."""
    peer = peer_with_call()
    incoming = peer.receive(b'{"jsonrpc":"2.0","id":1,"result":{"a":' + written + b"}}")
    assert isinstance(incoming, IncomingResult)
    assert decoded(incoming.result) == {"a": read}


def test_a_byte_order_mark_is_ignored() -> None:
    """A mark before the first message does no harm."""
    assert isinstance(Peer().receive(b'\xef\xbb\xbf{"method":"m"}'), IncomingNotification)


@given(
    st.binary()
    | st.dictionaries(
        st.sampled_from(["jsonrpc", "id", "method", "params", "result", "error"]), JSON | st.floats(width=16)
    ).map(msgspec.json.encode)
)
def test_receiving_never_raises(line: bytes) -> None:
    """Whatever comes, something is said about it, and what is left encoded decodes."""
    incoming = peer_with_call().receive(line)
    for name in incoming.__struct_fields__:
        part = getattr(incoming, name)
        if isinstance(part, Raw):
            decoded(part)
