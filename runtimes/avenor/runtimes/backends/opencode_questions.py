"""What opencode asks: whether a tool may run, and the questions of its `question` tool. Pure."""

from collections.abc import Sequence
from typing import Final

import msgspec
from msgspec import UNSET, Raw

from avenor.protocol.events import PermissionOption
from avenor.runtimes.backends.acp_permissions import trusted_options
from avenor.runtimes.backends.base import PermissionAnswer, PermissionAsk
from avenor.runtimes.backends.opencode_tools import members, tool_kind
from avenor.runtimes.backends.opencode_types import Inquiry, Permission
from avenor.runtimes.backends.profiles import Profile

REJECT: Final = "reject"

# The three replies that the server takes, named as opencode names them when it speaks ACP.
_OPTIONS: Final = (
    PermissionOption(option_id="once", kind="allow_once", name="Allow once"),
    PermissionOption(option_id="always", kind="allow_always", name="Always allow"),
    PermissionOption(option_id=REJECT, kind="reject_once", name="Reject"),
)
_NO_ANSWER: Final = PermissionOption(option_id=REJECT, kind="reject_once", name="Give no answer")


def permission_ask(permission: Permission, payload: Raw, profile: Profile) -> PermissionAsk:
    """The question whether a tool may do something.

    Args:
        permission: As the server asks.
        payload: The same, as it came.
        profile: Says which options may be trusted.
    """
    kind = tool_kind(permission.permission)
    values = members(permission.metadata)
    subjects = [values.get("command"), values.get("filepath"), values.get("url"), ", ".join(permission.patterns)]
    subject = next((each for each in subjects if isinstance(each, str) and each), "")
    return PermissionAsk(
        tool=kind if kind != "other" else permission.permission or "tool",
        question=subject or permission.permission or "Allow this tool call?",
        options=_OPTIONS,
        payload=payload,
        input=permission.metadata if values else UNSET,
        trusted_options=trusted_options(_OPTIONS, profile),
        tool_call_id=None if permission.tool is None else permission.tool.callID or None,
        kind=kind,
    )


def inquiry_ask(inquiry: Inquiry, payload: Raw) -> PermissionAsk:
    """A question of the agent's to the user, which nobody may answer for him."""
    offered = [
        PermissionOption(
            option_id=choice.label,
            kind="allow_once",
            name=f"{choice.label}: {choice.description}" if choice.description else choice.label,
        )
        for choice in inquiry.options
        if choice.label != REJECT
    ]
    return PermissionAsk(
        tool="question",
        question=inquiry.question or inquiry.header or "The agent asks for an answer.",
        options=[*offered, _NO_ANSWER],
        payload=payload,
        input=Raw(msgspec.json.encode(inquiry)),
    )


def permission_reply(answer: PermissionAnswer) -> dict[str, str]:
    """The body that tells the server. With a message, a rejected agent goes on with what that says."""
    reply = {"reply": answer.option_id or REJECT}
    if reply["reply"] == REJECT and answer.message:
        reply["message"] = answer.message
    return reply


def inquiry_answers(answers: Sequence[PermissionAnswer]) -> list[list[str]] | None:
    """The labels that were chosen, a list for each question; None if any got no answer."""
    if any(answer.option_id in (None, REJECT) for answer in answers):
        return None
    return [[answer.option_id or ""] for answer in answers]
