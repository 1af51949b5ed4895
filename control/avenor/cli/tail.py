"""`avenor control tail`: events as they come, as NDJSON or for eyes."""

from __future__ import annotations

from avenor.cli.output import complain, write_json, write_text
from avenor.cli.terminal import style_for, width_of
from avenor.cli.wire import EVENT_PREFIX, NOTICE_PREFIX, Connection, NoServer, answer_to

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from avenor.cli.control import Asked

    Show = Callable[[list[bytes]], None]

_RUN_END = EVENT_PREFIX + b'{"event":"run.end"'


def tail(asked: Asked) -> int:
    """Follow one runtime to the end of its run, or all of them until the server stops.

    Raises:
        UsageError: The flags contradict each other.
        SaidNo: No such runtime, or several that could be meant.
        NoServer: There is none, or it went away before the run had ended.
        ReaderGone: Nobody reads the events any more; that is seen while none come, too.
    """
    _check(asked)
    with Connection(asked.socket, reader_fd=1) as connection:
        return _tail_terminal(asked, connection) if asked.terminal else _follow(asked, connection, _show_lines)


def _tail_terminal(asked: Asked, connection: Connection) -> int:
    from avenor.cli.eventview import EventView

    view = EventView(style_for(1), columns=width_of(1), names_runtime=asked.values.switch("all"))

    def show(lines: list[bytes]) -> None:
        write_text("".join(map(view.feed_line, lines)))

    try:
        return _follow(asked, connection, show)
    finally:
        write_text(view.finish())


def _check(asked: Asked) -> None:
    from avenor.cli.parsing import UsageError

    values = asked.values
    if values.switch("all") and "id" in values:
        raise UsageError("give an id or --all, not both", asked.command)
    if values.switch("all") and "after_seq" in values:
        raise UsageError("--after-seq counts within one runtime; it does not go with --all", asked.command)
    if values.number("limit") == 0:
        raise UsageError("--limit: it must be 1 or more", asked.command)


def _follow(asked: Asked, connection: Connection, show: Show) -> int:
    if asked.values.switch("all"):
        connection.call("subscribe", _subscription(asked))
        for batch in connection.batches():
            _pass_on(batch, show)
        return 0
    return _follow_one(asked, connection, show)


def _follow_one(asked: Asked, connection: Connection, show: Show) -> int:
    import json

    # The server says which runtime is meant when none was named, and refuses when several could be.
    meant = json.loads(connection.call("status", asked.target()))["runtime_id"]
    target = {} if meant is None else {"runtime_id": meant}
    subscribed = json.loads(connection.call("subscribe", {**_subscription(asked), **target}))
    if subscribed.get("reset"):
        complain(
            f"avenor control tail: the log ends before --after-seq {asked.values.number('after_seq')}: it begins anew"
        )
    # Asked for again now, so that an end between the two calls is not waited for.
    check = connection.send("status", target)
    for batch in connection.batches():
        ended = _pass_on(batch, show)
        if ended or _nothing_to_come(asked, subscribed, check, batch):
            return 0
    raise NoServer(f"{connection.path}: the server went away before the run had ended")


def _subscription(asked: Asked) -> dict[str, object]:
    params = asked.given("replay", "after_seq", "limit")
    if "limit" in params:
        params["replay"] = True
    return {**params, "on_lag": "disk"}


def _pass_on(batch: list[bytes], show: Show) -> bool:
    """Show the events of a batch; whether the run's end was among them."""
    events = [line for line in batch if line.startswith(EVENT_PREFIX)]
    if events:
        show([line[len(EVENT_PREFIX) : -1] for line in events])
    for line in batch:
        if line.startswith(NOTICE_PREFIX):
            _tell_notice(line)
    return any(line.startswith(_RUN_END) for line in events)


def _nothing_to_come(asked: Asked, subscribed: dict[str, Any], check: int, batch: list[bytes]) -> bool:
    """Whether the answer to `check` is here and says that the run had ended before what was asked for."""
    import json

    answers = (answer_to(check, line) for line in batch if not line.startswith(EVENT_PREFIX))
    answer = next((answer for answer in answers if answer is not None), None)
    if answer is None:
        return False
    snapshot = json.loads(answer)
    if snapshot["status"] != "ended" or snapshot["latest_seq"] > _starts_after(asked, subscribed):
        return False
    complain(f"avenor control tail: it has ended ({snapshot['outcome']}); --replay shows its events")
    return True


def _starts_after(asked: Asked, subscribed: dict[str, Any]) -> int:
    after_seq = asked.values.number("after_seq")
    if after_seq is not None:
        return 0 if subscribed.get("reset") else after_seq
    replays = asked.values.switch("replay") or "limit" in asked.values
    return 0 if replays else int(subscribed.get("latest_seq", 0))


def _show_lines(lines: list[bytes]) -> None:
    write_json(b"\n".join(lines) + b"\n")


def _tell_notice(line: bytes) -> None:
    import json

    notice = json.loads(line)["params"]
    if notice.get("kind") == "subscriber.lagged":
        complain(f"avenor control tail: {notice['dropped_count']} events were left out")
