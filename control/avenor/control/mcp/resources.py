"""Runs and their logs as resources, for hosts that let people pick what a model is to see. No SDK is needed here."""

import re
from typing import Final
from urllib.parse import quote, unquote

import msgspec

from avenor.control.mcp.link import Link
from avenor.control.mcp.looking import raw_tail
from avenor.control.mcp.views import LIFECYCLE, run_of, status_of
from avenor.protocol.errors import InvalidParams

# A log is for reading what happened lately; the file has all of it.
LOG_LIMIT_BYTES: Final = 1024 * 1024
RUN_TEMPLATE: Final = "avenor://runs/{run_id}"
LOG_TEMPLATE: Final = "avenor://runs/{run_id}/log"
JSON_TYPE: Final = "application/json"
NDJSON_TYPE: Final = "application/x-ndjson"

_URI: Final = re.compile(r"avenor://runs/([^/]+)(/log)?")


class Resource(msgspec.Struct, frozen=True, kw_only=True):
    """One run, or the log of one."""

    uri: str
    name: str
    description: str
    mime_type: str


async def list_resources(link: Link) -> list[Resource]:
    """Two for each run, the newest first."""
    snapshots = await link.ask(lambda client: client.list(list(LIFECYCLE)))
    snapshots.sort(key=lambda snapshot: snapshot.started_at or float("inf"), reverse=True)
    found: list[Resource] = []
    for snapshot in snapshots:
        uri, name = RUN_TEMPLATE.format(run_id=quote(snapshot.run_id, safe="")), snapshot.label or snapshot.run_id
        about = f"{snapshot.kind}, {status_of(snapshot)}, in {snapshot.dir}"
        found.append(Resource(uri=uri, name=name, description=f"run: {about}", mime_type=JSON_TYPE))
        found.append(
            Resource(uri=f"{uri}/log", name=f"{name} log", description=f"events: {about}", mime_type=NDJSON_TYPE)
        )
    return found


async def read_resource(link: Link, uri: str) -> tuple[str, str]:
    """The text of a resource and its type: a run in the full view, or the end of its log in whole lines.

    Raises:
        InvalidParams: It is none of ours.
        NoSuchRuntime: There is no such run.
    """
    match = _URI.fullmatch(uri)
    if match is None:
        raise InvalidParams(f"{uri!r} is neither {RUN_TEMPLATE} nor {LOG_TEMPLATE}")
    snapshot = await link.ask(lambda client: client.status(unquote(match[1])))
    if match[2] is None:
        return msgspec.json.encode(run_of(snapshot, "full")).decode(), JSON_TYPE
    lines = await link.ask(lambda client: raw_tail(client, snapshot, LOG_LIMIT_BYTES))
    return "".join(line.decode() + "\n" for line in lines), NDJSON_TYPE
