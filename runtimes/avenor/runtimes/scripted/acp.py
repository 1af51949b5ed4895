"""The parts of ACP (schema 1.19) that the scripted agent reads. Tolerant: clients may send more."""

import msgspec


class _Params(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Base of all params."""


class InitializeParams(_Params, frozen=True, kw_only=True):
    protocol_version: int


class SessionParams(_Params, frozen=True, kw_only=True):
    session_id: str


class Header(msgspec.Struct, frozen=True):
    name: str
    value: str


class McpServer(msgspec.Struct, frozen=True):
    """An MCP server that the session is handed. Those that are programs are taken and not started."""

    type: str = "stdio"
    name: str = ""
    url: str = ""
    headers: list[Header] = []


class NewParams(_Params, frozen=True, kw_only=True):
    cwd: str
    mcp_servers: list[McpServer]


class RestoreParams(SessionParams, frozen=True, kw_only=True):
    cwd: str
    mcp_servers: list[McpServer] = []


class ListParams(_Params, frozen=True, kw_only=True):
    cwd: str | None = None


class SetConfigParams(SessionParams, frozen=True, kw_only=True):
    config_id: str
    value: str


class SetModeParams(SessionParams, frozen=True, kw_only=True):
    mode_id: str


class SetModelParams(SessionParams, frozen=True, kw_only=True):
    model_id: str


class _Resource(msgspec.Struct, frozen=True):
    uri: str = ""
    text: str | None = None


class Block(msgspec.Struct, frozen=True):
    """A content block of any type."""

    type: str
    text: str = ""
    uri: str = ""
    resource: _Resource | None = None


class PromptParams(SessionParams, frozen=True, kw_only=True):
    prompt: list[Block]


def prompt_text(blocks: list[Block]) -> str:
    """What a prompt says, a line break between its blocks; what is no text is named."""
    return "\n".join(_block_text(block) for block in blocks)


def _block_text(block: Block) -> str:
    if block.type == "text":
        return block.text
    if block.resource is not None:
        return block.resource.text if block.resource.text is not None else block.resource.uri
    return block.uri or f"[{block.type}]"
