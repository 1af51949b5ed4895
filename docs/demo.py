"""The demonstration behind `make demo`.

Starts a supervisor, gives three rehearsed agents work, shows them live, answers the permission that one of them asks
for, sends one a follow-up, and shuts down. Then it reads everything back from the list, the logs and the sentinels,
says what it found, and fails if they disagree. No model, no account, no network.
"""

import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

AVENOR = [sys.executable, "-m", "avenor.cli"]
SCRIPT = Path(__file__).with_name("demo.json")
TASKS = {
    "reviewer": "Review the retry change.",
    "fixer": "Fix the unbounded delay.",
    "tester": "Write the test that is missing.",
}
FOLLOW_UP = "And what did I ask you before?"
COLORS = {"reviewer": "36", "fixer": "33", "tester": "35"}


def say(text: str = "") -> None:
    """Prints a line at once."""
    print(text, flush=True)


def paint(text: str, color: str) -> str:
    """The text in this colour, on a terminal that wants colours."""
    if sys.stdout.isatty() and "NO_COLOR" not in os.environ:
        return f"\x1b[{color}m{text}\x1b[0m"
    return text


class Demo:
    """One demonstration in a folder of its own.

    Args:
        folder: Where the socket, the state and the agents' work go.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.socket = folder / "stable.sock"
        self.state = folder / "state"
        self.repository = folder / "repository"
        self.seen: dict[str, list[dict[str, Any]]] = {}
        self.asked = threading.Event()
        self.rest: dict[str, threading.Semaphore] = {label: threading.Semaphore(0) for label in TASKS}

    def control(self, *arguments: str) -> str:
        """What `avenor control` prints.

        Raises:
            subprocess.CalledProcessError: It failed; its own message is on stderr.
        """
        command = [*AVENOR, "control", "--socket", str(self.socket), *arguments]
        return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout

    def run(self) -> list[tuple[str, bool]]:
        """The whole story; returns what was checked, and whether it held."""
        self.repository.mkdir()
        supervisor = self.start_supervisor()
        try:
            ids = {label: self.spawn(label, prompt) for label, prompt in TASKS.items()}
            tails = [self.follow(label, runtime_id) for label, runtime_id in ids.items()]
            self.answer(ids["fixer"])
            self.wait_for_turns()
            say(f"\n$ avenor control prompt '{FOLLOW_UP}' {ids['reviewer']}")
            self.control("prompt", FOLLOW_UP, ids["reviewer"])
            self.rest["reviewer"].acquire(timeout=30)
            listed: list[dict[str, Any]] = json.loads(self.control("list", "--json"))
            say("\n$ avenor control shutdown graceful")
            self.control("shutdown", "graceful")
            supervisor.wait(timeout=30)
            for tail in tails:
                tail.join(timeout=30)
        finally:
            supervisor.kill()
        return list(self.check(ids, listed))

    def start_supervisor(self) -> "subprocess.Popen[bytes]":
        """Starts it, and waits until it answers."""
        say(f"$ avenor stable --control-socket {self.socket} --state-dir {self.state}")
        command = [*AVENOR, "stable", "--control-socket", str(self.socket), "--state-dir", str(self.state)]
        supervisor = subprocess.Popen([*command, "--log-level", "error"], start_new_session=True)
        ready = [*AVENOR, "control", "--socket", str(self.socket), "list"]
        for _ in range(200):
            if supervisor.poll() is not None:
                sys.exit(f"the supervisor ended with exit code {supervisor.returncode}")
            if subprocess.run(ready, capture_output=True).returncode == 0:
                return supervisor
        sys.exit("the supervisor does not answer")

    def spawn(self, label: str, prompt: str) -> str:
        """Starts a run and returns its runtime id."""
        say(f"$ avenor control spawn --backend scripted --label {label} --prompt '{prompt}'")
        answer = self.control(
            "spawn", "--backend", "scripted", "--script", str(SCRIPT), "--dir", str(self.repository),
            "--label", label, "--prompt", prompt,
        )  # fmt: skip
        return str(json.loads(answer)["runtime_id"])

    def follow(self, label: str, runtime_id: str) -> threading.Thread:
        """Shows a run's events from its first to its last."""
        command = [*AVENOR, "control", "--socket", str(self.socket), "tail", runtime_id, "--replay"]

        def read() -> None:
            tail = subprocess.Popen(command, stdout=subprocess.PIPE)
            assert tail.stdout is not None
            for line in tail.stdout:
                self.note(label, json.loads(line))
            tail.wait()

        thread = threading.Thread(target=read, daemon=True)
        thread.start()
        return thread

    def note(self, label: str, event: dict[str, Any]) -> None:
        """Takes one event: shows it, and says so to whoever waits for it."""
        self.seen.setdefault(label, []).append(event)
        shown = describe(event)
        if shown:
            say(f"  {paint(f'{label:>9}', COLORS[label])}  {shown}")
        if event["event"] == "permission.request":
            self.asked.set()
        if event["event"] == "turn.end":
            self.rest[label].release()

    def answer(self, runtime_id: str) -> None:
        """Waits until a permission is asked for, and allows it."""
        if not self.asked.wait(timeout=30):
            sys.exit("no permission was asked for")
        permission = json.loads(self.control("status", runtime_id))["permission"]
        option = next(o["optionId"] for o in permission["options"] if o["kind"] == "allow_once")
        say(f"\n$ avenor control answer-permission {permission['request_id']} {option} {runtime_id}")
        self.control("answer-permission", permission["request_id"], option, runtime_id)

    def wait_for_turns(self) -> None:
        """Waits until each run has ended its first turn."""
        for label in TASKS:
            if not self.rest[label].acquire(timeout=30):
                sys.exit(f"{label} did not end its turn")

    def check(self, ids: dict[str, str], listed: list[dict[str, Any]]) -> Iterator[tuple[str, bool]]:
        """Each claim about what happened, and whether the list, the logs and the sentinels agree on it."""
        snapshots = {entry["label"]: entry for entry in listed}
        logs = {label: read_log(Path(snapshots[label]["on_event"])) for label in ids}
        sentinels = {label: Path(snapshots[label]["sentinel_file"]).read_text().splitlines() for label in ids}
        yield (
            f"{len(listed)} runs were listed as idle, outcome DONE: {', '.join(sorted(snapshots))}",
            {(s["status"], s["outcome"]) for s in listed} == {("idle", "DONE")} and set(snapshots) == set(TASKS),
        )
        total = sum(len(log) for log in logs.values())
        yield (
            f"{total} events are in the logs, numbered without a gap, and every one of them was seen live",
            all(log == self.seen[label] for label, log in logs.items())
            and all([e["seq"] for e in log] == list(range(1, len(log) + 1)) for log in logs.values()),
        )
        asked = [e for log in logs.values() for e in log if e["event"] == "permission.request"]
        given = [e for log in logs.values() for e in log if e["event"] == "permission.response"]
        written = (self.repository / "retry.py").exists()
        yield (
            f"{len({e['request_id'] for e in asked})} permission was asked for, by fixer, and answered over the socket "
            f"with '{given[0]['option_id'] if given else '-'}'; the file was written after that",
            [e["source"] for e in given] == ["control"] and {e["run_label"] for e in asked} == {"fixer"} and written,
        )
        turns = {label: [e for e in log if e["event"] == "turn.end"] for label, log in logs.items()}
        remembered = TASKS["reviewer"] in turns["reviewer"][-1].get("final_output", "")
        yield (
            f"{sum(len(t) for t in turns.values())} turns were taken, 2 of them by reviewer, who remembered the first",
            {label: len(t) for label, t in turns.items()} == {"reviewer": 2, "fixer": 1, "tester": 1} and remembered,
        )
        usage = sum(s["usage"]["total_tokens"] for s in listed)
        reported = sum(e["usage"]["total_tokens"] for t in turns.values() for e in t)
        yield f"{usage} tokens were used, by the list and by the logs", usage == reported > 0
        yield (
            "3 sentinels say DONE, end_turn, and the session of their log",
            all(
                lines[0] == "DONE"
                and "STOP_REASON=end_turn" in lines
                and f"SESSION={logs[label][-1].get('session_id') or snapshots[label]['session_id']}" in lines
                for label, lines in sentinels.items()
            ),
        )
        yield (
            "every log ends with run.end, and every runtime's process is gone",
            all(log[-1]["event"] == "run.end" for log in logs.values()) and not any(is_alive(s["pid"]) for s in listed),
        )
        tombstone = Path(f"{self.socket}.dead")
        words = tombstone.read_text().strip() if tombstone.exists() else "nothing"
        yield (
            f"the supervisor left its tombstone and no socket: {words}",
            (words.startswith("STOPPED reason=shutdown ") and not self.socket.exists()),
        )


def describe(event: dict[str, Any]) -> str:
    """One event in a few words; nothing for those that would only be noise here."""
    name = event["event"]
    if name in ("agent.message_chunk", "agent.thought_chunk"):
        text = " ".join(event["content"].get("text", "").split())
        return f"{'says' if name == 'agent.message_chunk' else 'thinks'}: {text}"
    words = {
        "session.start": lambda: f"session {event['session_id']}",
        "turn.start": lambda: f"is asked: {event['text']}",
        "tool.call": lambda: f"tool: {event['title']}",
        "permission.request": lambda: f"asks for permission: {event['question']}",
        "permission.response": lambda: f"is told: {event['kind']}",
        "turn.end": lambda: f"ends its turn: {event['stop_reason']}",
        "run.end": lambda: f"has ended: {event['status']}",
    }
    return words[name]() if name in words else ""


def read_log(path: Path) -> list[dict[str, Any]]:
    """All events of a log."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def is_alive(pid: int) -> bool:
    """Whether a process with this id runs; one that has ended and waits to be reaped does not."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def main() -> int:
    """Runs the demonstration; 1 if anything was not as it should be."""
    with tempfile.TemporaryDirectory(prefix="avenor-demo-") as folder:
        results = Demo(Path(folder)).run()
    say("\nWhat was seen, read back from the list, the logs and the sentinels:\n")
    for claim, holds in results:
        say(f"  {paint('yes', '32') if holds else paint('NO ', '31')}  {claim}")
    return 0 if all(holds for _, holds in results) else 1


if __name__ == "__main__":
    sys.exit(main())
