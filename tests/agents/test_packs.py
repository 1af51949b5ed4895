"""What `avenor init` writes, on the real hosts: a jockey that has two workers do what it cannot do itself."""

import json
import subprocess
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from tests.agents.acp_dialects import DialectModel
from tests.agents.catalog import Models
from tests.agents.codex_app_server import CodexHome, steps
from tests.agents.codex_model import ItemModel
from tests.agents.harness import WAIT_SECONDS
from tests.agents.pack_hosts import HOSTS, Host, User
from tests.agents.standin_model import Request, StandInModel
from tests.helpers import eventually_sync

pytestmark = pytest.mark.agents

# What writes, or runs a command, on any of the hosts.
_WRITERS = {"bash", "shell", "edit", "write", "task", "Bash", "Edit", "Write", "Task", "exec_command", "apply_patch"}
_JOCKEY = "Have both files made."


class Ground:
    """A repository that init has set up, a user of its host, and the model.

    Args:
        host: See there.
        repository: The folder.
        user: Theirs.
        model: The stand-in.
    """

    def __init__(self, host: Host, repository: Path, user: User, model: StandInModel) -> None:
        self.host = host
        self.repository = repository
        self.user = user
        self.model = model

    def call(self, tool: str, **arguments: Any) -> str:
        """The directive by which the model calls a tool of avenor's."""
        return f"[[call: {self.host.tool.format(f'avenor_{tool}')} {json.dumps(arguments)}]]"

    def spawn(self, label: str, settings: dict[str, Any], prompt: str) -> str:
        """The same for a worker."""
        return self.call("spawn", repo_dir=str(self.repository), label=label, prompt=prompt, **settings)

    def start(self, *directives: str) -> str:
        """What the jockey says at its end, of these directives."""
        with self.model.told({_JOCKEY: "".join(directives)}):
            done = self.user.run([*self.host.start, _JOCKEY], self.repository)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def asked(self, words: str) -> list[Request]:
        """The requests for a prompt with these words."""
        found = self.model.asked(words)
        assert found, [request.prompt for request in self.model.seen.requests]
        return found


@pytest.fixture(params=HOSTS)
def agent(request: pytest.FixtureRequest) -> str:
    """The column of the matrix that a host's test belongs to."""
    return str(request.param)


@pytest.fixture
def ground(agent: str, tmp_path: Path) -> Generator[Ground]:
    """All of it, and nothing of it runs afterwards."""
    host, repository = HOSTS[agent], tmp_path / "repository"
    repository.mkdir()
    subprocess.run(["git", "init", "-q"], cwd=repository, check=True)
    with StandInModel() as model, DialectModel(model.url) as translated:
        _set_up(host, repository)
        user = host.make(tmp_path, repository, Models(model, translated))
        try:
            yield Ground(host, repository, user, model)
        finally:
            user.stop_supervisor()
        eventually_sync(lambda: user.processes() == [], WAIT_SECONDS)


def _set_up(host: Host, repository: Path) -> None:
    from avenor.cli.init import init

    assert init(["--host", host.name, "--dir", str(repository)]) == 0


def test_a_jockey_has_two_workers_do_what_it_cannot_do_itself(ground: Ground) -> None:
    """It spawns them, looks, answers a permission, and collects; its own tools write nothing and run nothing."""
    host = ground.host
    second = ground.repository / "second.txt"
    makes_second = f"[[shell: echo 2 > {second}]]" if host.asks_always else f"[[write: {second} | 2]]"
    # Nothing that claude takes for an edit, which it does not ask about.
    makes_first = f'[[shell: python3 -c \'print(1, file=open("{ground.repository / "first.txt"}", "w"))\']]'
    workers = {
        "Make the first": f"{makes_first}[[text: The first is made.]]",
        "Make the second": f"{makes_second}[[text: The second is made.]]",
    }
    answer_second = [ground.call("result", run_id="second"), _allow(ground, "second")] if host.asks_always else []
    with ground.model.told(workers):
        said = ground.start(
            "[[shell: touch forbidden.txt]]",
            "[[write: forbidden.txt | by the jockey]]",
            ground.spawn("first", host.horse, "Make the first."),
            ground.spawn("second", host.mule, "Make the second."),
            # A host may take a call that is repeated for a loop without end.
            *[ground.call("list")] * 4,
            ground.call("result", run_id="first"),
            _allow(ground, "first"),
            ground.call("result", run_id="first"),
            *answer_second,
            ground.call("result", run_id="second"),
            "[[text: Both files are made.]]",
        )
    assert "Both files are made." in said
    assert (ground.repository / "first.txt").read_text() == "1\n"
    assert second.read_text() == "2\n"
    assert not (ground.repository / "forbidden.txt").exists()

    jockey = ground.asked(_JOCKEY)
    results = [request.last_result for request in jockey]
    assert any('"pending_permission"' in result and f'"{host.allow}"' in result for result in results)
    assert ['"label":"first"' in result and '"label":"second"' in result for result in results].count(True) == 4
    assert any("The first is made." in result and '"done"' in result for result in results)
    assert "The second is made." in results[-1]
    offered = {name.rpartition("__")[2] for request in jockey for name in request.tools}
    # codex offers its patch tool always; that it is refused is shown below.
    assert offered & _WRITERS <= ({"apply_patch"} if host.name == "codex" else set())
    assert "You are the jockey" in jockey[0].system
    for words, name in (("Make the first", "horse"), ("Make the second", "mule")):
        worker = ground.asked(words)[0]
        assert set(worker.tools) & _WRITERS
        if host.name == "opencode":  # elsewhere the worker reads in a file what it is
            assert f"You are a {name}" in worker.system
            assert not [tool for tool in worker.tools if "avenor" in tool]


def _allow(ground: Ground, label: str) -> str:
    return ground.call("answer_permission", run_id=label, option_id=ground.host.allow)


@pytest.mark.parametrize("agent", ["opencode-acp"], indirect=True)
def test_opencode_finds_the_skill(ground: Ground) -> None:
    """Where the pack has put it."""
    found = json.loads(ground.user.run(["opencode", "debug", "skill"], ground.repository).stdout)
    places = [skill["location"] for skill in found if skill["name"] == "avenor"]
    assert places == [str(ground.repository / ".opencode" / "skills" / "avenor" / "SKILL.md")]


@pytest.mark.parametrize("agent", ["claude-acp"], indirect=True)
def test_claude_loads_the_skill_by_its_name(ground: Ground) -> None:
    """So that the jockey knows avenor's ways before it spawns."""
    ground.start('[[call: Skill {"skill": "avenor"}]]')
    assert any(
        "# Working with avenor" in request.prompt + request.last_result for request in ground.model.seen.requests
    )


@pytest.mark.parametrize("agent", ["codex-app-server"])
def test_codex_lets_the_jockey_patch_nothing(agent: str, tmp_path: Path) -> None:
    """The tool that changes files is offered for some models whatever is set; the sandbox refuses it."""
    repository = tmp_path / "repository"
    repository.mkdir()
    _set_up(HOSTS[agent], repository)
    patch = "*** Begin Patch\n*** Add File: new.txt\n+by the jockey\n*** End Patch\n"
    with ItemModel() as model:
        home = CodexHome(tmp_path, model.url)
        (home.path / ".codex" / "jockey.config.toml").write_bytes(
            (repository / ".codex" / "jockey.config.toml").read_bytes()
        )
        prompt = steps([{"custom": "apply_patch", "input": patch}], [{"text": "tried"}])
        # Not trusted, so without avenor: the folder's own settings play no part in this.
        words = ["codex", "exec", "--skip-git-repo-check", "--profile", "jockey", prompt]
        done = User(home.path, home.env).run(words, repository)
    assert (done.returncode, "tried" in done.stdout) == (0, True), done.stderr
    assert not (repository / "new.txt").exists()
    (output,) = [item["output"] for item in model.bodies[-1]["input"] if item["type"] == "custom_tool_call_output"]
    assert "rejected" in output
    skills = json.dumps(model.bodies[0])
    assert ".agents/skills" in skills
