"""`avenor control spawn`: flags to the params of `spawn`."""

import os

from avenor.cli.parsing import Values, absolute
from avenor.cli.run_flags import spec_fields
from avenor.cli.table import Command


def spawn_params(command: Command, values: Values, socket: str, environ: dict[str, str]) -> dict[str, object]:
    """The params of `spawn`. Only `dir` is absolute: the supervisor resolves the other paths against it.

    A runtime that was started by an agent of the same supervisor is that agent's child, unless a flag says otherwise.

    Raises:
        UsageError: As `spec_fields`.
    """
    params = spec_fields(command, values, environ)
    for key in ("key", "wait", "parent_id", "on_crash"):
        if key in values:
            params[key] = values.text(key)
    parent = environ.get("AVENOR_RUNTIME_ID")
    around = environ.get("AVENOR_SOCKET")
    if parent and around and "parent_id" not in params:
        given = absolute(command, "--socket", socket)
        if os.path.realpath(given) == os.path.realpath(around):
            params["parent_id"] = parent
    return params
