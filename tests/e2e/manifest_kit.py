"""A small repository with a retry bug, the manifest of the seed, and members that a script plays."""

import copy
import json
import subprocess
import threading
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import yaml

from tests.e2e.harness import Place, Run, say

_SEED = Path(__file__).parents[1] / "data" / "manifests" / "seed.yaml"
_ROSTER = Path(__file__).parents[1] / "data" / "manifests" / "roster-scripted.yaml"

BROKEN = """\
def retry(call, attempts):
    for number in range(attempts - 1):
        try:
            return call()
        except TimeoutError:
            pass
    raise TimeoutError
"""
FIXED = BROKEN.replace("attempts - 1", "attempts")
TEST = """\
from src.retry import retry


def test_retries_as_often_as_it_may():
    calls = []

    def call():
        calls.append(1)
        if len(calls) < 3:
            raise TimeoutError
        return "done"

    assert retry(call, 3) == "done"
"""

Step = dict[str, Any]
Acts = Mapping[str, list[Step]]


def repository(place: Place) -> None:
    """The place's working directory becomes a repository whose test fails, tagged `r1`."""
    (place.work / "src").mkdir()
    (place.work / "tests").mkdir()
    (place.work / "src" / "__init__.py").write_text("")
    (place.work / "src" / "retry.py").write_text(BROKEN)
    (place.work / "tests" / "test_retry.py").write_text(TEST)
    git(place, "init", "-q", "-b", "main")
    git(place, "add", ".")
    git(place, "commit", "-q", "-m", "a retry bug")
    git(place, "tag", "r1")


def git(place: Place, *arguments: str) -> str:
    """What git says."""
    identity = ["-c", "user.name=a", "-c", "user.email=a@example", "-c", "commit.gpgsign=false"]
    return subprocess.check_output(["git", *identity, *arguments], cwd=place.work, text=True).strip()


def result(subject: str, claim: str, **members: Any) -> Step:
    """Hands over a result by tool."""
    findings = [{"subject": subject, "claim": claim, "finding": f"{subject}: {claim}"}]
    arguments = {"source_revision": "{env:AVENOR_REVISION}", "plan_epoch": 7, "findings": findings, **members}
    return {"do": "mcp", "tool": "submit_result", "arguments": arguments}


def verdict(word: str, **members: Any) -> Step:
    """Hands over a verdict by tool."""
    arguments = {"verdict": word, "revision": "{env:AVENOR_REVISION}", **members}
    return {"do": "mcp", "tool": "submit_verdict", "arguments": arguments}


def message(subject: str, claim: str) -> Step:
    """Hands over a result at the end of a message."""
    findings = [{"subject": subject, "claim": claim, "finding": claim}]
    record = {"source_revision": "git:r1", "plan_epoch": 7, "findings": findings}
    return say(f"Here it is.\n```json avenor-result\n{json.dumps(record)}\n```\n")


FIX: Step = {"do": "write", "path": "src/retry.py", "text": FIXED, "ask": True}

DEFAULTS: Acts = {
    "planner": [
        {
            "do": "mcp",
            "tool": "create_task",
            "arguments": {"member": "test_reader", "contract": "find the missing case", "paths": ["tests"]},
        },
        result("plan", "two readers, one writer"),
    ],
    "implementation_reader": [
        {"do": "tool", "title": "Read src/retry.py", "kind": "read", "locations": ["src/retry.py"], "ask": True},
        result("loop bound", "one attempt too few"),
    ],
    "test_reader": [message("missing case", "the last attempt succeeds")],
    "writer": [FIX, result("change", "the bound is mended")],
    "evaluator": [{"do": "mcp", "tool": "read_test_receipt", "arguments": {}}, verdict("accept")],
}


def script(place: Place, acts: Acts | None = None, **members: Any) -> str:
    """A script with these steps for the members of these names, and the usual ones for the rest."""
    played = {**DEFAULTS, **(acts or {})}
    rules: list[Step] = [{"match": f"^You are `{name}`", "steps": steps} for name, steps in played.items()]
    return place.script(*rules, {"steps": [say("I have nothing to say.")]}, **members)


def seed() -> dict[str, Any]:
    """The manifest of the seed, to be changed."""
    found: dict[str, Any] = yaml.safe_load(_SEED.read_text())
    return found


def roster(place: Place, played: str) -> dict[str, Any]:
    """A roster in which this script plays every profile."""
    found: dict[str, Any] = copy.deepcopy(yaml.safe_load(_ROSTER.read_text()))
    for profile in found["profiles"].values():
        profile["script"] = played
        profile.pop("model", None)
    return found


class Team:
    """One run of a manifest on the scripted agent.

    Args:
        place: Where.
        acts: What members do, by id.
        manifest: Changed or not; the seed's by default.
        changes: Of the roster, merged into its parts.
        flags: More flags of `avenor run`.
    """

    def __init__(
        self,
        place: Place,
        acts: Acts | None = None,
        *,
        manifest: dict[str, Any] | None = None,
        changes: Mapping[str, Mapping[str, Any]] | None = None,
        flags: tuple[str, ...] = (),
    ) -> None:
        repository(place)
        self.place = place
        declared = roster(place, script(place, acts))
        for part, values in (changes or {}).items():
            declared[part] = {**declared.get(part, {}), **values}
        self.files = [str(place.path / "team.json"), str(place.path / "roster.json")]
        Path(self.files[0]).write_text(json.dumps(manifest or seed()))
        Path(self.files[1]).write_text(json.dumps(declared))
        self.flags = ["--manifest", self.files[0], "--roster", self.files[1], *flags]

    def run(self) -> Run:
        """Starts it."""
        return Run(self.place, self.flags)


def told(run: Run, name: str, **members: Any) -> list[dict[str, Any]]:
    """The events of this name with these members."""
    wanted = {"event": name, **members}
    return [event for event in run.events() if wanted.items() <= event.items()]


def history(run: Run, task_id: str) -> list[str]:
    """The states that a task has gone through."""
    return [event["state"] for event in told(run, "avenor.task", task_id=task_id)]


def started(run: Run) -> list[str]:
    """The attempts, in the order of their starts."""
    return [event["attempt_id"] for event in told(run, "avenor.task", state="started")]


@contextmanager
def model_service() -> Generator[tuple[str, list[str]], None, None]:
    """A model service that answers everything with a word: its address, and what it was asked."""
    served: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            served.append(body["messages"][-1]["content"])
            message = {"role": "assistant", "content": "fine"}
            answer = json.dumps(
                {
                    "id": "1",
                    "object": "chat.completion",
                    "model": "m",
                    "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
                    "usage": {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15},
                }
            ).encode()
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/v1", served
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
