"""`--http-debug` and `--http-token-file`, as `run` and `stable` take them."""

from __future__ import annotations

from avenor.cli.parsing import UsageError, Values, absolute
from avenor.cli.table import Command


def check_http(command: Command, values: Values) -> dict[str, str]:
    """What was given of the two, with an absolute path.

    Raises:
        UsageError: They cannot be used.
    """
    where, path = values.text("http_debug"), values.text("http_token_file")
    if where is None:
        if path is not None:
            raise UsageError("--http-token-file goes with --http-debug ADDR", command)
        return {}
    from avenor.control.address import parse_address

    try:
        parse_address(where)
    except ValueError as error:
        raise UsageError(f"--http-debug: {error}", command) from None
    if path is None:
        return {"http_debug": where}
    return {"http_debug": where, "http_token_file": absolute(command, "--http-token-file", path)}
