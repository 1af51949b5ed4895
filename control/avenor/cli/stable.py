"""`avenor stable`: flags to the options of a supervisor, and the supervisor in this process."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from avenor.cli.commands import STABLE
from avenor.cli.http_flags import check_http
from avenor.cli.parsing import UsageError, Values, absolute, parse, utf8
from avenor.cli.socket_path import default_socket
from avenor.cli.streams import open_missing_streams
from avenor.stable.options import Options

_AT_LEAST_ONE = ("max_runtimes", "max_tree")
# What removes files must not be taken for `off`, as 0 is elsewhere.
_MORE_THAN_NOTHING = ("keep",)


def stable(words: Sequence[str]) -> int:
    """Run `avenor stable` with these words and give its exit status.

    Raises:
        UsageError: They make no sense.
        HelpAsked: They ask for help.
    """
    open_missing_streams()
    options = supervisor_options(parse(STABLE, words))
    from avenor.stable.supervisor import run_supervisor

    return run_supervisor(options)


def supervisor_options(values: Values) -> Options:
    """The options that the flags ask for; paths become absolute.

    Raises:
        UsageError: They cannot be used.
    """
    given = {flag.key: values.raw(flag.key) for flag in STABLE.flags if flag.key in values}
    for flag in STABLE.flags:
        if flag.key in _AT_LEAST_ONE and given.get(flag.key) == 0:
            raise UsageError(f"{flag.name}: it must be 1 or more", STABLE)
        if flag.key in _MORE_THAN_NOTHING and given.get(flag.key) == 0:
            raise UsageError(f"{flag.name}: it must be more than 0; without it everything is kept", STABLE)
    given["control_socket"] = absolute(STABLE, "--control-socket", values.text("control_socket") or default_socket())
    if "state_dir" in given:
        given["state_dir"] = absolute(STABLE, "--state-dir", values.text("state_dir") or "")
    given.update(check_http(STABLE, values))
    if given.get("idle_timeout") == 0:
        given["idle_timeout"] = None
    options = msgspec.convert(given, Options)
    utf8(STABLE, "--state-dir", str(options.state_path))
    return options
