"""An MCP server on stdio that notes what it is asked: `mcp_probe.py LOG`. A program, not a test."""

import json
import os
import sys
from typing import Any

_TOOL: dict[str, Any] = {
    "name": "ping",
    "description": "Answers pong",
    "inputSchema": {"type": "object", "properties": {}, "required": []},
}


def answer(method: str, params: dict[str, Any]) -> dict[str, Any]:
    """The result of a call."""
    match method:
        case "initialize":
            info = {"name": "probe", "version": "0"}
            return {"protocolVersion": params["protocolVersion"], "capabilities": {"tools": {}}, "serverInfo": info}
        case "tools/list":
            return {"tools": [_TOOL]}
        case "tools/call":
            return {"content": [{"type": "text", "text": "pong"}]}
        case _:
            return {}


def main(path: str) -> None:
    """Serves until its stdin ends."""
    with open(path, "a", encoding="utf-8") as log:
        log.write(f"{os.environ.get('PROBE_WORD', '')}\n")
        for line in sys.stdin:
            message = json.loads(line)
            log.write(f"{message.get('method')}\n")
            log.flush()
            if "id" in message and "method" in message:
                result = answer(message["method"], message.get("params") or {})
                print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
