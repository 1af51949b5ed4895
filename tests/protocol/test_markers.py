"""Markers in agent messages: `avenor.protocol.markers`."""

import tracemalloc
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from avenor.protocol.markers import MARKER_LIMIT_CHARS, Directive, MarkerParser, most_severe, parse_marker

EXIT = Directive("exit", None, "exit")


def said(*chunks: str) -> list[Directive]:
    """The directives of one message that comes in these chunks."""
    parser = MarkerParser()
    for chunk in chunks:
        parser.feed_message(chunk, "m1")
    parser.end_message()
    return parser.take()


@pytest.mark.parametrize(
    ("line", "directive"),
    [
        ("[loop: exit]", EXIT),
        ("[loop: continue]", Directive("continue", None, "continue")),
        ("[loop: abort]", Directive("abort", None, "abort")),
        ("[loop: abort | no access]", Directive("abort", "no access", "abort")),
        ("<|workflow: exit|>", EXIT),
        ("<|workflow: continue |>", Directive("continue", None, "continue")),
        ("<|workflow: abort | reason|>", Directive("abort", "reason", "abort")),
        ("<|team: skip | auth-review|>", Directive("skip", "auth-review", "skip")),
        ("[team: skip | Auth Review]", Directive("skip", "Auth Review", "skip")),
        ("[status: thinking]", Directive("status", None, "thinking")),
        ("[status: working | tests]", Directive("status", "tests", "working")),
        ("<|status: waiting | for CI|>", Directive("status", "for CI", "waiting")),
        ("<|status: done|>", Directive("status", None, "done")),
    ],
)
def test_every_spelling_is_read(line: str, directive: Directive) -> None:
    """The spellings of the contract give their directives."""
    assert said(f"text\n{line}\nmore") == [directive]


@pytest.mark.parametrize(
    ("line", "label"),
    [
        ("[loop: abort|x]", "x"),
        ("[loop:abort |\tx\t]", "x"),
        ("[LOOP: Abort | Keep Case]", "Keep Case"),
        ("<|WorkFlow: ABORT | Keep Case|>", "Keep Case"),
        (" \t[loop: abort | x] \t", "x"),
        ("\t\t\t<|workflow: abort | x|>\t", "x"),
        ("[loop: abort | a | b]", "a | b"),
        ("[loop: abort | [a]", "[a"),
        ("[loop: abort | a|> b]", "a|> b"),
        ("<|workflow: abort | a | b|>", "a | b"),
        ("<|workflow: abort | a |> b|>", "a |> b"),
        ("<|workflow: abort | a||>", "a|"),
        ("<|workflow: abort | see [1]|>", "see [1]"),
        ("[loop: abort | ünïcode 😀]", "ünïcode 😀"),
        ("[loop: abort | a\rb]", "a\rb"),
        ("[loop: abort |]", None),
        ("[loop: abort | \t]", None),
        ("<|workflow: abort ||>", None),
        ("<|workflow: abort | |>", None),
    ],
)
def test_labels_and_blanks(line: str, label: str | None) -> None:
    """Labels keep their text and lose the blanks around it; an empty one is none."""
    assert said(line) == [Directive("abort", label, "abort")]


@pytest.mark.parametrize(
    "line",
    [
        "I will write [loop: exit] when done",
        "[loop: exit].",
        "> [loop: exit]",
        "- [loop: exit]",
        "**[loop: exit]**",
        "`[loop: exit]`",
        "[loop: exit] [loop: exit]",
        "[loop: abort | see [1] there]",
        "[loop: abort | a]]",
        "[workflow: exit]",
        "<|loop: exit|>",
        "[loop: exit|>",
        "<|workflow: exit]",
        "<|workflow: exit>",
        "<workflow: exit|>",
        "<|workflow: exit|> it is",
        "[loop: stop]",
        "[loop: skip | a]",
        "[loop: done]",
        "[loop: exit now]",
        "[loop: ]",
        "[loop exit]",
        "[team: abort]",
        "<|team: abort | a|>",
        "[team: skip]",
        "[team: skip | ]",
        "<|team: skip||>",
        "[status: idle]",
        "[status: exit]",
        "[\u017ftatus: done]",
        "[team: s\u212aip | a]",
        "\u00a0[loop: exit]",
        "[loop: exit]\u00a0",
        "\u2003[loop: exit]",
        "\f[loop: exit]",
        "[loop:\u00a0exit]",
        "\ufeff[loop: exit]",
        "x\r[loop: exit]",
        "[",
        "<|",
        "",
    ],
)
def test_other_lines_are_no_markers(line: str) -> None:
    """Prose, other words, mixed spellings, blanks beyond ASCII: nothing acts."""
    assert said(f"a\n{line}\nb\n") == []


def test_a_line_separator_that_is_no_line_feed_ends_no_line() -> None:
    """Only line feeds end lines, whatever Python's splitlines thinks."""
    assert said("a\u2028[loop: exit]\u2028b") == []
    assert said("a\v[loop: exit]\x85b") == []


def test_a_line_is_judged_when_its_newline_has_come() -> None:
    """A line that is not finished is no marker yet, and is none if it goes on."""
    parser = MarkerParser()
    parser.feed_message("[loop: exit]", "m1")
    assert parser.take() == []
    parser.feed_message(" or not\n[loop: exit]\r", "m1")
    assert parser.take() == []
    parser.feed_message("\n", "m1")
    assert parser.take() == [EXIT]
    parser.end_message()
    assert parser.take() == []


def test_the_end_of_its_message_ends_a_line() -> None:
    """The last line needs no newline; ending twice changes nothing."""
    parser = MarkerParser()
    parser.feed_message("[loop: exit]", None)
    parser.end_message()
    parser.end_message()
    assert parser.take() == [EXIT]


@pytest.mark.parametrize(("first_id", "second_id"), [("m1", "m2"), (None, "m1"), ("m1", None)])
def test_a_new_message_id_ends_the_message(first_id: str | None, second_id: str | None) -> None:
    """Text of two messages is never glued into one line, and a fence does not reach into the next."""
    parser = MarkerParser()
    parser.feed_message("```\n[loop: abort]\n[loop: ", first_id)
    parser.feed_message("exit]\n[loop: exit]", second_id)
    parser.end_message()
    assert parser.take() == [EXIT]


def test_the_same_id_after_an_end_is_a_new_message() -> None:
    """After a tool call the same message id does not bring the fence back."""
    parser = MarkerParser()
    parser.feed_message("```\n[loop: ", "m1")
    parser.end_message()
    parser.feed_message("exit]\n[loop: exit]\n", "m1")
    assert parser.take() == [EXIT]


def test_each_directive_is_taken_once_and_in_order() -> None:
    """A take empties what was collected."""
    parser = MarkerParser()
    parser.feed_message("[status: working]\n[loop: exit]\n[status: working]\n", "m1")
    working = Directive("status", None, "working")
    assert parser.take() == [working, EXIT, working]
    assert parser.take() == []


@pytest.mark.parametrize(
    "text",
    [
        "```\n[loop: exit]\n```",
        "   ```\n[loop: exit]\n   ```",
        "~~~\n[loop: exit]\n~~~",
        "```python title\n[loop: exit]\n```",
        "~~~ a ` b ~~~\n[loop: exit]\n~~~",
        "````\n```\n[loop: exit]\n````",
        "```\n~~~\n[loop: exit]\n```",
        "~~~\n```\n[loop: exit]\n~~~",
        "```\n``` no\n[loop: exit]\n```",
        "```\n    ```\n[loop: exit]\n```",
        "```\n\t```\n[loop: exit]\n```",
        "```\n``\n[loop: exit]\n```",
        "```\n[loop: exit]",
        "```\r\n[loop: exit]\r\n```\r\n",
        "```\n\n[loop: exit]\n\n```",
    ],
)
def test_lines_in_a_fence_are_ignored(text: str) -> None:
    """A fence hides its lines until a line closes it, or to the end of the message."""
    assert said(text) == []


@pytest.mark.parametrize(
    "text",
    [
        "```\ncode\n```\n[loop: exit]",
        "```\ncode\n`````\n[loop: exit]",
        "```\ncode\n   ``` \t\n[loop: exit]",
        "~~~\ncode\n~~~~\n[loop: exit]",
        "```\r\ncode\r\n```\r\n[loop: exit]\r\n",
        "```\n```\n[loop: exit]",
        "``` a ` b\n[loop: exit]",
        "```code```\n[loop: exit]",
        "``\n[loop: exit]",
        "~~\n[loop: exit]",
        "    ```\n[loop: exit]",
        "\t```\n[loop: exit]",
        " \t```\n[loop: exit]",
        "text ```\n[loop: exit]",
        "``~\n[loop: exit]",
        "\u00a0```\n[loop: exit]",
        "    [loop: exit]",
    ],
)
def test_lines_outside_fences_act(text: str) -> None:
    """What CommonMark takes for no fence, or for its end, hides nothing."""
    assert said(text) == [EXIT]


def test_blanks_in_a_chunk_of_their_own_close_no_fence() -> None:
    """What stood between the fence characters and the blanks is not forgotten."""
    assert said("```\n``` x", " \n[loop: exit]\n") == []


LINES = st.sampled_from(
    [
        "[loop: exit]", "<|workflow: abort | a |> b|>", "[status: done | x]", "[team: skip | ä😀]", "```", "````",
        "~~~", "~~~~ x", "``` `", "```js", "    ```", " ~~~ ", "", "prose",
        " \t[loop: continue]\t", "[loop: ", "exit]", "``",
    ]
)  # fmt: skip
TEXTS = st.lists(st.tuples(LINES, st.sampled_from(["\n", "\r\n", "", "\r"]))).map(
    lambda parts: "".join(line + end for line, end in parts)
)


@given(text=TEXTS, cuts=st.lists(st.integers(0, 80)))
def test_markers_split_anywhere_give_the_same_result(text: str, cuts: list[int]) -> None:
    """Chunk boundaries never matter."""
    edges = [0, *sorted(cuts), len(text)]
    assert said(*(text[start:end] for start, end in pairwise(edges))) == said(text)


@given(text=TEXTS)
def test_single_characters_give_the_same_result(text: str) -> None:
    """A message that comes character by character gives the directives of the whole."""
    assert said(*text) == said(text)


@given(text=TEXTS)
def test_carriage_returns_before_line_feeds_never_matter(text: str) -> None:
    """The same text with either line end gives the same directives."""
    plain = text.replace("\r", "")
    assert said(plain.replace("\n", "\r\n")) == said(plain)


@given(
    kind=st.sampled_from(["continue", "exit", "abort"]),
    label=st.text("ab |>[<:é", min_size=1).map(str.strip).filter(bool),
)
def test_reading_undoes_writing(kind: str, label: str) -> None:
    """A marker written with a label is read back with it, in both spellings."""
    directive = parse_marker(f"<|workflow: {kind} | {label}|>")
    assert directive == parse_marker(f"[loop: {kind} | {label}]")
    assert directive is not None
    assert (directive.kind, directive.label, directive.word) == (kind, label, kind)


def test_text_of_several_lines_is_no_marker() -> None:
    """A marker is one line, so a label cannot bring a line feed along."""
    assert parse_marker("[loop: abort | a\nb]") is None
    assert parse_marker("<|workflow: abort | a\nb|>") is None


def chunks_of(text: str) -> list[str]:
    """The text in pieces of 1000 characters."""
    return [text[i : i + 1000] for i in range(0, len(text), 1000)]


def test_the_longest_marker_is_read_and_a_longer_line_is_prose() -> None:
    """The limit holds for the line from its first non-blank character on, however it arrives."""
    label = "x" * (MARKER_LIMIT_CHARS - len("[loop: abort | ]"))
    longest, longer = f"  [loop: abort | {label}]", f"[loop: abort | {label}x]"
    assert said(*chunks_of(longest)) == said(longest) == [Directive("abort", label, "abort")]
    assert said(*chunks_of(longer)) == said(longer) == []
    assert said(*chunks_of(longer), "\n[loop: exit]") == [EXIT]


HUGE = 3 * MARKER_LIMIT_CHARS


@pytest.mark.parametrize(
    ("text", "directives"),
    [
        ("```" + "i" * HUGE + "\n[loop: abort]\n```\n[loop: exit]", [EXIT]),
        ("```" + "i" * HUGE + "`\n[loop: exit]", [EXIT]),
        ("`" * HUGE + "\n" + "`" * (HUGE - 1) + "\n[loop: abort]\n" + "`" * HUGE + "\n[loop: exit]", [EXIT]),
        ("```\n```" + " " * HUGE + "\n[loop: exit]", [EXIT]),
        ("```\n```" + " " * HUGE + "x\n[loop: exit]", []),
        (" " * HUGE + "```\n[loop: exit]", [EXIT]),
        (" " * HUGE + "[loop: exit]", [EXIT]),
        ("prose" * HUGE + "\n[loop: exit]", [EXIT]),
    ],
)
def test_fences_are_followed_through_lines_of_any_length(text: str, directives: list[Directive]) -> None:
    """A line too long to be kept still opens and closes fences as it should."""
    assert said(text) == directives
    assert said(*chunks_of(text)) == directives


@pytest.mark.parametrize("start", ["prose ", "[loop: abort | ", "```", "   "])
def test_an_endless_line_takes_bounded_memory(start: str) -> None:
    """However much comes without a newline, little of it is held."""
    parser = MarkerParser()
    parser.feed_message(start, "m1")
    chunk = start[-1] * 10_000
    tracemalloc.start()
    try:
        for _ in range(100):
            parser.feed_message(chunk, "m1")
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 2 * MARKER_LIMIT_CHARS


def test_the_most_severe_directive_decides_and_at_equal_severity_the_first() -> None:
    """Abort before exit before continue; skips and statuses have no say."""
    first, second = Directive("abort", "1", "abort"), Directive("abort", "2", "abort")
    carry_on, status = Directive("continue", None, "continue"), Directive("status", None, "done")
    skip = Directive("skip", "a", "skip")
    assert most_severe([status, carry_on, EXIT, first, EXIT, second]) is first
    assert most_severe([carry_on, EXIT, carry_on]) is EXIT
    assert most_severe([skip, carry_on]) is carry_on
    assert most_severe([skip, status]) is None
