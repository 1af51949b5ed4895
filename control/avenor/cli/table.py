"""The vocabulary of the command line: what a flag, an argument and a command are.

Every command is data made of these; the parser, the help, the completion scripts and `docs/reference/cli.md` all read
the same tables. Plain classes: dataclasses and typing would cost the fast path more than the command itself.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence


SWITCH = "switch"
TEXT = "text"
FILE = "file"
DIRECTORY = "directory"
DURATION = "duration"
COUNT = "count"
CHOICE = "choice"
NAME = "name"
RUNTIME = "runtime"
BACKEND = "backend"
PAGE = "page"


class Flag:
    """One `--flag`.

    Args:
        name: With its dashes.
        kind: One of the words above: what the value is, and how it is completed.
        help: One clause, without a full stop.
        metavar: How the value is called in help; empty for switches.
        default: What holds without the flag, for the reader only.
        choices: What the value may be; with `kind` other than CHOICE they are suggestions.
        repeats: Whether it may be given several times; the value is then a list.
        required: Whether the command refuses to go on without it.
        may_be_empty: Whether the value may be an empty text.
    """

    __slots__ = ("choices", "default", "help", "kind", "may_be_empty", "metavar", "name", "repeats", "required")

    def __init__(
        self,
        name: str,
        kind: str,
        help: str,
        *,
        metavar: str = "",
        default: str = "",
        choices: Sequence[str] = (),
        repeats: bool = False,
        required: bool = False,
        may_be_empty: bool = False,
    ) -> None:
        self.name = name
        self.kind = kind
        self.help = help
        self.metavar = metavar
        self.default = default
        self.choices = tuple(choices)
        self.repeats = repeats
        self.required = required
        self.may_be_empty = may_be_empty

    @property
    def key(self) -> str:
        """The name of the value: `on_event` for `--on-event`."""
        return self.name[2:].replace("-", "_")

    @property
    def usage(self) -> str:
        """The flag as it is typed, with what its value is called."""
        return self.name if self.kind == SWITCH else f"{self.name} {self.metavar}"


class Argument:
    """One positional argument; `kind` as for flags. One that repeats is the last, and takes all words that are left."""

    __slots__ = ("choices", "help", "kind", "name", "repeats", "required")

    def __init__(
        self,
        name: str,
        kind: str,
        help: str,
        *,
        choices: Sequence[str] = (),
        repeats: bool = False,
        required: bool = False,
    ) -> None:
        self.name = name
        self.kind = kind
        self.help = help
        self.choices = tuple(choices)
        self.repeats = repeats
        self.required = required

    @property
    def key(self) -> str:
        """The name of the value."""
        return self.name.lower()

    @property
    def usage(self) -> str:
        """The argument as usage lines show it."""
        word = "|".join(self.choices) if self.kind == CHOICE else self.name + ("…" if self.repeats else "")
        return word if self.required else f"[{word}]"


class Command:
    """One command, or a group of them.

    Args:
        name: All its words after `avenor`, `control cancel`.
        summary: One line.
        about: Paragraphs for its help.
        examples: Command lines that work as they stand.
        prints: What comes on stdout.
        exits: Exit status and meaning.
        hidden_name: Whether the name may be left out on the command line (`run`).
        commands: Those of a group; `flags` are then accepted by all of them.
    """

    __slots__ = (
        "about",
        "arguments",
        "commands",
        "examples",
        "exits",
        "flags",
        "hidden_name",
        "name",
        "prints",
        "summary",
    )

    def __init__(
        self,
        name: str,
        summary: str,
        *,
        arguments: Sequence[Argument] = (),
        flags: Sequence[Flag] = (),
        about: str = "",
        examples: Sequence[str] = (),
        prints: str = "",
        exits: Sequence[tuple[int, str]] = (),
        hidden_name: bool = False,
        commands: Sequence[Command] = (),
    ) -> None:
        self.name = name
        self.summary = summary
        self.arguments = tuple(arguments)
        self.flags = tuple(flags)
        self.about = about
        self.examples = tuple(examples)
        self.prints = prints
        self.exits = tuple(exits)
        self.hidden_name = hidden_name
        self.commands = tuple(commands)

    @property
    def word(self) -> str:
        """The last word of the name."""
        return self.name.rpartition(" ")[2]

    def find(self, word: str) -> Command | None:
        """The command of this group with that word."""
        return next((command for command in self.commands if command.word == word), None)

    def flag(self, name: str) -> Flag | None:
        """The flag of that name (with dashes)."""
        return next((flag for flag in self.flags if flag.name == name), None)
