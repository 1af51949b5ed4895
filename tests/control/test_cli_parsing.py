"""Words to values."""

import shlex
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from avenor.cli.commands import ROOT, RUN
from avenor.cli.control_table import CANCEL, CONTROL, HISTORY, PROMPT, SPAWN
from avenor.cli.parsing import HelpAsked, UsageError, Values, looks_like_flag, parse, parse_group
from avenor.cli.table import FILE, SWITCH, TEXT, Argument, Command, Flag


def given_to(command: Command, line: str) -> Values:
    return parse(command, shlex.split(line))


@pytest.mark.parametrize("line", ["--label x", "--label=x", "--label y --label x"])
def test_both_spellings_of_a_flag_mean_the_same_and_the_last_counts(line: str) -> None:
    """A value may follow as a word or after an equals sign."""
    assert given_to(RUN, line).text("label") == "x"


@given(st.text(min_size=1))
def test_any_text_reaches_the_prompt_unchanged(text: str) -> None:
    """A flag takes the next word whatever it looks like, a leading dash included."""
    assert parse(RUN, ["--prompt", text]).text("prompt") == text
    assert parse(RUN, [f"--prompt={text}"]).text("prompt") == text


@given(st.text(min_size=1))
def test_any_text_can_be_an_argument_after_two_dashes(text: str) -> None:
    """`--` ends the flags."""
    assert parse(PROMPT, ["--force", "--", text, "rt_1"]).text("text") == text


@pytest.mark.parametrize("text", ["- fix this\n- and that", "-5", "-", "--- title", "continue --force it"])
def test_text_that_only_begins_like_a_flag_is_an_argument(text: str) -> None:
    """A prompt may be a list."""
    assert not looks_like_flag(text)
    assert parse(PROMPT, [text]).text("text") == text


@pytest.mark.parametrize(
    ("text", "seconds"), [("250ms", 0.25), ("30s", 30.0), ("1h30m", 5400.0), ("7d", 604800.0), ("90", 90.0), ("0", 0.0)]
)
def test_durations_become_seconds(text: str, seconds: float) -> None:
    """Durations are Go style, with days; a bare number is seconds."""
    assert parse(RUN, ["--timeout", text]).raw("timeout") == seconds


@pytest.mark.parametrize(
    "flag", ["--timeout", "--progress-timeout", "--handshake-timeout", "--permission-claim-timeout"]
)
@pytest.mark.parametrize("text", ["-5s", "soon", "", "nan", "5x"])
def test_a_bad_duration_is_refused_with_the_name_of_its_flag(flag: str, text: str) -> None:
    """It is told before anything starts."""
    with pytest.raises(UsageError, match=f"^{flag}: "):
        parse(SPAWN, [flag, text])


@pytest.mark.parametrize("text", ["-1", "1.5", "many", "", "1_0", "٣"])
def test_a_count_is_a_whole_number(text: str) -> None:
    """Nothing but ASCII digits is a count."""
    with pytest.raises(UsageError, match=r"^--limit: "):
        parse(HISTORY, ["--limit", text])


def test_a_flag_that_repeats_gives_a_list() -> None:
    """`--env` may be given several times."""
    assert given_to(RUN, "--env A=1 --env=B=2 --env C").texts("env") == ["A=1", "B=2", "C"]


@pytest.mark.parametrize(
    ("command", "line", "message"),
    [
        (RUN, "--promt x", "no flag --promt; did you mean --prompt?"),
        (RUN, "--zzz", "no flag --zzz"),
        (RUN, "--prompt", "--prompt TEXT: the value is missing"),
        (RUN, "--quiet=maybe", "--quiet is a switch"),
        (RUN, "word", "'word' is one argument too many (it takes no arguments"),
        (CANCEL, "rt_1 rt_2", "'rt_2' is one argument too many"),
        (CANCEL, "''", "ID is empty"),
        (PROMPT, "", "TEXT is missing: the prompt"),
        (SPAWN, "--wait never", "--wait: 'never' is none of session, started"),
    ],
)
def test_a_usage_error_says_what_is_wrong(command: Command, line: str, message: str) -> None:
    """The message names the flag or argument."""
    with pytest.raises(UsageError) as caught:
        given_to(command, line)
    assert caught.value.message.startswith(message)
    assert caught.value.command is command


def _flags(command: Command) -> Iterator[tuple[Command, Flag]]:
    yield from ((command, flag) for flag in command.flags if flag.kind != SWITCH)
    for each in command.commands:
        yield from _flags(each)


@pytest.mark.parametrize(
    ("command", "flag"), [pytest.param(*each, id=f"{each[0].name} {each[1].name}") for each in _flags(ROOT)]
)
def test_no_flag_has_an_empty_value(command: Command, flag: Flag) -> None:
    """That of a variable that is not set would mean the default: another supervisor, or the current directory."""
    read = parse_group if command.commands else parse
    if flag.may_be_empty:
        assert flag.name == "--message"
        assert parse(Command("", "", flags=[flag]), [flag.name, ""]).text(flag.key) == ""
        return
    for words in ([flag.name, ""], [f"{flag.name}="]):
        with pytest.raises(UsageError) as caught:
            read(command, words)
        assert caught.value.message == f"{flag.name}: it is empty"


def test_the_flags_of_a_group_may_come_before_and_after_the_command() -> None:
    """`control --socket P cancel` and `control cancel --socket P` are the same."""
    before = parse_group(CONTROL, ["--socket", "/s", "cancel", "rt_1"])
    after = parse_group(CONTROL, ["cancel", "rt_1", "--socket=/s"])
    for command, values in (before, after):
        assert command is CANCEL
        assert values.text("socket") == "/s"
        assert values.text("id") == "rt_1"


def test_a_group_needs_a_command() -> None:
    """The error lists them."""
    with pytest.raises(UsageError, match=r"a command is needed: status, list, tail"):
        parse_group(CONTROL, ["--socket", "/s"])


@pytest.mark.parametrize("words", [["--help"], ["-h"], ["rt_1", "--help"], ["--force", "-h"]])
def test_help_can_be_asked_anywhere(words: list[str]) -> None:
    """Help comes before any other complaint."""
    with pytest.raises(HelpAsked):
        parse(CANCEL, words)


def test_the_word_help_as_a_value_is_only_a_value() -> None:
    """`--prompt --help` prompts with `--help`."""
    assert parse(RUN, ["--prompt", "--help"]).text("prompt") == "--help"


def every_command() -> list[Command]:
    return [*ROOT.commands, *CONTROL.commands]


@pytest.mark.parametrize("command", every_command(), ids=lambda command: command.name)
def test_what_is_not_utf8_is_refused_with_the_name_of_its_flag_or_argument(command: Command) -> None:
    """Neither JSON nor an event log holds it, so no command takes it."""
    inherited = CONTROL.flags if command in CONTROL.commands else ()
    for flag in (*inherited, *command.flags):
        if flag.kind != SWITCH:
            with pytest.raises(UsageError, match=rf"^{flag.name}: it is not UTF-8$"):
                parse(command, [f"{flag.name}=a\udcff"], inherited=inherited)
    for index, argument in enumerate(command.arguments):
        with pytest.raises(UsageError) as caught:
            parse(command, [*["x"] * index, "a\udcff", *["x"] * 9][: len(command.arguments)])
        assert caught.value.message == f"{argument.name}: it is not UTF-8"


@pytest.mark.parametrize("command", every_command(), ids=lambda command: command.name)
def test_no_command_has_two_flags_of_one_name(command: Command) -> None:
    """Neither in itself nor with the flags of its group."""
    inherited = CONTROL.flags if command in CONTROL.commands else ()
    names = [flag.name for flag in (*inherited, *command.flags)]
    assert len(names) == len(set(names))


def test_an_argument_that_repeats_takes_all_words_that_are_left() -> None:
    """Flags may stand between them; at least one is needed where it is required."""
    command = Command(
        "x",
        "try",
        arguments=(Argument("ONE", TEXT, "the first"), Argument("REST", FILE, "the others", repeats=True)),
        flags=(Flag("--flag", SWITCH, "a switch"),),
    )
    values = parse(command, ["a", "b", "--flag", "c", "--", "--d"])
    assert (values.text("one"), values.texts("rest"), values.switch("flag")) == ("a", ["b", "c", "--d"], True)
    assert parse(command, ["a"]).texts("rest") == []
    assert parse(command, []).text("one") is None
