"""Starts one of our own programs in a new process: `python -P start.py MODULE ARGUMENT…`.

A process that is started with `python -m MODULE` finds only what that interpreter finds by itself. The one-file
executable unpacks itself into a folder that no interpreter knows. This file knows where it lies, and so where all of it
is.
"""

import os
import runpy
import sys

_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def own_command(module: str) -> list[str]:
    """The program line that runs one of our modules, to which arguments may be added.

    Args:
        module: Its dotted name; it is run as `python -m` would.
    """
    return [sys.executable, "-P", START_PATH, module]


START_PATH = os.path.abspath(__file__)


def main() -> None:
    """Runs the module that the first argument names."""
    if _ROOT not in sys.path:
        sys.path.insert(0, _ROOT)
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
