"""What one loop or team config must keep beyond its types, and what in it does nothing. It looks into no other file."""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Final

from avenor.protocol.config_draft import LISTS, Draft, Written
from avenor.protocol.configs import INITIAL, Phase
from avenor.protocol.markers import parse_marker
from avenor.protocol.mcp import McpServer, find_conflicts, find_server_mistakes
from avenor.protocol.validation import Mistake

_PROMPTS: Final = ("prompt", "prompt_file")
_NESTED: Final = ("loop_file", "team_file")
_FILES: Final = ("prompt_file", *_NESTED)
_OVERRIDES: Final = ("agent", "model", "backend")
# They would break the lines of logs, sentinels and markers.
_CONTROL: Final = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_SHOWN_CHARS: Final = 60


def find_broken_rules(draft: Draft, *, has_initial: bool, backends: Collection[str]) -> list[Mistake]:
    """Every rule that the config breaks.

    Args:
        draft: The config.
        has_initial: The phase `(initial)` runs before its first.
        backends: The names that there are.
    """
    return [
        *_config_rules(draft, has_initial),
        *(found for written in draft.phases for found in _phase_rules(written, backends)),
        *_unique_names(draft),
        *_tellable_names([written for written in draft.phases if _is_conditional_member(written)]),
    ]


def find_server_rules(servers: Mapping[str, McpServer], around: Mapping[str, McpServer]) -> list[Mistake]:
    """What is wrong with the MCP servers of a config.

    Args:
        servers: Its own, by their JSON paths.
        around: Those of the run and of the configs around it, by name.
    """
    own: dict[str, McpServer] = {}
    found: list[Mistake] = []
    for path, server in servers.items():
        found += find_server_mistakes(server, path)
        found += find_conflicts({path: server}, own, "earlier in the list")
        found += find_conflicts({path: server}, around, "of the run, or of a config around this one")
        own.setdefault(server.name, server)
    return found


def find_ignored(draft: Draft, *, has_initial: bool) -> list[Mistake]:
    """What the config asks for and does not get: a warning each."""
    return [
        *(found for written in draft.phases for found in _ignored_members(written)),
        *_untold_conditionals(draft, has_initial),
    ]


def find_oddities(draft: Draft, *, has_initial: bool) -> list[Mistake]:
    """What is right and perhaps not meant: a note each, for those who ask."""
    found: list[Mistake] = []
    for written, before in with_previous(draft):
        obstacle = resume_obstacle(written, before, has_initial=has_initial)
        if written.phase.resume_from_previous and obstacle:
            found.append(Mistake(f"{written.path}.resume_from_previous", f"it means nothing here: {obstacle}"))
        if "/" in written.phase.name:
            message = f"{_shown(written.phase.name)} holds a '/', which joins names in the `path` of nested events"
            found.append(Mistake(f"{written.path}.name", message))
    return found


def with_previous(draft: Draft) -> list[tuple[Written, Written | None]]:
    """Each phase with the one before it in its list."""
    before: list[Written | None] = [None, *draft.phases]
    pairs = zip(draft.phases, before, strict=False)
    return [(written, last if last and last.kind == written.kind else None) for written, last in pairs]


def resume_obstacle(written: Written, before: Written | None, *, has_initial: bool) -> str | None:
    """Why a phase has no session to resume; None if it has one.

    Args:
        written: The phase.
        before: The one before it in its list.
        has_initial: As for `find_broken_rules`.
    """
    if written.kind == "team":
        return "team members start fresh"
    if written.given.intersection(_NESTED):
        return "a nested run has no session of its own"
    if before is None:
        follows_initial = written.kind == "pre" and has_initial
        return None if follows_initial else f"nothing is before the first phase of {written.kind}"
    return "the phase before it is a nested run" if before.given.intersection(_NESTED) else None


# --- the config as a whole --------------------------------------------------------------------------------------------


def _config_rules(draft: Draft, has_initial: bool) -> Iterator[Mistake]:
    main = LISTS[draft.kind][1]
    if not draft.filled.intersection(("pre", main)):
        yield Mistake("$", f"pre and {main} are both empty: at least one of them needs a phase")
    if draft.max_iterations < 1:
        yield Mistake("$.max_iterations", f"it is {draft.max_iterations}: it must be 1 or more")
    if "pre" in draft.filled or has_initial:
        return
    for written in filter(_is_conditional_member, draft.phases):
        yield Mistake(
            f"{written.path}.conditional",
            "a conditional member needs a pre phase that can skip it: add one to pre "
            "(for the outermost file, a prompt given to the run is one)",
        )


def _unique_names(draft: Draft) -> Iterator[Mistake]:
    first: dict[str, Written] = {}
    for written in filter(_has_some_name, draft.phases):
        earlier = first.setdefault(written.phase.name, written)
        if earlier is not written:
            lists = "{}, {} and {}".format(*LISTS[draft.kind])
            message = f"{_shown(written.phase.name)} is the name of {earlier.path} too: names are unique across {lists}"
            yield Mistake(f"{written.path}.name", message)


def _tellable_names(members: Sequence[Written]) -> Iterator[Mistake]:
    """A skip marker names a member on one line, without regard to case."""
    first: dict[str, Written] = {}
    for written in filter(_has_some_name, members):
        name = written.phase.name
        earlier = first.setdefault(name.casefold(), written)
        if earlier.phase.name != name:
            message = (
                f"{_shown(name)} differs from {_shown(earlier.phase.name)} of {earlier.path} by case only: "
                "a skip marker cannot tell conditional members apart by case"
            )
            yield Mistake(f"{written.path}.name", message)
        marker = parse_marker(f"<|team: skip | {name}|>")
        if not _CONTROL.search(name) and (marker and marker.label) != name:
            message = f"{_shown(name)} begins or ends with a blank: no skip marker can name a conditional member so"
            yield Mistake(f"{written.path}.name", message)


def _untold_conditionals(draft: Draft, has_initial: bool) -> Iterator[Mistake]:
    conditional = list(filter(_is_conditional_member, draft.phases))
    pre = [written for written in draft.phases if written.kind == "pre"]
    if conditional and pre and not has_initial and all(written.given.intersection(_NESTED) for written in pre):
        message = "every pre phase is a nested run: none is told how to skip this conditional member"
        yield Mistake(f"{conditional[0].path}.conditional", message)


# --- one phase --------------------------------------------------------------------------------------------------------


def _phase_rules(written: Written, backends: Collection[str]) -> Iterator[Mistake]:
    if written.has_name:
        yield from _name_rules(written.phase.name, f"{written.path}.name")
    yield from _source_rules(written)
    yield from _content_rules(written.phase, written.path)
    if written.kind == "team":
        yield from _override_rules(written.phase, written.path, backends)


def _name_rules(name: str, path: str) -> Iterator[Mistake]:
    if not name.strip():
        yield Mistake(path, "it is empty: a phase needs a name")
    elif name.strip() == INITIAL:
        yield Mistake(path, f"{INITIAL} is reserved for the phase of the prompt that is given to the run")
    if _CONTROL.search(name):
        yield Mistake(path, f"{_shown(name)} holds a line end or another control character")


def _source_rules(written: Written) -> Iterator[Mistake]:
    """Exactly one of the four, and a message of its own for each way to break that."""
    prompts = [name for name in _PROMPTS if name in written.given]
    nested = [name for name in _NESTED if name in written.given]
    if not prompts and not nested:
        yield Mistake(written.path, f"it has none of {', '.join((*_PROMPTS, *_NESTED))}: a phase needs exactly one")
    for names in (prompts, nested):
        if len(names) > 1:
            yield _exclusive(written.path, names)
    if prompts and nested:
        yield _exclusive(written.path, (prompts[0], nested[0]))


def _exclusive(path: str, names: Sequence[str]) -> Mistake:
    return Mistake(path, f"{names[0]} and {names[1]} are mutually exclusive: a phase needs exactly one source")


def _content_rules(phase: Phase, path: str) -> Iterator[Mistake]:
    if phase.prompt is not None and not phase.prompt.strip():
        yield Mistake(f"{path}.prompt", "it is empty: a prompt needs some text")
    for name in _FILES:
        file: str | None = getattr(phase, name)
        if file is not None and not is_path(file):
            yield Mistake(f"{path}.{name}", f"{_shown(file)} is no path of a file")


def is_path(text: str) -> bool:
    """Whether a file could have that name."""
    return text != "" and "\0" not in text


def _override_rules(phase: Phase, path: str, backends: Collection[str]) -> Iterator[Mistake]:
    for name in _OVERRIDES:
        if getattr(phase, name) == "":
            yield Mistake(f"{path}.{name}", "it is empty: leave it out, or give it some text")
    if phase.backend and phase.backend not in backends:
        message = f"{_shown(phase.backend)} is no backend: choose one of {', '.join(backends)}"
        yield Mistake(f"{path}.backend", message)


def _ignored_members(written: Written) -> Iterator[Mistake]:
    if written.kind == "team":
        return
    given = [name for name in _OVERRIDES if getattr(written.phase, name) is not None]
    if written.phase.conditional:
        given.append("conditional")
    for name in given:
        yield Mistake(f"{written.path}.{name}", f"it is ignored: {name} is for members of `team` only")


def _has_some_name(written: Written) -> bool:
    return written.phase.name.strip() != ""


def _is_conditional_member(written: Written) -> bool:
    return written.kind == "team" and written.phase.conditional


def _shown(text: str) -> str:
    return repr(text if len(text) <= _SHOWN_CHARS else f"{text[: _SHOWN_CHARS - 1]}…")
