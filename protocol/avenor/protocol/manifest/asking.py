"""For which kinds of tools the agents of avenor's own backends ask before they use them, set up as they come.

Their profiles have it too (`asks`, `env_asking`). The supervisor, which checks a manifest before there is a runtime,
takes it from here.
"""

from collections.abc import Mapping
from typing import Final

import msgspec

from avenor.protocol.manifest.roster import TOOL_KINDS

_ALL: Final = frozenset(TOOL_KINDS)


class Asking(msgspec.Struct, frozen=True):
    """What an agent asks before.

    Attributes:
        kinds: The kinds of tools.
        variables: What avenor sets in its environment to make it ask; whoever sets one of them sets it up differently.
    """

    kinds: frozenset[str] = frozenset()
    variables: frozenset[str] = frozenset()


_OPENCODE: Final = Asking(_ALL, frozenset({"OPENCODE_PERMISSION"}))

ASKING: Final[Mapping[str, Asking]] = {
    "claude-acp": Asking(frozenset({"edit", "other"})),
    "copilot-acp": Asking(frozenset({"edit"})),
    "gemini-acp": Asking(frozenset({"edit", "execute", "other"})),
    "opencode-acp": _OPENCODE,
    "opencode-http": _OPENCODE,
    "pi": Asking(_ALL - {"read", "search"}),
    "qwen-acp": Asking(frozenset({"edit"})),
    "scripted": Asking(_ALL),
}
