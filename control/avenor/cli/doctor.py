"""`avenor doctor`: which agents work here, as a table or as JSON."""

from __future__ import annotations

import os
from collections.abc import Sequence

import msgspec

from avenor.cli.commands import DOCTOR
from avenor.cli.doctor_view import details, overview
from avenor.cli.output import complain, dump, is_terminal, write_out, write_text
from avenor.cli.parsing import UsageError, Values, absolute, parse
from avenor.cli.streams import open_missing_streams
from avenor.cli.terminal import style_for, width_of
from avenor.host.backend_names import backend_names
from avenor.protocol.diagnosis import Diagnosis, Examined
from avenor.protocol.errors import InvalidParams

_TIMEOUT_SECONDS = 60.0


def doctor(words: Sequence[str]) -> int:
    """Run `avenor doctor` with these words and give its exit status.

    Raises:
        UsageError: They make no sense.
        HelpAsked: They ask for help.
    """
    open_missing_streams()
    values = parse(DOCTOR, words)
    names = backend_names(os.environ)
    if values.switch("names"):
        write_text("".join(f"{name}\n" for name in names))
        return 0
    wanted = list(dict.fromkeys(values.texts("backend")))
    for name in wanted:
        if name not in names:
            raise UsageError(f"--backend {name!r}: choose one of {', '.join(names)}", DOCTOR)
    directory = absolute(DOCTOR, "--dir", values.text("dir") or ".")
    if not os.path.isdir(directory):
        raise UsageError(f"--dir: {directory} is no directory", DOCTOR)
    return _examine(values, names.folder, directory, wanted or list(names), named=bool(wanted))


def _examine(values: Values, folder: str, directory: str, backends: list[str], *, named: bool) -> int:
    # They cost more than everything above; a usage error should not wait for them.
    from avenor.cli.doctor_transcript import Transcript
    from avenor.runtimes.doctor import Examination, Interrupted, examine

    progress = _Progress(len(backends))
    command = _command(values.text("agent_command"), backends)
    path = values.text("transcript")
    with Transcript(None if path is None else absolute(DOCTOR, "--transcript", path)) as transcript:
        what = Examination(
            backends=backends,
            named=named,
            folder=folder,
            directory=directory,
            environ=dict(os.environ),
            command=command,
            timeout_seconds=_timeout(values),
            tapping=transcript.tapping,
            done=progress.note,
        )
        try:
            diagnosis = examine(what)
        except Interrupted as interrupted:
            progress.clear()
            complain(f"avenor doctor: ended by {interrupted}; nothing was left running")
            return 128 + interrupted.number
    progress.clear()
    _show(diagnosis, values, named=named)
    return 0 if diagnosis.ok else 1


def _command(line: str | None, backends: Sequence[str]) -> Sequence[str]:
    from avenor.runtimes.backends.profiles import split_command

    if line is None:
        if list(backends) == ["acp"]:
            raise UsageError("--backend acp needs --agent-command, the program to examine", DOCTOR)
        return ()
    if "acp" not in backends:
        raise UsageError("--agent-command: only backend acp takes it", DOCTOR)
    try:
        return split_command(line)
    except InvalidParams as error:
        raise UsageError(error.message.replace("agent_command", "--agent-command", 1), DOCTOR) from error


def _timeout(values: Values) -> float:
    seconds = values.raw("timeout")
    return seconds if isinstance(seconds, float) else _TIMEOUT_SECONDS


def _show(diagnosis: Diagnosis, values: Values, *, named: bool) -> None:
    if values.switch("json"):
        write_out(dump(msgspec.to_builtins(diagnosis), indent=2) + b"\n")
        return
    show = details if named else overview
    write_text(show(diagnosis, style=style_for(1), columns=width_of(1) if is_terminal(1) else 80))


class _Progress:
    """One line on a terminal that says how far it is; nothing elsewhere."""

    def __init__(self, total: int) -> None:
        self._left = total
        self._total = total
        self._is_shown = is_terminal(2) and total > 1
        self._write()

    def note(self, _examined: Examined) -> None:
        """Another one is through."""
        self._left -= 1
        self._write()

    def clear(self) -> None:
        """Takes the line away."""
        if self._is_shown:
            os.write(2, b"\r\x1b[K")

    def _write(self) -> None:
        if self._is_shown:
            text = f"\r\x1b[Kexamining {self._total} backends: {self._left} to go"
            os.write(2, text.encode())
