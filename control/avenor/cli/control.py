"""`avenor control`: words to one call on a control socket, and its answer to words.

What each command is called and takes stands in `control_table`. Most are one call; `tail` and `claim` stay connected.
"""

from __future__ import annotations

import os

from avenor.cli import control_table as table
from avenor.cli.output import complain, is_terminal, pretty, write_out, write_text
from avenor.cli.parsing import HelpAsked, UsageError, Values, parse_group
from avenor.cli.socket_path import control_socket
from avenor.cli.table import Command
from avenor.cli.wire import Connection, NoServer, SaidNo

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

# How long completion and scripts that only want the ids wait for a server that hangs.
IDS_TIMEOUT_SECONDS = 1.0


class Asked:
    """What was asked for: the command, its values and the socket that it goes to."""

    __slots__ = ("command", "json", "socket", "terminal", "values")

    def __init__(self, command: Command, values: Values) -> None:
        self.command = command
        self.values = values
        self.socket = control_socket(values.text("socket"))
        self.json = values.switch("json")
        self.terminal = is_terminal(1) and not self.json

    def target(self, **more: object) -> dict[str, object]:
        """Params that name the runtime, where one was named, and `force`, where it was given."""
        params = dict(more)
        if "id" in self.values:
            params["runtime_id"] = self.values.text("id")
        if self.values.switch("force"):
            params["force"] = True
        return params

    def given(self, *keys: str) -> dict[str, object]:
        """Those of these values that were given."""
        return {key: self.values.raw(key) for key in keys if key in self.values}


def control(words: Sequence[str]) -> int:
    """Run `avenor control` with these words and give its exit status."""
    try:
        command, values = parse_group(table.CONTROL, words)
    except HelpAsked as wanted:
        return _help(wanted.command)
    except UsageError as error:
        return _usage(error)
    asked = Asked(command, values)
    try:
        return HANDLERS[command.word](asked)
    except UsageError as error:
        return _usage(error)
    except SaidNo as refusal:
        from avenor.cli.refusal import refusal_text

        complain(refusal_text(command, refusal.error, as_json=asked.json))
        return 1
    except NoServer as error:
        complain(f"avenor control: {error}")
        return 3


def _help(command: Command) -> int:
    from avenor.cli.helptext import help_text
    from avenor.cli.terminal import style_for

    write_text(help_text(command, style_for(1)))
    return 0


def _usage(error: UsageError) -> int:
    from avenor.cli.helptext import usage_error_text

    complain(usage_error_text(error.command, error.message))
    return 2


def _call(asked: Asked, method: str, params: dict[str, object]) -> bytes:
    with Connection(asked.socket) as connection:
        return connection.call(method, params)


def _show(asked: Asked, result: bytes) -> int:
    write_out((pretty(result) if is_terminal(1) else result) + b"\n")
    return 0


def _say(asked: Asked, result: bytes, word: Callable[[dict[str, object]], str]) -> int:
    if asked.json:
        return _show(asked, result)
    import json

    write_text(word(json.loads(result)) + "\n")
    return 0


def _status(asked: Asked) -> int:
    return _show(asked, _call(asked, "status", asked.target()))


def _list(asked: Asked) -> int:
    if asked.values.switch("ids"):
        return _ids(asked)
    fields = asked.values.text("fields")
    if fields is not None:
        return _show(asked, _call(asked, "list", {"fields": fields.split(",")}))
    if not asked.terminal:
        return _show(asked, _call(asked, "list", {}))
    import json
    from time import time

    from avenor.cli.listing import MEMBERS, render
    from avenor.cli.terminal import style_for, width_of

    result = _call(asked, "list", {"fields": MEMBERS})
    write_text(render(json.loads(result), style=style_for(1), columns=width_of(1), now_ms=int(time() * 1000)))
    return 0


def _ids(asked: Asked) -> int:
    import json

    with Connection(asked.socket, timeout_seconds=IDS_TIMEOUT_SECONDS) as connection:
        result = connection.call("list", {"fields": ["runtime_id", "run_id"]})
    write_text("".join(f"{snapshot['runtime_id'] or snapshot['run_id']}\n" for snapshot in json.loads(result)))
    return 0


def _tail(asked: Asked) -> int:
    from avenor.cli.tail import tail

    return tail(asked)


def _spawn(asked: Asked) -> int:
    from avenor.cli.spawn import spawn_params

    params = spawn_params(asked.command, asked.values, asked.socket, dict(os.environ))
    return _show(asked, _call(asked, "spawn", params))


def _cancel(asked: Asked) -> int:
    import json

    result = _call(asked, "cancel", asked.target())
    answer = json.loads(result)
    code = _say(asked, result, lambda answer: "cancelled" if answer.get("ok") else "not cancelled")
    if answer.get("left"):
        complain(f"avenor control cancel: still there: {', '.join(map(str, answer['left']))}")
    if answer.get("unverified"):
        complain(f"avenor control cancel: not proven that all its processes are gone: {answer['unverified']}")
    return code if answer.get("ok") else 1


def _prompt(asked: Asked) -> int:
    result = _call(asked, "prompt", asked.target(text=asked.values.text("text")))
    return _say(asked, result, lambda answer: "queued" if answer.get("queued") else "accepted")


def _interrupt(asked: Asked) -> int:
    params = asked.target(text=asked.values.text("text"), **asked.given("keep_queue"))
    return _say(asked, _call(asked, "interrupt_and_prompt", params), lambda _answer: "accepted")


def _answer_permission(asked: Asked) -> int:
    request, option = asked.values.text("request"), asked.values.text("option")
    params = asked.target(request_id=request, option_id=option, **asked.given("message"))
    return _say(asked, _call(asked, "answer_permission", params), lambda _answer: "accepted")


def _result(asked: Asked) -> int:
    return _show(asked, _call(asked, "result", asked.target()))


def _history(asked: Asked) -> int:
    return _show(asked, _call(asked, "history", asked.target(**asked.given("after_seq", "limit"))))


def _shutdown(asked: Asked) -> int:
    if not asked.values.switch("wait"):
        return _say(asked, _call(asked, "shutdown", asked.given("mode")), lambda _answer: "stopping")
    from avenor.cli.server_end import call_and_see_end

    result = call_and_see_end(asked.socket, "shutdown", asked.given("mode"))
    if result is None:
        complain(
            "avenor control shutdown: --wait cannot see the server's process from here (it is in another container?); "
            "nothing was asked of it. Leave --wait out"
        )
        return 1
    return _say(asked, result, lambda _answer: "stopped")


def _prune(asked: Asked) -> int:
    import json

    result = _call(asked, "prune", asked.given("keep", "dry_run"))
    count = len(json.loads(result)["pruned"])
    word = "would prune" if asked.values.switch("dry_run") else "pruned"
    return _say(asked, result, lambda _answer: f"{word} {count}")


def _log_level(asked: Asked) -> int:
    return _say(asked, _call(asked, "log_level", asked.given("level")), lambda answer: str(answer["level"]))


def _claim(asked: Asked) -> int:
    with Connection(asked.socket) as connection:
        _say(asked, connection.call("claim", asked.target()), lambda _answer: "claimed")
        if not asked.values.switch("hold"):
            return 0
        from avenor.cli.claim import hold

        return hold(connection)


HANDLERS: dict[str, Callable[[Asked], int]] = {
    "status": _status,
    "list": _list,
    "tail": _tail,
    "spawn": _spawn,
    "cancel": _cancel,
    "prompt": _prompt,
    "interrupt-and-prompt": _interrupt,
    "answer-permission": _answer_permission,
    "result": _result,
    "history": _history,
    "shutdown": _shutdown,
    "claim": _claim,
    "prune": _prune,
    "log-level": _log_level,
}
