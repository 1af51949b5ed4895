"""Plays codex's side of a recorded conversation: `codex_replay_agent.py TRANSCRIPT LOG`. A program, not a test.

As `replay_agent.py` for ACP, with two differences: it answers `model/list`, which the recorded client did not call
before its thread, by itself; and where it waits for an interrupt it says `WAITING` on stdout.
"""

import json
import sys
from pathlib import Path
from typing import Any

_MODELS = {
    "data": [{"model": "gpt-5.5", "supportedReasoningEfforts": [{"reasoningEffort": "high"}]}],
    "nextCursor": None,
}


class Replay:
    """codex's end of the conversation."""

    def __init__(self, log: Path) -> None:
        self._log = log.open("a", encoding="utf-8")
        self._ids: dict[Any, Any] = {}
        self._calls: list[dict[str, Any]] = []
        self._answered: set[Any] = set()

    def play(self, records: list[dict[str, Any]]) -> None:
        for record in records:
            message = record["msg"]
            if record["dir"] == "agent->client":
                self._say(message if "method" in message else {**message, "id": self._ids[message["id"]]})
            elif "method" in message:
                self._expect_call(message)
            else:
                while message["id"] not in self._answered:
                    self._hear()
        while True:
            self._hear()

    def _say(self, message: dict[str, Any]) -> None:
        sys.stdout.write(json.dumps(message) + "\n")
        sys.stdout.flush()

    def _expect_call(self, recorded: dict[str, Any]) -> None:
        if recorded["method"] == "turn/interrupt":
            sys.stdout.write("WAITING\n")
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
        if message.get("method") == "model/list":
            self._say({"id": message["id"], "result": _MODELS})
        elif "method" in message:
            self._calls.append(message)
        else:
            self._answered.add(message["id"])


if __name__ == "__main__":
    lines = Path(sys.argv[1]).read_text(encoding="utf-8").splitlines()
    Replay(Path(sys.argv[2])).play([json.loads(text) for text in lines])
