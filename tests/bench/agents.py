"""Agents that cost next to nothing, so that what is measured is avenor: ACP in a few lines of shell.

They answer by counting: our peer numbers its requests from 1, and asks one after the other.
"""

import json
import shlex
from pathlib import Path

_AGENT = r"""
n=0
while IFS= read -r line; do
    case $line in
        *'"method":"initialize"'*) result='{"protocolVersion":1,"agentCapabilities":{}}' ;;
        *'"method":"session/new"'*) result='{"sessionId":"bench"}' ;;
        *'"method":"session/prompt"'*)
            case $line in *FLOOD*) cat "$1" ;; esac
            result='{"stopReason":"end_turn"}' ;;
        *) continue ;;
    esac
    n=$((n + 1))
    printf '{"jsonrpc":"2.0","id":%d,"result":%s}\n' "$n" "$result"
done
"""

FLOOD_PROMPT = "FLOOD"
# So many messages are said between two tool calls.
BURST = 256
# With its envelope an event of this text is a line of some 260 bytes.
TEXT = "All work and no play makes a rather dull benchmark, and so it goes on and on. "


def shell_agent(folder: Path, *, flood_events: int = 0) -> str:
    """The command line of an agent that answers every prompt at once with nothing.

    Args:
        folder: Where its files go.
        flood_events: So many message chunks it writes, as fast as it can, for a prompt that is `FLOOD_PROMPT`.
    """
    script, flood = folder / "agent.sh", folder / "flood.ndjson"
    script.write_text(_AGENT)
    if flood_events:
        whole, rest = divmod(flood_events, BURST)
        flood.write_bytes((_chunk() * BURST + _tool_call()) * whole + _chunk() * rest + _tool_call())
    return shlex.join(["/bin/sh", str(script), str(flood)])


def _chunk() -> bytes:
    return _update({"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": TEXT}})


def _tool_call() -> bytes:
    """Ends what is said, which else would all be the turn's final output, in one line too long to be sent."""
    return _update({"sessionUpdate": "tool_call", "toolCallId": "flood", "title": "flood"})


def _update(update: dict[str, object]) -> bytes:
    message = {"jsonrpc": "2.0", "method": "session/update", "params": {"sessionId": "bench", "update": update}}
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"
