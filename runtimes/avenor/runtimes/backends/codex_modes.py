"""What can be chosen of codex: modes, models and thinking levels. Data and look-ups; pure.

codex has no modes of its own over this protocol, but an approval policy and a sandbox. The pairs that make sense are
named here, each by the words of codex that tell it apart. In all of them codex asks us rather than a reviewing model
or nobody: who answers is decided by the run.
"""

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
from msgspec import Raw

from avenor.runtimes.backends.codex_types import Model

DEFAULT_MODE: Final = "workspace-write"


class Mode(msgspec.Struct, frozen=True, kw_only=True):
    """When codex asks, and what a command may do without asking.

    Attributes:
        approval: `on-request` asks to leave the sandbox; `untrusted` asks before every command.
        sandbox: As `thread/start` takes it.
        sandbox_type: The same as codex reports it.
    """

    approval: str
    sandbox: str
    sandbox_type: str


MODES: Final[Mapping[str, Mode]] = {
    DEFAULT_MODE: Mode(approval="on-request", sandbox="workspace-write", sandbox_type="workspaceWrite"),
    "read-only": Mode(approval="on-request", sandbox="read-only", sandbox_type="readOnly"),
    "untrusted": Mode(approval="untrusted", sandbox="workspace-write", sandbox_type="workspaceWrite"),
    # For what runs in somebody else's sandbox, in which codex's own cannot be made.
    "untrusted-full-access": Mode(approval="untrusted", sandbox="danger-full-access", sandbox_type="dangerFullAccess"),
    "danger-full-access": Mode(approval="on-request", sandbox="danger-full-access", sandbox_type="dangerFullAccess"),
}


def mode_name(approval: Raw, sandbox_type: str) -> str | None:
    """The name of what codex reports; None for a pair that we have no name for."""
    try:
        policy = msgspec.json.decode(approval, type=str)
    except msgspec.DecodeError:
        return None
    pairs = ((name, (mode.approval, mode.sandbox_type)) for name, mode in MODES.items())
    return next((name for name, pair in pairs if pair == (policy, sandbox_type)), None)


class Models:
    """The models that codex lists, and the one that its configuration names, which need not be among them.

    Args:
        listed: In codex's order.
    """

    def __init__(self, listed: Sequence[Model]) -> None:
        self._efforts = {m.model: [e.reasoning_effort for e in m.supported_reasoning_efforts] for m in listed}

    def __contains__(self, name: str) -> bool:
        return name in self._efforts

    def names(self, current: str | None) -> list[str]:
        """All that can be chosen; the one in use is always among them."""
        extra = [current] if current is not None and current not in self._efforts else []
        return [*extra, *self._efforts]

    def efforts(self, model: str | None) -> list[str]:
        """The thinking levels of a model; of one that is not listed, all that any model has, for codex takes them."""
        if model in self._efforts:
            return self._efforts[model]
        return list(dict.fromkeys(effort for efforts in self._efforts.values() for effort in efforts))
