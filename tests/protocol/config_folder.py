"""A folder of config files that exists only in memory."""

import errno
import json
import os
from typing import Any

from avenor.protocol.config_loading import CheckedConfig, LoadedConfig, check_config, load_config
from avenor.protocol.configs import ConfigKind

Files = dict[str, Any]


class Folder:
    """Files by path: bytes as they are, anything else as JSON. Keeps what was read."""

    def __init__(self, files: Files) -> None:
        self.files = files
        self.asked: list[str] = []

    def read(self, path: str) -> bytes:
        self.asked.append(path)
        if path not in self.files:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        content = self.files[path]
        return content if isinstance(content, bytes) else json.dumps(content).encode()


def check(
    content: Any, kind: ConfigKind = "team", *, files: Files | None = None, has_initial: bool = False
) -> CheckedConfig:
    """What is found about /c/root.json with that content, beside other files."""
    folder = Folder({"/c/root.json": content, **(files or {})})
    return check_config("/c/root.json", kind, read=folder.read, has_initial=has_initial)


def load(
    content: Any, kind: ConfigKind = "team", *, files: Files | None = None, has_initial: bool = False
) -> LoadedConfig:
    """As `check`, for a config that must be right."""
    folder = Folder({"/c/root.json": content, **(files or {})})
    return load_config("/c/root.json", kind, read=folder.read, has_initial=has_initial)


def errors(
    content: Any, kind: ConfigKind = "team", *, files: Files | None = None, has_initial: bool = False
) -> list[str]:
    """Its mistakes, a line each, without the folder."""
    found = check(content, kind, files=files, has_initial=has_initial).errors
    return [error.line().replace("/c/", "") for error in found]


def phase(name: str = "a", **members: Any) -> dict[str, Any]:
    """A phase that is right: with a prompt, unless it is given something else."""
    sources = {"prompt", "prompt_file", "loop_file", "team_file"}
    return {"name": name, **({} if sources & set(members) else {"prompt": "go"}), **members}


def team(**lists: Any) -> dict[str, Any]:
    """A team that is right, with lists replaced or added."""
    return {"team": [phase("member")], **lists}


def loop(**lists: Any) -> dict[str, Any]:
    """A loop that is right, with lists replaced or added."""
    return {"loop": [phase("step")], **lists}
