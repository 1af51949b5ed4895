"""Installs agent programs, pinned, each into a folder of its own below `.agents/`.

`AVENOR_AGENTS_DIR` names another folder than `.agents/`. Which agents there are is the catalog's.
"""

import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(os.environ.get("AVENOR_AGENTS_DIR") or Path(__file__).resolve().parents[2] / ".agents")

# As npm's packages name it.
MACHINE: Final = {"x86_64": "x64", "amd64": "x64", "aarch64": "arm64", "arm64": "arm64"}.get(
    platform.machine().lower(), platform.machine().lower()
)


@dataclass(frozen=True)
class Program:
    """A program that npm installs.

    Attributes:
        name: Of its folder.
        packages: What npm installs, pinned.
        path: The program below `node_modules`; a glob where only the package knows.
        needs_node: It is a script for a newer node than Linux distributions have, and so is its installation.
    """

    name: str
    packages: Sequence[str]
    path: str
    needs_node: bool = False

    @property
    def folder(self) -> Path:
        """Where it is installed."""
        return ROOT / self.name

    def find(self) -> Path | None:
        """The installed program; None if it, or the pinned version of it, is not there."""
        stamp = self.folder / "installed"
        if not stamp.exists() or stamp.read_text() != " ".join(self.packages):
            return None
        return next((self.folder / "node_modules").glob(self.path), None)

    def installed(self) -> Path:
        """The installed program.

        Raises:
            FileNotFoundError: It is not there; the message says what installs it.
        """
        found = self.find()
        if found is None:
            raise FileNotFoundError(f"{self.name} is missing: `make agents AGENTS=all` installs it")
        return found

    def path_variable(self) -> str:
        """Our PATH, with the newer node before it where the program needs that."""
        path = os.environ["PATH"]
        return f"{NODE.installed().parent}:{path}" if self.needs_node else path

    def install(self) -> Path:
        """Installs what is missing; ends the process with what to do when npm is not there."""
        if self.needs_node:
            NODE.install()
        found = self.find()
        if found is None:
            # npm takes an older version of a package than was asked for where the running node is too old for it.
            _npm_install(self.folder, self.packages, self.path_variable())
            found = self.find()
        assert found is not None, f"{' '.join(self.packages)} brought no {self.path}"
        return found


NODE: Final = Program("node22", ("node@22",), "node/bin/node")
OPENCODE: Final = Program(
    "opencode",
    (f"opencode-{sys.platform}-{MACHINE}@1.18.34",),
    f"opencode-{sys.platform}-{MACHINE}/bin/opencode",
)


def _npm_install(folder: Path, packages: Sequence[str], path: str) -> None:
    npm = shutil.which("npm")
    if npm is None:
        sys.exit(f"npm is needed to install {' '.join(packages)}: install Node.js, then try again")
    folder.mkdir(parents=True, exist_ok=True)
    print(f"installing {' '.join(packages)}", flush=True)
    command = [npm, "install", "--no-audit", "--no-fund", "--no-save", "--prefix", str(folder), *packages]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env={**os.environ, "PATH": path})
    (folder / "installed").write_text(" ".join(packages))
