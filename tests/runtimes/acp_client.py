"""A small blocking ACP client that plays the other side of the scripted agent, and checks every message it gets."""

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
from acp import schema

Message = dict[str, Any]

_RESULTS: dict[str, type[schema.BaseModel]] = {
    "initialize": schema.InitializeResponse,
    "session/new": schema.NewSessionResponse,
    "session/load": schema.LoadSessionResponse,
    "session/resume": schema.ResumeSessionResponse,
    "session/list": schema.ListSessionsResponse,
    "session/close": schema.CloseSessionResponse,
    "session/set_mode": schema.SetSessionModeResponse,
    "session/set_config_option": schema.SetSessionConfigOptionResponse,
    "session/prompt": schema.PromptResponse,
}
_CALLS: dict[str, type[schema.BaseModel]] = {
    "session/update": schema.SessionNotification,
    "session/request_permission": schema.RequestPermissionRequest,
}
_SECONDS = 60.0


class Turn(msgspec.Struct):
    """What a prompt led to: its answer, and the messages that came before it."""

    answer: Message
    messages: list[Message]

    @property
    def stop_reason(self) -> str:
        return str(self.answer["result"]["stopReason"])

    @property
    def updates(self) -> list[Message]:
        calls = [message for message in self.messages if message.get("method") == "session/update"]
        return [call["params"]["update"] for call in calls]

    def of_kind(self, kind: str) -> list[Message]:
        return [update for update in self.updates if update["sessionUpdate"] == kind]

    @property
    def text(self) -> str:
        return "".join(update["content"]["text"] for update in self.of_kind("agent_message_chunk"))


class Client:
    """One agent process.

    Args:
        directory: Holds the script and the agent's state, and is the working directory of its sessions.
        script: None plays the default script.
        checks: Whether messages must fit the ACP schema; off for scripts that break it on purpose.
    """

    def __init__(
        self, directory: Path, script: Any = None, *, checks: bool = True, env: dict[str, str] | None = None
    ) -> None:
        self.directory = directory
        arguments: list[str] = []
        if script is not None:
            path = directory / "script.json"
            path.write_text(json.dumps(script))
            arguments = ["--script", str(path)]
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("AVENOR_")}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "avenor.runtimes.scripted", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**inherited, "AVENOR_SCRIPTED_STATE": str(directory / "state"), **(env or {})},
        )
        self.session_id = ""
        self.on_permission: Callable[[Message], Any] | None = None
        self._checks = checks
        self._buffer = b""
        self._next_id = 1
        self._methods: dict[int, str] = {}

    # --- bytes ------------------------------------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(data)
        self.process.stdin.flush()

    def read_line(self) -> bytes | None:
        """The next line with its newline, or what is left at the end; None after that."""
        assert self.process.stdout is not None
        deadline = time.monotonic() + _SECONDS
        while b"\n" not in self._buffer:
            ready, _, _ = select.select([self.process.stdout], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, f"nothing came within {_SECONDS:g} s after {self._buffer[-200:]!r}"
            data = os.read(self.process.stdout.fileno(), 1 << 16)
            if not data:
                line, self._buffer = self._buffer, b""
                return line or None
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line + b"\n"

    def stderr(self) -> str:
        """Everything on stderr, once the agent has ended."""
        assert self.process.stderr is not None
        return self.process.stderr.read().decode()

    # --- messages ---------------------------------------------------------------------------------------------------

    def send(self, message: Message) -> None:
        self.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")

    def start(self, method: str, params: Any) -> int:
        """Sends a request; returns its id."""
        request_id = self._next_id
        self._next_id += 1
        self._methods[request_id] = method
        self.send({"id": request_id, "method": method, "params": params})
        return request_id

    def read(self) -> Message:
        line = self.read_line()
        assert line is not None, f"the agent has ended: {self.stderr()}"
        message: Message = json.loads(line)
        if self._checks:
            self._check(message)
        return message

    def wait_answer(self, request_id: int) -> Turn:
        """Reads up to an answer, and answers permission requests by `on_permission` on the way."""
        messages: list[Message] = []
        while True:
            message = self.read()
            if message.get("id") == request_id and "method" not in message:
                return Turn(message, messages)
            messages.append(message)
            if message.get("method") == "session/request_permission" and self.on_permission is not None:
                self.send({"id": message["id"], **self.on_permission(message)})

    def call(self, method: str, params: Any) -> Message:
        return self.wait_answer(self.start(method, params)).answer

    def wait_method(self, method: str) -> Message:
        """Reads up to a request or notification with this method."""
        while (message := self.read()).get("method") != method:
            pass
        return message

    # --- sessions ---------------------------------------------------------------------------------------------------

    def initialize(self) -> Message:
        return self.call("initialize", {"protocolVersion": 1, "clientCapabilities": {}})

    def open(self) -> "Client":
        """Initializes and opens a session."""
        self.initialize()
        answer = self.call("session/new", {"cwd": str(self.directory), "mcpServers": []})
        self.session_id = answer["result"]["sessionId"]
        return self

    def restore(self, method: str, session_id: str) -> Turn:
        self.session_id = session_id
        params: Message = {"sessionId": session_id, "cwd": str(self.directory), "mcpServers": []}
        return self.wait_answer(self.start(method, params))

    def start_prompt(self, text: str) -> int:
        prompt = [{"type": "text", "text": text}]
        return self.start("session/prompt", {"sessionId": self.session_id, "prompt": prompt})

    def prompt(self, text: str) -> Turn:
        return self.wait_answer(self.start_prompt(text))

    def cancel(self) -> None:
        self.send({"method": "session/cancel", "params": {"sessionId": self.session_id}})

    # --- the end ----------------------------------------------------------------------------------------------------

    def close_stdin(self) -> None:
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):  # it may just have ended
            self.process.stdin.close()

    def wait_exit(self) -> int:
        return self.process.wait(_SECONDS)

    def kill(self) -> None:
        """Ends it, whatever it is at."""
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            assert stream is not None
            with suppress(BrokenPipeError):
                stream.close()

    def _check(self, message: Message) -> None:
        """The message fits the schema, and nothing in it was mended by the models or is unknown to them."""
        assert message["jsonrpc"] == "2.0"
        if "method" in message:
            model, body = _CALLS[message["method"]], message["params"]
        elif "error" in message:
            model, body = schema.Error, message["error"]
        else:
            method = self._methods[message["id"]]
            if method == "session/set_model":  # no longer in the schema, and still in agents
                return
            model, body = _RESULTS[method], message["result"]
        parsed = model.model_validate(body)
        assert parsed.model_dump(by_alias=True, exclude_unset=True, mode="json") == body


@contextmanager
def open_client(directory: Path, script: Any = None, **options: Any) -> Generator[Client]:
    """A client whose agent, if it still runs at the end of the test, must end well when its stdin does."""
    client = Client(directory, script, **options)
    try:
        yield client
        if client.process.poll() is None:
            client.close_stdin()
            assert client.wait_exit() == 0
    finally:
        client.kill()


def answer_with(option_id: str) -> Callable[[Message], Message]:
    """Answers permission requests with one option."""
    return lambda request: {"result": {"outcome": {"outcome": "selected", "optionId": option_id}}}


def play(*steps: Message, **script: Any) -> Message:
    """A script that plays these steps for every prompt."""
    return {"rules": [{"steps": list(steps)}], **script}
