"""Markdown made a little easier to read on a terminal: it stays Markdown, and all its words stay. Pure."""

from __future__ import annotations

import re

from avenor.control.safetext import safe_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from avenor.cli.terminal import Style

# The entrances of a site and of a folder on a forge: they are no pages of `avenor docs`, which is one itself.
ENTRANCES = frozenset({"README", "index"})

_HEADING = re.compile(r"(#{1,6}) +(.*?)(?: +#+)?$")
_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})(.*)$")
_CODE = re.compile(r"`([^`]+)`")
_COMMENT = re.compile(r"^ {0,3}<!--.*?-->[ ]*\n", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"\[([^\]]+)\]\(([^)\s]+)\)")


def without_comments(markdown: str) -> str:
    """The text without the comments that tell the tests of the documentation how its commands are run."""
    return _COMMENT.sub("", markdown)


def rendered(markdown: str, style: Style) -> str:
    """The text with bold headings and coloured code, without fences and comments; links to pages are commands."""
    lines: list[str] = []
    fence = ""
    for line in without_comments(safe_text(markdown)).splitlines():
        found = _FENCE.match(line)
        if fence:
            if found and found[1].startswith(fence) and not found[2].strip():
                fence = ""
            else:
                lines.append(f"    {style.paint(line, 'cyan')}" if line else "")
        elif found:
            fence = found[1]
        else:
            lines.append(_line(line, style))
    return "\n".join(lines) + "\n"


def _line(line: str, style: Style) -> str:
    heading = _HEADING.match(line)
    if heading is not None:
        return style.paint(_CODE.sub(r"\1", heading[2]), "bold")
    text = _LINK.sub(_link, line)
    return _CODE.sub(lambda code: style.paint(code[1], "cyan") if style.coloured else code[0], text)


def _link(found: re.Match[str]) -> str:
    words, target = found[1], found[2]
    if "://" in target:
        return f"{words} ({target})"
    name = target.partition("#")[0].rpartition("/")[2]
    page = name.removesuffix(".md")
    return f"{words} (avenor docs {page})" if page not in (name, *ENTRANCES) else words
