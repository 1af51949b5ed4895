"""Recorded conversations with real agents, for tests: `{"dir": "client->agent" | "agent->client" | "meta", "msg": …}`.

`AVENOR_TRANSCRIPTS` names another folder of the same kind; the tests then read that one as well as ours.
"""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent.parent / "data" / "transcripts"

# Agents whose wire is not ACP.
OTHER_WIRES = ("pi-", "pi3-", "codex-", "opencode-serve")

# Under which backend a recorded agent runs; the others do under `acp`.
_BACKENDS = {
    "claudeacp": "claude-acp",
    "claudeacp2": "claude-acp",
    "claudeacp3": "claude-acp",
    "codexacp": "codex-acp",
    "codexacp2": "codex-acp",
    "copilot": "copilot-acp",
    "gemini": "gemini-acp",
    "opencode": "opencode-acp",
    "qwen": "qwen-acp",
    "qwen3": "qwen-acp",
}

Message = dict[str, Any]


def backend_of(name: str) -> str:
    """The backend of the agent of a transcript, by the transcript's name."""
    return _BACKENDS.get(name.split("-")[0], "acp")


def transcript_paths() -> list[Path]:
    """Every recorded ACP conversation."""
    folders = [HERE, *(Path(name) for name in [os.environ.get("AVENOR_TRANSCRIPTS")] if name)]
    found = [path for folder in folders for path in sorted(folder.glob("*.ndjson"))]
    return [path for path in found if not path.name.startswith(OTHER_WIRES)]


def read_transcript(path: Path) -> list[tuple[str, Message]]:
    """The lines of a transcript: direction and message."""
    records = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return [(record["dir"], record["msg"]) for record in records]


def agent_messages(method: str | None = None) -> Iterator[tuple[str, Message]]:
    """What agents said, with the name of the transcript; all of it, or the calls of one method."""
    for path in transcript_paths():
        for direction, message in read_transcript(path):
            if direction == "agent->client" and (method is None or message.get("method") == method):
                yield path.stem, message


def answers(method: str) -> Iterator[tuple[str, Message]]:
    """What agents answered to calls of a method, with the name of the transcript."""
    for path in transcript_paths():
        asked: dict[Any, str] = {}
        for direction, message in read_transcript(path):
            if direction == "meta":
                asked.clear()  # another process begins, and its ids with it
            elif direction == "client->agent" and "method" in message and "id" in message:
                asked[message["id"]] = message["method"]
            elif direction == "agent->client" and "method" not in message and asked.get(message.get("id")) == method:
                yield path.stem, message
