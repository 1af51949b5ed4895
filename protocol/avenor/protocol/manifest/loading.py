"""Loads a manifest and its roster, and reports every mistake in both, each with its place in the text.

The form of the files is `yamltree`'s, their types are `model`'s and `roster`'s; the rules are in `rules`,
`roster_rules` and `bound_rules`. Reading a file is the caller's: nothing here does I/O. Importing this module imports
PyYAML.
"""

import os.path
from collections.abc import Callable, Collection, Iterable
from typing import Final, Generic, TypeVar, cast

import msgspec

from avenor.protocol.config_loading import Finding
from avenor.protocol.errors import AvenorError, ConfigError
from avenor.protocol.manifest.asking import Asking
from avenor.protocol.manifest.binding import ResolvedManifest, correlations
from avenor.protocol.manifest.bound_rules import Bindings, find_limits, find_unbound, find_unused_rights
from avenor.protocol.manifest.drafts import Draft, read_draft
from avenor.protocol.manifest.graph import graph_of
from avenor.protocol.manifest.model import Manifest
from avenor.protocol.manifest.pricing import Price, price_of
from avenor.protocol.manifest.resolving import beside, resolve
from avenor.protocol.manifest.roster import Roster
from avenor.protocol.manifest.roster_rules import find_roster_mistakes
from avenor.protocol.manifest.rules import find_broken_rules, find_doubts
from avenor.protocol.manifest.tree import ROOT, Located, Place, Tree
from avenor.protocol.manifest.yamltree import read_tree
from avenor.protocol.script import load_script
from avenor.protocol.validation import Mistake

# A manifest is written by people. With what its roster names, a record has to stay readable at once.
SIZE_LIMIT_BYTES: Final = 256 * 1024
_SHOWN_FINDINGS: Final = 1000

FORMAT_HINT: Final = (
    "the format: docs/reference/manifest.md; its JSON Schemas: docs/reference/schemas/manifest.schema.json and "
    "roster.schema.json"
)
NO_ROSTER: Final = "a run needs a roster, which says what its names stand for: give one (--roster FILE)"

Read = Callable[[str], bytes]
Asks = Callable[[str], Asking]
T = TypeVar("T", bound=msgspec.Struct)


class PlacedFinding(Finding, frozen=True):
    """Something about a manifest or roster, with its place in the text.

    Args:
        row: The line, from 1; `line` on the wire.
        column: From 1.
    """

    row: int = msgspec.field(name="line", default=1)
    column: int = 1

    def line(self, word: str = "") -> str:
        """As of every finding, with line and column after the file."""
        return Finding(f"{self.file}:{self.row}:{self.column}", self.path, self.message).line(word)


class LoadedManifest(msgspec.Struct, frozen=True, kw_only=True):
    """A manifest that a run can take, and what is to be told about it."""

    manifest: ResolvedManifest
    warnings: list[PlacedFinding]
    notes: list[PlacedFinding]


class CheckedManifest(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that was found about a manifest.

    Attributes:
        manifest: None exactly if there are errors.
        price: The plan and its price; None where there is no plan: the manifest has mistakes in its form, or a cycle.
        notes: What only `verify` mentions.
        hint: Where the format is described; None where all that is wrong is that a file could not be read.
    """

    manifest: ResolvedManifest | None
    price: Price | None
    errors: list[PlacedFinding]
    warnings: list[PlacedFinding]
    notes: list[PlacedFinding]
    hint: str | None


def load_manifest(
    path: str,
    read: Read,
    *,
    roster_path: str | None,
    backends: Collection[str],
    asks: Asks,
    unsandboxed: bool = False,
) -> LoadedManifest:
    """The manifest, ready to run.

    Args:
        path: Its file.
        read: Gives a file's content and raises OSError, whose `strerror` goes into the message.
        roster_path: The roster's file; what it names is relative to that file's folder. None is a mistake like others.
        backends: The names that a profile's backend may have.
        asks: Tells of a backend before which tools its agent asks.
        unsandboxed: The members will run without a sandbox.

    Raises:
        ConfigError: It cannot be used. The message has a line for each mistake, `data.errors` lists them all (`file`,
            `path`, `message`, `line`, `column`), `data.file` and `data.path` are those of the first.
    """
    checked = check_manifest(path, read, roster_path=roster_path, backends=backends, asks=asks, unsandboxed=unsandboxed)
    if checked.manifest is None:
        first = checked.errors[0]
        lines = [found.line() for found in checked.errors]
        lines += [] if checked.hint is None else [checked.hint]
        data = {"file": first.file, "path": first.path, "errors": msgspec.to_builtins(checked.errors)}
        raise ConfigError("\n".join(lines), data=data)
    return LoadedManifest(manifest=checked.manifest, warnings=checked.warnings, notes=checked.notes)


def check_manifest(
    path: str,
    read: Read,
    *,
    roster_path: str | None,
    backends: Collection[str],
    asks: Asks,
    unsandboxed: bool = False,
) -> CheckedManifest:
    """As `load_manifest`, but tells of mistakes, warnings and notes alike instead of raising."""
    plan = _File(path, Manifest, read)
    if plan.value is not None:
        plan.refuse(find_broken_rules(plan.value))
        plan.warn(find_doubts(plan.value))
    roster = None if roster_path is None else _File(roster_path, Roster, read)
    if roster is None:
        plan.refuse([Mistake(ROOT, NO_ROSTER)])
    elif roster.value is not None:
        roster.refuse(find_roster_mistakes(roster.value, backends=backends))
        roster.refuse(_named_files(roster.value, roster.name, read))
        if plan.value is not None:
            bindings = Bindings(roster=roster.value, backends=backends, asks=asks, unsandboxed=unsandboxed)
            _check_bound(plan, plan.value, bindings)
    return _checked(plan, roster)


class _File(Generic[T]):
    """One of the two files, and what was found in it. Findings are keys: none is told twice.

    Attributes:
        value: What it holds, mended where it has mistakes; None if nothing of it could be read.
        is_there: Whether there is a text at all.
    """

    def __init__(self, path: str, type_: type[T], read: Read) -> None:
        self.name = os.path.normpath(path)
        self.errors: dict[PlacedFinding, None] = {}
        self.warnings: dict[PlacedFinding, None] = {}
        self.notes: dict[PlacedFinding, None] = {}
        self.value: T | None = None
        self.is_there = True
        self._draft = Draft()
        self._tree = self._read(read)
        for located in self._tree.mistakes:
            found, place = located.mistake, located.place
            self.errors[PlacedFinding(self.name, found.path, found.message, place.line, place.column)] = None
        value: object = self._tree.value
        if isinstance(value, dict):
            self.value, self._draft, mistakes = read_draft(cast("object", value), type_)
            self._add(self.errors, mistakes)
        elif not self.errors:
            self._add(self.errors, [Mistake(ROOT, "an object is expected, with schema_version first")])

    @property
    def is_whole(self) -> bool:
        """Whether nothing in it had to be made up."""
        return self.value is not None and not self._draft.made_up

    def refuse(self, mistakes: Iterable[Mistake]) -> None:
        """Adds mistakes, those that are about what was made up left out."""
        self._add(self.errors, self._real(mistakes))

    def warn(self, mistakes: Iterable[Mistake]) -> None:
        """Adds warnings, likewise."""
        self._add(self.warnings, self._real(mistakes))

    def note(self, mistakes: Iterable[Mistake]) -> None:
        """Adds notes, likewise."""
        self._add(self.notes, self._real(mistakes))

    def _real(self, mistakes: Iterable[Mistake]) -> list[Mistake]:
        return [found for found in mistakes if not self._draft.is_made_up(found.path)]

    def _add(self, findings: dict[PlacedFinding, None], mistakes: Iterable[Mistake]) -> None:
        for found in mistakes:
            place = self._tree.place(found.path)
            findings[PlacedFinding(self.name, found.path, found.message, place.line, place.column)] = None

    def _read(self, read: Read) -> Tree:
        try:
            return read_tree(read(self.name), file=self.name)
        except OSError as error:
            self.is_there = False
            mistake = Mistake(ROOT, error.strerror or str(error))
            return Tree(value=None, places={}, mistakes=[Located(mistake, Place())])


def _check_bound(plan: _File[Manifest], manifest: Manifest, bindings: Bindings) -> None:
    plan.refuse(find_unbound(manifest, bindings))
    plan.warn(find_unused_rights(manifest, bindings.roster))
    plan.note(find_limits(manifest, bindings))


def _named_files(roster: Roster, file: str, read: Read) -> list[Mistake]:
    """What is wrong with the files that a roster names."""
    found: list[Mistake] = []
    for name, profile in roster.profiles.items():
        if profile.script is not None:
            found += _file_mistakes(f"$.profiles.{name}.script", beside(file, profile.script), read, is_script=True)
    for name, source in roster.context.items():
        if source.file is not None:
            found += _file_mistakes(f"$.context.{name}.file", beside(file, source.file), read, is_script=False)
    return found


def _file_mistakes(path: str, file: str, read: Read, *, is_script: bool) -> list[Mistake]:
    try:
        data = read(file)
        if is_script:
            load_script(data, file=file)
        data.decode()
    except OSError as error:
        return [Mistake(path, f"{file}: {error.strerror or error}")]
    except UnicodeDecodeError as error:
        return [Mistake(path, f"{file}: it is not UTF-8 (byte {error.start})")]
    except AvenorError as error:
        return [Mistake(path, line) for line in error.message.splitlines()]
    return []


def _checked(plan: _File[Manifest], roster: _File[Roster] | None) -> CheckedManifest:
    errors = [*_in_order(plan.errors), *([] if roster is None else _in_order(roster.errors))]
    manifest: ResolvedManifest | None = None
    if plan.value is not None and roster is not None and roster.value is not None and not errors:
        manifest = resolve(plan.value, roster.value, file=plan.name, roster_file=roster.name)
        plan.note(_dependent_judgement(manifest))
    has_mistakes = any(file is not None and file.is_there and file.errors for file in (plan, roster))
    return CheckedManifest(
        manifest=manifest,
        price=_price(plan, roster),
        errors=_shown(errors),
        warnings=_shown(_in_order(plan.warnings)),
        notes=_shown(_in_order(plan.notes)),
        hint=FORMAT_HINT if has_mistakes else None,
    )


def _in_order(findings: Iterable[PlacedFinding]) -> list[PlacedFinding]:
    """What was found in one file, in the order of its text."""
    return sorted(findings, key=_place_of)


def _place_of(found: PlacedFinding) -> tuple[int, int]:
    return found.row, found.column


def _price(plan: _File[Manifest], roster: _File[Roster] | None) -> Price | None:
    if plan.value is None or not plan.is_whole or graph_of(plan.value).find_cycle() is not None:
        return None
    return price_of(plan.value, None if roster is None else roster.value)


def _dependent_judgement(manifest: ResolvedManifest) -> list[Mistake]:
    return [
        Mistake(
            "$.evaluation.owner",
            f"{found.members[0]!r} and {found.members[1]!r} have the same {found.shared} ({found.value}): "
            "that they agree is no second opinion; the trace records it",
        )
        for found in correlations(manifest)
    ]


def _shown(findings: list[PlacedFinding]) -> list[PlacedFinding]:
    more = len(findings) - _SHOWN_FINDINGS
    if more <= 0:
        return findings
    return [*findings[:_SHOWN_FINDINGS], PlacedFinding(findings[0].file, ROOT, f"and {more} more")]
