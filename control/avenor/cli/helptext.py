"""Help and usage errors, written from the tables."""

from textwrap import wrap

from avenor.cli.table import Argument, Command, Flag
from avenor.cli.terminal import Style

_COLUMNS = 100
_INDENT = 2
_WIDEST_TERM = 30


def help_text(command: Command, style: Style) -> str:
    """The help of a command."""
    parts = [f"{style.paint('usage:', 'bold')} {usage(command)}", _paragraph(_sentence(command.summary))]
    if command.about:
        parts.append(_paragraph(command.about))
    if command.commands:
        parts.append(_section("commands", [(_line(known), known.summary) for known in command.commands], style))
    if command.arguments:
        parts.append(_section("arguments", [(argument.usage, argument.help) for argument in command.arguments], style))
    if command.flags:
        parts.append(_section("flags", [(flag.usage, flag_help(flag)) for flag in command.flags], style))
    if command.prints:
        parts.append(_paragraph(f"On stdout: {command.prints}."))
    if command.exits:
        parts.append(_section("exit status", [(str(code), meaning) for code, meaning in command.exits], style))
    parts.append(_examples(command, style))
    return "\n\n".join(parts) + "\n"


def usage(command: Command) -> str:
    """The usage line of a command, without the word `usage`."""
    words = ["avenor"]
    if command.hidden_name:
        words.append(f"[{command.name}]")
    elif command.name.startswith("control "):
        words.append(f"control [--socket PATH] [--json] {command.word}")
    elif command.name:
        words.append(command.name)
    words.extend(f"{flag.usage}" for flag in command.flags if flag.required)
    if any(not flag.required for flag in command.flags):
        words.append("[FLAGS]")
    words.extend(argument.usage for argument in command.arguments)
    if command.commands:
        words.append("COMMAND …")
    return " ".join(words)


def flag_help(flag: Flag) -> str:
    """The help of a flag with its suggestions, default and whether it repeats."""
    notes: list[str] = []
    if flag.choices and not flag.metavar.count("|"):
        notes.append("one of " + ", ".join(flag.choices))
    if flag.default:
        notes.append(f"default {flag.default}")
    if flag.repeats:
        notes.append("may be repeated")
    return flag.help + (f" ({'; '.join(notes)})" if notes else "")


def usage_error_text(command: Command, message: str) -> str:
    """What to say about words that make no sense."""
    name = f"avenor {command.name}".rstrip()
    return f"{name}: {message}\nusage: {usage(command)}\n`{name} --help` tells more"


def _line(command: Command) -> str:
    return " ".join([command.word, *(argument.usage for argument in command.arguments if not _is_long(argument))])


def _is_long(argument: Argument) -> bool:
    return len(argument.usage) > 16


def _sentence(text: str) -> str:
    return text[0].upper() + text[1:] + "."


def _paragraph(text: str) -> str:
    return "\n".join(wrap(text, _COLUMNS, break_long_words=False, break_on_hyphens=False))


def _section(title: str, entries: list[tuple[str, str]], style: Style) -> str:
    column = min(_WIDEST_TERM, max(len(term) for term, _ in entries)) + 2 * _INDENT
    lines = [style.paint(f"{title}:", "bold")]
    for term, text in entries:
        wrapped = wrap(text, _COLUMNS - column, break_long_words=False, break_on_hyphens=False)
        lead = f"{' ' * _INDENT}{term}"
        if len(lead) + _INDENT > column:
            lines.append(lead)
            lead = ""
        lines.append(f"{lead:<{column}}{wrapped[0]}")
        lines.extend(" " * column + more for more in wrapped[1:])
    return "\n".join(lines)


def _examples(command: Command, style: Style) -> str:
    title = "example:" if len(command.examples) == 1 else "examples:"
    return "\n".join([style.paint(title, "bold"), *(f"{' ' * _INDENT}{example}" for example in command.examples)])
