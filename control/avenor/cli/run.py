"""`avenor run`: flags to a `RunSpec`, and the runtime in this very process."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import msgspec

from avenor.cli.commands import RUN
from avenor.cli.helptext import usage_error_text
from avenor.cli.http_flags import check_http
from avenor.cli.output import complain
from avenor.cli.parsing import UsageError, Values, absolute, parse
from avenor.cli.run_flags import SPEC_FLAGS, spec_fields
from avenor.cli.streams import open_missing_streams
from avenor.host.backend_names import backend_names
from avenor.host.sentinelfile import write_sentinel
from avenor.protocol.errors import InvalidParams
from avenor.protocol.outcomes import Outcome
from avenor.protocol.spec import RunSpec, resolve_spec

STOP_REASON = "usage"


def run(words: Sequence[str]) -> int:
    """Run `avenor run` with these words and give its exit status.

    Usage errors are failures of the run: status 1, and a FAILED sentinel where one was asked for.

    Raises:
        HelpAsked: The words ask for help.
    """
    open_missing_streams()
    try:
        values = parse(RUN, words)
        spec = run_spec(values, dict(os.environ))
        socket = values.text("control_socket")
        socket = None if socket is None else absolute(RUN, "--control-socket", socket)
        http = check_http(RUN, values)
    except UsageError as error:
        complain(usage_error_text(RUN, error.message))
        _tell_sentinel(words, error.message)
        return 1
    from avenor.runtimes.main import run_once

    return run_once(spec, control_socket=socket, quiet=values.switch("quiet"), **http)


def run_spec(values: Values, environ: dict[str, str]) -> RunSpec:
    """The resolved run that the flags ask for.

    Raises:
        UsageError: They cannot be used; the message has the flag's name.
    """
    fields = spec_fields(RUN, values, environ)
    try:
        spec = resolve_spec(msgspec.convert(fields, RunSpec), backends=backend_names(environ))
    except InvalidParams as error:
        raise UsageError(_with_flag(error), RUN) from error
    if not os.path.isdir(spec.dir):
        raise UsageError(f"--dir: {spec.dir} is no directory", RUN)
    return spec


def _with_flag(error: InvalidParams) -> str:
    """The message, with the flag where it has the field's name."""
    field = str(error.data.get("field", ""))
    flag = next((flag.name for flag in SPEC_FLAGS if flag.key == field), None)
    if flag is None or not error.message.startswith(field):
        return error.message
    return flag + error.message[len(field) :]


def _tell_sentinel(words: Sequence[str], reason: str) -> None:
    path = sentinel_path(words)
    if path is None:
        return
    run_id = _value_of("--run-id", words) or ""
    outcome = Outcome.of(STOP_REASON, run_id=run_id, reason=reason)
    try:
        write_sentinel(path, outcome)
    except OSError as error:
        complain(f"avenor run: the sentinel {path} cannot be written: {error.strerror or error}")


def sentinel_path(words: Sequence[str]) -> Path | None:
    """Where the sentinel belongs, read from words that need not make sense as a whole; None if nobody can tell."""
    sentinel = _value_of("--sentinel-file", words)
    if not sentinel:
        return None
    try:
        return Path(os.path.abspath(os.path.join(_value_of("--dir", words) or ".", sentinel)))
    except OSError:  # the working directory is gone
        return None


def _value_of(name: str, words: Sequence[str]) -> str | None:
    """The value that a flag is given last, wherever it stands; a flag's value is never taken for a flag."""
    takes_value = {flag.name for flag in RUN.flags if flag.metavar}
    found: str | None = None
    rest = iter(words)
    for word in rest:
        flag, equals, text = word.partition("=")
        if word == "--":
            break
        if flag in takes_value:
            value = text if equals else next(rest, None)
            found = value if flag == name else found
    return found
