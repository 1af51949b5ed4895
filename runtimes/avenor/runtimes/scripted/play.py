"""Plays steps, one after another, as a task of the loop."""

import os
import signal
import time
from base64 import b64decode
from contextlib import suppress
from typing import Any, NoReturn, assert_never

import msgspec
from msgspec import UNSET

from avenor.protocol.durations import parse_duration
from avenor.protocol.errors import INVALID_PARAMS
from avenor.protocol.peer import IncomingError
from avenor.protocol.script import (
    Barrier,
    Die,
    Echo,
    Fail,
    Flood,
    Hang,
    IgnoreCancel,
    Mcp,
    Model,
    Noise,
    Notify,
    Plan,
    PlanEntry,
    Recall,
    Request,
    Run,
    Say,
    Set,
    Stderr,
    Step,
    Stop,
    Think,
    Tool,
    Update,
    Usage,
    Wait,
    WaitFor,
    Write,
)
from avenor.runtimes.scripted import loop
from avenor.runtimes.scripted.connection import make_error
from avenor.runtimes.scripted.loop import Loop, pause
from avenor.runtimes.scripted.model import ask_model
from avenor.runtimes.scripted.text import cut, fill_all
from avenor.runtimes.scripted.tools import play_tool
from avenor.runtimes.scripted.turn import Steps, Turn, TurnEnded, TurnFailed

# How often a path is looked at: nothing that works on every file system tells a waiting process of a new file.
PATH_POLL_SECONDS = 0.02
FLOOD_BATCH = 32


def play_steps(turn: Turn, steps: list[Step]) -> Steps:
    """Plays the steps in order.

    Raises:
        TurnEnded: A step ended the turn.
        TurnFailed: A step ended it with an error.
        Cancelled: It was cancelled, where it waited.
    """
    for step in steps:
        yield from _play(turn, step)


def _play(turn: Turn, step: Step) -> Steps:  # a flat dispatch
    match step:
        case Say():
            yield from _speak(turn, step, "message", turn.fill(step.text))
        case Think():
            yield from _speak(turn, step, "thought", turn.fill(step.text))
        case Echo():
            yield from _speak(turn, step, "message", turn.prompt)
        case Recall():
            yield from _speak(turn, step, "message", _recollection(turn))
        case Tool() | Write() | Run() | Mcp():
            yield from play_tool(turn, step, play_steps)
        case Model():
            yield from ask_model(turn, step, play_steps)
        case Wait():
            yield from pause(parse_duration(step.seconds))
        case WaitFor():
            yield from _wait_for_path(turn, step)
        case Barrier():
            yield from _meet(turn, step)
        case Plan():
            turn.show({"sessionUpdate": "plan", "entries": [_shown_entry(turn, entry) for entry in step.entries]})
        case Usage():
            _add_usage(turn, step)
        case Stop():
            raise TurnEnded(step.reason)
        case Fail():
            raise TurnFailed(failure(step, turn.fill(step.message)))
        case Hang():
            yield loop.Wait()
        case IgnoreCancel():
            turn.job.ignores_cancel = True
        case Die():
            _die(turn, step)
        case Flood():
            yield from _flood(turn, step)
        case Noise():
            turn.loop.send(turn.fill(step.text).encode() if step.text is not None else b64decode(step.base64 or ""))
        case Stderr():
            write_stderr(turn.fill(step.text))
        case Update():
            turn.show(fill_all(step.update, turn.values()), is_kept=False)
        case Notify():
            turn.connection.notify(turn.fill(step.method), fill_all(step.params, turn.values()))
        case Request():
            yield from _request(turn, step)
        case Set():
            _set(turn, step.option, turn.fill(step.value))
        case _:
            assert_never(step)


def failure(step: Fail, message: str) -> Any:
    """The error object of a `fail`."""
    data = dict(step.data or {})
    if step.retry_after is not None:
        data["retryAfter"] = step.retry_after
    return make_error(step.code, message, **data)


def write_stderr(text: str) -> None:
    """Writes to stderr, if anyone is there to take it."""
    with suppress(OSError):
        os.write(2, text.encode("utf-8", "replace"))


def _speak(turn: Turn, step: Say | Think | Echo | Recall, kind: str, text: str) -> Steps:
    message_id = turn.new_id("msg") if step.message_id is UNSET else step.message_id
    every_seconds = parse_duration(step.every)
    for index, chunk in enumerate(cut(text, step.chunks)):
        if index and every_seconds:
            yield from pause(every_seconds)
        turn.show_text(kind, chunk, message_id)


def _recollection(turn: Turn) -> str:
    earlier = [prompted.text for prompted in turn.session.prompts[:-1]]
    if not earlier:
        return "This is the first prompt of this session."
    lines = [f"{number}. {text}" for number, text in enumerate(earlier, start=1)]
    return "\n".join(["Earlier prompts of this session:", *lines])


def _wait_for_path(turn: Turn, step: WaitFor) -> Steps:
    path = turn.path(step.path)
    until = None if step.timeout is None else time.monotonic() + parse_duration(step.timeout)
    while not os.path.exists(path) and (until is None or time.monotonic() < until):
        yield from pause(PATH_POLL_SECONDS)


def _meet(turn: Turn, step: Barrier) -> Steps:
    """Leaves a file for this turn, and waits until there are enough."""
    directory = turn.path(step.directory)
    os.makedirs(directory, exist_ok=True)
    name = f"{turn.session.session_id}-{len(turn.session.prompts)}"
    with open(os.path.join(directory, name), "w", encoding="utf-8"):
        pass
    while len(os.listdir(directory)) < step.count:
        yield from pause(PATH_POLL_SECONDS)


def _shown_entry(turn: Turn, entry: str | PlanEntry) -> dict[str, str]:
    task = PlanEntry(content=entry) if isinstance(entry, str) else entry
    return {"content": turn.fill(task.content), "priority": task.priority, "status": task.status}


def _add_usage(turn: Turn, step: Usage) -> None:
    turn.is_usage_scripted = True
    turn.input_tokens += step.input_tokens
    turn.output_tokens += step.output_tokens
    if step.cached_read_tokens is not None:
        turn.cached_read_tokens = (turn.cached_read_tokens or 0) + step.cached_read_tokens
    used = turn.input_tokens + turn.output_tokens + (turn.cached_read_tokens or 0)
    update: dict[str, Any] = {"sessionUpdate": "usage_update", "used": used, "size": step.context_size}
    if step.cost is not None:
        turn.session.cost_usd = (turn.session.cost_usd or 0.0) + step.cost
    if turn.session.cost_usd is not None:
        update["cost"] = {"amount": turn.session.cost_usd, "currency": "USD"}
    turn.show(update, is_kept=False)


def _die(turn: Turn, step: Die) -> NoReturn:
    if step.mid_line:
        update = {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": "this line is cut off"}}
        line = turn.connection.update_line(turn.session.session_id, update)
        turn.loop.send(line[: len(line) // 2])
    die(turn.loop, step.exit_code, step.signal)


def die(event_loop: Loop, exit_code: int, signal_name: str | None = None) -> NoReturn:
    """Ends the process, without ending its tools, once what was said is written."""
    event_loop.flush()
    if signal_name is not None:
        number = signal.Signals[signal_name]
        if number not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
        # Only a signal that does not end a process comes here.
        os._exit(128 + number)
    os._exit(exit_code)


def _flood(turn: Turn, step: Flood) -> Steps:
    """Sends one line over and over; it is encoded once, and not kept for a replay."""
    content = {"type": "text", "text": "x" * step.size}
    update = {"sessionUpdate": f"agent_{step.kind}_chunk", "messageId": turn.new_id("msg"), "content": content}
    line = turn.connection.update_line(turn.session.session_id, update)
    for start in range(0, step.count, FLOOD_BATCH):
        turn.loop.send(line * min(FLOOD_BATCH, step.count - start))
        yield from turn.loop.flood_gate()


def _request(turn: Turn, step: Request) -> Steps:
    method = turn.fill(step.method)
    reply = yield from turn.call(method, fill_all(step.params, turn.values()))
    if isinstance(reply, IncomingError):
        text = f"{method} was refused: {reply.error.code} {reply.error.message}"
    else:
        text = f"{method} was answered: {msgspec.json.format(bytes(reply.result), indent=-1).decode()}"
    turn.show_text("message", text, turn.new_id("msg"))


def _set(turn: Turn, option: str, value: str) -> None:
    if not turn.session.offers(option, value):
        offered = ", ".join(turn.session.value_ids(option)) or "none"
        raise TurnFailed(make_error(INVALID_PARAMS, f"the script sets {option} {value!r}; on offer: {offered}"))
    turn.choose(option, value)
    for update in turn.session.change_updates(option):
        turn.show(update, is_kept=False)
