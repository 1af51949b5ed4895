"""Asks a real model, so that a rehearsal has calls to meter."""

from typing import Any

import msgspec

from avenor.protocol.errors import INTERNAL_ERROR
from avenor.protocol.script import Model
from avenor.runtimes.scripted.connection import make_error
from avenor.runtimes.scripted.http import Answer, HttpFailed, post
from avenor.runtimes.scripted.replies import steps_after
from avenor.runtimes.scripted.tools import PlaySteps
from avenor.runtimes.scripted.turn import Steps, Turn, TurnFailed


class _Message(msgspec.Struct, frozen=True):
    content: str | None = None


class _Choice(msgspec.Struct, frozen=True):
    message: _Message = _Message()


class _Usage(msgspec.Struct, frozen=True):
    prompt_tokens: int = 0
    completion_tokens: int = 0


class _Error(msgspec.Struct, frozen=True):
    message: str = ""


class _Completion(msgspec.Struct, frozen=True):
    """A chat completion, or an error in its place. Tolerant."""

    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: _Error | None = None


def ask_model(turn: Turn, step: Model, play_steps: PlaySteps) -> Steps:
    """Asks once, and plays what is to follow the reply.

    Raises:
        TurnFailed: The model answered with an error, or not at all, and no steps follow that.
    """
    body = {"model": turn.fill(step.model), "messages": [{"role": "user", "content": turn.fill(step.prompt)}]}
    headers = {"Authorization": f"Bearer {turn.fill(step.key)}"}
    status: int | None = None
    try:
        answer = yield from post(turn.loop, f"{turn.fill(step.url).rstrip('/')}/chat/completions", headers, body)
        status = answer.status
        turn.session.reply = _take(turn, answer)
    except HttpFailed as failed:
        turn.session.reply = str(failed)
    following = steps_after(step.on_reply, turn.session.reply)
    if following is None and (status is None or status >= 400):
        data: dict[str, Any] = {} if status is None else {"status": status}
        raise TurnFailed(make_error(INTERNAL_ERROR, turn.session.reply, **data))
    yield from play_steps(turn, following or [])


def _take(turn: Turn, answer: Answer) -> str:
    """What the model said; its tokens become the turn's."""
    try:
        completion = msgspec.json.decode(answer.body, type=_Completion)
    except (msgspec.DecodeError, RecursionError):
        return answer.body.decode("utf-8", "replace")
    if completion.usage is not None:
        turn.is_usage_scripted = True
        turn.input_tokens += completion.usage.prompt_tokens
        turn.output_tokens += completion.usage.completion_tokens
    if completion.error is not None:
        return completion.error.message
    return "".join(choice.message.content or "" for choice in completion.choices)
