"""Backends that users add: profile files and packages, and what reaches an agent through them."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio

from avenor.host.identity import process_id
from avenor.host.rundir import RunDir
from avenor.protocol.errors import AvenorError, ConfigError, InvalidParams
from avenor.protocol.events import RunEnd
from avenor.protocol.mcp import McpServer, read_mcp_config
from avenor.protocol.outcomes import Outcome
from avenor.protocol.spec import SILENCE_LIMIT_SECONDS, Record, RunSpec, resolve_spec
from avenor.runtimes import process
from avenor.runtimes.backends.profiles import Profile, builtin
from avenor.runtimes.backends.registry import (
    find_backend,
    get_backend,
    silence_limit,
    usable_backend,
)
from avenor.runtimes.backends.user_profiles import read_user_profile
from tests.helpers import eventually_sync
from tests.runtimes.agent_kit import RecordingSink, make_params
from tests.runtimes.fake_backend import FakeBackend, play_until_cancelled
from tests.runtimes.mini_agent import PRELUDE
from tests.runtimes.run_driver import OneShot, read_log

# Writes down with what it was started and what it was handed, answers one prompt after the other.
_AGENT = (
    PRELUDE
    + """
hello(mcpCapabilities={"http": True})
new = expect("session/new")
seen = {"servers": new["params"]["mcpServers"], "config": os.environ.get("XDG_CONFIG_HOME")}
with open(sys.argv[1], "a") as file:
    file.write(json.dumps(seen) + "\\n")
reply(new, {"sessionId": "s1"})
turns()
"""
)
_WEB = {"type": "http", "url": "http://h/mcp?key=hush-url", "headers": {"Authorization": "Bearer hush-header"}}
_FILES = {"command": "/bin/true", "args": ["-x"], "env": {"TOKEN": "hush-env"}}


class Home:
    """A configuration folder with a backend `mine`, an agent of a few lines."""

    def __init__(self, folder: Path) -> None:
        self.config = folder / "config"
        self.backends = self.config / "avenor" / "backends"
        self.backends.mkdir(parents=True)
        self.told = folder / "told"
        (folder / "agent.py").write_text(_AGENT)
        argv = json.dumps(["{python}", str(folder / "agent.py"), str(self.told)])
        self.write("mine", f'argv = {argv}\ninstall = "write it"\nmcp = ["stdio", "http"]\n')

    def write(self, name: str, text: str) -> Path:
        path = self.backends / f"{name}.toml"
        path.write_text(text)
        return path

    @property
    def environ(self) -> dict[str, str]:
        return {"XDG_CONFIG_HOME": str(self.config)}

    def handed(self) -> list[list[str]]:
        """The names of the MCP servers of each session."""
        return [[server["name"] for server in each["servers"]] for each in self.lines()]

    def lines(self) -> list[dict[str, Any]]:
        """What the agent has written down; the variables by which a server's process is found again are left out."""
        lines = [json.loads(line) for line in self.told.read_text().splitlines()]
        for server in (server for line in lines for server in line["servers"] if "env" in server):
            server["env"] = [each for each in server["env"] if not each["name"].startswith("AVENOR_")]
        return lines


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


# Profile files


def test_a_profile_file_is_a_backend(home: Home) -> None:
    """Its name is that of the file."""
    found = find_backend("mine", str(home.backends))
    assert (found.source, found.backend.name) == ("profile", "mine")
    assert found.profile is not None
    assert found.profile.install == "write it"


def test_a_profile_file_replaces_a_backend_of_ours(home: Home) -> None:
    """A user knows best where his program is; nobody else's run is concerned."""
    home.write("qwen-acp", 'argv = ["my-qwen"]\ninstall = "x"\n')
    found = find_backend("qwen-acp", str(home.backends))
    assert found.profile is not None
    assert list(found.profile.argv) == ["my-qwen"]
    assert find_backend("qwen-acp").profile == builtin("qwen-acp")


def test_an_unknown_name_lists_the_users_as_well(home: Home) -> None:
    """Otherwise a typo in his own would look as if it had not been found at all."""
    with pytest.raises(InvalidParams, match=r"'min': choose one of opencode-acp, .*scripted, mine"):
        get_backend("min", str(home.backends))


@pytest.mark.parametrize(
    ("text", "mistakes"),
    [
        ("argv = [", ["this is no TOML: "]),
        ('argv = ["x"]', ["member 'install' is missing"]),
        ('install = "x"', ["argv: it is missing: the program to start"]),
        ('argv = [""]\ninstall = "x"', ["argv: it is missing: the program to start"]),
        (
            'name = "x"\nadapter = "ftp"\nargv = [1]\ninstall = 2\ncolour = "red"\n',
            [
                "name: a backend has the name of its file",
                "adapter: 'ftp' is none of acp, codex, opencode-http, pi",
                "argv[0]: Expected `str`, got `int`",
                "install: Expected `str`, got `int`",
                "colour: unknown member; known here: ",
            ],
        ),
        (
            'argv = ["x"]\ninstall = "x"\nusage_of_session = ["("]\n[[failures]]\npattern = "["\nagent = "*"\n',
            [
                "usage_of_session[0]: it is no regular expression: ",
                "failures[0].pattern: it is no regular expression: ",
                "failures[0].agent: it is no regular expression: ",
            ],
        ),
    ],
)
def test_all_that_is_wrong_in_a_profile_file_is_told(tmp_path: Path, text: str, mistakes: Sequence[str]) -> None:
    """With the file, the key and what to do."""
    path = tmp_path / "bad.toml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_user_profile(str(path))
    first, *lines, last = caught.value.message.splitlines()
    assert first == f"backend profile {path}:"
    assert [line.strip()[: len(start)] for line, start in zip(lines, mistakes, strict=True)] == list(mistakes)
    assert last.startswith("mend the file, or remove it")
    assert len(caught.value.data["errors"]) == len(mistakes)


def test_a_profile_file_that_cannot_be_read_says_why(tmp_path: Path) -> None:
    """It is there, so the name is known; what is in it is not."""
    (tmp_path / "latin.toml").write_bytes(b'note = "\xe9"')
    os.mkfifo(tmp_path / "pipe.toml")
    for name, message in (("latin", "not UTF-8"), ("pipe", "not a regular file"), ("none", "No such file")):
        with pytest.raises(ConfigError, match=message):
            read_user_profile(str(tmp_path / f"{name}.toml"))


async def test_a_broken_file_concerns_only_who_uses_it(home: Home, tmp_path: Path) -> None:
    """All else works; a run that wants it fails as a start that fails, for good."""
    home.write("broken", "argv = [")
    folder = str(home.backends)
    assert get_backend("mine", folder).name == "mine"
    unusable = usable_backend("broken", folder)
    assert unusable.name == "broken"
    async with trio.open_nursery() as nursery:
        with pytest.raises(ConfigError, match=r"broken\.toml") as caught:
            await unusable.open(make_params(tmp_path), RecordingSink(), nursery)
    assert not caught.value.retryable


def test_a_profile_says_whether_silence_means_failure(home: Home) -> None:
    """Then there is a progress timeout though nobody has asked for one."""
    home.write("quiet", 'argv = ["x"]\ninstall = "x"\nsilent_when_model_fails = true\n')
    home.write("broken", "argv = [")
    limits = [silence_limit(name, str(home.backends)) for name in ("quiet", "mine", "broken")]
    assert limits == [SILENCE_LIMIT_SECONDS, 0.0, 0.0]
    names = ("quiet", "scripted")
    assert resolve_spec(RunSpec(prompt="x", dir="/d", backend="quiet"), backends=names).progress_timeout is None
    assert resolve_spec(RunSpec(prompt="x", dir="/d", backend="scripted"), backends=names).progress_timeout == 0.0


def test_the_page_about_agents_names_every_key_and_its_examples_work(tmp_path: Path) -> None:
    """What it shows can be copied."""
    page = (Path(__file__).parents[2] / "docs/how-to/choose-an-agent.md").read_text()
    for field in msgspec.structs.fields(Profile):
        assert field.name == "name" or f"`{field.name}`" in page, field.name
    toml = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    path = tmp_path / "cline.toml"
    path.write_text(toml[0])
    assert read_user_profile(str(path)).argv == ["cline", "--acp"]
    [shown] = re.findall(r"```json\n(.*?)```", page, re.DOTALL)
    assert [server.name for server in read_mcp_config(shown.encode(), file="page")] == ["files", "tickets"]


# Packages


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A package that adds backends, as good as installed; gives a folder without profile files."""
    site = tmp_path / "site"
    (site / "extra-1.0.dist-info").mkdir(parents=True)
    (site / "extra-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: extra\nVersion: 1.0\n")
    names = ("make_backend", "make_profile", "PROFILE", "fails", "NUMBER", "missing")
    points = [f"x-{name.replace('_', '-')} = avenor_test_extra:{name}" for name in names]
    (site / "extra-1.0.dist-info" / "entry_points.txt").write_text("\n".join(["[avenor.backends]", *points]))
    (site / "avenor_test_extra.py").write_text(
        """
from avenor.runtimes.backends.profiles import Profile

PROFILE = Profile(argv=["x"], install="x")
NUMBER = lambda version: 5

class Own:
    def __init__(self, version):
        self.name = "own"
        self.version = version
    async def open(self, params, sink, nursery):
        raise AssertionError

def make_backend(version):
    return Own(version)

def make_profile(version):
    return Profile(argv=["y"], install="y")

def fails(version):
    raise RuntimeError("out of order")
"""
    )
    monkeypatch.setattr(sys, "path", [*sys.path, str(site)])
    yield str(tmp_path / "none")
    sys.modules.pop("avenor_test_extra", None)


def test_a_package_brings_an_adapter_of_its_own(package: str) -> None:
    """It is told the version of avenor that it works for."""
    found = find_backend("x-make-backend", package)
    assert (found.source, found.profile, found.backend.name) == ("entry_point", None, "own")
    assert getattr(found.backend, "version", "") != ""


@pytest.mark.parametrize("name", ["x-PROFILE", "x-make-profile"])
def test_a_package_brings_a_profile(package: str, name: str) -> None:
    """For one of our adapters; its name is that of the entry point."""
    found = find_backend(name, package)
    assert isinstance(found.profile, Profile)
    assert (found.source, found.backend.name, found.profile.name) == ("entry_point", name, name)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("x-fails", "the package extra fails: RuntimeError: out of order; mend or remove it"),
        ("x-missing", "the package extra fails: AttributeError: "),
        ("x-NUMBER", "the package extra gives neither a backend nor a profile: avenor_test_extra:NUMBER"),
    ],
)
def test_a_broken_package_is_named(package: str, name: str, message: str) -> None:
    """And concerns nobody who does not use it."""
    with pytest.raises(ConfigError) as caught:
        get_backend(name, package)
    assert message in caught.value.message
    assert get_backend("scripted", package).name == "scripted"


# Runs


def test_a_run_uses_the_users_backend_and_hands_it_the_servers(home: Home, tmp_path: Path) -> None:
    """From the file and from the params; what is secret in them is in no log, event or output.

    A variable for the agent does not say where our own configuration is.
    """
    (tmp_path / "mcp.json").write_text(json.dumps({"mcpServers": {"files": _FILES, "web": _WEB}}))
    run = OneShot(
        tmp_path,
        environ=home.environ,
        backend="mine",
        env={"XDG_CONFIG_HOME": "/elsewhere"},
        mcp_config="mcp.json",
        mcp_servers=[{"name": "first", "command": "/bin/false"}],
    )
    code, out, err = run.finish()
    assert (code, out.strip()) == (0, "hello"), err
    [line] = home.lines()
    assert line["config"] == "/elsewhere"
    assert line["servers"] == [
        {"name": "first", "command": "/bin/false", "args": [], "env": []},
        {"name": "files", "command": "/bin/true", "args": ["-x"], "env": [{"name": "TOKEN", "value": "hush-env"}]},
        {
            "type": "http",
            "name": "web",
            "url": _WEB["url"],
            "headers": [{"name": "Authorization", "value": "Bearer hush-header"}],
        },
    ]
    assert "hush" not in out + err + run.log_path.read_text() + run.sentinel_path.read_text()


def test_the_servers_of_a_config_go_to_its_own_phases(home: Home, tmp_path: Path) -> None:
    """And to those of what is nested in it, beside the run's."""
    inner = {"loop": [{"name": "b", "prompt": "b"}], "max_iterations": 1, "mcp_servers": [{"name": "in", **_FILES}]}
    outer = {
        "pre": [{"name": "a", "prompt": "a"}, {"name": "n", "loop_file": "inner.json"}],
        "post": [{"name": "c", "prompt": "c"}],
        "mcp_servers": [{"name": "out", **_WEB}],
    }
    (tmp_path / "inner.json").write_text(json.dumps(inner))
    (tmp_path / "outer.json").write_text(json.dumps(outer))
    run = OneShot(
        tmp_path,
        environ=home.environ,
        backend="mine",
        prompt=None,
        team_file="outer.json",
        mcp_servers=[{"name": "run", "command": "/bin/false"}],
    )
    code, _, err = run.finish()
    assert code == 0, err
    assert home.handed() == [["run", "out"], ["run", "out", "in"], ["run", "out"]]
    assert "hush" not in run.log_path.read_text()


@pytest.mark.parametrize("in_team", [False, True])
def test_a_run_of_a_broken_backend_is_refused_before_anything_starts(home: Home, tmp_path: Path, in_team: bool) -> None:
    """With the file and the key on stderr, and a FAILED sentinel; a member's as well as the run's own."""
    path = home.write("broken", 'argv = [1]\ninstall = "x"\n')
    spec: dict[str, Any] = {"backend": "broken"}
    if in_team:
        members = [{"name": "a", "prompt": "a", "backend": "broken"}]
        (tmp_path / "team.json").write_text(json.dumps({"team": members}))
        spec = {"prompt": None, "team_file": "team.json"}
    run = OneShot(tmp_path, environ=home.environ, **spec)
    code, _, err = run.finish()
    assert code == 1
    assert f"avenor: backend profile {path}:\n  argv[0]: Expected `str`, got `int`\n" in err
    assert run.sentinel.stop_reason == "invalid_config"
    assert run.events == []


def test_a_member_may_have_a_backend_of_the_users(home: Home, tmp_path: Path) -> None:
    """By the same name as on the command line."""
    team = {"team": [{"name": "a", "prompt": "a", "backend": "mine"}, {"name": "b", "prompt": "b"}]}
    (tmp_path / "team.json").write_text(json.dumps(team))
    code, _, err = OneShot(tmp_path, environ=home.environ, prompt=None, team_file="team.json").finish()
    assert code == 0, err
    assert home.handed() == [[]]


# Under a supervisor


class Supervisor:
    """`avenor stable` in a process of its own, asked by `avenor control`."""

    def __init__(self, folder: Path, environ: dict[str, str]) -> None:
        self._socket = str(folder / "s")
        self._environ = {**os.environ, **environ}
        words = ["stable", "--control-socket", self._socket, "--state-dir", str(folder / "state")]
        self._process = subprocess.Popen([sys.executable, "-m", "avenor.cli", *words], env=self._environ)
        eventually_sync(lambda: self.control("list").returncode == 0)

    def control(self, *words: str) -> "subprocess.CompletedProcess[str]":
        asked = [sys.executable, "-m", "avenor.cli", "control", "--socket", self._socket, *words]
        environ = {name: value for name, value in self._environ.items() if name != "XDG_CONFIG_HOME"}
        return subprocess.run(asked, capture_output=True, text=True, env=environ, timeout=60)

    def end(self) -> None:
        self._process.terminate()
        self._process.wait(30)


@pytest.fixture
def supervisor(home: Home, tmp_path: Path) -> Iterator[Supervisor]:
    started = Supervisor(tmp_path, home.environ)
    yield started
    started.end()


def test_a_supervisor_spawns_the_users_backends(home: Home, tmp_path: Path, supervisor: Supervisor) -> None:
    """Those of its own environment, whatever the client's or the agent's is; a broken one fails by itself."""
    (tmp_path / "mcp.json").write_text(json.dumps({"mcpServers": {"files": _FILES}}))
    where = ("--dir", str(tmp_path), "--prompt", "hi")
    spawned = supervisor.control(
        "spawn", *where, "--backend", "mine", "--mcp-config", "mcp.json", "--env", "XDG_CONFIG_HOME=/elsewhere"
    )
    assert spawned.returncode == 0, spawned.stderr
    assert home.handed() == [["files"]]
    assert "hush" not in Path(json.loads(spawned.stdout)["on_event"]).read_text()

    path = home.write("broken", "argv = [")
    failed = supervisor.control("spawn", *where, "--backend", "broken")
    assert failed.returncode == 1
    assert str(path) in failed.stderr
    listed = supervisor.control("list", "--json")
    ended = next(each for each in json.loads(listed.stdout) if each["backend"] == "broken")
    [end] = [event for event in read_log(Path(ended["on_event"])) if isinstance(event, RunEnd)]
    assert end.stop_reason == "invalid_config"

    unknown = supervisor.control("spawn", *where, "--backend", "nobody")
    assert "choose one of opencode-acp" in unknown.stderr
    assert "mine" in unknown.stderr


# What a session is opened with


async def opened_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, **spec: Any) -> Any:
    """The params of the one session of a run with that spec, or what kept it from being opened."""
    backend = FakeBackend()
    outcome = await run_with(tmp_path, monkeypatch, backend, **spec)
    return backend.opened[0] if backend.opened else outcome


async def run_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fake: FakeBackend, **spec: Any) -> Outcome:
    """What a run with that spec comes to, whatever backend it names being this one."""
    looked_for: list[tuple[str, str]] = []

    def find(name: str, folder: str) -> FakeBackend:
        looked_for.append((name, folder))
        return fake

    monkeypatch.setattr(process, "usable_backend", find)
    values = {"prompt": "go", "dir": str(tmp_path), "backend": "opencode-http", **spec}
    resolved = resolve_spec(msgspec.convert(values, RunSpec), backends=("opencode-http", "scripted", "quiet"))
    record = Record(runtime_id="rt_1", run_id="r", spec=resolved, prompt="go", profiles_folder="/the/folder")
    rundir = RunDir(tmp_path)
    identity = process_id(os.getpid())
    assert identity is not None
    told: list[AvenorError | None] = []
    place = process.Place(rundir=rundir, identity=identity, sentinel_path=None, sockets=[], told=told.append)
    ended = await process.run_process(record, place)
    assert looked_for[0] == (resolved.backend, "/the/folder")
    return ended.outcome


async def test_a_session_gets_what_the_run_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The servers, whether it need not ask, and the address of a server that runs already."""
    monkeypatch.setenv("AVENOR_OPENCODE_URL", "http://from.environment")
    server = McpServer(name="a", command="b")
    params = await opened_with(
        tmp_path, monkeypatch, mcp_servers=[{"name": "a", "command": "b"}], auto_approve=True, server_url="http://h:1"
    )
    assert (params.mcp_servers, params.auto_approve, params.server_url) == ([server], True, "http://h:1")


@pytest.mark.parametrize(
    ("spec", "url"),
    [
        ({}, "http://from.environment"),
        ({"env": {"AVENOR_OPENCODE_URL": "http://of.the.run"}}, "http://of.the.run"),
        ({"env": {"AVENOR_OPENCODE_URL": ""}}, None),
        ({"backend": "scripted"}, None),
    ],
)
async def test_the_address_comes_from_the_runs_environment_where_none_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spec: dict[str, Any], url: str | None
) -> None:
    """For the one backend that takes it."""
    monkeypatch.setenv("AVENOR_OPENCODE_URL", "http://from.environment")
    params = await opened_with(tmp_path, monkeypatch, **spec)
    assert (params.server_url, params.auto_approve) == (url, False)


async def test_an_address_in_the_environment_that_is_none_fails_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rather than to start a server that nobody wanted."""
    monkeypatch.setenv("AVENOR_OPENCODE_URL", "hush:4096")
    outcome = await opened_with(tmp_path, monkeypatch)
    assert outcome.stop_reason == "invalid_params"
    assert "server_url: write it as http://HOST:PORT" in outcome.reason
    assert "hush" not in outcome.reason


async def test_a_backend_that_fails_in_silence_has_a_progress_timeout_by_its_profile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unless the run says otherwise: then the profile is not asked."""
    asked: list[tuple[str, str]] = []

    def limit(name: str, folder: str) -> float:
        asked.append((name, folder))
        return 0.2

    monkeypatch.setattr(process, "silence_limit", limit)
    outcome = await run_with(tmp_path, monkeypatch, FakeBackend(play_until_cancelled), backend="quiet")
    assert outcome.stop_reason == "progress_timeout"
    assert asked == [("quiet", "/the/folder")]
    (tmp_path / "events.ndjson").unlink()
    await run_with(tmp_path, monkeypatch, FakeBackend(), backend="quiet", progress_timeout="1m")
    assert len(asked) == 1
