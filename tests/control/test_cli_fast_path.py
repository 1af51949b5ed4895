"""What `avenor control` may load: the command is to take milliseconds."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.control.scripted_server import ScriptedServer

HEAVY = {
    "argparse",
    "asyncio",
    "collections",
    "contextlib",
    "dataclasses",
    "enum",
    "inspect",
    "json",
    "logging",
    "msgspec",
    "pathlib",
    "psutil",
    "re",
    "socket",
    "structlog",
    "subprocess",
    "threading",
    "trio",
    "typing",
}
# Without `site`, because what an environment's .pth files load is not ours.
_PROGRAM = """\
import sys
sys.path[:0] = {path!r}
from avenor.cli import main
code = main(sys.argv[1:])
sys.stderr.write(" ".join(sys.modules))
sys.exit(code)
"""


def loaded_by(words: list[str]) -> set[str]:
    program = _PROGRAM.format(path=[entry for entry in sys.path if entry])
    done = subprocess.run([sys.executable, "-S", "-c", program, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return set(done.stderr.split())


@pytest.mark.parametrize("words", [["list"], ["status"]])
def test_the_plainest_commands_load_next_to_nothing(tmp_path: Path, words: list[str]) -> None:
    """Neither JSON nor regular expressions, let alone trio: an answer in our servers' form is cut out of its line."""
    with ScriptedServer(str(tmp_path / "s"), {"list": [{"runtime_id": "rt_1"}], "status": {"a": 1}}) as server:
        loaded = loaded_by(["control", "--socket", server.path, *words])
    assert loaded & HEAVY == set()
    assert len({name for name in loaded if name.startswith("avenor.")}) <= 10


@pytest.mark.parametrize(
    "words", [["status", "rt_1"], ["cancel", "rt_1"], ["prompt", "go", "rt_1"], ["spawn", "--prompt", "x"]]
)
def test_no_control_command_loads_a_framework(tmp_path: Path, words: list[str]) -> None:
    """JSON at most."""
    answers = {"status": {}, "cancel": {"ok": True}, "prompt": {"queued": 0}, "spawn": {}}
    with ScriptedServer(str(tmp_path / "s"), answers) as server:
        loaded = loaded_by(["control", "--socket", server.path, *words])
    allowed = {"json", "re", "enum", "collections"}
    assert loaded & (HEAVY - allowed) == set()
