"""Questions of pi's extensions: reading them, and the answers. Pure.

Ours asks with a title that holds the tool call; others ask what they like. A question for text has no options, so
nobody can answer it here: it is no `PermissionAsk`.
"""

import re
from typing import Final

import msgspec
from msgspec import UNSET, Raw

from avenor.protocol.events import PermissionOption
from avenor.runtimes.backends.acp_permissions import trusted_options
from avenor.runtimes.backends.base import PermissionAnswer, PermissionAsk
from avenor.runtimes.backends.pi_events import tool_kind, tool_title
from avenor.runtimes.backends.pi_types import Asked, UiRequest
from avenor.runtimes.backends.profiles import REJECT_WORDS, Profile

# What asks, and gets an answer; pi does not wait for one to the other methods.
DIALOGS: Final = frozenset({"select", "confirm", "input", "editor"})
CANCELLED: Final[dict[str, object]] = {"cancelled": True}

_YES, _NO = "Yes", "No"
_words = re.compile(r"[a-z]+")
_asked = msgspec.json.Decoder(Asked)


def read_ask(request: UiRequest, line: bytes, profile: Profile) -> PermissionAsk | None:
    """The question of a `select` or `confirm`, which came as `line`; None if it is to be answered with text."""
    if request.method == "confirm":
        names = [_YES, _NO]
    elif request.method == "select" and request.options:
        names = list(request.options)
    else:
        return None
    options = [PermissionOption(option_id=name, kind=_kind(name), name=name) for name in names]
    asked = _read_asked(request.title)
    text = ": ".join(part for part in (request.title, request.message) if part)
    return PermissionAsk(
        tool="extension" if asked is None else asked.avenor.tool_name,
        question=text if asked is None else tool_title(asked.avenor.tool_name, asked.avenor.input),
        options=options,
        payload=Raw(line),
        input=UNSET if asked is None else asked.avenor.input,
        trusted_options=trusted_options(options, profile),
        tool_call_id=None if asked is None else asked.avenor.tool_call_id,
        kind=None if asked is None else tool_kind(asked.avenor.tool_name),
    )


def response(request: UiRequest, answer: PermissionAnswer) -> dict[str, object]:
    """The members of the answer that pi gets."""
    if answer.option_id is None:
        return CANCELLED
    if request.method == "confirm":
        return {"confirmed": answer.option_id == _YES}
    return {"value": answer.option_id}


def _kind(name: str) -> str:
    return "allow_once" if REJECT_WORDS.isdisjoint(_words.findall(name.lower())) else "reject_once"


def _read_asked(title: str) -> Asked | None:
    try:
        return _asked.decode(title)
    except msgspec.DecodeError:
        return None
