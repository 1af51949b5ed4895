"""Loads a loop or team config with every file that it names, and reports every mistake in all of them.

The form of a file is `config_draft`'s, its rules are `config_rules`', its prompts `config_templates`'. Here the files
are put together: paths, nesting, and the bounds of the whole. Reading a file is the caller's: nothing here does I/O.

Paths are joined and normalised as text (`a/../b` is `b`, whatever `a` links to). So a cycle is found by its path, and
one through symbolic links ends at the depth limit.
"""

import os.path
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

import msgspec

from avenor.protocol.config_draft import LISTS, MAX_PHASES, Draft, Written, config_kind, read_draft
from avenor.protocol.config_rules import (
    find_broken_rules,
    find_ignored,
    find_oddities,
    find_server_rules,
    is_path,
    resume_obstacle,
    with_previous,
)
from avenor.protocol.config_templates import find_template_mistakes, template_fields
from avenor.protocol.configs import MAX_DEPTH, ConfigKind, ResolvedConfig, ResolvedLoop, ResolvedPhase, ResolvedTeam
from avenor.protocol.errors import ConfigError
from avenor.protocol.events import PhaseKind
from avenor.protocol.mcp import McpServer
from avenor.protocol.spec import BACKENDS
from avenor.protocol.validation import Mistake

__all__ = [
    "SIZE_LIMIT_BYTES",
    "CheckedConfig",
    "Finding",
    "LoadedConfig",
    "check_config",
    "config_kind",
    "format_hint",
    "load_config",
    "template_fields",
]

# All files of a run together, each counted as often as it is used, because the run's record holds it as often. Prompts
# are bounded like those that come over a socket.
SIZE_LIMIT_BYTES: Final = 16 * 1024 * 1024
# A person corrects some and looks again; an answer to a spawn has to fit into one line.
_SHOWN_FINDINGS: Final = 1000

_LINE_BREAKING: Final = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]+")

Read = Callable[[str], bytes]


class Finding(msgspec.Struct, frozen=True):
    """Something about a config.

    Args:
        file: The file that it is in.
        path: Where in there, as a JSON path that starts with `$`.
        message: What was found, and what was expected.
    """

    file: str
    path: str
    message: str

    def line(self, word: str = "") -> str:
        """All of it on one line, with a word (`warning`) for what it is; a mistake needs none."""
        label = f"{word}: " if word else ""
        return _LINE_BREAKING.sub(" ", f"{self.file}: {self.path}: {label}{self.message}")


class LoadedConfig(msgspec.Struct, frozen=True):
    """A config that a run can take.

    Args:
        config: With all prompts in it; what has no effect where it stands is left out.
        warnings: What it asks for and does not get.
        notes: What is right and perhaps not meant; only `verify` mentions it.
    """

    config: ResolvedConfig
    warnings: list[Finding]
    notes: list[Finding]


class CheckedConfig(msgspec.Struct, frozen=True):
    """Everything that was found about a config.

    Attributes:
        config: None exactly if there are errors.
        hint: Where the format is described; None where the file could not be read, so that its form is not what is
            wrong.
    """

    config: ResolvedConfig | None
    errors: list[Finding]
    warnings: list[Finding]
    notes: list[Finding]
    hint: str | None


def load_config(
    path: str,
    kind: ConfigKind,
    *,
    read: Read,
    has_initial: bool,
    backends: Collection[str] = BACKENDS,
    servers: Sequence[McpServer] = (),
) -> LoadedConfig:
    """The config, ready to run.

    Args:
        path: Its file; what it names is relative to that file's folder.
        kind: What to read it as.
        read: Gives a file's content and raises OSError, whose `strerror` goes into the message. It is called once for
            a path, and should refuse what has more than `SIZE_LIMIT_BYTES`.
        has_initial: The run has a prompt, so that the phase `(initial)` comes before the first.
        backends: The names that a member's `backend` may have.
        servers: The run's own MCP servers.

    Raises:
        ConfigError: It cannot be used. The message has a line for each mistake, `data.errors` lists them all (`file`,
            `path`, `message`), `data.file` and `data.path` are those of the first.
    """
    checked = check_config(path, kind, read=read, has_initial=has_initial, backends=backends, servers=servers)
    if checked.config is None:
        first = checked.errors[0]
        lines = [found.line() for found in checked.errors]
        lines += [] if checked.hint is None else [checked.hint]
        data = {"file": first.file, "path": first.path, "errors": msgspec.to_builtins(checked.errors)}
        raise ConfigError("\n".join(lines), data=data)
    return LoadedConfig(checked.config, checked.warnings, checked.notes)


def check_config(
    path: str,
    kind: ConfigKind,
    *,
    read: Read,
    has_initial: bool,
    backends: Collection[str] = BACKENDS,
    servers: Sequence[McpServer] = (),
) -> CheckedConfig:
    """As `load_config`, but tells of mistakes, warnings and notes alike instead of raising."""
    loader = _Loader(read, backends)
    place = _Place((os.path.normpath(path),), kind, has_initial, {server.name: server for server in servers})
    config = loader.load_root(place)
    return CheckedConfig(
        config=None if loader.errors else config,
        errors=_shown(list(loader.errors)),
        warnings=_shown(list(loader.warnings)),
        notes=_shown(list(loader.notes)),
        hint=format_hint(kind) if loader.has_read(place.file) else None,
    )


def format_hint(kind: ConfigKind) -> str:
    """Where the format is described, for people and for editors."""
    return f"the format: docs/reference/{kind}.md; its JSON Schema: docs/reference/schemas/{kind}.schema.json"


class _Place(msgspec.Struct, frozen=True):
    """The config that is being loaded: the files from the outermost down to it, and what it is.

    `servers` are the MCP servers that come from around it, by name.
    """

    chain: tuple[str, ...]
    kind: ConfigKind
    has_initial: bool
    servers: Mapping[str, McpServer]

    @property
    def file(self) -> str:
        return self.chain[-1]


class _TooMuch(Exception):
    """A bound of the whole is passed."""


class _Loader:
    """What is known of one config and its files so far. Findings are keys: a file used twice tells them once."""

    def __init__(self, read: Read, backends: Collection[str]) -> None:
        self.errors: dict[Finding, None] = {}
        self.warnings: dict[Finding, None] = {}
        self.notes: dict[Finding, None] = {}
        self._read = read
        self._backends = backends
        self._contents: dict[str, bytes | OSError] = {}
        self._bytes = 0
        self._phases = 0

    def load_root(self, place: _Place) -> ResolvedConfig | None:
        """The config of a run; None if it cannot be read to its end."""
        try:
            return self._config(place, self._content(place.file))
        except OSError as error:
            self._refuse(place, "$", _reason(error))
        except _TooMuch as error:
            self._refuse(place, "$", str(error))
        return None

    def has_read(self, file: str) -> bool:
        """Whether this file, which was asked for, could be read."""
        return not isinstance(self._contents[file], OSError)

    def _config(self, place: _Place, data: bytes) -> ResolvedConfig:
        draft, mistakes = read_draft(data, place.kind, file=place.file)
        _add(self.errors, place, mistakes)
        rules = find_broken_rules(draft, has_initial=place.has_initial, backends=self._backends)
        _add(self.errors, place, rules)
        _add(self.errors, place, find_server_rules(draft.servers, place.servers))
        _add(self.warnings, place, find_ignored(draft, has_initial=place.has_initial))
        _add(self.notes, place, find_oddities(draft, has_initial=place.has_initial))
        inside = msgspec.structs.replace(place, servers={**_by_name(draft), **place.servers})
        return _resolved(draft, place.file, [self._phase(inside, *pair) for pair in with_previous(draft)])

    def _phase(self, place: _Place, written: Written, before: Written | None) -> ResolvedPhase:
        self._phases += 1
        if self._phases > MAX_PHASES:
            raise _TooMuch(f"with its nested files it has more than {MAX_PHASES} phases: run fewer, or fewer at once")
        phase = written.phase
        is_member = written.kind == "team"
        can_resume = resume_obstacle(written, before, has_initial=place.has_initial) is None
        return ResolvedPhase(
            name=phase.name,
            kind=written.kind,
            prompt=self._prompt(place, written),
            nested=self._nested(place, written),
            resume_from_previous=phase.resume_from_previous and can_resume,
            conditional=phase.conditional and is_member,
            agent=phase.agent if is_member else None,
            model=phase.model if is_member else None,
            backend=phase.backend if is_member else None,
        )

    def _prompt(self, place: _Place, written: Written) -> str | None:
        """The prompt of a phase; None if it has none that can be read. With two, both are checked."""
        phase = written.phase
        if phase.prompt is not None:
            self._check_template(place, written, "prompt", "", phase.prompt)
        if phase.prompt_file is None or not is_path(phase.prompt_file):
            return phase.prompt
        file = _beside(place.file, phase.prompt_file)
        try:
            text = self._content(file).decode()
        except OSError as error:
            self._refuse(place, f"{written.path}.prompt_file", f"{file}: {_reason(error)}")
            return None
        except UnicodeDecodeError as error:
            self._refuse(place, f"{written.path}.prompt_file", f"{file}: it is not UTF-8 (byte {error.start})")
            return None
        if not text.strip():
            self._refuse(place, f"{written.path}.prompt_file", f"{file}: it is empty: a prompt needs some text")
        self._check_template(place, written, "prompt_file", f"{file}: ", text)
        return text

    def _check_template(self, place: _Place, written: Written, member: str, where: str, text: str) -> None:
        for message in find_template_mistakes(text, place.kind, written.kind):
            self._refuse(place, f"{written.path}.{member}", where + message)

    def _nested(self, place: _Place, written: Written) -> ResolvedConfig | None:
        """The nested config of a phase; None if it has none that can be read. With two, both are checked."""
        found = [
            self._nested_file(place, f"{written.path}.{kind}_file", kind, name)
            for kind, name in _nested_files(written)
            if name is not None and is_path(name)
        ]
        return found[0] if found else None

    def _nested_file(self, place: _Place, path: str, kind: ConfigKind, name: str) -> ResolvedConfig | None:
        file = _beside(place.file, name)
        chain = (*place.chain, file)
        if file in place.chain:
            self._refuse(place, path, f"the files name each other in a cycle: {_shown_chain(chain)}")
        elif len(chain) > MAX_DEPTH:
            message = f"nested too deeply: {MAX_DEPTH} files in each other are allowed, the outermost included: "
            self._refuse(place, path, message + _shown_chain(chain))
        else:
            try:
                inner = _Place(chain, kind, has_initial=False, servers=place.servers)
                return self._config(inner, self._content(file))
            except OSError as error:
                self._refuse(place, path, f"{file}: {_reason(error)}")
        return None

    def _content(self, file: str) -> bytes:
        """What is in a file; every use counts.

        Raises:
            OSError: It cannot be read.
            _TooMuch: With it there would be too much.
        """
        if file not in self._contents:
            try:
                self._contents[file] = self._read(file)
            except OSError as error:
                self._contents[file] = error
        content = self._contents[file]
        if isinstance(content, OSError):
            raise content
        self._bytes += len(content)
        if self._bytes > SIZE_LIMIT_BYTES:
            raise _TooMuch(
                f"with the files that it names it has more than {SIZE_LIMIT_BYTES} bytes, "
                "a file that is used more than once being counted each time"
            )
        return content

    def _refuse(self, place: _Place, path: str, message: str) -> None:
        _add(self.errors, place, [Mistake(path, message)])


def _nested_files(written: Written) -> tuple[tuple[ConfigKind, str | None], tuple[ConfigKind, str | None]]:
    return ("loop", written.phase.loop_file), ("team", written.phase.team_file)


def _resolved(draft: Draft, file: str, phases: Sequence[ResolvedPhase]) -> ResolvedConfig:
    by_kind: dict[PhaseKind, list[ResolvedPhase]] = {kind: [] for kind in LISTS[draft.kind]}
    for phase in phases:
        by_kind[phase.kind].append(phase)
    pre, main, post = by_kind.values()
    servers = list(_by_name(draft).values())
    if draft.kind == "loop":
        limit = draft.max_iterations
        return ResolvedLoop(file=file, pre=pre, loop=main, post=post, max_iterations=limit, mcp_servers=servers)
    return ResolvedTeam(file=file, pre=pre, team=main, post=post, mcp_servers=servers)


def _by_name(draft: Draft) -> dict[str, McpServer]:
    return {server.name: server for server in draft.servers.values()}


def _add(findings: dict[Finding, None], place: _Place, mistakes: Sequence[Mistake]) -> None:
    findings.update((Finding(place.file, found.path, found.message), None) for found in mistakes)


def _shown(findings: list[Finding]) -> list[Finding]:
    more = len(findings) - _SHOWN_FINDINGS
    if more <= 0:
        return findings
    return [*findings[:_SHOWN_FINDINGS], Finding(findings[0].file, "$", f"and {more} more")]


def _beside(file: str, name: str) -> str:
    """A path as it is meant in a file: relative to the folder of that file."""
    return os.path.normpath(os.path.join(os.path.dirname(file), name))


def _shown_chain(chain: Sequence[str]) -> str:
    """The files of a chain, without the folder of the outermost."""
    folder = os.path.join(os.path.dirname(chain[0]), "")
    return " → ".join(file.removeprefix(folder) for file in chain)


def _reason(error: OSError) -> str:
    return error.strerror or str(error)
