"""`avenor init`: writes a pack of agents, a skill and an MCP configuration into a repository.

What is written stands in `init_packs`. A file that is there is never replaced without `--force`; a configuration file
only gets our part added.
"""

from __future__ import annotations

import os
import shutil
from importlib.util import find_spec
from pathlib import Path

from avenor.cli.commands import INIT
from avenor.cli.init_merge import CannotMerge, Differs, with_addition, with_table
from avenor.cli.init_packs import PACKS, Json, Pack, Toml, Whole
from avenor.cli.output import complain, dump, write_text
from avenor.cli.parsing import UsageError, parse
from avenor.control.safetext import one_line
from avenor.host.atomic import write_atomic
from avenor.host.regular import read_regular

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from avenor.cli.parsing import Values

WRITTEN = "written"
ADDED = "added"
SAME = "same"
DIFFERS = "kept: differs"
BY_HAND = "kept: by hand"
FAILED = "failed"
_WELL = (WRITTEN, ADDED, SAME)
_LIMIT_BYTES = 4 * 1024 * 1024


class Report:
    """What became of each file.

    Args:
        dry_run: Nothing was really done.
    """

    def __init__(self, *, dry_run: bool) -> None:
        self._dry_run = dry_run
        self.lines: list[tuple[str, str]] = []
        self.is_well = True
        self.differs = False

    def tell(self, word: str, path: str, detail: str = "") -> None:
        """One file."""
        self.is_well = self.is_well and word in _WELL
        self.differs = self.differs or word == DIFFERS
        shown = f"would be {word}" if self._dry_run and word in (WRITTEN, ADDED) else word
        self.lines.append((shown, f"{path}{f' ({one_line(detail)})' if detail else ''}"))

    def text(self) -> str:
        """All of it, a line each."""
        width = max(len(word) for word, _ in self.lines)
        return "".join(f"{word:{width}}  {rest}\n" for word, rest in self.lines)


class Writer:
    """Writes the files of packs.

    Args:
        folder: The repository.
        force: Replace what differs.
        dry_run: Only tell.
    """

    def __init__(self, folder: Path, *, force: bool, dry_run: bool) -> None:
        self._folder = folder
        self._force = force
        self._dry_run = dry_run
        self.report = Report(dry_run=dry_run)

    def write(self, file: Whole | Json | Toml) -> None:
        """Write one file, or tell why not."""
        path = file.path if isinstance(file, (Whole, Toml)) else self._name(file)
        try:
            old = _read(self._folder / path)
            if isinstance(file, Whole):
                self._write_whole(file, old)
            elif isinstance(file, Json):
                self._write_json(path, file, old)
            else:
                self._write_toml(file, old)
        except (OSError, UnicodeError) as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            self.report.tell(FAILED, path, reason)

    def _name(self, file: Json) -> str:
        """The name under which it is there, or else is made."""
        return next((path for path in file.paths if (self._folder / path).exists()), file.paths[0])

    def _write_whole(self, file: Whole, old: str | None) -> None:
        if old == file.text:
            self.report.tell(SAME, file.path)
        elif old is not None and not self._force:
            self.report.tell(DIFFERS, file.path)
        else:
            self._put(file.path, file.text)
            self.report.tell(WRITTEN, file.path)

    def _write_json(self, path: str, file: Json, old: str | None) -> None:
        text = dump(file.start, indent=2).decode() + "\n" if old is None else old
        try:
            for addition in file.additions:
                text = with_addition(text, addition, replace=self._force)
        except Differs as error:
            self.report.tell(DIFFERS, path, str(error))
        except CannotMerge as error:
            self.report.tell(BY_HAND, path, str(error))
            complain(f"avenor init: {path}: add this by hand:\n{_by_hand(file)}")
        else:
            self._finish(path, text, old, ", ".join(dict.fromkeys(each.place for each in file.additions)))

    def _write_toml(self, file: Toml, old: str | None) -> None:
        try:
            text = with_table(old or "", file, replace=self._force)
        except Differs as error:
            self.report.tell(DIFFERS, file.path, str(error))
        except CannotMerge as error:
            self.report.tell(BY_HAND, file.path, str(error))
            complain(f"avenor init: {file.path}: add this by hand:\n{file.text}")
        else:
            self._finish(file.path, text, old, ".".join(file.table))

    def _finish(self, path: str, text: str, old: str | None, place: str) -> None:
        if text == old:
            self.report.tell(SAME, path)
            return
        self._put(path, text)
        if old is None:
            self.report.tell(WRITTEN, path)
        else:
            self.report.tell(ADDED, path, place)

    def _put(self, path: str, text: str) -> None:
        if self._dry_run:
            return
        # A link to a configuration elsewhere stays one.
        target = Path(os.path.realpath(self._folder / path))
        target.parent.mkdir(parents=True, exist_ok=True)
        mode = target.stat().st_mode & 0o777 if target.exists() else 0o644
        write_atomic(target, text.encode(), mode)


def init(words: Sequence[str]) -> int:
    """Run `avenor init` with these words and give its exit status.

    Raises:
        UsageError: They make no sense, or it is not clear for which host.
        HelpAsked: They ask for help.
    """
    values = parse(INIT, words)
    folder = Path(values.text("dir") or ".")
    if not folder.is_dir():
        raise UsageError(f"--dir: there is no directory {str(folder)!r}", INIT)
    packs = _packs(values, folder)
    writer = Writer(folder, force=values.switch("force"), dry_run=values.switch("dry_run"))
    for pack in packs:
        for file in pack.files():
            writer.write(file)
    write_text(writer.report.text())
    if writer.report.is_well:
        lines = [*_sdk(), *(line for pack in packs for line in pack.next)]
        write_text("".join(f"next, {line}\n" for line in lines))
        return 0
    more = "; --force replaces what differs" if writer.report.differs else ""
    complain(f"avenor init: not everything was written{more}")
    return 1


def _sdk() -> list[str]:
    """What is to be done for `avenor mcp` to work here."""
    return [] if find_spec("mcp") else ["install what `avenor mcp` needs: pip install 'avenor[mcp]'"]


def _packs(values: Values, folder: Path) -> list[Pack]:
    """The packs that were asked for; else of the one host that this repository, or else this machine, has.

    Raises:
        UsageError: That is not exactly one.
    """
    named = values.texts("host")
    known = [pack.host for pack in PACKS]
    if named:
        return [pack for pack in PACKS if pack.host in named]
    found = [pack for pack in PACKS if any((folder / mark).exists() for mark in pack.marks)]
    where = "this repository is set up for"
    if not found:
        found = [pack for pack in PACKS if shutil.which(pack.program)]
        where = "this machine has"
    if len(found) == 1:
        return found
    hosts = ", ".join(pack.host for pack in found)
    why = f"{where} {hosts}" if found else f"neither this repository nor PATH shows one of {', '.join(known)}"
    raise UsageError(f"for which host? {why}: name it with --host", INIT)


def _read(path: Path) -> str | None:
    """The text of a file; None if there is none.

    Raises:
        OSError: It cannot be read, is no file, or is larger than any configuration.
        UnicodeError: It is no text.
    """
    try:
        return read_regular(str(path), limit_bytes=_LIMIT_BYTES).decode()
    except FileNotFoundError:
        return None


def _by_hand(file: Json) -> str:
    """What is to be added, as a JSON document of its own."""
    text = "{}"
    for addition in file.additions:
        text = with_addition(text, addition, replace=False)
    return text
