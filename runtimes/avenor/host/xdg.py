"""Where the XDG base directory specification puts a user's files."""

import os
from collections.abc import Mapping


def state_home(environ: Mapping[str, str]) -> str:
    """The folder in which programs keep their state."""
    return _folder(environ, "XDG_STATE_HOME", ".local/state")


def config_home(environ: Mapping[str, str]) -> str:
    """The folder in which programs look for what the user has chosen."""
    return _folder(environ, "XDG_CONFIG_HOME", ".config")


def _folder(environ: Mapping[str, str], variable: str, default: str) -> str:
    named = environ.get(variable, "")
    if os.path.isabs(named):  # the specification says to ignore a relative one
        return named
    return os.path.join(environ.get("HOME") or os.path.expanduser("~"), default)
