"""The MCP server itself, on the official SDK: it lists the tools, carries their calls to a `Jockey`, and nothing else.

The SDK runs on anyio, and so in our trio. It is slow to import; only `avenor mcp` does.
"""

from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Final

import mcp_types as types
import msgspec
import structlog
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.shared.exceptions import MCPError

from avenor.control.mcp import resources
from avenor.control.mcp.calls import Jockey, Report
from avenor.control.mcp.link import Link, open_link
from avenor.control.mcp.options import Options
from avenor.control.mcp.problems import problem_text
from avenor.control.mcp.tools import BY_NAME, INSTRUCTIONS, TOOLS, Tool
from avenor.protocol.errors import AvenorError

_logger = structlog.get_logger()

Context = ServerRequestContext[Any, Any]


@asynccontextmanager
async def open_server(options: Options) -> AsyncGenerator[Server[Any]]:
    """A server whose tools work, for any transport."""
    async with open_link(options.finder()) as link:
        yield make_server(link, Jockey(link, options.parent_id), options.version)


def make_server(link: Link, jockey: Jockey, version: str) -> Server[Any]:
    """The server whose tool calls this jockey carries out, and whose resources are the runs at the end of the link."""
    listed = types.ListToolsResult(tools=[_described(tool) for tool in TOOLS])

    async def list_tools(_context: Context, _params: types.PaginatedRequestParams | None) -> types.ListToolsResult:
        return listed

    async def call_tool(context: Context, params: types.CallToolRequestParams) -> types.CallToolResult:
        return await _call(jockey, context, params)

    async def list_runs(_context: Context, _params: types.PaginatedRequestParams | None) -> types.ListResourcesResult:
        with _as_protocol_error():
            found = await resources.list_resources(link)
        return types.ListResourcesResult(
            resources=[
                types.Resource(uri=each.uri, name=each.name, description=each.description, mime_type=each.mime_type)
                for each in found
            ]
        )

    async def list_templates(
        _context: Context, _params: types.PaginatedRequestParams | None
    ) -> types.ListResourceTemplatesResult:
        return types.ListResourceTemplatesResult(resource_templates=_TEMPLATES)

    async def read(_context: Context, params: types.ReadResourceRequestParams) -> types.ReadResourceResult:
        with _as_protocol_error():
            text, mime_type = await resources.read_resource(link, str(params.uri))
        contents = types.TextResourceContents(uri=params.uri, mime_type=mime_type, text=text)
        return types.ReadResourceResult(contents=[contents])

    return Server(
        "avenor",
        title="avenor",
        version=version,
        instructions=INSTRUCTIONS,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
        on_list_resources=list_runs,
        on_list_resource_templates=list_templates,
        on_read_resource=read,
    )


_TEMPLATES: Final = [
    types.ResourceTemplate(
        name="run", uri_template=resources.RUN_TEMPLATE, description="A run, in full", mime_type=resources.JSON_TYPE
    ),
    types.ResourceTemplate(
        name="log",
        uri_template=resources.LOG_TEMPLATE,
        description="The end of the event log of a run",
        mime_type=resources.NDJSON_TYPE,
    ),
]


@contextmanager
def _as_protocol_error() -> Generator[None]:
    """Resources have no results that tell of a refusal; the protocol has errors for that."""
    try:
        yield
    except AvenorError as error:
        raise MCPError(code=types.INVALID_PARAMS, message=error.message) from error


def _described(tool: Tool) -> types.Tool:
    return types.Tool(
        name=tool.name,
        title=tool.title,
        description=tool.description,
        input_schema=tool.input_schema,
        output_schema=tool.output_schema,
        annotations=types.ToolAnnotations(
            title=tool.title,
            read_only_hint=tool.reads,
            destructive_hint=tool.destroys,
            idempotent_hint=tool.repeats,
            open_world_hint=tool.acts,
        ),
    )


async def _call(jockey: Jockey, context: Context, params: types.CallToolRequestParams) -> types.CallToolResult:
    tool = BY_NAME.get(params.name)
    if tool is None:
        known = ", ".join(BY_NAME)
        raise MCPError(code=types.INVALID_PARAMS, message=f"no tool {params.name!r}; there are: {known}")
    try:
        result = await jockey.call(tool, params.arguments or {}, _report(context))
    except AvenorError as error:
        _logger.info("tool.refused", tool=tool.name, reason=error.reason_word)
        return _refusal(problem_text(tool.name, error))
    except Exception:
        _logger.exception("tool.failed", tool=tool.name)
        return _refusal(f"{tool.name}: a fault in avenor's MCP server; its standard error has the details")
    _logger.info("tool.done", tool=tool.name)
    text = msgspec.json.encode(result).decode()
    return types.CallToolResult(
        content=[types.TextContent(type="text", text=text)], structured_content=msgspec.to_builtins(result)
    )


def _refusal(text: str) -> types.CallToolResult:
    return types.CallToolResult(content=[types.TextContent(type="text", text=text)], is_error=True)


def _report(context: Context) -> Report:
    token = (context.meta or {}).get("progress_token")
    if token is None:
        return None

    async def report(seconds: float, text: str) -> None:
        await context.session.report_progress(seconds, message=text)

    return report
