"""`avenor answer`: the human's, or another program's, side of the permission files."""

from __future__ import annotations

import json
import os

from avenor.cli.commands import ANSWER
from avenor.cli.output import complain, write_text
from avenor.cli.parsing import UsageError, Values, parse
from avenor.cli.untyped import list_in
from avenor.control.safetext import one_line
from avenor.host.atomic import remove_if_exists, write_atomic
from avenor.host.regular import read_regular

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

# A request holds what the agent has sent, and no more than one line of it.
_LIMIT_BYTES = 64 * 1024 * 1024


class NotAnswerable(Exception):
    """There is no such request, it does not offer that, or it has an answer."""


def answer(words: Sequence[str]) -> int:
    """Run `avenor answer` with these words and give its exit status.

    Raises:
        UsageError: They make no sense.
        HelpAsked: They ask for help.
    """
    values = parse(ANSWER, words)
    outcome = values.text("outcome") or "selected"
    if outcome == "selected" and "option" not in values:
        raise UsageError("--option ID is needed, or --outcome cancelled", ANSWER)
    try:
        write_answer(values, outcome)
    except NotAnswerable as error:
        complain(f"avenor answer: {error}")
        return 2
    except OSError as error:
        complain(f"avenor answer: {error.filename or values.text('base')}: {error.strerror or error}")
        return 1
    except ValueError as error:
        complain(f"avenor answer: {error}")
        return 1
    write_text("answered\n")
    return 0


def write_answer(values: Values, outcome: str) -> None:
    """Write the answer beside the request.

    Raises:
        NotAnswerable: There is nothing to answer, or not like that.
        ValueError: The request cannot be read.
        OSError: A file cannot be read or written.
    """
    base = (values.text("base") or "").removeprefix("file:")
    response_path = f"{base}.req.response"
    request = _read_request(f"{base}.req")
    option = values.text("option")
    _check_option(request, option)
    response = {"outcome": outcome, "option_id": option, "request_id": request["request_id"]}
    if "message" in values:
        response["message"] = values.text("message")
    data = json.dumps(response).encode() + b"\n"
    if values.switch("force"):
        write_atomic(response_path, data)
    else:
        _write_new(response_path, data)


def _read_request(path: str) -> dict[str, Any]:
    try:
        raw = read_regular(path, limit_bytes=_LIMIT_BYTES)
    except FileNotFoundError:
        raise NotAnswerable(f"no request at {path}: nothing is asked there now") from None
    try:
        request: Any = json.loads(raw)
        if not (isinstance(request["request_id"], str) and isinstance(request["options"], list)):
            raise TypeError
        if not all(isinstance(option, dict) for option in list_in(request["options"])):
            raise TypeError
    except (ValueError, KeyError, TypeError, RecursionError):
        raise ValueError(f"{path} is no permission request") from None
    return request  # type: ignore[no-any-return]


def _check_option(request: dict[str, Any], option: str | None) -> None:
    offered = {str(item.get("optionId")): str(item.get("name", "")) for item in request["options"]}
    if option is None or option in offered:
        return
    listed = "".join(f"\n  {one_line(f'{known}  {name}')}" for known, name in offered.items())
    raise NotAnswerable(f"option {option!r} is not offered; choose one of{listed or ' none'}")


def _write_new(path: str, data: bytes) -> None:
    """As `write_atomic`, but never over a file that is there: a link fails where a rename would replace."""
    prepared = f"{path}.{os.getpid()}"
    write_atomic(prepared, data)
    try:
        os.link(prepared, path)
    except FileExistsError:
        raise NotAnswerable(f"there is an answer already at {path}; --force replaces it") from None
    finally:
        remove_if_exists(prepared)
