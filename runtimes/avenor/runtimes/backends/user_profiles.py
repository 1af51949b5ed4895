"""Reads a profile that a user has written, and tells all that is wrong with it: which file, which key, what to do."""

import re
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, get_args

import msgspec

from avenor.host.regular import read_regular
from avenor.protocol.errors import ConfigError
from avenor.protocol.validation import Mistake, find_mistakes
from avenor.runtimes.backends.profiles import Adapter, Profile

_LIMIT_BYTES: Final = 1024 * 1024
_MANUAL: Final = "docs/how-to/choose-an-agent.md tells what a profile holds"


def read_user_profile(path: str) -> Profile:
    """The profile in a file, which is named after the backend.

    Raises:
        ConfigError: It cannot be used; the message has a line for each mistake, `data.errors` lists them all.
    """
    try:
        data = read_regular(path, limit_bytes=_LIMIT_BYTES).decode()
        values = tomllib.loads(data)
    except OSError as error:
        raise _refusal(path, [Mistake("", f"cannot read it: {error.strerror}")]) from error
    except UnicodeDecodeError as error:
        raise _refusal(path, [Mistake("", f"it is not UTF-8 (byte {error.start})")]) from error
    except tomllib.TOMLDecodeError as error:
        raise _refusal(path, [Mistake("", f"this is no TOML: {error}")]) from error
    mistakes = [*_form_mistakes(values)]
    if not mistakes:
        profile = msgspec.convert({**values, "name": Path(path).stem}, Profile)
        mistakes = [*_broken_rules(profile)]
        if not mistakes:
            return profile
    raise _refusal(path, mistakes)


def _form_mistakes(values: dict[str, Any]) -> Iterator[Mistake]:
    if "name" in values:
        yield Mistake("$.name", "a backend has the name of its file: leave it out")
    adapters: tuple[str, ...] = get_args(Adapter)
    adapter = values.get("adapter", "acp")
    if adapter not in adapters:
        yield Mistake("$.adapter", f"{adapter!r} is none of {', '.join(adapters)}")
    yield from find_mistakes({key: value for key, value in values.items() if key not in ("name", "adapter")}, Profile)


def _broken_rules(profile: Profile) -> Iterator[Mistake]:
    if not profile.argv or not profile.argv[0]:
        yield Mistake("$.argv", "it is missing: the program to start, and its arguments")
    patterns = {f"$.usage_of_session[{index}]": text for index, text in enumerate(profile.usage_of_session)}
    for index, sign in enumerate(profile.failures):
        patterns[f"$.failures[{index}].pattern"] = sign.pattern
        patterns[f"$.failures[{index}].agent"] = sign.agent
    for path, pattern in patterns.items():
        try:
            re.compile(pattern)
        except re.error as error:
            yield Mistake(path, f"it is no regular expression: {error}")


def _refusal(path: str, mistakes: Sequence[Mistake]) -> ConfigError:
    keys = [(found.path.removeprefix("$").removeprefix("."), found.message) for found in mistakes]
    lines = [f"  {key}: {message}" if key else f"  {message}" for key, message in keys]
    message = "\n".join([f"backend profile {path}:", *lines, f"mend the file, or remove it; {_MANUAL}"])
    data = {"field": "backend", "file": path, "path": mistakes[0].path, "errors": msgspec.to_builtins(list(mistakes))}
    return ConfigError(message, data=data)
