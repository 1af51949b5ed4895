"""`avenor completion`: the scripts that complete the command line, written from the tables."""

from collections.abc import Callable, Sequence

from avenor.cli import complete_bash, complete_fish, complete_zsh
from avenor.cli.commands import COMPLETION
from avenor.cli.output import write_text
from avenor.cli.parsing import parse

SCRIPTS: dict[str, Callable[[], str]] = {
    "bash": complete_bash.script,
    "zsh": complete_zsh.script,
    "fish": complete_fish.script,
}


def completion(words: Sequence[str]) -> int:
    """Run `avenor completion` with these words and give its exit status.

    Raises:
        UsageError: They make no sense.
        HelpAsked: They ask for help.
    """
    write_text(SCRIPTS[parse(COMPLETION, words).text("shell") or ""]())
    return 0
