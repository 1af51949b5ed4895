"""The steps that show as tool calls: permission first, then the work, then what it came to."""

import os
import signal
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any

import msgspec

from avenor.protocol.peer import IncomingResult
from avenor.protocol.script import Ask, Mcp, Run, Step, Tool, Write
from avenor.runtimes.scripted import mcp
from avenor.runtimes.scripted.acp import McpServer
from avenor.runtimes.scripted.loop import Cancelled, Wait
from avenor.runtimes.scripted.replies import steps_after
from avenor.runtimes.scripted.text import fill_all
from avenor.runtimes.scripted.turn import Steps, Turn

if TYPE_CHECKING:
    from subprocess import Popen

PlaySteps = Callable[[Turn, list[Step]], Steps]

# What a tool shows of its output; real agents cut it too.
OUTPUT_LIMIT_BYTES = 64 * 1024


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """A tool call as it is announced."""

    title: str
    kind: str
    raw_input: dict[str, Any]
    locations: list[str]


class Done(msgspec.Struct, frozen=True, kw_only=True):
    """What a tool call came to."""

    status: str = "completed"
    content: list[dict[str, Any]] = []
    raw_output: dict[str, Any] = {}


Work = Generator[Wait, bool, Done]


class _Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """ACP's RequestPermissionOutcome. Tolerant."""

    outcome: str
    option_id: str | None = msgspec.field(name="optionId", default=None)


class _PermissionReply(msgspec.Struct, frozen=True):
    """ACP's RequestPermissionResponse. Tolerant."""

    outcome: _Outcome


def play_tool(turn: Turn, step: Tool | Write | Run | Mcp, play_steps: PlaySteps) -> Steps:
    """Plays a tool step to its end, and then the steps that its permission leads to."""
    call, work = _prepare(turn, step, play_steps)
    call_id = step.id or turn.new_id("call")
    shown = {"toolCallId": call_id, **_describe(call)}
    turn.show({"sessionUpdate": "tool_call", "status": "pending", **shown})
    ask = Ask() if step.ask is True else step.ask or None
    try:
        option_id = (yield from _ask_permission(turn, ask, shown)) if ask is not None else None
        if ask is not None and not _allows(ask, option_id):
            _finish(turn, call_id, Done(status="failed", content=[_text_content("Permission was not given.")]))
            yield from play_steps(turn, ask.on_option.get(option_id or "", ask.on_reject))
            return
        turn.show({"sessionUpdate": "tool_call_update", "toolCallId": call_id, "status": "in_progress"}, is_kept=False)
        done = yield from work
    except Cancelled:
        _finish(turn, call_id, Done(status="failed", content=[_text_content("Cancelled.")]))
        raise
    _finish(turn, call_id, done)
    if ask is not None:
        yield from play_steps(turn, ask.on_option.get(option_id or "", ask.on_allow))
    if isinstance(step, Mcp):
        yield from play_steps(turn, steps_after(step.on_reply, turn.session.reply) or [])


def _prepare(turn: Turn, step: Tool | Write | Run | Mcp, play_steps: PlaySteps) -> tuple[Call, Work]:
    match step:
        case Tool():
            locations = [turn.path(location) for location in step.locations]
            raw_input = fill_all(step.input, turn.values())
            call = Call(title=turn.fill(step.title), kind=step.kind, raw_input=raw_input, locations=locations)
            return call, _pretend(turn, step, play_steps)
        case Write():
            path = turn.path(step.path)
            raw_input = {"path": path, "content": turn.fill(step.text)}
            call = Call(title=f"Write {os.path.basename(path)}", kind="edit", raw_input=raw_input, locations=[path])
            return call, _write(path, turn.fill(step.text), append=step.append)
        case Run():
            command = turn.fill(step.command)
            raw_input = {"command": command, "cwd": turn.session.cwd}
            call = Call(title=command, kind="execute", raw_input=raw_input, locations=[])
            return call, _run(turn, command, background=step.background)
        case Mcp():
            server = mcp.find_server(turn, step.server)
            arguments = fill_all(step.arguments, turn.values())
            title = f"{server.name if server else step.server}_{turn.fill(step.tool)}"
            call = Call(title=title, kind="other", raw_input=arguments, locations=[])
            return call, _call_mcp(turn, server, turn.fill(step.tool), arguments)


def _describe(call: Call) -> dict[str, Any]:
    locations = [{"path": path} for path in call.locations]
    return {"title": call.title, "kind": call.kind, "rawInput": call.raw_input, "locations": locations}


def _finish(turn: Turn, call_id: str, done: Done) -> None:
    update = {"sessionUpdate": "tool_call_update", "toolCallId": call_id, "status": done.status}
    turn.show({**update, "content": done.content, "rawOutput": done.raw_output})


def _text_content(text: str) -> dict[str, Any]:
    return {"type": "content", "content": {"type": "text", "text": text}}


# --- permission -----------------------------------------------------------------------------------------------------


def _ask_permission(turn: Turn, ask: Ask, shown: dict[str, Any]) -> Generator[Wait, bool, str | None]:
    """The id of the option that the client chose; None if it chose none. *Always* is remembered by kind of tool."""
    always = next((option.id for option in ask.options if option.kind == "allow_always"), None)
    if always is not None and shown["kind"] in turn.session.always_allowed:
        return always
    options = [{"optionId": option.id, "kind": option.kind, "name": option.name} for option in ask.options]
    params = {
        "sessionId": turn.session.session_id,
        "toolCall": {"status": "pending", **shown},
        "options": options,
    }
    reply = yield from turn.call("session/request_permission", params)
    if not isinstance(reply, IncomingResult):
        return None
    try:
        outcome = msgspec.json.decode(reply.result, type=_PermissionReply).outcome
    except msgspec.DecodeError:
        return None
    chosen = outcome.option_id if outcome.outcome == "selected" else None
    if chosen is not None and chosen == always:
        turn.session.always_allowed.add(shown["kind"])
    return chosen


def _allows(ask: Ask, option_id: str | None) -> bool:
    return any(option.id == option_id and option.kind.startswith("allow") for option in ask.options)


# --- work -----------------------------------------------------------------------------------------------------------


def _pretend(turn: Turn, step: Tool, play_steps: PlaySteps) -> Work:
    yield from play_steps(turn, step.steps)
    output = turn.fill(step.output)
    return Done(status=step.status, content=[_text_content(output)] if output else [], raw_output={"output": output})


def _call_mcp(turn: Turn, server: McpServer | None, tool: str, arguments: dict[str, Any]) -> Work:
    reply = yield from mcp.call_tool(turn, server, tool, arguments)
    turn.session.reply = reply.text
    status = "failed" if reply.is_error else "completed"
    content = [_text_content(reply.text)] if reply.text else []
    return Done(status=status, content=content, raw_output={"output": reply.text})


def _write(path: str, text: str, *, append: bool) -> Work:
    yield from ()
    try:
        old = _read_text(path)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "a" if append else "w", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        return Done(status="failed", content=[_text_content(str(error))], raw_output={"error": str(error)})
    diff = {"type": "diff", "path": path, "oldText": old, "newText": (old or "") + text if append else text}
    return Done(content=[diff], raw_output={"path": path})


def _read_text(path: str) -> str | None:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except FileNotFoundError:
        return None


def _run(turn: Turn, command: str, *, background: bool) -> Work:
    # Imported here because it would be a third of the agent's start, and most agents run nothing.
    from subprocess import DEVNULL, PIPE, STDOUT, Popen

    arguments = ["/bin/sh", "-c", command]
    try:
        process = Popen(
            arguments,
            cwd=turn.session.cwd,
            stdin=DEVNULL,
            stdout=DEVNULL if background else PIPE,
            stderr=DEVNULL if background else STDOUT,
            start_new_session=True,
        )
    except OSError as error:
        return Done(status="failed", content=[_text_content(str(error))], raw_output={"error": str(error)})
    if background:
        turn.loop.keep_child(lambda: process.poll() is not None)
        text = f"Running in the background as process {process.pid}."
        return Done(content=[_text_content(text)], raw_output={"pid": process.pid})
    output = yield from _wait_for_output(turn, process)
    text = output.decode("utf-8", "replace")
    status = "completed" if process.returncode == 0 else "failed"
    raw_output = {"output": text, "exit": process.returncode}
    return Done(status=status, content=[_text_content(text or "(no output)")], raw_output=raw_output)


def _wait_for_output(turn: Turn, process: "Popen[bytes]") -> Generator[Wait, bool, bytes]:
    """What the process wrote, when it has ended. What it leaves running may hold the pipe and is not waited for.

    However this ends, the process and its group do not outlive it, unless the process has ended by itself.
    """
    assert process.stdout is not None
    collector = _Collector(turn, process.stdout.fileno())
    try:
        yield Wait(is_over=lambda: process.poll() is not None)
        collector.read()
        return bytes(collector.output)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        collector.stop()
        process.stdout.close()


class _Collector:
    """Keeps a tool's pipe empty, and the first part of what came through it."""

    def __init__(self, turn: Turn, descriptor: int) -> None:
        self.output = bytearray()
        self._loop = turn.loop
        self._descriptor = descriptor
        self._is_watching = True
        os.set_blocking(descriptor, False)
        self._loop.add_reader(descriptor, self.read)

    def read(self) -> None:
        """Takes what is there; at its end stops watching, since an ended pipe would wake the loop for ever."""
        try:
            while data := os.read(self._descriptor, 65536):
                self.output += data[: OUTPUT_LIMIT_BYTES - len(self.output)]
        except BlockingIOError:
            return
        self.stop()

    def stop(self) -> None:
        if self._is_watching:
            self._is_watching = False
            self._loop.remove_reader(self._descriptor)
