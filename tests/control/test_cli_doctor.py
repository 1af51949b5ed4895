"""`avenor doctor`: what it finds out about agents, on programs that are a few lines long."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import jsonschema
import pytest

from avenor.cli.doctor_transcript import Transcript
from avenor.cli.doctor_view import details, overview
from avenor.cli.terminal import Style
from avenor.control.safetext import columns_of
from avenor.host.identity import read_stat
from avenor.protocol.diagnosis import Diagnosis, Examined
from avenor.protocol.schemas import doctor_schema
from avenor.protocol.spec import BACKENDS
from tests.helpers import eventually_sync
from tests.runtimes.mini_agent import PRELUDE

PLAIN = Style(coloured=False)
OPTIONS: list[dict[str, Any]] = [
    {
        "id": kind,
        "name": kind,
        "category": kind,
        "type": "select",
        "currentValue": values[0],
        "options": [{"value": value, "name": value} for value in values],
    }
    for kind, values in {"mode": ["build", "plan"], "model": ["m1", "m2", "m3"], "thought_level": ["low"]}.items()
]
HELLO: dict[str, Any] = {
    "protocolVersion": 1,
    "agentInfo": {"name": "Mini", "version": "7.1"},
    "agentCapabilities": {"loadSession": True, "mcpCapabilities": {"http": True}},
}
# Asked for its version, it tells it; else it is an agent that offers what is above, and stays until its input ends.
GOOD = f"""
import json
if "--version" in sys.argv:
    print("\\x1b[1mmini\\x1b[0m, the agent\\nmini 7.1.0 (build 3)")
    sys.exit()
if "serve" in sys.argv:
    sys.exit("no server in here")
reply(expect("initialize"), json.loads({json.dumps(json.dumps(HELLO))}))
reply(expect("session/new"), {{"sessionId": "s1", "configOptions": json.loads({json.dumps(json.dumps(OPTIONS))})}})
recv()
"""
# Leaves a child in a session of its own that ignores polite ends, and says which.
LEAVES_CHILD = """
import signal, subprocess
body = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(1, flush=True); time.sleep(600)"
child = subprocess.Popen([sys.executable, "-c", body], start_new_session=True, stdout=subprocess.PIPE)
child.stdout.readline()
with open("pids", "w") as file:
    file.write(f"{os.getpid()} {child.pid}\\n")
"""


def ended(process: "subprocess.Popen[str]") -> tuple[str, str]:
    """What it printed on stdout and stderr; killed if it does not end."""
    try:
        return process.communicate(timeout=60)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise


class Machine:
    """A place where only the programs are installed that a test puts there."""

    def __init__(self, folder: Path) -> None:
        self.bin = folder / "bin"
        self.bin.mkdir()
        self.project = folder / "project"
        self.project.mkdir()
        self.backends = folder / "config" / "avenor" / "backends"
        self.backends.mkdir(parents=True)
        self.environ = {
            "PATH": str(self.bin),
            "HOME": str(folder),
            "XDG_CONFIG_HOME": str(folder / "config"),
            "PYTHONPATH": str(folder / "site"),
            **{name: value for name, value in os.environ.items() if name.startswith("COVERAGE")},
        }

    def install(self, program: str, source: str) -> None:
        """A program on the PATH."""
        path = self.bin / program
        path.write_text(f"#!{sys.executable}\n{PRELUDE}{source}")
        path.chmod(0o755)

    def profile(self, name: str, text: str) -> None:
        """A backend of the user's."""
        (self.backends / f"{name}.toml").write_text(text)

    def start(self, *words: str, **environ: str) -> "subprocess.Popen[str]":
        """`avenor doctor` with these words."""
        return subprocess.Popen(
            [sys.executable, "-m", "avenor.cli", "doctor", *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=self.project,
            env={**self.environ, **environ},
        )

    def doctor(self, *words: str, **environ: str) -> tuple[int, str, str]:
        """Its exit status, stdout and stderr."""
        process = self.start(*words, **environ)
        out, err = ended(process)
        return process.returncode, out, err

    def found(self, *words: str, **environ: str) -> tuple[int, dict[str, Any]]:
        """Its exit status, and what it prints as JSON, which fits the schema."""
        code, out, err = self.doctor("--json", *words, **environ)
        assert out, err
        value = json.loads(out)
        jsonschema.validate(value, doctor_schema())
        return code, value

    def one(self, backend: str, *words: str, **environ: str) -> tuple[int, dict[str, Any]]:
        """As `found`, of one backend."""
        code, value = self.found("--backend", backend, *words, **environ)
        [examined] = value["backends"]
        return code, examined

    def pids(self) -> list[int]:
        """Those that `LEAVES_CHILD` has told."""
        path = self.project / "pids"
        return [int(word) for word in path.read_text().split()] if path.exists() else []


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def alive(pids: list[int]) -> list[int]:
    return [pid for pid in pids if (found := read_stat(pid)) is not None and not found.is_dead]


# What is found


def test_without_any_agent_it_says_how_to_get_each(machine: Machine) -> None:
    """The rehearsed agent works, and is no agent that does work: status 1."""
    code, value = machine.found()
    assert (code, value["ok"], value["left"]) == (1, False, [])
    states = {each["backend"]: each["state"] for each in value["backends"]}
    assert tuple(states) == BACKENDS
    assert (states.pop("scripted"), states.pop("acp")) == ("works", "skipped")
    assert set(states.values()) == {"not_installed"}
    for each in value["backends"]:
        assert each["install"]
        assert (each["program"] is None) == (each["state"] != "works")


def test_an_agent_that_works_is_told_with_all_that_it_offers(machine: Machine) -> None:
    """One is enough for status 0; what it tells counts before what its profile knows."""
    machine.install("opencode", GOOD)
    code, value = machine.found()
    assert (code, value["ok"], value["dir"]) == (0, True, str(machine.project))
    examined = value["backends"][0]
    assert examined.pop("seconds") > 0
    assert examined == {
        "backend": "opencode-acp",
        "source": "builtin",
        "state": "works",
        "program": str(machine.bin / "opencode"),
        "install": "npm install -g opencode-ai",
        "note": examined["note"],
        "version": "mini 7.1.0 (build 3)",
        "agent": "Mini 7.1",
        "resume": "load",
        "mcp": examined["mcp"],
        "mode": "build",
        "modes": ["build", "plan"],
        "model": "m1",
        "models": ["m1", "m2", "m3"],
        "thinking": ["low"],
        "error": None,
        "reason": None,
    }


@pytest.mark.parametrize(
    ("source", "words", "reason", "error"),
    [
        ("sys.stderr.write('no licence\\n'); sys.exit(3)", (), "agent_exited", "exit status 3"),
        ("recv(); recv()", ("--timeout", "500ms"), "handshake_timeout", "no session within 0.5 s"),
        ("reply(expect('initialize'), {'protocolVersion': 9})", (), "wrong_protocol_version", "speaks ACP version 9"),
        ("hello(); fail(expect('session/new'), -32000, 'Log in')", (), "auth_required", "wants you to log in"),
    ],
)
def test_an_agent_that_does_not_work_is_told_why(
    machine: Machine, source: str, words: tuple[str, ...], reason: str, error: str
) -> None:
    """In the words of a run that fails so; asked for by name, that is status 1."""
    machine.install("opencode", f"if '--version' in sys.argv: sys.exit('v1')\n{source}\n")
    code, examined = machine.one("opencode-acp", *words)
    assert (code, examined["state"], examined["reason"]) == (1, "failed", reason)
    assert error in examined["error"]
    assert examined["version"] == "v1"


def test_a_program_that_tells_no_version_is_examined_all_the_same(machine: Machine) -> None:
    """It may not know the flag, say nothing, or more than a screen; what is asked first decides nothing."""
    machine.install("opencode", f"if '--version' in sys.argv:\n    raw(b'no\\n' * 100000)\n    sys.exit(2)\n{GOOD}")
    code, examined = machine.one("opencode-acp")
    assert (code, examined["state"], examined["version"]) == (0, "works", None)


def test_any_program_can_be_examined_as_backend_acp(machine: Machine) -> None:
    """With its command line; where all are examined, it is one of them."""
    machine.install("mini", GOOD)
    code, examined = machine.one("acp", "--agent-command", "mini --acp")
    assert (code, examined["state"], examined["program"]) == (0, "works", str(machine.bin / "mini"))
    assert examined["mcp"] == ["stdio", "http"]
    code, value = machine.found("--agent-command", "mini --acp")
    assert (code, [each["state"] for each in value["backends"]].count("works")) == (0, 2)


def test_backends_of_the_users_are_examined(machine: Machine, tmp_path: Path) -> None:
    """Profile files and packages; a broken one is told, and is nobody else's trouble."""
    machine.install("mini", GOOD)
    machine.profile("mine", 'argv = ["mini"]\ninstall = "cp mini ~/bin"\nnote = "my own"\n')
    machine.profile("broken", "argv = [")
    metadata = tmp_path / "site" / "extra-1.0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: extra\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[avenor.backends]\nextra = extra_module:Extra\n")
    (tmp_path / "site" / "extra_module.py").write_text(
        "class Extra:\n"
        "    name = 'extra'\n"
        "    def __init__(self, version): pass\n"
        "    async def open(self, params, sink, nursery): raise ZeroDivisionError('in a package')\n"
    )
    code, value = machine.found("--backend", "mine", "--backend", "broken", "--backend", "extra", "--backend", "mine")
    mine, broken, extra = value["backends"]
    assert (code, mine["state"], mine["source"], mine["note"]) == (1, "works", "profile", "my own")
    assert (broken["state"], broken["reason"]) == ("failed", "invalid_config")
    assert str(machine.backends / "broken.toml") in broken["error"]
    assert (extra["state"], extra["source"], extra["program"]) == ("failed", "entry_point", None)
    assert extra["error"] == "ZeroDivisionError: in a package"


def test_names_are_all_that_there_are(machine: Machine) -> None:
    """For completion: without starting anything."""
    machine.profile("mine", "")
    code, out, _ = machine.doctor("--names")
    assert (code, out.splitlines()) == (0, [*BACKENDS, "mine"])


# What is left


def test_nothing_that_an_agent_started_is_left(machine: Machine) -> None:
    """Whether it works, or fails after it has started something."""
    machine.install("opencode", f"if '--version' not in sys.argv:\n    exec({LEAVES_CHILD!r})\n{GOOD}")
    code, value = machine.found("--backend", "opencode-acp")
    assert (code, value["left"]) == (0, [])
    assert len(machine.pids()) == 2
    assert alive(machine.pids()) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interruption_ends_everything(machine: Machine, number: signal.Signals) -> None:
    """And is told; the status is that of a program that the signal has ended."""
    machine.install("opencode", f"{LEAVES_CHILD}\nwhile True: time.sleep(600)\n")
    machine.profile("mine", 'argv = ["opencode"]\ninstall = "x"\n')
    process = machine.start("--backend", "mine")
    eventually_sync(lambda: len(machine.pids()) == 2)
    process.send_signal(number)
    out, err = ended(process)
    assert (process.returncode, out) == (128 + number, "")
    assert f"ended by {number.name}" in err
    assert alive(machine.pids()) == []


def test_a_second_interruption_does_not_wait_for_anything(machine: Machine) -> None:
    """What does not go by itself is killed at once."""
    machine.install("opencode", f"{LEAVES_CHILD}\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\ntime.sleep(600)\n")
    machine.profile("mine", 'argv = ["opencode"]\ninstall = "x"\n')
    process = machine.start("--backend", "mine")
    eventually_sync(lambda: len(machine.pids()) == 2)
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGINT)
    ended(process)
    assert process.returncode == 130
    assert alive(machine.pids()) == []


# The transcript


def word_of(message: Any) -> Any:
    """The method of a message; a line that is no message as it is."""
    return cast("dict[str, Any]", message).get("method") if isinstance(message, dict) else message


def test_a_transcript_holds_both_directions_and_no_password_of_ours(machine: Machine) -> None:
    """One object a line, in the form of the recorded conversations; private to the user."""
    secret = "os.environ['OPENCODE_SERVER_PASSWORD']"
    told = f"raw(('my password is ' + {secret} + '\\n').encode())"
    machine.install("opencode", f"if '--version' not in sys.argv: {told}\n{GOOD}")
    code, _, _ = machine.doctor("--backend", "opencode-acp", "--transcript", "said.ndjson")
    assert code == 0
    path = machine.project / "said.ndjson"
    assert path.stat().st_mode & 0o777 == 0o600
    lines: list[dict[str, Any]] = [json.loads(line) for line in path.read_text().splitlines()]
    assert all(set(line) == {"t", "backend", "dir", "msg"} and line["backend"] == "opencode-acp" for line in lines)
    said: list[tuple[str, Any]] = [(line["dir"], word_of(line["msg"])) for line in lines]
    assert said == [
        ("meta", None),
        ("agent->client", "\x1b[1mmini\x1b[0m, the agent"),
        ("agent->client", "mini 7.1.0 (build 3)"),
        ("meta", None),
        *sorted([("client->agent", "initialize"), ("agent->client", "my password is [secret]")], key=said.index),
        ("agent->client", None),
        ("client->agent", "session/new"),
        ("agent->client", None),
    ]
    assert lines[3]["msg"] == {"spawn": ["opencode", "acp"], "cwd": str(machine.project)}


def test_a_transcript_puts_lines_together_and_takes_whole_messages(tmp_path: Path) -> None:
    """However the bytes were cut; what a program had not ended is written when it ends, or another is started."""
    path = tmp_path / "said.ndjson"
    with Transcript(str(path)) as transcript:
        assert transcript.tapping is not None
        tap = transcript.tapping("b", ["PASSWORD", "UNSET"])
        tap.started(["x"], "/d", {"PASSWORD": "hush"})
        for piece in (b'{"a":', b'"hush"}\n\n[1', b"]\nhal"):
            tap.passed("agent->client", piece)
        tap.passed("client->agent", b"no end")
        tap.passed("agent->client", b"")
        tap.told("agent->client", {"request": "GET /hush", "body": None})
        tap.started(["y"], "/d", {})
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(line["dir"], line["msg"]) for line in lines] == [
        ("meta", {"spawn": ["x"], "cwd": "/d"}),
        ("agent->client", {"a": "[secret]"}),
        ("agent->client", [1]),
        ("agent->client", "hal"),
        ("agent->client", {"request": "GET /[secret]", "body": None}),
        ("client->agent", "no end"),
        ("meta", {"spawn": ["y"], "cwd": "/d"}),
    ]


def test_a_transcript_that_cannot_be_written_stops_nothing(tmp_path: Path) -> None:
    """A full disk is no reason to examine nothing; without a path nothing is kept at all."""
    with Transcript("/dev/full") as full, Transcript(None) as none:
        full.write("b", "meta", {}, secrets=())
        none.write("b", "meta", {}, secrets=())
        assert none.tapping is None


# Usage


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--backend", "nobody"), "--backend 'nobody': choose one of opencode-acp, "),
        (("--backend", "acp"), "--backend acp needs --agent-command"),
        (("--backend", "acp", "--agent-command", "x 'y"), "--agent-command"),
        (("--backend", "pi", "--agent-command", "x"), "--agent-command: only backend acp takes it"),
        (("--dir", "nowhere"), "nowhere is no directory"),
        (("--backend", "pi", "--transcript", "no/where"), "--transcript"),
        (("--timeout", "soon"), "--timeout"),
        (("extra",), "one argument too many"),
    ],
)
def test_what_makes_no_sense_is_a_usage_error(machine: Machine, words: tuple[str, ...], message: str) -> None:
    """Status 2, before anything is started."""
    code, out, err = machine.doctor(*words)
    assert (code, out) == (2, "")
    assert message in err


# For people


def report(*backends: Examined, left: list[str] | None = None) -> Diagnosis:
    return Diagnosis(ok=True, version="1", dir="/d", seconds=4.25, left=left or [], backends=list(backends))


WORKS = Examined(
    backend="codex-app-server",
    source="builtin",
    state="works",
    program="/usr/bin/codex",
    version="codex-cli 0.155.12-alpha",
    agent="codex 0.155",
    resume="resume",
    mcp=["stdio", "http"],
    mode="build",
    modes=["build", "plan"],
    model="m1",
    models=[f"provider/model-{number}" for number in range(12)],
    seconds=12.34,
)
FAILED = Examined(backend="pi", source="profile", state="failed", error=f"it broke\n{'at length ' * 60}", reason="x")
MISSING = Examined(backend="x", source="builtin", state="not_installed", install="npm install -g x", note="old")
SKIPPED = Examined(backend="acp", source="builtin", state="skipped", error="name it")


@pytest.mark.parametrize("columns", [80, 100, 200])
def test_the_table_has_a_row_for_each_and_fits_the_terminal(columns: int) -> None:
    """From 80 columns on; a long error is cut, with the way to all of it."""
    text = overview(report(WORKS, FAILED, MISSING, SKIPPED), style=PLAIN, columns=columns)
    lines = text.splitlines()
    assert all(columns_of(line) <= columns for line in lines[:-1])
    assert lines[0].split() == ["backend", "version", "took", "resume", "mcp", "modes", "models", "think"]
    assert lines[1] == "✓ codex-app-server  0.155.12…  12.3 s  resume  stdio,http  2      12      -"
    assert lines[2].split() == ["✗", "pi", "it", "broke"]
    assert "… `avenor doctor --backend pi` tells all" in text
    assert "· x                 not installed: npm install -g x" in lines
    assert "· acp               name it" in lines
    assert lines[-1].startswith("1 work, 1 failed, 1 not installed, 1 not tried (4.2 s).")


def test_of_one_backend_everything_is_told() -> None:
    """The values that are in use are marked; nothing is cut."""
    lines = details(report(WORKS, FAILED, MISSING), style=PLAIN, columns=60).splitlines()
    assert lines[0] == "codex-app-server  ✓ works  (12.3 s)"
    assert "  modes      build*, plan" in lines
    assert "  thinking   cannot be chosen" in lines
    assert "  mcp        stdio, http" in lines
    assert all(columns_of(line) <= 60 for line in lines)
    assert " ".join(" ".join(lines).split()).count("at length") == 60
    assert "  from       your profile file" in lines
    assert "  install    npm install -g x" in lines
    assert "  note       old" in lines


def test_an_agent_with_one_fixed_model_says_so() -> None:
    """It is in use, and cannot be chosen; a version is what looks most like one."""
    found = Examined(backend="a", source="entry_point", state="works", model="only", agent="agent 3")
    text = details(report(found), style=PLAIN, columns=80)
    assert "  models     only (cannot be chosen)" in text
    assert "  from       a package" in text
    row = overview(report(found), style=PLAIN, columns=80).splitlines()[1]
    assert row.split() == ["✓", "a", "3", "0.0", "s", "no", "no", "-", "-", "-"]
    bare = Examined(backend="a", source="builtin", state="works", mcp=["stdio", "http", "sse"])
    assert overview(report(bare), style=PLAIN, columns=80).splitlines()[1].split()[2:8] == [
        *("?", "0.0", "s", "no", "all", "kinds")
    ]


def test_what_could_not_be_ended_is_told() -> None:
    """In both views, and in red where there are colours."""
    for view in (overview, details):
        assert "still running: x (7): why" in view(report(WORKS, left=["x (7): why"]), style=PLAIN, columns=80)
        assert "\x1b[31mstill running" in view(
            report(WORKS, left=["x (7): why"]), style=Style(coloured=True), columns=80
        )


def test_text_of_an_agent_cannot_act_on_the_terminal() -> None:
    """Wherever it is shown."""
    bad = Examined(
        backend="x", source="builtin", state="failed", error="\x1b]0;title\x07a\x1b[2Jb", version="1\x1b[31m.2"
    )
    for view in (overview, details):
        assert "\x1b" not in view(report(bad), style=PLAIN, columns=80)


def test_piped_output_has_no_colours(machine: Machine) -> None:
    """And says nothing on stderr; a table all the same."""
    code, out, err = machine.doctor("--backend", "scripted", "--backend", "pi")
    assert (code, err) == (1, "")
    assert "\x1b" not in out
    assert "scripted  ✓ works" in out
    assert "pi  · not installed" in out


@pytest.mark.parametrize(("environ", "coloured"), [({}, True), ({"NO_COLOR": "1"}, False)])
def test_a_terminal_gets_colours_and_sees_how_far_it_is(
    machine: Machine, environ: dict[str, str], coloured: bool
) -> None:
    """Unless NO_COLOR is set; the progress is taken away again."""
    master, slave = os.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "avenor.cli", "doctor"],
        stdin=subprocess.DEVNULL,
        stdout=slave,
        stderr=slave,
        cwd=machine.project,
        env={**machine.environ, "TERM": "xterm", **environ},
    )
    os.close(slave)
    data = b""
    try:
        while piece := os.read(master, 65536):
            data += piece
    except OSError:  # the other end is closed
        pass
    finally:
        os.close(master)
    assert process.wait(60) == 1
    assert b"examining 12 backends: 1 to go" in data
    assert (b"\x1b[32m" in data) == coloured
