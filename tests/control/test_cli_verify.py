"""`avenor verify`: configs checked as a run would check them."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from avenor.cli import main
from avenor.protocol.config_loading import SIZE_LIMIT_BYTES

TEAM: Any = {
    "pre": [{"name": "plan", "prompt": "Plan."}],
    "team": [{"name": name, "prompt": "Work."} for name in "abc"],
    "post": [{"name": "review", "prompt": "Review."}],
}
LOOP: Any = {"loop": [{"name": "fix", "prompt": "Fix {{.Iteration}}."}], "max_iterations": 3}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a right team and a right loop."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "team.json").write_text(json.dumps(TEAM))
    (tmp_path / "loop.json").write_text(json.dumps(LOOP))
    return tmp_path


def write(name: str, content: object) -> None:
    Path(name).write_text(json.dumps(content))


def test_a_right_file_is_told_what_it_is(capfd: pytest.CaptureFixture[str]) -> None:
    """A line each, and status 0."""
    assert main(["verify", "team.json", "loop.json"]) == 0
    assert capfd.readouterr() == (
        "team.json: team, 1 pre, 3 members, 1 post: ok\n"
        "loop.json: loop, 0 pre, 1 in at most 3 iterations, 0 post: ok\n",
        "",
    )


def test_every_mistake_is_printed_and_the_other_files_are_still_checked(
    capfd: pytest.CaptureFixture[str], folder: Path
) -> None:
    """With file, JSON path and reason, on stdout; status 1."""
    (folder / "sub").mkdir()
    write("sub/bad.json", {"team": [{"name": "", "prompt": "x"}, {"name": "b", "prompt_file": "none.md"}]})
    assert main(["verify", "sub/bad.json", "team.json"]) == 1
    assert capfd.readouterr().out.splitlines() == [
        "sub/bad.json: $.team[0].name: it is empty: a phase needs a name",
        "sub/bad.json: $.team[1].prompt_file: sub/none.md: No such file or directory",
        "sub/bad.json: team: 2 errors; the format: docs/reference/team.md; "
        "its JSON Schema: docs/reference/schemas/team.schema.json",
        "team.json: team, 1 pre, 3 members, 1 post: ok",
    ]


def test_warnings_and_notes_are_printed_and_are_no_errors(capfd: pytest.CaptureFixture[str]) -> None:
    """Each with its word."""
    write("t.json", {"pre": [{"name": "a", "prompt": "x", "model": "m", "resume_from_previous": True}]})
    assert main(["verify", "t.json"]) == 0
    assert capfd.readouterr().out.splitlines() == [
        "t.json: $.pre[0].model: warning: it is ignored: model is for members of `team` only",
        "t.json: $.pre[0].resume_from_previous: note: it means nothing here: nothing is before the first phase of pre",
        "t.json: team, 1 pre, 0 members, 0 post: ok",
    ]


def test_json_has_an_entry_for_each_file(capfd: pytest.CaptureFixture[str]) -> None:
    """The same findings, for programs."""
    write("t.json", {"pre": [{"name": "a/b", "prompt": " ", "model": "m"}]})
    assert main(["verify", "--json", "t.json", "loop.json"]) == 1
    assert json.loads(capfd.readouterr().out) == [
        {
            "file": "t.json",
            "kind": "team",
            "ok": False,
            "errors": [
                {
                    "file": "t.json",
                    "path": "$.pre[0].prompt",
                    "message": "it is empty: a prompt needs some text",
                }
            ],
            "warnings": [
                {
                    "file": "t.json",
                    "path": "$.pre[0].model",
                    "message": "it is ignored: model is for members of `team` only",
                }
            ],
            "notes": [
                {
                    "file": "t.json",
                    "path": "$.pre[0].name",
                    "message": "'a/b' holds a '/', which joins names in the `path` of nested events",
                }
            ],
        },
        {"file": "loop.json", "kind": "loop", "ok": True, "errors": [], "warnings": [], "notes": []},
    ]


def test_a_file_that_could_be_either_is_taken_for_a_team_unless_it_is_said(capfd: pytest.CaptureFixture[str]) -> None:
    """Pre and post are in both kinds, and `.Iteration` in one."""
    write("x.json", {"pre": [{"name": "a", "prompt": "{{.Iteration}}"}]})
    assert main(["verify", "x.json"]) == 1
    assert "x.json: team: 1 error;" in capfd.readouterr().out
    assert main(["verify", "--kind", "loop", "x.json"]) == 0
    assert capfd.readouterr().out.startswith("x.json: loop, ")
    assert main(["verify", "--kind", "team", "loop.json"]) == 1
    assert "loop.json: $.loop: unknown member" in capfd.readouterr().out


def test_initial_says_that_the_run_will_have_a_prompt(capfd: pytest.CaptureFixture[str]) -> None:
    """Which is a pre phase for conditional members."""
    write("t.json", {"team": [{"name": "a", "prompt": "x", "conditional": True}]})
    assert main(["verify", "t.json"]) == 1
    assert "a conditional member needs a pre phase" in capfd.readouterr().out
    assert main(["verify", "--initial", "t.json"]) == 0


def test_a_file_that_cannot_be_read_is_an_error_of_that_file(capfd: pytest.CaptureFixture[str], folder: Path) -> None:
    """A FIFO is not waited for, a huge file not read to its end."""
    os.mkfifo("fifo")
    os.mkdir("folder")
    with open("huge", "wb") as file:
        file.truncate(SIZE_LIMIT_BYTES + 1)
    write("names.json", {"team": [{"name": "a", "prompt_file": "fifo"}]})
    assert main(["verify", "none.json", "fifo", "folder", "huge", "names.json"]) == 1
    lines = [line for line in capfd.readouterr().out.splitlines() if ": $" in line]
    assert lines == [
        "none.json: $: No such file or directory",
        "fifo: $: it is not a regular file",
        "folder: $: it is not a regular file",
        f"huge: $: it has more than {SIZE_LIMIT_BYTES} bytes",
        "names.json: $.team[0].prompt_file: fifo: it is not a regular file",
    ]


def test_where_the_format_is_described_is_told_of_what_has_a_form(
    capfd: pytest.CaptureFixture[str], folder: Path
) -> None:
    """Not of a file that is not there."""
    write("t.json", {})
    assert main(["verify", "none.json", "none.yaml", "t.json"]) == 1
    last = [line for line in capfd.readouterr().out.splitlines() if " error" in line]
    assert last[:2] == ["none.json: team: 1 error", "none.yaml: manifest: 2 errors"]
    assert "; the format: docs/reference/team.md; " in last[2]


def test_what_a_file_holds_does_not_act_on_the_terminal(capfd: pytest.CaptureFixture[str]) -> None:
    """Not even in the name of an unknown member."""
    write("t.json", {"\x1b[2Jx\ny": 1, "team": [{"name": "a", "prompt": "x"}]})
    assert main(["verify", "t.json"]) == 1
    out = capfd.readouterr().out
    assert "\x1b" not in out
    assert len(out.splitlines()) == 2


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "FILE… is missing: a loop or team config, or a manifest"),
        ([""], "FILE is empty"),
        (["team.json", ""], "FILE is empty"),
        (["--kind", "script", "team.json"], "--kind: 'script' is none of loop, team, manifest"),
    ],
)
def test_usage_errors_are_status_2(capfd: pytest.CaptureFixture[str], words: list[str], message: str) -> None:
    """Before any file is read."""
    assert main(["verify", *words]) == 2
    out, err = capfd.readouterr()
    assert out == ""
    assert err.startswith(f"avenor verify: {message}\nusage: avenor verify [FLAGS] FILE…\n")


def test_backends_of_the_users_are_known(
    capfd: pytest.CaptureFixture[str], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By their files, which are not looked into; a message lists them."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(folder / "config"))
    (folder / "config" / "avenor" / "backends").mkdir(parents=True)
    (folder / "config" / "avenor" / "backends" / "mine.toml").write_text("")
    write("t.json", {"team": [{"name": "a", "prompt": "x", "backend": "mine"}]})
    assert main(["verify", "t.json"]) == 0
    write("t.json", {"team": [{"name": "a", "prompt": "x", "backend": "his"}]})
    assert main(["verify", "t.json"]) == 1
    told = capfd.readouterr().out
    assert "'his' is no backend: choose one of opencode-acp" in told
    assert "scripted, mine" in told


def test_the_mcp_servers_of_a_config_are_checked(capfd: pytest.CaptureFixture[str]) -> None:
    """With their paths, and without what may be secret in them."""
    servers = [{"name": "a", "type": "http", "url": "hush"}, {"name": "b", "command": "x"}]
    write("t.json", {**TEAM, "mcp_servers": servers})
    assert main(["verify", "t.json"]) == 1
    told = capfd.readouterr().out
    assert "t.json: $.mcp_servers[0].url: it is no address" in told
    assert "hush" not in told
