"""Installs the agent programs that the end-to-end tests drive, pinned, into `.agents/`.

Run as `python -m tests.agents.install`. Only what is missing is installed.
"""

import platform
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2] / ".agents"
OPENCODE_VERSION = "1.18.34"
_ARCHITECTURES = {"x86_64": "x64", "amd64": "x64", "aarch64": "arm64", "arm64": "arm64"}


def opencode_package() -> str:
    """The npm package that holds opencode's native program for this machine."""
    machine = platform.machine().lower()
    return f"opencode-{sys.platform}-{_ARCHITECTURES.get(machine, machine)}"


def opencode_program() -> Path:
    """Where the installed program is."""
    return ROOT / "node_modules" / opencode_package() / "bin" / "opencode"


def main() -> None:
    """Installs what is missing; fails with what to do when npm is not there."""
    stamp = ROOT / f"opencode-{OPENCODE_VERSION}"
    if stamp.exists() and opencode_program().exists():
        return
    npm = shutil.which("npm")
    if npm is None:
        sys.exit("the agent tests need npm to install opencode: install Node.js, then try again")
    ROOT.mkdir(exist_ok=True)
    package = f"{opencode_package()}@{OPENCODE_VERSION}"
    print(f"installing {package}", flush=True)
    command = [npm, "install", "--no-audit", "--no-fund", "--no-save", "--prefix", str(ROOT), package]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    stamp.touch()


if __name__ == "__main__":
    main()
