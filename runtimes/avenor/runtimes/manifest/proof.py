"""A repository of the run's own, through which worktrees are written, compared and committed.

It borrows the objects of the user's repository and keeps new ones to itself, so that nothing reaches the user's before
it is meant to. It has a configuration of its own and knows no other: what is written and what is compared are the bytes
that git has stored, whatever filters, line endings, attributes, ignore files, hooks or replaced objects the user, the
repository or a member of the run has set up.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from avenor.host.atomic import write_atomic
from avenor.host.gitworktrees import ALTERNATES
from avenor.runtimes.git import Git, git_environment

_CONFIG: Final = """\
[core]
\trepositoryformatversion = {version}
\tbare = true
\tfileMode = true
\tsymlinks = true
\tignoreCase = false
\tprecomposeUnicode = false
\ttrustctime = true
\tcheckStat = default
\tautocrlf = false
\tlogAllRefUpdates = false
\tattributesFile = {null}
\texcludesFile = {null}
[gc]
\tauto = 0
[extensions]
\t{extension}
"""
# Above all attributes of any other place.
_ATTRIBUTES: Final = "* -text -eol -ident -filter -working-tree-encoding\n"


class Proof:
    """The repository, made once in a directory and found again there.

    Args:
        folder: Where it is; made by `make`.
        objects: The object directory of the user's repository.
        environ: The environment that git is started from.
        object_format: `sha1` or `sha256`, as the user's repository has it.
    """

    def __init__(self, folder: Path, objects: str, environ: Mapping[str, str], object_format: str) -> None:
        self.folder = folder
        self._objects = objects
        self._format = object_format
        kept = {name: value for name, value in environ.items() if not name.startswith("GIT_")}
        self._env = {
            **git_environment(kept),
            "GIT_DIR": str(folder),
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_CONFIG_GLOBAL": os.devnull,
            "GIT_ATTR_NOSYSTEM": "1",
            "GIT_LITERAL_PATHSPECS": "1",
        }

    def make(self) -> None:
        """Makes it, or mends what an interrupted making has left.

        Raises:
            OSError: It cannot be written.
        """
        for name in ("objects/info", "objects/pack", "refs", "info", "scratch", "attempts"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        extension = "" if self._format == "sha1" else f"objectFormat = {self._format}"
        config = _CONFIG.format(version=0 if self._format == "sha1" else 1, null=os.devnull, extension=extension)
        files = {
            "HEAD": "ref: refs/heads/none\n",
            "config": config,
            "info/attributes": _ATTRIBUTES,
            ALTERNATES: f"{self._objects}\n",
        }
        for name, text in files.items():
            write_atomic(self.folder / name, text.encode(), durable=False)

    def has_made(self, commit: str) -> bool:
        """Whether a commit was made here, by this or an earlier process of the run."""
        return (self.folder / "objects" / commit[:2] / commit[2:]).is_file()

    def git(self, worktree: str | None = None, index: str | None = None) -> Git:
        """What starts git in this repository.

        Args:
            worktree: The files that it is to look at; None for commands that look at none.
            index: The file of the index.
        """
        more = {} if worktree is None else {"GIT_WORK_TREE": worktree}
        if index is not None:
            more["GIT_INDEX_FILE"] = index
        return Git(worktree or str(self.folder), {**self._env, **more}, self.scratch)

    @property
    def scratch(self) -> str:
        """For temporary files."""
        return str(self.folder / "scratch")
