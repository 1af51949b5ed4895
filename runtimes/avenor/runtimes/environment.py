"""The environment that agents start from."""

from collections.abc import Mapping
from typing import Final

from avenor.protocol.spec import Record

RUN_ID: Final = "AVENOR_RUN_ID"
RUNTIME_ID: Final = "AVENOR_RUNTIME_ID"
SOCKET: Final = "AVENOR_SOCKET"
SERVER_URL: Final = "AVENOR_OPENCODE_URL"


def agent_environment(record: Record, base: Mapping[str, str], tag: tuple[str, str]) -> dict[str, str]:
    """The whole environment of an agent.

    Args:
        record: Whose agent it is; its `spec.env` goes over the base, and our own variables over that.
        base: The environment to start from.
        tag: As `avenor.host.tree.tree_tag` gives it.
    """
    env = {**base, **record.spec.env}
    env[RUN_ID] = record.run_id
    _set_or_drop(env, RUNTIME_ID, record.runtime_id)
    _set_or_drop(env, SOCKET, record.supervisor_socket)
    env[tag[0]] = tag[1]
    return env


def _set_or_drop(env: dict[str, str], name: str, value: str | None) -> None:
    if value:
        env[name] = value
    else:
        # Ours would otherwise be our parent's, and a nested `avenor` would take the wrong runtime for its own.
        env.pop(name, None)
