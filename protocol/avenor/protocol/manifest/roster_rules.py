"""What a roster must keep beyond its types, whatever manifest uses it. Paths are JSON paths of the roster."""

import re
from collections.abc import Collection, Iterator, Sequence
from typing import Final

from avenor.protocol.durations import parse_duration
from avenor.protocol.manifest.commandlines import find_pattern_mistake
from avenor.protocol.manifest.globs import find_glob_mistake
from avenor.protocol.manifest.roster import (
    BUILTIN_CONTEXTS,
    OWN_TOOLS,
    ContextSource,
    Profile,
    ReceiptCheck,
    Roster,
    ToolGrant,
)
from avenor.protocol.validation import Mistake

# Those that say what the run itself is about mean the same in every roster.
_REPLACEABLE: Final = frozenset({"repository_map", "test_map"})
_OF_GATEWAY: Final = ("{gateway_url}", "{gateway_token}")
_ENV_NAME: Final = re.compile(r"[^=\0]+")
_SOURCES: Final = ("builtin", "file", "command", "text")


def find_roster_mistakes(roster: Roster, *, backends: Collection[str]) -> list[Mistake]:
    """Every rule that the roster breaks.

    Args:
        roster: The roster.
        backends: The names that there are.
    """
    return [
        *_names(roster),
        *(found for name, each in roster.profiles.items() for found in _profile(f"$.profiles.{name}", each, backends)),
        *(found for name, each in roster.tools.items() for found in _tool(f"$.tools.{name}", name, each)),
        *(found for name, each in roster.context.items() for found in _context(f"$.context.{name}", name, each)),
        *(found for name, each in roster.writes.items() for found in _globs(f"$.writes.{name}", each)),
        *(found for name, each in roster.receipts.items() for found in _receipt(f"$.receipts.{name}", each)),
    ]


def receipt_seconds(check: ReceiptCheck) -> float:
    """How long a check may take.

    Raises:
        ValueError: That is no duration, or none at all.
    """
    seconds = parse_duration(check.timeout)
    if seconds <= 0:
        raise ValueError("it must be more than 0")
    return seconds


def _names(roster: Roster) -> Iterator[Mistake]:
    for part in ("profiles", "tools", "context", "writes", "receipts"):
        for name in getattr(roster, part):
            if not name.strip() or name != name.strip() or len(name) > 200 or not name.isprintable():
                yield Mistake(f"$.{part}.{name}", "a name is 1 to 200 printable characters, no blank at either end")


def _profile(path: str, profile: Profile, backends: Collection[str]) -> Iterator[Mistake]:
    if profile.backend not in backends:
        yield Mistake(f"{path}.backend", f"{profile.backend!r} is none of {', '.join(backends)}")
    for field, backend in (("agent_command", "acp"), ("script", "scripted")):
        if getattr(profile, field) is not None and profile.backend != backend:
            yield Mistake(f"{path}.{field}", f"only backend {backend} takes it")
    if profile.backend == "acp" and profile.agent_command is None:
        yield Mistake(path, "backend acp needs agent_command, the program to start")
    yield from _env(path, profile)


def _env(path: str, profile: Profile) -> Iterator[Mistake]:
    used: set[str] = set()
    for name, value in profile.env.items():
        place = f"{path}.env.{name}"
        if not _ENV_NAME.fullmatch(name) or "\0" in value:
            yield Mistake(place, "a name is not empty and holds no '=', and there is no NUL in either")
        used.update(word for word in _OF_GATEWAY if word in value)
        if profile.endpoint is None and any(word in value for word in _OF_GATEWAY):
            yield Mistake(place, "there is a gateway only with an endpoint: say where the model is")
        if "{model}" in value and profile.model is None:
            yield Mistake(place, "{model} needs the profile's model")
    if profile.endpoint is not None and used != set(_OF_GATEWAY):
        missing = " and ".join(word for word in _OF_GATEWAY if word not in used)
        message = f"the agent is not told of the gateway: {missing} must be in a variable of env"
        yield Mistake(f"{path}.endpoint", message)


def _tool(path: str, name: str, grant: ToolGrant) -> Iterator[Mistake]:
    if name in OWN_TOOLS:
        yield Mistake(path, f"{name} is a tool of avenor's own: choose another name")
    for kind, field in (("execute", "commands"), ("other", "names")):
        given = getattr(grant, field)
        if kind in grant.kinds and not given:
            yield Mistake(path, f"a tool of kind {kind} needs {field}: patterns of what is allowed")
        if kind not in grant.kinds and given:
            yield Mistake(f"{path}.{field}", f"they mean something only with kind {kind}")
    for at, pattern in enumerate(grant.commands):
        message = find_pattern_mistake(pattern)
        if message is not None:
            yield Mistake(f"{path}.commands[{at}]", message)
    for at, pattern in enumerate(grant.names):
        if not pattern.strip("*?"):
            yield Mistake(f"{path}.names[{at}]", "it would allow any tool: name the tool")


def _context(path: str, name: str, source: ContextSource) -> Iterator[Mistake]:
    if name in BUILTIN_CONTEXTS and name not in _REPLACEABLE:
        yield Mistake(path, f"{name} is avenor's own and means the same everywhere: choose another name")
    given = [field for field in _SOURCES if getattr(source, field) is not None]
    if len(given) != 1:
        yield Mistake(path, f"give exactly one of {', '.join(_SOURCES)}; there is {' and '.join(given) or 'none'}")
    if source.builtin is not None and source.builtin not in BUILTIN_CONTEXTS:
        yield Mistake(f"{path}.builtin", f"{source.builtin!r} is none of {', '.join(BUILTIN_CONTEXTS)}")
    if source.command is not None:
        yield from _program_line(f"{path}.command", source.command)


def _globs(path: str, globs: Sequence[str]) -> Iterator[Mistake]:
    for at, glob in enumerate(globs):
        message = find_glob_mistake(glob)
        if message is not None:
            yield Mistake(f"{path}[{at}]", message)


def _receipt(path: str, check: ReceiptCheck) -> Iterator[Mistake]:
    yield from _program_line(f"{path}.command", check.command)
    try:
        receipt_seconds(check)
    except ValueError as error:
        yield Mistake(f"{path}.timeout", str(error))


def _program_line(path: str, words: Sequence[str]) -> Iterator[Mistake]:
    if words and not words[0].strip():
        yield Mistake(f"{path}[0]", "the name of a program is expected")
    for at, word in enumerate(words):
        if "\0" in word:
            yield Mistake(f"{path}[{at}]", "there is a NUL in it")
