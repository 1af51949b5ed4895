"""Configs that name other files: paths, nesting, cycles, and the bounds of the whole."""

from typing import Any

import pytest

from avenor.protocol.config_loading import SIZE_LIMIT_BYTES, load_config
from avenor.protocol.configs import ConfigKind, ResolvedLoop, ResolvedTeam
from avenor.protocol.errors import ConfigError
from tests.protocol.config_folder import Files, Folder, errors, load, loop, phase, team


def test_files_are_relative_to_the_folder_of_the_file_that_names_them() -> None:
    """All three kinds of files, at every depth; absolute paths stay."""
    files = {
        "/c/sub/l.json": loop(loop=[phase(team_file="../more/t.json")], post=[phase("b", prompt_file="p.md")]),
        "/c/sub/p.md": b"below",
        "/c/more/t.json": team(team=[phase(prompt_file="/abs/p.md")]),
        "/abs/p.md": b"elsewhere",
    }
    config = load({"team": [phase(loop_file="sub/l.json")]}, files=files).config
    assert isinstance(config, ResolvedTeam)
    inner = config.team[0].nested
    assert isinstance(inner, ResolvedLoop)
    assert (config.team[0].prompt, inner.file, inner.post[0].prompt) == (None, "/c/sub/l.json", "below")
    innermost = inner.loop[0].nested
    assert isinstance(innermost, ResolvedTeam)
    assert (innermost.file, innermost.team[0].prompt) == ("/c/more/t.json", "elsewhere")


def test_a_relative_root_gives_relative_paths() -> None:
    """As they were typed, so that they can be opened and read."""
    folder = Folder({"t.json": team(pre=[phase(prompt_file="./p/x.md")]), "p/x.md": b"go"})
    loaded = load_config("./t.json", "team", read=folder.read, has_initial=False)
    assert (loaded.config.file, folder.asked) == ("t.json", ["t.json", "p/x.md"])


def chain(length: int) -> Files:
    """That many nested loops: /c/root.json names /c/1.json, and so on."""
    files = {f"/c/{i}.json": loop(loop=[phase(loop_file=f"{i + 1}.json")]) for i in range(1, length - 1)}
    return {**files, f"/c/{length - 1}.json": loop()}


def test_eight_files_in_each_other_are_allowed() -> None:
    """The root is the first."""
    assert errors(loop(loop=[phase(loop_file="1.json")]), "loop", files=chain(8)) == []


def test_nine_files_in_each_other_are_refused_with_the_chain() -> None:
    """Where the ninth is named."""
    assert errors(loop(loop=[phase(loop_file="1.json")]), "loop", files=chain(9)) == [
        "7.json: $.loop[0].loop_file: nested too deeply: 8 files in each other are allowed, the outermost included: "
        "root.json → 1.json → 2.json → 3.json → 4.json → 5.json → 6.json → 7.json → 8.json"
    ]


@pytest.mark.parametrize(
    ("root", "files", "expected"),
    [
        (
            {"team": [phase(team_file="root.json")]},
            {},
            "root.json: $.team[0].team_file: … root.json → root.json",
        ),
        (
            {"team": [phase(loop_file="sub/b.json")]},
            {"/c/sub/b.json": loop(loop=[phase(team_file="./../sub/../root.json")])},
            "sub/b.json: $.loop[0].team_file: … root.json → sub/b.json → root.json",
        ),
        (
            {"team": [phase(loop_file="b.json")]},
            {
                "/c/b.json": loop(loop=[phase(loop_file="/e/d.json")]),
                "/e/d.json": loop(pre=[phase(loop_file="d.json")]),
            },
            "/e/d.json: $.pre[0].loop_file: … root.json → b.json → /e/d.json → /e/d.json",
        ),
    ],
)
def test_a_cycle_is_refused_with_the_chain(root: Any, files: Files, expected: str) -> None:
    """Where it closes, however the path is written."""
    found = errors(root, files=files)
    assert found == [expected.replace("…", "the files name each other in a cycle:")]


def test_the_same_file_twice_is_no_cycle() -> None:
    """And is read once; a mistake in it is told once."""
    folder = Folder({"/c/r.json": {"team": [phase("a", loop_file="l.json"), phase("b", loop_file="l.json")]}})
    folder.files["/c/l.json"] = loop(pre=[phase("p", prompt_file="p.md"), phase("q", prompt_file="p.md")])
    folder.files["/c/p.md"] = b"go"
    load_config("/c/r.json", "team", read=folder.read, has_initial=False)
    assert folder.asked == ["/c/r.json", "/c/l.json", "/c/p.md"]
    folder.files["/c/l.json"] = {"x": 1, "loop": [phase()]}
    with pytest.raises(ConfigError) as caught:
        load_config("/c/r.json", "team", read=folder.read, has_initial=False)
    assert len(caught.value.data["errors"]) == 1


def test_a_missing_file_is_asked_for_once_and_told_wherever_it_is_named() -> None:
    """Each place has to be mended."""
    folder = Folder({"/c/r.json": {"team": [phase("a", loop_file="l.json"), phase("b", loop_file="l.json")]}})
    with pytest.raises(ConfigError) as caught:
        load_config("/c/r.json", "team", read=folder.read, has_initial=False)
    assert [error["path"] for error in caught.value.data["errors"]] == ["$.team[0].loop_file", "$.team[1].loop_file"]
    assert folder.asked == ["/c/r.json", "/c/l.json"]


@pytest.mark.parametrize(("kind", "nested"), [("loop_file", team()), ("team_file", loop())])
def test_a_nested_file_is_of_the_kind_that_its_member_says(kind: str, nested: Any) -> None:
    """A team is no loop."""
    found = errors({"team": [phase(**{kind: "n.json"})]}, files={"/c/n.json": nested})
    assert [line.partition(";")[0] for line in found] == [
        f"n.json: $.{'team' if kind == 'loop_file' else 'loop'}: unknown member",
        f"n.json: $: pre and {kind.removesuffix('_file')} are both empty: at least one of them needs a phase",
    ]


def levels(depth: int, width: int) -> Files:
    """Files that each name the next one so many times."""
    files: Files = {f"/c/{depth - 1}.json": loop()}
    for i in range(depth - 1):
        name = "/c/root.json" if i == 0 else f"/c/{i}.json"
        files[name] = {"loop": [phase(f"p{n}", loop_file=f"{i + 1}.json") for n in range(width)]}
    return files


def test_a_run_has_a_bounded_number_of_phases() -> None:
    """Eight levels of ten references would be a hundred million."""
    files = levels(8, 10)
    assert errors(files.pop("/c/root.json"), "loop", files=files) == [
        "root.json: $: with its nested files it has more than 10000 phases: run fewer, or fewer at once"
    ]


@pytest.mark.parametrize(("count", "is_refused"), [(10_000, False), (10_001, True)])
@pytest.mark.parametrize("kind", ["loop", "team"])
def test_one_file_has_a_bounded_number_of_phases(kind: ConfigKind, count: int, is_refused: bool) -> None:
    """It is told in one line."""
    found = errors({"pre": [phase(f"p{i}") for i in range(count - 1)], kind: [phase("last")]}, kind)
    message = f"root.json: $: it has {count} phases; 10000 is the most that a run may have"
    assert found == ([message] if is_refused else [])


@pytest.mark.parametrize(("extra", "is_refused"), [(0, False), (1, True)])
def test_all_files_together_have_a_bounded_size(extra: int, is_refused: bool) -> None:
    """A file that is used twice counts twice, because the run's record holds it twice."""
    head = b'{"team":[{"name":"a","prompt_file":"p"},{"name":"b","prompt_file":"p"}]}'
    root = head + b" " * (len(head) % 2 + extra)
    prompt = b"x" * ((SIZE_LIMIT_BYTES - len(root) + extra) // 2)
    message = (
        f"root.json: $: with the files that it names it has more than {SIZE_LIMIT_BYTES} bytes, "
        "a file that is used more than once being counted each time"
    )
    assert errors(root, files={"/c/p": prompt}) == ([message] if is_refused else [])
