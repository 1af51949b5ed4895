"""Plays pi's side of a recorded conversation: `pi_replay_agent.py TRANSCRIPT LOG …`. A program, not a test.

It says what pi said, when the client has said what came before it, with the client's own ids. Commands that only ask
are free: they are answered at any time, by what pi answered in the recording, or would have. Everything else that it
gets goes to LOG, a record a line. Where it waits for an abort it says `WAITING FOR abort`, no record, on stdout,
behind all that the recorded client had read by then; only a person would know when to send one. A client that sends
another record than the recorded one ends it with code 3.
"""

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

Record = dict[str, Any]

_EXTENSION = {"name": "avenor", "description": json.dumps({"version": "recorded", "asks": True}), "source": "extension"}


class Replay:
    """pi's end of the conversation.

    Args:
        records: What was recorded of one process.
        log: Where to keep what the client sends.
    """

    def __init__(self, records: list[Record], log: Path) -> None:
        self._records = records
        self._log = log.open("a", encoding="utf-8")
        self._heard: list[Record] = []
        self._ids: dict[Any, Any] = {}
        self._is_running = False

    def play(self) -> None:
        for record in self._records:
            message = record["msg"]
            if record["dir"] == "agent->client":
                self._say(message)
            elif record["dir"] == "client->agent" and not message["type"].startswith("get_"):
                self._expect(message)
            elif "killed" in message:
                os.kill(os.getpid(), signal.SIGKILL)
        while True:
            self._hear()

    def _say(self, message: Record) -> None:
        if message["type"] == "response":
            if message["command"].startswith("get_"):
                return
            message = {**message, "id": self._ids[message["id"]]}
        if message["type"] in ("agent_start", "agent_end"):
            self._is_running = message["type"] == "agent_start"
        self._write(message)

    def _expect(self, recorded: Record) -> None:
        if recorded["type"] == "abort":
            sys.stdout.write("WAITING FOR abort\n")
            sys.stdout.flush()
        while not self._heard:
            self._hear()
        heard = self._heard.pop(0)
        if heard["type"] != recorded["type"]:
            sys.stderr.write(f"expected {recorded['type']}, got {heard['type']}\n")
            sys.exit(3)
        self._ids[recorded["id"]] = heard["id"]

    def _hear(self) -> None:
        line = sys.stdin.readline()
        if not line:
            sys.exit(0)
        message = json.loads(line)
        if message["type"].startswith("get_"):
            self._answer(message)
            return
        self._log.write(line)
        self._log.flush()
        self._heard.append(message)

    def _answer(self, message: Record) -> None:
        command = message["type"]
        response: Record = {"type": "response", "command": command, "success": True}
        state = self._recorded("get_state")
        match command:
            case "get_state":
                response["data"] = {**state, "isStreaming": self._is_running}
            case "get_available_models":
                response["data"] = {"models": [state["model"]]}
            case "get_commands":
                response["data"] = {"commands": [_EXTENSION]}
            case _:
                # As 0.73 answers: without the id.
                self._write({**response, "success": False, "error": f"Unknown command: {command}"})
                return
        self._write({**response, "id": message["id"]})

    def _recorded(self, command: str) -> Record:
        found = (r["msg"] for r in self._records if r["dir"] == "agent->client" and r["msg"].get("command") == command)
        data: Record = next(found)["data"]
        return data

    def _write(self, message: Record) -> None:
        sys.stdout.write(json.dumps(message) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    lines = Path(sys.argv[1]).read_text(encoding="utf-8").splitlines()
    Replay([json.loads(text) for text in lines], Path(sys.argv[2])).play()
