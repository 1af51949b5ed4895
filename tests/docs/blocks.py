"""The commands that a page shows, and what its author has said about them in comments that readers do not see.

Right before a block may stand, in any order:

`<!-- not run: reason -->`
    It cannot be run here.
`<!-- first: commands -->`
    What must have happened before it, in the author's world: it is run before the block.
`<!-- file: name -->`
    It is no command but a file, which is there under this name from then on.
"""

import re
from typing import Final

import msgspec

SHELLS: Final = ("bash", "sh", "console")
_FENCE: Final = re.compile(
    r"(?P<notes>(?:^[ ]*<!--(?:(?!-->).)*-->[ ]*\n(?:[ ]*\n)*)*)"
    r"^(?P<indent>[ ]*)```(?P<language>[\w-]+)[^\n]*\n(?P<text>.*?)^(?P=indent)```[ ]*$",
    re.MULTILINE | re.DOTALL,
)
_NOTE: Final = re.compile(r"<!--\s*(?P<word>not run|first|file):\s*(?P<said>.*?)\s*-->", re.DOTALL)


class Block(msgspec.Struct, frozen=True, kw_only=True):
    """One fenced block.

    Attributes:
        line: Of its fence, from 1.
        text: Without its indentation; of a console block only what is typed.
        not_run: Why it is not run; None if it is.
        first: What is run before it.
        file: The name under which it is a file; None if it is commands.
    """

    line: int
    text: str
    not_run: str | None = None
    first: str | None = None
    file: str | None = None


def blocks_of(page: str) -> list[Block]:
    """The commands and files of a page, in their order."""
    found: list[Block] = []
    for match in _FENCE.finditer(page):
        notes = {note["word"]: note["said"] for note in _NOTE.finditer(match["notes"])}
        if match["language"] not in SHELLS and "file" not in notes:
            continue
        found.append(
            Block(
                line=page.count("\n", 0, match.start("indent")) + 1,
                text=_typed(match["language"], match["text"], match["indent"]),
                not_run=notes.get("not run"),
                first=notes.get("first"),
                file=notes.get("file"),
            )
        )
    return found


def _typed(language: str, text: str, indent: str) -> str:
    lines = [line.removeprefix(indent) for line in text.splitlines()]
    if language == "console":
        lines = [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
    return "\n".join(lines) + "\n"
