"""Plays the agent's side of a recorded conversation: `replay_agent.py TRANSCRIPT LOG`. A program, not a test.

It says what the agent said, when the client has said what came before it, with the client's own ids. Everything that it
gets goes to LOG, a message a line. Where it waits for a cancel it says `WAITING FOR session/cancel`, no message, on
stdout, behind all that the recorded client had read by then; only a person would know when to send one. A client that
calls another method than the recorded one ends it with code 3.
"""

import json
import sys
from pathlib import Path
from typing import Any


class Replay:
    """The agent's end of the conversation."""

    def __init__(self, log: Path) -> None:
        self._log = log.open("a", encoding="utf-8")
        self._ids: dict[Any, Any] = {}
        self._calls: list[dict[str, Any]] = []
        self._answered: set[Any] = set()

    def play(self, records: list[dict[str, Any]]) -> None:
        for record in records:
            message = record["msg"]
            match record["dir"]:
                case "agent->client":
                    self._say(message)
                case "client->agent" if "method" in message:
                    self._expect_call(message)
                case "client->agent":
                    while message["id"] not in self._answered:
                        self._hear()
                case _:
                    pass
        while True:
            self._hear()

    def _say(self, message: dict[str, Any]) -> None:
        if "method" not in message:
            message = {**message, "id": self._ids[message["id"]]}
        sys.stdout.write(json.dumps(message) + "\n")
        sys.stdout.flush()

    def _expect_call(self, recorded: dict[str, Any]) -> None:
        if recorded["method"] == "session/cancel":
            sys.stdout.write("WAITING FOR session/cancel\n")
            sys.stdout.flush()
        while not self._calls:
            self._hear()
        call = self._calls.pop(0)
        if call["method"] != recorded["method"]:
            sys.stderr.write(f"expected {recorded['method']}, got {call['method']}\n")
            sys.exit(3)
        if "id" in recorded:
            self._ids[recorded["id"]] = call["id"]

    def _hear(self) -> None:
        line = sys.stdin.readline()
        if not line:
            sys.exit(0)
        self._log.write(line)
        self._log.flush()
        message = json.loads(line)
        if "method" in message:
            self._calls.append(message)
        else:
            self._answered.add(message["id"])


if __name__ == "__main__":
    lines = Path(sys.argv[1]).read_text(encoding="utf-8").splitlines()
    Replay(Path(sys.argv[2])).play([json.loads(text) for text in lines])
