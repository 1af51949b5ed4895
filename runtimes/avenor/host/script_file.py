"""The script of the scripted agent, looked at before anything is started that would find it useless."""

from typing import Final

from avenor.host.regular import read_regular
from avenor.protocol.errors import AvenorError, InvalidParams
from avenor.protocol.script import load_script

_LIMIT_BYTES: Final = 16 * 1024 * 1024


def check_script(path: str | None) -> None:
    """Returns if there is no script, or one that the agent can play. Blocks.

    Raises:
        AvenorError: It cannot be read or played; `data.field` is `script`.
    """
    if path is None:
        return
    try:
        data = read_regular(path, limit_bytes=_LIMIT_BYTES)
    except OSError as error:
        raise InvalidParams(f"script {path}: {error.strerror}", data={"field": "script"}) from error
    try:
        load_script(data, file=path)
    except AvenorError as error:
        error.data.setdefault("field", "script")
        raise
