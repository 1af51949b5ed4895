"""What the MCP server makes of the lines on its standard input."""

from typing import Any

import mcp_types as types
import pytest

from avenor.control.mcp.stdio import read_message
from avenor.protocol.errors import INVALID_REQUEST, PARSE_ERROR
from avenor.protocol.peer import Malformed


@pytest.mark.parametrize(
    ("text", "taken"),
    [
        (rb'"fix it \ud83d"', "fix it \ufffd"),  # node's `JSON.stringify("fix it 😀".slice(0, 8))`
        (b'"fix it \xff"', "fix it \ufffd"),
        (b'"fix\tit"', "fix\tit"),
        (rb'"fix \ud83d\ude00"', "fix 😀"),
    ],
)
def test_broken_text_is_mended(text: bytes, taken: str) -> None:
    """A call is not lost for half a character."""
    line = b'{"jsonrpc":"2.0","id":41,"method":"tools/call","params":{"prompt":%b}}\n' % text
    params: dict[str, Any] = {"prompt": taken}
    assert read_message(line) == types.JSONRPCRequest(jsonrpc="2.0", id=41, method="tools/call", params=params)


@pytest.mark.parametrize(
    ("line", "code", "request_id"),
    [
        (b'{"jsonrpc":"2.0","id":42,"method":"tools/list",}', PARSE_ERROR, None),
        (b"[" * 100_000, PARSE_ERROR, None),
        (b"[]", INVALID_REQUEST, None),
        (b'{"jsonrpc":"2.0","id":7,"method":5}', INVALID_REQUEST, 7),
        (b'{"jsonrpc":"2.0","id":7,"method":"ping","params":[1]}', INVALID_REQUEST, 7),
        (b'{"id":7,"method":"ping","params":{"n":1e999}}', INVALID_REQUEST, 7),
        (b'{"jsonrpc":"2.0","id":7,"method":"ping","params":{"n":' + b"9" * 4400 + b"}}", INVALID_REQUEST, 7),
    ],
)
def test_what_is_no_message_is_answered(line: bytes, code: int, request_id: int | None) -> None:
    """With the id, where one can be read."""
    found = read_message(line)
    assert isinstance(found, Malformed)
    assert (found.code, found.id) == (code, request_id)


@pytest.mark.parametrize(
    "line",
    [
        b"\n",
        b" \r\n",
        b'{"id":4,"result":{"a":"\\ud83d"}}',
        b'{"jsonrpc":"2.0","method":"x","params":3}',
        b'{"method":"x","params":{"n":1e999}}',
    ],
)
def test_nobody_is_answered_who_has_not_asked(line: bytes) -> None:
    """Blank lines, answers to nothing, notifications."""
    assert read_message(line) is None
