"""`avenor mcp`: flags to the options of an MCP server, and the server in this process."""

import os
import signal
from collections.abc import Sequence
from typing import NamedTuple

from avenor.cli.commands import MCP
from avenor.cli.front import version
from avenor.cli.output import complain
from avenor.cli.parsing import UsageError, Values, absolute, parse
from avenor.cli.socket_path import default_socket
from avenor.cli.streams import open_missing_streams
from avenor.control.address import Address, listen, parse_address
from avenor.control.mcp.options import Options

DEFAULT_ADDRESS = "127.0.0.1:3748"
IDLE_SECONDS = 30 * 60.0


def mcp(words: Sequence[str]) -> int:
    """Run `avenor mcp` with these words and give its exit status.

    Raises:
        UsageError: They make no sense.
        HelpAsked: They ask for help.
    """
    values = parse(MCP, words)
    options = server_options(values, dict(os.environ))
    place = http_place(values, dict(os.environ))
    # Over stdio a thread waits for the host's next line, which would hold up any orderly end. There is nothing to put
    # in order: the runs are the supervisor's, which notices that this connection is gone.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    open_missing_streams()
    try:
        from avenor.control.mcp.stdio import serve_stdio
    except ModuleNotFoundError as error:
        complain(f"avenor mcp: the MCP SDK is not installed ({error.name}); pip install 'avenor[mcp]'")
        return 1
    from avenor.stable.logs import configure_logs

    configure_logs("info", None)
    if place is None:
        serve_stdio(options)
        return 0
    return _serve_http(options, place)


class HttpPlace(NamedTuple):
    """Where to listen, and what clients must have."""

    address: Address
    token: str


def http_place(values: Values, environ: dict[str, str]) -> HttpPlace | None:
    """What the flags say about HTTP; None for standard input and output.

    Raises:
        UsageError: They cannot be used, or there is no token.
    """
    if values.text("transport") != "http":
        for name in ("addr", "auth_token", "auth_token_file"):
            if name in values:
                raise UsageError(f"--{name.replace('_', '-')} goes with --transport http", MCP)
        return None
    try:
        address = parse_address(values.text("addr") or DEFAULT_ADDRESS)
    except ValueError as error:
        raise UsageError(f"--addr: {error}", MCP) from None
    return HttpPlace(address, _token(values, environ))


def _token(values: Values, environ: dict[str, str]) -> str:
    token, path = values.text("auth_token"), values.text("auth_token_file")
    if token is not None and path is not None:
        raise UsageError("--auth-token and --auth-token-file: give one", MCP)
    if path is not None:
        try:
            with open(path, encoding="utf-8") as file:
                token = file.read().strip()
        except (OSError, ValueError) as error:
            raise UsageError(f"--auth-token-file: cannot read it: {error}", MCP) from None
    if token is None:
        token = environ.get("MCP_AUTH_TOKEN", "")
    if not token:
        raise UsageError("--transport http needs MCP_AUTH_TOKEN, --auth-token-file FILE or --auth-token TOKEN", MCP)
    if not (token.isascii() and token.isprintable()) or " " in token:
        raise UsageError("the token must be visible ASCII characters", MCP)
    return token


def _serve_http(options: Options, place: HttpPlace) -> int:
    from avenor.control.mcp.http import serve_http

    try:
        listener = listen(place.address)
    except OSError as error:
        where = f"{place.address.host}:{place.address.port}"
        complain(f"avenor mcp: cannot listen on {where}: {os.strerror(error.errno or 0)}")
        return 1
    serve_http(options, listener, place.token)
    return 0


def server_options(values: Values, environ: dict[str, str]) -> Options:
    """The options that the flags ask for.

    With neither socket named, an MCP server that an agent of a supervisor has started uses that supervisor, and its
    runs are that agent's children.

    Raises:
        UsageError: They cannot be used.
    """
    named, private = values.text("supervisor_socket"), values.text("control_socket")
    if named is not None and private is not None:
        raise UsageError("--supervisor-socket names one that is there, --control-socket one to start: give one", MCP)
    if values.switch("no_autostart") and named is None:
        raise UsageError("--no-autostart needs --supervisor-socket PATH", MCP)
    around = environ.get("AVENOR_SOCKET") or None
    if private is None and named is None:
        named = around
    flag = "--control-socket" if named is None else "--supervisor-socket"
    socket = absolute(MCP, flag, named or private or private_socket())
    idle = values.raw("idle_timeout")
    is_within = around is not None and os.path.realpath(around) == os.path.realpath(socket)
    return Options(
        socket=socket,
        starts=named is None,
        idle_seconds=(float(idle) or None) if isinstance(idle, int | float) else IDLE_SECONDS,
        parent_id=environ.get("AVENOR_RUNTIME_ID") if is_within else None,
        version=version(),
    )


def private_socket() -> str:
    """The socket of the supervisor that is started when none is named: beside the default one."""
    return os.path.join(os.path.dirname(default_socket()), "mcp.sock")
