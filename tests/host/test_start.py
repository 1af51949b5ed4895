"""Our own programs, started where no interpreter finds them by itself."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from avenor.host.start import START_PATH, own_command


def test_a_module_is_found_from_where_the_starter_lies(tmp_path: Path) -> None:
    """As in the folder into which the one-file executable unpacks itself; the arguments are the module's own."""
    folder = tmp_path / "avenor/host"
    folder.mkdir(parents=True)
    shutil.copy(START_PATH, folder / "start.py")
    (tmp_path / "ours.py").write_text("import sys\nprint(__name__, sys.argv[1:], sys.argv[0])\n")
    command = [sys.executable, "-P", str(folder / "start.py"), "ours", "-x", "y"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd="/")
    assert done.stdout == f"__main__ ['-x', 'y'] {tmp_path / 'ours.py'}\n"


def test_what_lies_in_the_working_directory_is_not_taken_for_ours(tmp_path: Path) -> None:
    """A user's own `msgspec.py` would else be run, with all that the supervisor may do."""
    (tmp_path / "msgspec.py").write_text("raise SystemExit('not ours')\n")
    command = [*own_command("avenor.runtimes.scripted"), "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert "not ours" not in done.stdout + done.stderr
    assert (done.returncode, os.path.isabs(command[2])) == (0, True)
