"""`avenor verify`: loads configs exactly as a run would, and tells what is wrong with them."""

import os
import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, Literal

from avenor.cli.commands import VERIFY
from avenor.cli.output import dump, write_out, write_text
from avenor.cli.parsing import Values, parse
from avenor.cli.verify_manifest import check_plan
from avenor.cli.verify_report import Report
from avenor.control.safetext import one_line
from avenor.host.backend_names import backend_names
from avenor.host.regular import read_regular
from avenor.protocol.config_loading import (
    SIZE_LIMIT_BYTES,
    check_config,
    config_kind,
)
from avenor.protocol.configs import ConfigKind, ResolvedConfig, ResolvedLoop

Kind = Literal["loop", "team", "manifest"]
_KINDS: Final[dict[str | None, Kind]] = {"loop": "loop", "team": "team", "manifest": "manifest"}
# Loops and teams are JSON and know no such member, so nothing else has to be read to tell them apart.
_MANIFEST: Final = re.compile(rb"""^\s*[{,]?\s*["']?schema_version["']?\s*:""", re.MULTILINE)


def verify(words: Sequence[str]) -> int:
    """Run `avenor verify` with these words and give its exit status.

    Raises:
        UsageError: They make no sense.
        HelpAsked: They ask for help.
    """
    values = parse(VERIFY, words)
    reports = [_check(file, values) for file in values.texts("file")]
    if values.switch("json"):
        write_out(dump([report.as_json() for report in reports], indent=2) + b"\n")
    else:
        write_text("".join(one_line(line) + "\n" for report in reports for line in report.lines()))
    return 0 if all(report.is_ok for report in reports) else 1


def _check(file: str, values: Values) -> Report:
    kind = _KINDS.get(values.text("kind")) or _kind(file, partial(read_regular, limit_bytes=SIZE_LIMIT_BYTES))
    if kind == "manifest":
        return check_plan(file, values.text("roster"), unsandboxed=values.switch("unsandboxed"))
    return _check_phases(file, kind, has_initial=values.switch("initial"))


def _kind(file: str, read: Callable[[str], bytes]) -> Kind:
    """What a file is meant as. One that cannot be read says so when it is loaded."""
    if file.endswith((".yaml", ".yml")):
        return "manifest"
    try:
        data = read(file)
    except OSError:
        return "team"
    return config_kind(data) or ("manifest" if _MANIFEST.search(data) else "team")


def _check_phases(file: str, kind: ConfigKind, *, has_initial: bool) -> Report:
    read = partial(read_regular, limit_bytes=SIZE_LIMIT_BYTES)
    checked = check_config(file, kind, read=read, has_initial=has_initial, backends=backend_names(os.environ))
    return Report(
        file=file,
        kind=kind,
        errors=checked.errors,
        warnings=checked.warnings,
        notes=checked.notes,
        contents=None if checked.config is None else _contents(checked.config),
        hint=checked.hint,
    )


def _contents(config: ResolvedConfig) -> str:
    pre, post = len(config.pre), len(config.post)
    if isinstance(config, ResolvedLoop):
        return f"loop, {pre} pre, {len(config.loop)} in at most {config.max_iterations} iterations, {post} post"
    return f"team, {pre} pre, {len(config.team)} members, {post} post"
