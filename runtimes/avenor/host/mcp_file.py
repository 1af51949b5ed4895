"""The MCP servers that a run is asked for, read from its file. Blocks."""

from typing import Final

from avenor.host.regular import read_regular
from avenor.protocol.errors import ConfigError, InvalidParams
from avenor.protocol.mcp import find_conflicts, read_mcp_config
from avenor.protocol.spec import RunSpec, with_servers

_LIMIT_BYTES: Final = 1024 * 1024  # Far beyond what a person writes; every record of a run holds it.


def load_servers(spec: RunSpec) -> RunSpec:
    """The resolved spec with the servers of its `mcp_config` file among its `mcp_servers`.

    Raises:
        InvalidParams: The file cannot be read; `data.field` names the spec's field.
        ConfigError: It cannot be used; `data.errors` lists every mistake.
    """
    path = spec.mcp_config
    if path is None:
        return spec
    try:
        servers = read_mcp_config(read_regular(path, limit_bytes=_LIMIT_BYTES), file=path)
    except OSError as error:
        raise InvalidParams(f"mcp_config {path}: {error.strerror}", data={"field": "mcp_config"}) from error
    except ConfigError as error:
        error.data["field"] = "mcp_config"
        raise
    known = {server.name: server for server in servers}
    given = {f"$.mcp_servers[{index}]": server for index, server in enumerate(spec.mcp_servers)}
    conflicts = find_conflicts(given, known, f"in {path}")
    if conflicts:
        errors = [{"path": found.path, "message": found.message} for found in conflicts]
        text = "; ".join(f"{found.path.removeprefix('$.')}: {found.message}" for found in conflicts)
        raise InvalidParams(text, data={"field": "mcp_servers", "errors": errors})
    return with_servers(spec, servers)
