"""`avenor init`: what it writes, what it leaves alone, and what it says about either."""

import json
import os
import tomllib
from pathlib import Path
from typing import Any

import pytest

from avenor.cli import main
from avenor.cli.init_packs import PACKS, Json, Pack, Toml, Whole
from avenor.protocol.config_loading import check_config

HOSTS = [pack.host for pack in PACKS]


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty one, on a machine without any host."""
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    made = tmp_path / "repository"
    made.mkdir()
    monkeypatch.chdir(made)
    return made


def init(capfd: pytest.CaptureFixture[str], *words: str) -> tuple[int, list[str], str]:
    """Exit status, the lines on stdout without those that tell what is next, and stderr."""
    status = main(["init", *words])
    out, err = capfd.readouterr()
    return status, [line for line in out.splitlines() if not line.startswith("next, ")], err


def files_in(folder: Path) -> dict[str, bytes]:
    """All files, by path."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def paths_of(pack: Pack) -> set[str]:
    """Where the files of a pack go in an empty repository."""
    return {file.paths[0] if isinstance(file, Json) else file.path for file in pack.files()}


@pytest.mark.parametrize("pack", PACKS, ids=HOSTS)
def test_a_pack_is_written_and_then_is_the_same(
    repository: Path, capfd: pytest.CaptureFixture[str], pack: Pack
) -> None:
    """A jockey, two workers, a skill, a team and the host's configuration; again it changes nothing."""
    status, lines, _ = init(capfd, "--host", pack.host)
    assert status == 0
    assert [line.split()[0] for line in lines] == ["written"] * len(lines)
    written = files_in(repository)
    assert set(written) == paths_of(pack) == {line.split()[1] for line in lines}
    for word in ("jockey", "horse", "mule", "skills/avenor/SKILL.md", f"review.{pack.host}.team.json"):
        assert any(word in path for path in written)

    status, lines, _ = init(capfd, "--host", pack.host)
    assert status == 0
    assert {line.split()[0] for line in lines} == {"same"}
    assert files_in(repository) == written


@pytest.mark.parametrize("pack", PACKS, ids=HOSTS)
def test_what_is_written_can_be_read(repository: Path, capfd: pytest.CaptureFixture[str], pack: Pack) -> None:
    """Markdown with a head, JSON, TOML, a team that a run would take; no place for something else is left in it."""
    init(capfd, "--host", pack.host)
    for path, data in files_in(repository).items():
        text = data.decode()
        assert "@" not in text.replace("@agentclientprotocol", ""), path
        if path.endswith(".md"):
            head = text.split("---\n")[1]
            assert "description: " in head, path
            assert len([line for line in head.splitlines() if line.startswith("description: ")]) == 1
        elif path.endswith(".toml"):
            assert tomllib.loads(text), path
        else:
            assert json.loads(text), path
    team = f".avenor/review.{pack.host}.team.json"
    checked = check_config(team, "team", read=lambda name: Path(name).read_bytes(), has_initial=False)
    assert (checked.errors, checked.warnings) == ([], [])


@pytest.mark.parametrize("host", HOSTS)
def test_the_jockey_is_given_avenors_tools_and_none_that_writes(
    repository: Path, capfd: pytest.CaptureFixture[str], host: str
) -> None:
    """By the host's own means; tests/agents has the proof."""
    init(capfd, "--host", host)
    files = {path: data.decode() for path, data in files_in(repository).items()}
    if host == "opencode":
        head = files[".opencode/agents/jockey.md"].split("---\n")[1]
        assert '"*": deny' in head
        assert '"avenor_*": allow' in head
        assert json.loads(files["opencode.json"])["mcp"]["avenor"]["command"] == ["avenor", "mcp"]
    elif host == "claude":
        head = files[".claude/agents/jockey.md"].split("---\n")[1]
        (tools,) = [line.removeprefix("tools: ").split(", ") for line in head.splitlines() if line.startswith("tools")]
        assert "mcp__avenor" in tools
        assert not {"Bash", "Edit", "Write", "NotebookEdit", "Task", "Agent"} & set(tools)
        assert json.loads(files[".mcp.json"])["mcpServers"]["avenor"]["command"] == "avenor"
    else:
        profile = tomllib.loads(files[".codex/jockey.config.toml"])
        assert (profile["sandbox_mode"], profile["approval_policy"]) == ("read-only", "never")
        assert profile["features"]["shell_tool"] is False
        assert tomllib.loads(files[".codex/config.toml"])["mcp_servers"]["avenor"]["command"] == "avenor"


def test_a_file_that_differs_is_kept_unless_it_is_forced(repository: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """And told, with status 1; the others are written."""
    mine = repository / ".opencode/agents/horse.md"
    mine.parent.mkdir(parents=True)
    mine.write_text("mine\n")
    status, lines, err = init(capfd, "--host", "opencode")
    assert status == 1
    assert "kept: differs  .opencode/agents/horse.md" in lines
    assert [line.split()[0] for line in lines].count("written") == len(lines) - 1
    assert "--force replaces" in err
    assert mine.read_text() == "mine\n"

    status, lines, _ = init(capfd, "--host", "opencode", "--force")
    assert status == 0
    assert "written  .opencode/agents/horse.md" in lines
    assert "You are a horse" in mine.read_text()


def test_a_dry_run_writes_nothing(repository: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """It tells what would become of each file."""
    (repository / "opencode.json").write_text("{}")
    status, lines, _ = init(capfd, "--host", "opencode", "--dry-run")
    assert status == 0
    assert "would be written  .opencode/agents/jockey.md" in lines
    assert "would be added    opencode.json (mcp.avenor)" in lines
    assert files_in(repository) == {"opencode.json": b"{}"}


MINE = """{
    "$schema": "https://opencode.ai/config.json",
    "model": "a/b",   "agent": {"x": {"mode": "primary"}},
    "mcp": {
        "other": {"type": "local", "command": ["x"]}
    },
    "keybinds": {"leader": "ctrl+x"}
}
"""
THEIRS = """{
    "$schema": "https://opencode.ai/config.json",
    "model": "a/b",   "agent": {"x": {"mode": "primary"}},
    "mcp": {
        "other": {"type": "local", "command": ["x"]},
        "avenor": {
            "type": "local",
            "command": [
                "avenor",
                "mcp"
            ],
            "enabled": true,
            "timeout": 60000
        }
    },
    "keybinds": {"leader": "ctrl+x"}
}
"""


def test_a_configuration_gets_our_part_and_keeps_every_other_byte(
    repository: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """In its own indentation; its mode stays too."""
    path = repository / "opencode.json"
    path.write_text(MINE)
    path.chmod(0o600)
    status, lines, _ = init(capfd, "--host", "opencode")
    assert status == 0
    assert "added    opencode.json (mcp.avenor)" in lines
    assert path.read_text() == THEIRS
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_link_to_a_configuration_stays_a_link(
    repository: Path, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """What it leads to gets our part."""
    real = tmp_path / "dotfiles.json"
    real.write_text("{}")
    (repository / "opencode.json").symlink_to(real)
    assert init(capfd, "--host", "opencode")[0] == 0
    assert (repository / "opencode.json").is_symlink()
    assert "avenor" in json.loads(real.read_text())["mcp"]


def test_our_part_with_something_else_in_it_is_kept_unless_it_is_forced(
    repository: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Somebody has changed it."""
    changed: dict[str, Any] = {
        "mcpServers": {"avenor": {"command": "/opt/avenor", "args": ["mcp"]}, "b": {"command": "c"}}
    }
    (repository / ".mcp.json").write_text(json.dumps(changed))
    status, lines, _ = init(capfd, "--host", "claude")
    assert status == 1
    assert "kept: differs  .mcp.json (mcpServers.avenor)" in lines
    assert json.loads((repository / ".mcp.json").read_text()) == changed

    assert init(capfd, "--host", "claude", "--force")[0] == 0
    changed["mcpServers"]["avenor"]["command"] = "avenor"
    assert json.loads((repository / ".mcp.json").read_text()) == changed


def test_settings_of_claude_keep_what_they_allow(repository: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Ours is appended, once."""
    path = repository / ".claude/settings.json"
    path.parent.mkdir()
    path.write_text('{"permissions": {"allow": ["Bash(ls)"], "deny": []}, "model": "opus"}')
    assert init(capfd, "--host", "claude")[0] == 0
    assert path.read_text() == (
        '{"permissions": {"allow": ["Bash(ls)", "mcp__avenor"], "deny": [], "ask": ["mcp__avenor__avenor_shutdown"]}, '
        '"model": "opus", "enabledMcpjsonServers": ["avenor"]}'
    )


def test_a_configuration_with_comments_is_kept_and_what_to_add_is_told(
    repository: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """With --force too: nothing can be added to it safely. opencode reads the file under either name."""
    path = repository / "opencode.jsonc"
    path.write_text('{\n  // mine\n  "model": "a/b",\n}\n')
    before = path.read_bytes()
    for more in ([], ["--force"]):
        status, lines, err = init(capfd, "--host", "opencode", *more)
        assert status == 1
        (line,) = [line for line in lines if "opencode.json" in line]
        assert line.startswith("kept: by hand  opencode.jsonc (it is no plain JSON")
        told = err.split("add this by hand:\n")[1].split("\navenor init: ")[0]
        assert json.loads(told)["mcp"]["avenor"]["command"] == ["avenor", "mcp"]
        assert path.read_bytes() == before
    assert not (repository / "opencode.json").exists()


def test_a_toml_configuration_gets_our_table_at_its_end(repository: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Comments and all stay; a table of the same name is kept unless it is forced."""
    path = repository / ".codex/config.toml"
    path.parent.mkdir()
    mine = '# mine\nmodel = "m" # the best\n\n[mcp_servers.other]\ncommand = "x"'
    path.write_text(mine)
    status, lines, _ = init(capfd, "--host", "codex")
    assert status == 0
    assert "added    .codex/config.toml (mcp_servers.avenor)" in lines
    assert path.read_text().startswith(mine + "\n\n[mcp_servers.avenor]\n")
    assert set(tomllib.loads(path.read_text())["mcp_servers"]) == {"other", "avenor"}
    assert "same  .codex/config.toml" in init(capfd, "--host", "codex")[1]

    path.write_text('[mcp_servers.avenor]\ncommand = "/opt/avenor"\n')
    status, lines, err = init(capfd, "--host", "codex")
    assert (status, "kept: differs  .codex/config.toml (mcp_servers.avenor)" in lines) == (1, True)
    assert err == "avenor init: not everything was written; --force replaces what differs\n"
    status, lines, _ = init(capfd, "--host", "codex", "--force")
    assert (status, "added  .codex/config.toml (mcp_servers.avenor)" in lines) == (0, True)
    assert tomllib.loads(path.read_text())["mcp_servers"]["avenor"]["command"] == "avenor"
    for hopeless in ("mcp_servers = {}\n", "model = \n", 'mcp_servers.avenor.command = "x"\n'):
        path.write_text(hopeless)
        status, lines, err = init(capfd, "--host", "codex", "--force")
        assert status == 1
        assert err.endswith("\navenor init: not everything was written\n")
        assert any(line.startswith("kept: by hand  .codex/config.toml") for line in lines)
        assert "[mcp_servers.avenor]" in err
        assert path.read_text() == hopeless


def test_what_is_in_the_way_is_told(repository: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A folder or a named pipe where a file is to be, a file where a folder is, and a file that is no text."""
    (repository / ".opencode/agents/horse.md").mkdir(parents=True)
    os.mkfifo(repository / ".opencode/agents/mule.md")
    (repository / ".avenor").write_text("a file")
    (repository / "opencode.json").write_bytes(b"\xff")
    status, lines, _ = init(capfd, "--host", "opencode", "--force")
    assert status == 1
    told = {line.split()[1]: line for line in lines}
    assert told[".opencode/agents/horse.md"].startswith("failed ")
    assert told[".avenor/review.opencode.team.json"].startswith("failed ")
    assert told["opencode.json"].startswith("failed ")
    assert told[".opencode/agents/mule.md"].startswith("failed ")
    assert told[".opencode/agents/jockey.md"].startswith("written ")


def test_the_host_is_the_one_that_the_repository_shows(repository: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Or else the only one that is installed."""
    program = repository.parent / "bin" / "codex"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    assert init(capfd, "--dry-run")[1][0] == "would be written  .codex/jockey.config.toml"
    (repository / "CLAUDE.md").write_text("")
    assert init(capfd, "--dry-run")[1][0] == "would be written  .claude/agents/jockey.md"


def test_it_asks_where_the_host_is_not_clear(repository: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Usage: none is there, or several; nothing is written."""
    status, _, err = init(capfd)
    assert (status, "neither this repository nor PATH shows one of opencode, claude, codex" in err) == (2, True)
    (repository / ".opencode").mkdir()
    (repository / ".mcp.json").write_text("{}")
    status, _, err = init(capfd)
    assert (status, "this repository is set up for opencode, claude: name it with --host" in err) == (2, True)
    assert files_in(repository) == {".mcp.json": b"{}"}


def test_it_says_what_is_to_be_done_next(
    repository: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """How to start the jockey, and before that what is missing here; nothing of it where something was kept."""
    assert main(["init", "--host", "opencode"]) == 0
    assert capfd.readouterr().out.splitlines()[-1] == "next, start the jockey: opencode --agent jockey"

    def not_installed(_name: str) -> None:
        return None

    monkeypatch.setattr("avenor.cli.init.find_spec", not_installed)
    assert main(["init", "--host", "opencode"]) == 0
    assert "next, install what `avenor mcp` needs: pip install 'avenor[mcp]'" in capfd.readouterr().out
    (repository / ".opencode/agents/mule.md").write_text("mine")
    assert main(["init", "--host", "opencode"]) == 1
    assert "next, " not in capfd.readouterr().out


@pytest.mark.parametrize("words", [("--host", "emacs"), ("--host", "codex", "--dir", "nowhere"), ("codex",)])
def test_what_makes_no_sense_is_refused(
    repository: Path, capfd: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    """Usage, and nothing is written."""
    assert init(capfd, *words)[0] == 2
    assert files_in(repository) == {}


def test_several_hosts_can_share_a_repository(
    repository: Path, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Named at once, from elsewhere; no file is of two of them."""
    words = [word for host in HOSTS for word in ("--host", host)]
    os.chdir(tmp_path)
    status, lines, _ = init(capfd, *words, "--dir", str(repository))
    assert status == 0
    assert {line.split()[0] for line in lines} == {"written"}
    assert sum(len(paths_of(pack)) for pack in PACKS) == len(files_in(repository))


def test_every_kind_of_file_is_in_some_pack() -> None:
    """So that the tests above have seen all of them."""
    kinds = {type(file) for pack in PACKS for file in pack.files()}
    assert kinds == {Whole, Json, Toml}
