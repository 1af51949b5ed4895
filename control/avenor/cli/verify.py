"""`avenor verify`: loads configs exactly as a run would, and tells what is wrong with them."""

import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

import msgspec

from avenor.cli.commands import VERIFY
from avenor.cli.output import dump, write_out, write_text
from avenor.cli.parsing import Values, parse
from avenor.control.safetext import one_line
from avenor.host.backend_names import backend_names
from avenor.host.regular import read_regular
from avenor.protocol.config_loading import (
    SIZE_LIMIT_BYTES,
    CheckedConfig,
    check_config,
    config_kind,
    format_hint,
)
from avenor.protocol.configs import ConfigKind, ResolvedConfig, ResolvedLoop

_KINDS: Final[dict[str | None, ConfigKind]] = {"loop": "loop", "team": "team"}


def verify(words: Sequence[str]) -> int:
    """Run `avenor verify` with these words and give its exit status.

    Raises:
        UsageError: They make no sense.
        HelpAsked: They ask for help.
    """
    values = parse(VERIFY, words)
    checks = [_check(file, values) for file in values.texts("file")]
    if values.switch("json"):
        write_out(dump([_as_json(*check) for check in checks], indent=2) + b"\n")
    else:
        write_text("".join(one_line(line) + "\n" for check in checks for line in _lines(*check)))
    return 0 if all(checked.config for _, _, checked in checks) else 1


def _check(file: str, values: Values) -> tuple[str, ConfigKind, CheckedConfig]:
    read = partial(read_regular, limit_bytes=SIZE_LIMIT_BYTES)
    kind = _KINDS.get(values.text("kind")) or _kind(file, read)
    names = backend_names(os.environ)
    return file, kind, check_config(file, kind, read=read, has_initial=values.switch("initial"), backends=names)


def _kind(file: str, read: Callable[[str], bytes]) -> ConfigKind:
    """What a file is meant as. One that cannot be read says so when it is loaded."""
    try:
        return config_kind(read(file)) or "team"
    except OSError:
        return "team"


def _as_json(file: str, kind: ConfigKind, checked: CheckedConfig) -> dict[str, Any]:
    found = {name: msgspec.to_builtins(getattr(checked, name)) for name in ("errors", "warnings", "notes")}
    return {"file": file, "kind": kind, "ok": checked.config is not None, **found}


def _lines(file: str, kind: ConfigKind, checked: CheckedConfig) -> list[str]:
    lines = [found.line() for found in checked.errors]
    lines += [found.line("warning") for found in checked.warnings]
    lines += [found.line("note") for found in checked.notes]
    if checked.config is not None:
        return [*lines, f"{file}: {_contents(checked.config)}: ok"]
    many = len(checked.errors)
    return [*lines, f"{file}: {kind}: {many} error{'s' if many > 1 else ''}; {format_hint(kind)}"]


def _contents(config: ResolvedConfig) -> str:
    pre, post = len(config.pre), len(config.post)
    if isinstance(config, ResolvedLoop):
        return f"loop, {pre} pre, {len(config.loop)} in at most {config.max_iterations} iterations, {post} post"
    return f"team, {pre} pre, {len(config.team)} members, {post} post"
