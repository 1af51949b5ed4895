"""A machine for one page of the documentation: a home, a repository, rehearsed agents, and a person at a shell.

The commands are run as they are shown, one after another, in one shell. Only what would reach out of the sandbox is
another: paths, ports, and the names that differ in every run.
"""

import contextlib
import json
import os
import random
import re
import shlex
import shutil
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.docs import person
from tests.docs.blocks import Block
from tests.e2e.harness import AVENOR, Place

ROOT: Final = Path(__file__).parents[2]
# Far above what the longest page takes on a busy machine.
_PAGE_SECONDS: Final = 240.0
_PORT: Final = re.compile(r"(?<=127\.0\.0\.1:)\d{4,}|(?<= :)\d{4,}\b")
_PERMISSION: Final = re.compile(r"\bperm_1(_[0-9a-f]{8})?\b")

# The id of the one permission that is asked for, which the reader would copy from the line before.
_PENDING: Final = """#!/bin/sh
for attempt in $(seq 100); do
  found=$(for each in $(avenor control list --json | jq -r '.[].runtime_id'); do
    avenor control status $each | jq -r '.permission.request_id // empty'; done | head -1)
  test -n "$found" && echo "$found" && exit
  sleep 0.1
done
exit 1
"""


class Sandbox:
    """Where one page is tried.

    Args:
        place: Ends whatever is left.
    """

    def __init__(self, place: Place) -> None:
        self.place = place
        self._bin = place.path / "bin"
        self._bin.mkdir()
        self._temporary = place.path / "tmp"
        self._temporary.mkdir()
        self._busy = place.path / "busy"
        self._ports: dict[str, str] = {}
        self._write_programs()
        self._make_repository()

    def run(self, blocks: Sequence[Block]) -> subprocess.CompletedProcess[str]:
        """The shell that has been told all these blocks; it has stopped at the first command that failed."""
        script = self.place.path / "page.sh"
        script.write_text("\n".join(["set -eEo pipefail", *(self._told(block) for block in blocks)]))
        said = self.place.path / "said"
        with said.open("wb") as out:  # a pipe would stay open for as long as what is left running
            process = subprocess.Popen(
                ["bash", str(script)],
                cwd=self.place.work,
                env=self._environ(),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
            )
            try:
                process.wait(_PAGE_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        return subprocess.CompletedProcess(process.args, process.returncode, said.read_text(errors="replace"))

    def _told(self, block: Block) -> str:
        if block.file is not None:
            # A name that begins with `~` is in the reader's home.
            path = block.file.replace("~", str(self.place.path / "home"), 1)
            return f"mkdir -p $(dirname {path})\ncat > {path} <<'_END_OF_FILE'\n{block.text}_END_OF_FILE"
        told = [f"trap 'echo \"line {block.line}: $BASH_COMMAND: status $?\" >&2' ERR"]
        if block.first is not None:
            told.append(self._moved(block.first))
        text = self._moved(block.text)
        # Who looks at the status himself wants to see it.
        told.append(f"set +e; trap - ERR\n{text}set -e" if "$?" in text else text)
        return "\n".join(told)

    def _moved(self, text: str) -> str:
        """The commands, with what lies outside put into the sandbox."""
        text = _PERMISSION.sub("$(pending)", text)
        text = re.sub(r"(?<![\w.~])/tmp/", f"{self._temporary}/", text)
        text = re.sub(r"(?<![\w.~])/repo/A\b", str(self.place.work), text)
        text = re.sub(r"/run/user/1000\b", str(self.place.path / "xdg"), text)
        return _PORT.sub(lambda found: self._port(found[0]), text)

    def _port(self, shown: str) -> str:
        """A port that is free here, in the place of one that a page names."""
        return self._ports.setdefault(shown, str(_free_port()))

    def _environ(self) -> dict[str, str]:
        environ = self.place.environ(
            HOME=str(self.place.path / "home"),
            PATH=os.pathsep.join([str(self._bin), os.path.dirname(AVENOR), os.environ["PATH"]]),
            GIT_CONFIG_GLOBAL="/dev/null",
            COLUMNS="120",
        )
        environ[person.REAL] = AVENOR
        environ[person.BUSY] = str(self._busy)
        return environ

    def _write_programs(self) -> None:
        python = shlex.quote(sys.executable)
        script = self.place.script(
            {"match": "^List the files", "steps": [self._long_work(), {"do": "hang"}]},
            {"match": "(?i)\\bask\\b", "steps": [_ASK, {"do": "say", "text": "Asked."}]},
            {"steps": [_WORK, {"do": "say", "text": "Done: {prompt}"}]},
            name="agent.json",
            modes=["build", "plan", "jockey", "horse", "mule"],  # opencode's own, and those of `avenor init`
        )
        agent = f"exec {python} -m avenor.runtimes.scripted --script {shlex.quote(script)}"
        self._program("avenor", f'#!/bin/sh\nexec {python} {shlex.quote(person.__file__)} "$@"\n')
        self._program("pending", _PENDING)
        for name in ("opencode", "hermes-acp", "my-agent"):
            # It speaks one protocol; what is asked to serve another ends.
            cases = f"--version) echo 1.0.0 ;; serve) exit 1 ;; *) {agent} ;;"
            self._program(name, f'#!/bin/sh\ncase "$1" in {cases} esac\n')

    def _long_work(self) -> dict[str, object]:
        return {"do": "run", "command": f"touch {shlex.quote(str(self._busy))}"}

    def _program(self, name: str, text: str) -> None:
        path = self._bin / name
        path.write_text(text)
        path.chmod(0o755)

    def _make_repository(self) -> None:
        for folder in ("home", "xdg"):
            (self.place.path / folder).mkdir(mode=0o700, exist_ok=True)
        shutil.copytree(ROOT / "docs", self.place.work / "docs", ignore=shutil.ignore_patterns("__pycache__"))
        identity = ["-c", "user.name=an", "-c", "user.email=an@example"]
        for words in (["init", "-q"], ["add", "."], [*identity, "commit", "-qm", "Start"]):
            subprocess.run(["git", *words], cwd=self.place.work, env=self._environ(), check=True)


# A page whose agents must be at work for long starts them with this variable.
_WORK: Final = {"do": "run", "command": "sleep ${DOCS_SLOW:-0}"}
_ASK: Final = {"do": "tool", "title": "rm -rf build", "ask": True}


def describe(done: subprocess.CompletedProcess[str]) -> str:
    """What the shell said, for whoever has to mend the page."""
    return json.dumps(done.returncode) + "\n" + done.stdout[-4000:]


def _free_port() -> int:
    # Below the ports that systems give away by themselves: one of those could be another test's by the time it is used.
    for port in random.sample(range(20_000, 32_000), 100):
        with socket.socket() as sock, contextlib.suppress(OSError):
            sock.bind(("127.0.0.1", port))
            return port
    raise AssertionError("a hundred ports are taken")
