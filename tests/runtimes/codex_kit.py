"""What tests of the codex adapter need: a codex that does what its prompt says, or that plays a recording."""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from avenor.runtimes.backends.base import OpenParams
from avenor.runtimes.backends.codex import CodexBackend
from avenor.runtimes.backends.profiles import builtin
from tests.runtimes.agent_kit import make_params, python_agent

# Answers as codex does. A prompt is a list of what to do: messages to send, or one of
#   {"wait": METHOD}     hears on until the client has called this
#   {"answered": ID}     hears on until the client has answered this
#   {"raw": TEXT}        writes a line as it is
#   {"long": N}          writes a line of N letters
#   {"start": VALUE}     as the first: answers `turn/start` with this, or not at all if it is null
#   {"late": VALUE}      answers it now
#   {"exit": CODE}       ends
# Everything that it hears is in the file `heard` in its working directory.
_MINI_CODEX = """
import json, sys
heard, calls, answers = open("heard", "a"), [], []
REPLIES = json.loads(sys.argv[1])

def say(message):
    print(json.dumps(message), flush=True)

def hear():
    line = sys.stdin.readline()
    if not line:
        sys.exit(0)
    heard.write(line)
    heard.flush()
    message = json.loads(line)
    if "method" not in message:
        answers.append(message["id"])
        return
    calls.append(message["method"])
    if message["method"] in REPLIES and "id" in message:
        reply = dict(REPLIES[message["method"]])
        if "before" in reply:
            say(reply.pop("before"))
        say({"id": message["id"], **reply})
    elif message["method"] == "turn/start":
        run(message["id"], json.loads(message["params"]["input"][0]["text"]))

def run(start_id, things):
    if not (things and "start" in things[0]):
        say({"id": start_id, "result": {"turn": {"id": "turn-1"}}})
    for thing in things:
        match thing:
            case {"wait": method}:
                while method not in calls:
                    hear()
            case {"answered": question}:
                while question not in answers:
                    hear()
            case {"raw": text}:
                print(text, flush=True)
            case {"long": count}:
                print("x" * count, flush=True)
            case {"start": None}:
                pass
            case {"start": value}:
                say({"id": start_id, **value})
            case {"late": value}:
                say({"id": start_id, **value})
            case {"exit": code}:
                sys.exit(code)
            case _:
                say(thing)

while True:
    hear()
"""

_THREAD: dict[str, Any] = {
    "thread": {"id": "thread-1"},
    "model": "small",
    "approvalPolicy": "on-request",
    "sandbox": {"type": "workspaceWrite"},
    "reasoningEffort": None,
}
_MODELS = [
    {"model": "small", "supportedReasoningEfforts": [{"reasoningEffort": "low"}, {"reasoningEffort": "high"}]},
    {"model": "large", "supportedReasoningEfforts": [{"reasoningEffort": "ultra"}]},
]
STARTED: dict[str, Any] = {
    "method": "turn/started",
    "params": {"threadId": "thread-1", "turn": {"id": "turn-1", "status": "inProgress"}},
}


def completed(status: str = "completed", *, turn_id: str = "turn-1", **members: object) -> dict[str, Any]:
    """The end of a turn."""
    turn = {"id": turn_id, "status": status, "error": None, **members}
    return {"method": "turn/completed", "params": {"threadId": "thread-1", "turn": turn}}


def told(method: str, **members: object) -> dict[str, Any]:
    """A notification of the thread."""
    return {"method": method, "params": {"threadId": "thread-1", "turnId": "turn-1", **members}}


def doing(*things: Mapping[str, object]) -> str:
    """A prompt that makes the small codex do these things."""
    return json.dumps(things)


def thread(**changes: object) -> dict[str, Any]:
    """What codex answers to the opening of a thread."""
    return {"result": {**_THREAD, **changes}}


def small_codex(folder: Path, **replies: object) -> tuple[CodexBackend, OpenParams]:
    """A backend with a small codex, and params for a session in the folder.

    Args:
        folder: Its working directory.
        replies: What it answers, by method; `_` in the name stands for `/`. `before` beside it is said first.
    """
    usual: dict[str, object] = {
        "initialize": {"result": {"userAgent": "avenor/9.9.9 (Nowhere)"}},
        "model/list": {"result": {"data": _MODELS, "nextCursor": None}},
        "thread/start": thread(),
        "thread/resume": thread(),
        "turn/interrupt": {"result": {}},
    }
    given = {name.replace("_", "/"): reply for name, reply in replies.items()}
    argv = python_agent(folder, _MINI_CODEX, json.dumps({**usual, **given}))
    return codex_in_place(argv), make_params(folder)


def heard(folder: Path) -> list[dict[str, Any]]:
    """All that the small codex has heard."""
    return [json.loads(line) for line in (folder / "heard").read_text().splitlines()]


def codex_in_place(argv: Sequence[str]) -> CodexBackend:
    """The backend with another program line."""
    return CodexBackend(msgspec.structs.replace(builtin("codex-app-server"), argv=argv), "1.0")


def replaying(folder: Path, transcript: Path, log: Path) -> tuple[CodexBackend, OpenParams]:
    """A backend whose codex plays a transcript, and params for a session in the folder."""
    agent = Path(__file__).parent / "codex_replay_agent.py"
    return codex_in_place([sys.executable, str(agent), str(transcript), str(log)]), make_params(folder)
