"""An agent's permission question: reading it, and which of its options may be taken for the user. Pure."""

import re
from collections.abc import Mapping, Sequence

import msgspec
from msgspec import UNSET, Raw, UnsetType

from avenor.protocol.events import PermissionOption
from avenor.runtimes.backends.acp_types import PermissionParams
from avenor.runtimes.backends.base import PermissionAnswer, PermissionAsk
from avenor.runtimes.backends.profiles import REJECT_WORDS, Profile

_params = msgspec.json.Decoder(PermissionParams)
_words = re.compile(r"[a-z]+")


class KnownTool(msgspec.Struct, frozen=True, kw_only=True):
    """What an agent has told of a tool call before it asks; some ask with the bare id."""

    title: str | None = None
    kind: str | None = None
    raw_input: Raw | UnsetType = UNSET


def read_ask(params: Raw, known: Mapping[str, KnownTool], profile: Profile) -> PermissionAsk:
    """The question in the params of one `session/request_permission`.

    Args:
        params: As the agent sent them.
        known: Tool calls of this turn by their id.
        profile: Says which options may be trusted.

    Raises:
        msgspec.ValidationError: They are not what ACP says.
    """
    asked = _params.decode(params)
    tool = asked.tool_call
    earlier = known.get(tool.tool_call_id, KnownTool())
    title = tool.title or earlier.title
    kind = tool.name or tool.kind or earlier.kind
    return PermissionAsk(
        tool=kind or title or "tool",
        question=title or kind or "Allow this tool call?",
        options=asked.options,
        payload=params.copy(),
        input=earlier.raw_input if tool.raw_input is UNSET else tool.raw_input.copy(),
        trusted_options=trusted_options(asked.options, profile),
        tool_call_id=tool.tool_call_id or None,
        kind=tool.kind or earlier.kind,
    )


def trusted_options(options: Sequence[PermissionOption], profile: Profile) -> list[str]:
    """Ids of the options that auto-approve may take: trusted, of kind `allow_once`, and without a reject word."""
    return [
        option.option_id
        for option in options
        if option.kind == "allow_once"
        and (profile.trusted_options is None or option.option_id in profile.trusted_options)
        and not _says_no(option)
    ]


def _says_no(option: PermissionOption) -> bool:
    return not REJECT_WORDS.isdisjoint(_words.findall(f"{option.option_id} {option.name}".lower()))


def is_allowed(ask: PermissionAsk, answer: PermissionAnswer) -> bool:
    """Whether an answer lets the tool run."""
    chosen = next((option for option in ask.options if option.option_id == answer.option_id), None)
    return chosen is not None and chosen.kind.startswith("allow") and not _says_no(chosen)


def outcome(answer: PermissionAnswer) -> dict[str, object]:
    """The result that tells the agent."""
    if answer.option_id is None:
        return {"outcome": {"outcome": "cancelled"}}
    return {"outcome": {"outcome": "selected", "optionId": answer.option_id}}
