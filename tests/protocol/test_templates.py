"""The template language of prompts: `avenor.protocol.templates`.

`tests/data/templates.json` is the golden table. Its outputs are what Go 1.27.3 printed for a struct with these fields,
whose type it calls by its own name, and we `struct`. Its errors are our words for templates with which Go fails, too.
"""

import json
from pathlib import Path
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from avenor.protocol.templates import Template, TemplateError, TemplateProblem, parse_template

TABLE = json.loads((Path(__file__).parents[1] / "data" / "templates.json").read_text(encoding="utf-8"))
VALUES = cast("dict[str, str | int]", TABLE["values"])


def listed(group: str) -> list[tuple[str, str]]:
    """The rows of the golden table in one of its two groups."""
    return [(row[0], row[1]) for rows in TABLE[group].values() for row in rows]


def parsed(text: str) -> Template:
    return parse_template(text, fields=VALUES.keys())


def rendered(text: str, **values: str | int) -> str:
    return parsed(text).render(VALUES | values)


def refused(text: str) -> TemplateError:
    """The error of loading a text."""
    with pytest.raises(TemplateError) as caught:
        parsed(text)
    return caught.value


def failed(text: str) -> TemplateError:
    """The error of rendering a text that loads."""
    template = parsed(text)
    with pytest.raises(TemplateError) as caught:
        template.render(VALUES)
    return caught.value


@pytest.mark.parametrize(("text", "output"), listed("outputs"))
def test_templates_print_what_go_prints(text: str, output: str) -> None:
    """Each template of the golden table gives the output of Go."""
    assert rendered(text) == output


@pytest.mark.parametrize(("text", "beginning"), listed("errors"))
def test_errors_say_where_and_what(text: str, beginning: str) -> None:
    """Each bad template of the golden table is refused with line, column and reason."""
    with pytest.raises(TemplateError) as caught:
        rendered(text)
    assert str(caught.value).startswith(beginning)


def test_the_table_is_as_large_as_it_must_be() -> None:
    """At least 150 cases, and no template twice."""
    templates = [text for group in ("outputs", "errors") for text, _ in listed(group)]
    assert len(templates) == len(set(templates)) >= 150


# Loading.


def test_all_names_that_mean_nothing_are_told_at_once() -> None:
    """Unknown fields, functions, templates and variables come in one error, in the order of the text."""
    text = '{{.One}}\n  {{two}} {{template "three"}}{{define "t"}}{{$four}}{{end}}{{not}}'
    assert [(found.line, found.column, found.message.partition(";")[0]) for found in refused(text).problems] == [
        (1, 3, "no field is named .One"),
        (2, 5, "no function is named two"),
        (2, 22, 'no template is named "three"'),
        (2, 47, "no variable is named $four here"),
        (2, 63, "not takes 1 argument"),
    ]


def test_an_error_is_the_lines_of_its_problems() -> None:
    """The text of an error has one line for each problem, with its place."""
    error = TemplateError([TemplateProblem(1, 2, "first"), TemplateProblem(3, 4, "second")])
    assert str(error) == "line 1, column 2: first\nline 3, column 4: second"


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("{{.runID}}", "did you mean .RunID? known fields: .ChangedFiles, .DiffStat, .Iteration, "),
        ("{{.Teamoutputs}}", "did you mean .TeamOutput?"),
        ("{{.Zzz}}", "; known fields: .ChangedFiles, "),
        ("{{pritnf 1}}", "did you mean printf? known functions: and, eq, ge, "),
        ("{{Phase}}", "did you mean .Phase?"),
        ('{{template "reveiw"}}{{define "review"}}{{end}}', "did you mean review? known templates: prompt, review"),
    ],
)
def test_an_unknown_name_comes_with_the_known_ones(text: str, hint: str) -> None:
    """A name that is close comes first, then all that there are."""
    assert hint in str(refused(text))


def test_without_fields_none_is_known() -> None:
    """A root without fields says so."""
    with pytest.raises(TemplateError, match=r"no field is named \.X; known fields: none"):
        parse_template("{{.X}}", fields=[])


@pytest.mark.parametrize(
    "text",
    [
        "{{if false}}{{.X}}{{end}}",
        "{{if true}}a{{else if .X}}b{{end}}",
        "{{if true}}a{{else}}{{$.X}}{{end}}",
        "{{with false}}a{{else}}{{.X}}{{end}}",
        "{{with false}}a{{else with .X}}{{end}}",
        "{{with $}}{{.X}}{{end}}",
        "{{with (.)}}{{.X}}{{end}}",
        "{{with 1}}{{$.X}}{{end}}",
        "{{range 0}}{{$.X}}{{else}}{{end}}",
        "{{range 1}}{{else}}{{.X}}{{end}}",
        "{{range .X}}{{end}}",
        "{{$x := .}}{{with 1}}{{$x.X}}{{end}}",
        "{{($).X}}",
        "{{print (print 1 (len .X))}}",
        '{{define "t"}}{{.X}}{{end}}{{if false}}{{template "t" .}}{{end}}',
        '{{define "t"}}{{.X}}{{end}}{{range 2}}{{template "t" $}}{{end}}',
        '{{define "t"}}{{template "u" $}}{{end}}{{define "u"}}{{.X}}{{end}}{{template "t" .}}{{template "u" 1}}',
        '{{block "b" .}}{{$.X}}{{end}}',
        '{{template "t" .X}}{{define "t"}}{{end}}',
    ],
)
def test_fields_are_checked_wherever_the_root_is_known(text: str) -> None:
    """An unknown field of the root is found at load, though it may never be reached."""
    assert "no field is named .X" in str(refused(text))


@pytest.mark.parametrize(
    "text",
    [
        "{{with .Phase}}{{end}}{{with 0}}{{.X}}{{end}}",
        "{{range 0}}{{.X}}{{end}}",
        '{{define "t"}}{{.X}}{{$.X}}{{end}}',
        '{{define "t"}}{{.X}}{{end}}{{template "t"}}',
        '{{define "t"}}{{.X}}{{end}}{{if 0}}{{template "t" 1}}{{end}}',
        "{{$x := .}}{{$x = 1}}{{if 0}}{{$x.X}}{{end}}",
        "{{$x := .}}{{range $x = 0}}{{$x.X}}{{end}}",
        "{{if 0}}{{(print 1).X}}{{end}}",
    ],
)
def test_other_values_are_not_taken_for_the_root(text: str) -> None:
    """What is no root, or may be something else, is left to the rendering."""
    assert "X" not in rendered(text)


def test_a_field_may_have_any_name_of_the_root() -> None:
    """The known fields are those that the caller gives."""
    template = parse_template("{{.Ärger}} {{.X_1}}", fields=["Ärger", "X_1"])
    assert template.render({"Ärger": "a", "X_1": 2}) == "a 2"


def test_a_template_can_call_itself_by_its_name() -> None:
    """The name that the caller gives is the whole template's."""
    text = '{{if eq (printf "%T" .) "string"}}inner {{.}}{{else}}outer, {{template "whole" .RunID}}{{end}}'
    assert parse_template(text, fields=["RunID"], name="whole").render({"RunID": "r1"}) == "outer, inner r1"


def test_columns_count_characters() -> None:
    """A character of several bytes is one column, and a carriage return is no end of a line."""
    assert [(found.line, found.column) for found in refused("😀é\r\n😀 {{.X}}").problems] == [(2, 5)]


def test_the_root_in_go_syntax() -> None:
    """`%#v` of the root differs from Go's in the name of its type only."""
    template = parse_template('{{printf "%#v" .}}', fields=["A", "B"])
    assert template.render({"A": "x", "B": 1}) == 'struct{A:"x", B:1}'


def test_complex_numbers_are_refused() -> None:
    """The one kind of Go's constants that prompts have not."""
    assert "complex number" in str(refused("{{1i}}"))


# Rendering.


def test_values_are_printed_as_they_are() -> None:
    """A value is never read as a template, nor escaped."""
    assert rendered("{{.DiffStat}}|{{.Iteration}}", DiffStat='{{.X}} <"&>', Iteration=-3) == '{{.X}} <"&>|-3'


def test_a_field_without_a_value_is_an_error() -> None:
    """A field that was announced and not given is told where it is used, and only there."""
    template = parse_template("a {{.Phase}}", fields=["Phase", "RunID"])
    assert template.render({"Phase": "plan"}) == "a plan"
    with pytest.raises(TemplateError, match=r"^line 1, column 5: no value was given for the field \.Phase$"):
        template.render({"RunID": "r1"})


def test_what_is_no_utf_8_becomes_replacement_characters() -> None:
    """Half a character, or a lone surrogate from JSON, leaves text that can be sent."""
    assert rendered('{{slice "é" 1}}|{{.Phase}}|\udcff', Phase="a\ud800b") == "\ufffd|a\ufffdb|\ufffd"


def test_a_template_can_be_rendered_again() -> None:
    """Rendering leaves nothing behind."""
    template = parsed('{{$x := .Iteration}}{{range 2}}{{$x = print $x "-" .}}{{end}}{{$x}}')
    assert [template.render(VALUES | {"Iteration": number}) for number in (7, 8)] == ["7-0-1", "8-0-1"]


def test_long_values_are_cut_in_messages() -> None:
    """A message has the beginning of a long string."""
    message = str(failed('{{lt 1 (printf "%0999d" 7)}}'))
    assert message == f'line 1, column 3: lt cannot compare the int 1 with the string "{"0" * 40}…"'


@pytest.mark.parametrize(
    ("text", "source"),
    [
        ('{{"%s" 1}}', f'"{"x" * 39}…'),
        ('{{1 | "%s"}}', f'"{"x" * 39}…'),
    ],
)
def test_long_constants_are_cut_in_messages(text: str, source: str) -> None:
    """A message has the beginning of a long constant."""
    assert source in str(refused(text % ("x" * 999)))


# Bounds.


@pytest.mark.parametrize(
    ("opening", "closing"),
    [("{{if 1}}", "{{end}}"), ("{{range 1}}", "{{end}}"), ("{{with 1}}{{else}}", "{{end}}"), ("(", ")")],
)
def test_nesting_is_bounded(opening: str, closing: str) -> None:
    """100 levels work; at one more the error points to it."""

    def nested(depth: int) -> str:
        inner = "1" if opening == "(" else "{{1}}"
        text = opening * depth + inner + closing * depth
        return f"{{{{{text}}}}}" if opening == "(" else text

    assert rendered(nested(100)) in ("", "1")
    assert "nested more than 100 deep" in str(refused(nested(101)))
    assert "nested more than 100 deep" in str(refused(nested(100_000)))


def test_else_if_is_no_nesting() -> None:
    """A chain of alternatives may be long."""
    assert rendered("{{if 0}}" + "{{else if 0}}" * 5_000 + "{{else}}x{{end}}") == "x"


@pytest.mark.parametrize(
    "text",
    [
        '{{template "prompt" .}}',
        '{{define "a"}}{{template "b"}}{{end}}{{define "b"}}{{template "a"}}{{end}}{{template "a"}}',
        '{{define "a"}}{{range 2}}{{with 1}}{{template "a"}}{{end}}{{end}}{{end}}{{template "a"}}',
        '{{define "a"}}' + "{{if 1}}" * 90 + '{{template "a"}}' + "{{end}}" * 90 + '{{end}}{{template "a"}}',
    ],
)
def test_recursion_is_bounded(text: str) -> None:
    """A template that calls itself without end is an error, however it nests."""
    assert "templates call each other more than 2000 blocks deep" in str(failed(text))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{{range 1000000000000}}{{end}}", "given up after"),
        ("{{range 100000}}{{range 100000}}x{{end}}{{end}}", "given up after"),
        ("{{range 1000000}}{{if and 1 (or 0 1)}}{{end}}{{end}}", "given up after 200000 steps"),
        ('{{$x := printf "%9999999d" 1}}{{$y := print $x}}{{range 99999}}{{if eq $x $y}}{{end}}{{end}}', "given up"),
        ('{{$x := printf "%9999999d" 1}}{{range 99999}}{{$y := slice $x 1}}{{end}}', "given up after"),
        ('{{$x := printf "%9999999d" 1}}{{range 99999}}{{$y := html $x}}{{end}}', "given up after"),
        ('{{$x := "aaaaaaaaaaaaaaaa"}}{{range 99}}{{$x = print $x $x}}{{end}}', "this prints more than 16 MiB"),
        ('{{$x := printf "%9999999d" 1}}{{println $x $x}}', "this prints more than 16 MiB"),
        ('{{printf "%9999999d%9999999d" 1 2}}', "this prints more than 16 MiB"),
        ('{{$x := printf "%9999999d" 1}}{{$x}}{{$x}}', "this prints more than 16 MiB"),
    ],
)
def test_work_and_output_are_bounded(text: str, message: str) -> None:
    """A template that would not end, or fill the memory, is an error that says where."""
    assert message in str(failed(text))


def test_large_prompts_fit() -> None:
    """The output of 50 members, each as long as it may be, can be printed and escaped."""
    output = "é" * (50 * 32 * 1024)
    text = rendered('{{.TeamOutput}}{{printf "%s" .TeamOutput}}{{html .TeamOutput}}', TeamOutput=output)
    assert text == output * 3


def test_the_number_of_parts_is_bounded() -> None:
    """A text of nothing but actions is refused before it fills the memory."""
    assert "the template has more than 50000 parts" in str(refused("{{1}}" * 20_000))


def test_huge_numbers_are_refused_at_once() -> None:
    """A number of a million digits is out of range, and its message short."""
    message = str(refused("{{" + "9" * 1_000_000 + "}}"))
    assert "is out of range" in message
    assert len(message) < 300


# Properties.

WORDS = (
    "{{ }} {{- -}} {{/* */}} ( ) | , . .RunID .X $ $x := = if else end range with define template block break continue "
    "{{end}} {{if 1}} {{range 2}} print printf len index slice eq lt and or not html nil true 0 3 -1 1.5 0x 'a' \" ` é"
)
PIECES = st.sampled_from([*WORDS.split(), '"a"', '"%d %s"', " ", "\n"])


@given(st.text())
def test_text_without_braces_is_its_own_output(text: str) -> None:
    """What has no action is copied."""
    plain = text.replace("{{", "{")
    while "{{" in plain:
        plain = plain.replace("{{", "{")
    assert rendered(plain) == plain


@given(st.text() | st.lists(PIECES, max_size=30).map("".join) | st.lists(PIECES, max_size=30).map(" ".join))
def test_nothing_but_template_errors_is_raised(text: str) -> None:
    """Any text is a template or a TemplateError with places inside of it, at load as when it runs."""
    problems: list[TemplateProblem] = []
    try:
        rendered(text)
    except TemplateError as error:
        problems = error.problems
    lines = text.split("\n")
    assert all(1 <= found.line <= len(lines) for found in problems)
    assert all(1 <= found.column <= len(lines[found.line - 1]) + 1 for found in problems)


@given(st.binary(max_size=40), st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False, allow_infinity=False))
def test_formats_never_fail(form: bytes, number: int, fraction: float) -> None:
    """Any format takes any values: `printf` tells its mistakes in the text."""
    escaped = "".join(f"\\x{byte:02x}" for byte in b"%" + form.replace(b"9", b"1"))
    rendered(f'{{{{printf "{escaped}" {number} {fraction!r} .Phase nil .}}}}')
