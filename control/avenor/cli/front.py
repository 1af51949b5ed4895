"""All of the command line but `control`: help, version, and the way to the other commands."""

from collections.abc import Callable, Sequence

from avenor.cli import commands
from avenor.cli.output import complain, write_text
from avenor.cli.parsing import HelpAsked, UsageError, looks_like_flag, unknown_word
from avenor.cli.table import Command


def front(words: Sequence[str]) -> int:
    """Run a command line whose first word is not `control`, and give its exit status."""
    try:
        return _go(list(words))
    except HelpAsked as asked:
        from avenor.cli.helptext import help_text
        from avenor.cli.terminal import style_for

        write_text(help_text(asked.command, style_for(1)))
        return 0
    except UsageError as error:
        from avenor.cli.helptext import usage_error_text

        complain(usage_error_text(error.command, error.message))
        return 2


def version() -> str:
    """The version of the installed package."""
    from importlib.metadata import version

    return version("avenor")


def _go(words: list[str]) -> int:
    if not words:
        raise UsageError("a command or --prompt is needed", commands.ROOT)
    first, *rest = words
    if first == "--version":
        write_text(f"avenor {version()}\n")
        return 0
    if first in ("--help", "-h"):
        raise HelpAsked(commands.ROOT)
    if looks_like_flag(first):
        return _run(words)
    known = {command.word: action for command, action in _ACTIONS}
    if first not in known:
        raise UsageError(unknown_word(first, [command.word for command in commands.ROOT.commands]), commands.ROOT)
    return known[first](rest)


def _run(words: list[str]) -> int:
    from signal import SIG_BLOCK, SIG_SETMASK, pthread_sigmask

    from avenor.host.endsignals import END_SIGNALS

    # Whatever ends a run, it leaves a sentinel: a signal waits until there is something that can write one, which takes
    # longer to import than all else that happens before.
    before = pthread_sigmask(SIG_BLOCK, END_SIGNALS)
    try:
        from avenor.cli.run import run

        return run(words)
    finally:
        pthread_sigmask(SIG_SETMASK, before)


def _stable(words: list[str]) -> int:
    from avenor.cli.stable import stable

    return stable(words)


def _watch(words: list[str]) -> int:
    from avenor.cli.watch import watch

    return watch(words)


def _await(words: list[str]) -> int:
    from avenor.cli.await_run import await_run

    return await_run(words)


def _report(words: list[str]) -> int:
    from avenor.cli.report import report

    return report(words)


def _answer(words: list[str]) -> int:
    from avenor.cli.answer import answer

    return answer(words)


def _verify(words: list[str]) -> int:
    from avenor.cli.verify import verify

    return verify(words)


def _mcp(words: list[str]) -> int:
    from avenor.cli.mcp import mcp

    return mcp(words)


def _doctor(words: list[str]) -> int:
    from avenor.cli.doctor import doctor

    return doctor(words)


def _top(words: list[str]) -> int:
    from avenor.cli.top import top

    return top(words)


def _board(words: list[str]) -> int:
    from avenor.cli.board import board

    return board(words)


def _docs(words: list[str]) -> int:
    from avenor.cli.docs import docs

    return docs(words)


def _init(words: list[str]) -> int:
    from avenor.cli.init import init

    return init(words)


def _completion(words: list[str]) -> int:
    from avenor.cli.completion import completion

    return completion(words)


_ACTIONS: tuple[tuple[Command, Callable[[list[str]], int]], ...] = (
    (commands.RUN, _run),
    (commands.STABLE, _stable),
    (commands.WATCH, _watch),
    (commands.AWAIT, _await),
    (commands.REPORT, _report),
    (commands.ANSWER, _answer),
    (commands.VERIFY, _verify),
    (commands.DOCTOR, _doctor),
    (commands.MCP, _mcp),
    (commands.TOP, _top),
    (commands.BOARD, _board),
    (commands.DOCS, _docs),
    (commands.INIT, _init),
    (commands.COMPLETION, _completion),
)
