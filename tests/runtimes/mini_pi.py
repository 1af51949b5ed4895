"""A pi of a few lines, to be started by a test in place of the real one: `mini_pi.py PLAN …`. A program, not a test.

The plan is a JSON file with what differs from an ordinary pi, every member optional:

    state       what `get_state` answers
    later       what it answers after the opening, once each
    models      what `get_available_models` answers; the one of the state if it is left out
    levels      what `get_available_thinking_levels` answers; without it, pi does not know the command
    extension   what our extension's command says; null is a pi that has not loaded it
    first       lines to write before anything is read
    dies_of     words of the command line at which it ends with status 1
    prompts     for each prompt, the records that follow its answer; at a `die` it ends with status 1, at a `hear` it
                waits for the answer to a question
    aborted     the records that come before the answer to an abort
    refuses     the error that every prompt is answered with
    log         where to keep what it gets
"""

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

Record = dict[str, Any]

MODEL: Record = {"id": "large", "provider": "standin", "contextWindow": 1000}
STATE: Record = {"sessionId": "session-1", "model": MODEL, "thinkingLevel": "off", "isStreaming": False}
EXTENSION: Record = {"version": "0.0", "asks": os.environ.get("AVENOR_PI_ASK") == "1"}


def main(plan: Record, words: list[str]) -> None:
    """Plays pi until stdin is closed."""
    for line in plan.get("first", []):
        sys.stdout.write(line + "\n")
    sys.stdout.flush()
    if any(word in words for word in plan.get("dies_of", [])):
        sys.stderr.write(plan.get("last_words", "I cannot") + "\n")
        sys.exit(1)
    prompts = list(plan.get("prompts", []))
    later = [None, *plan.get("later", [])]
    heard = hear(plan)
    for message in heard:
        if message["type"] == "extension_ui_response":
            continue
        if message["type"] == "abort":
            say_all(plan.get("aborted", []), heard, plan)
        state = later.pop(0) if message["type"] == "get_state" and later else None
        answer(message, plan if state is None else {**plan, "state": state})
        if message["type"] == "prompt" and "refuses" not in plan:
            say_all(prompts.pop(0), heard, plan)


def hear(plan: Record) -> Iterator[Record]:
    """What comes, kept in the log."""
    for line in iter(sys.stdin.readline, ""):
        if "log" in plan:
            with Path(plan["log"]).open("a", encoding="utf-8") as log:
                log.write(line)
        yield json.loads(line)


def answer(message: Record, plan: Record) -> None:
    """Answers one command."""
    state = {**STATE, **plan.get("state", {})}
    extension = plan.get("extension", EXTENSION)
    known: Record = {
        "get_state": state,
        "get_available_models": {"models": plan.get("models", [state["model"]])},
        "get_commands": {"commands": [{"name": "avenor", "description": json.dumps(extension)}] if extension else []},
        "prompt": plan.get("accepted"),
        "abort": None,
    }
    if "levels" in plan:
        known["get_available_thinking_levels"] = {"levels": plan["levels"]}
    response: Record = {"type": "response", "command": message["type"], "success": True}
    if message["type"] not in known:
        say({**response, "success": False, "error": f"Unknown command: {message['type']}"})
    elif message["type"] == "prompt" and "refuses" in plan:
        say({**response, "id": message["id"], "success": False, "error": plan["refuses"]})
    else:
        say({**response, "id": message["id"], "data": known[message["type"]]})


def say_all(records: list[Record], heard: Iterator[Record], plan: Record) -> None:
    """Writes records; ends at a `die`."""
    for record in records:
        if record["type"] == "hear":
            while (message := next(heard))["type"] != "extension_ui_response":
                answer(message, plan)
            continue
        if record["type"] == "die":
            sys.stderr.write("this is the end\n")
            sys.exit(1)
        say(record)


def say(record: Record) -> None:
    """Writes one record."""
    sys.stdout.write(json.dumps(record) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")), sys.argv[2:])
