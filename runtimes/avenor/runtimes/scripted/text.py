"""Texts of the scripted agent: placeholders and chunks. Pure."""

import os
import re
from collections.abc import Mapping
from itertools import pairwise
from typing import Any, cast

_PLACEHOLDER = re.compile(
    r"\{(?:(prompt|excerpt|cwd|session|turn|reply|model|mode|thought_level)|env:([A-Za-z_]\w*))\}"
)
_EXCERPT_CHARACTERS = 80


def fill(text: str, values: Mapping[str, str]) -> str:
    """The text with its placeholders replaced, once: what they bring in is not looked at again.

    Args:
        text: May hold `{prompt}` and the like, and `{env:NAME}`; other braces stay as they are.
        values: What the placeholders stand for; a variable that is not set is empty.
    """
    return _PLACEHOLDER.sub(lambda found: _value(found, values), text)


def fill_all(value: Any, values: Mapping[str, str]) -> Any:
    """Decoded JSON with `fill` applied to every string in it but the names of members."""
    if isinstance(value, str):
        return fill(value, values)
    if isinstance(value, list):
        return [fill_all(item, values) for item in cast("list[object]", value)]
    if isinstance(value, dict):
        return {name: fill_all(item, values) for name, item in cast("dict[str, Any]", value).items()}
    return value


def cut(text: str, chunks: int) -> list[str]:
    """The text in so many pieces, as even as it goes; a text with fewer characters gives fewer."""
    count = max(1, min(chunks, len(text)))
    bounds = [len(text) * index // count for index in range(count + 1)]
    return [text[start:end] for start, end in pairwise(bounds)]


def excerpt(prompt: str) -> str:
    """The first line that says something, shortened."""
    line = next((line.strip() for line in prompt.splitlines() if line.strip()), "")
    return line if len(line) <= _EXCERPT_CHARACTERS else line[: _EXCERPT_CHARACTERS - 1] + "…"


def _value(found: "re.Match[str]", values: Mapping[str, str]) -> str:
    name, variable = found.groups()
    return _environment(variable) if variable else values[name]


def _environment(variable: str) -> str:
    """A variable; bytes that are no UTF-8 become question marks, since JSON cannot carry them."""
    return os.environ.get(variable, "").encode("utf-8", "replace").decode()
