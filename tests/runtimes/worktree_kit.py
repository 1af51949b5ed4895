"""A real git repository with a little of everything, and the worktrees of a run beside it."""

import os
import subprocess
from pathlib import Path

import msgspec

from avenor.runtimes.manifest.candidate import Changes
from avenor.runtimes.manifest.worktrees import Worktrees


class Repo:
    """A repository whose owner has set up all that could get in the way.

    Hooks and filters write into `log`; nothing of them may ever run.
    """

    def __init__(self, folder: Path, *, object_format: str = "sha1") -> None:
        self.folder = folder
        self.top = folder / "repo"
        self.log = folder / "log"
        self.home = folder / "home"
        self.run = folder / "run" / "worktrees"
        for each in (self.top / "src", self.home):
            each.mkdir(parents=True)
        self.git("init", "-q", "-b", "main", f"--object-format={object_format}", ".")
        self.put("src/retry.py", "one\ntwo\n")
        self.put("src/big.bin", "\0binary\n")
        self.put("README", "read\n")
        self.put(".gitignore", "*.pyc\n/build/\n")
        self.put("run.sh", "#!/bin/sh\n").chmod(0o755)
        (self.top / "link").symlink_to("README")
        self.first = self.commit("first")

    @property
    def env(self) -> dict[str, str]:
        """The environment of the user's git."""
        who = {
            "GIT_AUTHOR_NAME": "u",
            "GIT_AUTHOR_EMAIL": "u@u",
            "GIT_COMMITTER_NAME": "u",
            "GIT_COMMITTER_EMAIL": "u@u",
        }
        return {"PATH": os.environ["PATH"], "HOME": str(self.home), "LC_ALL": "C", **who}

    def git(self, *words: str, cwd: Path | None = None, check: bool = True) -> str:
        """What the user's git says."""
        done = subprocess.run(
            ["git", *words], cwd=cwd or self.top, env=self.env, check=check, capture_output=True, text=True
        )
        return done.stdout.strip()

    def put(self, path: str, text: str, top: Path | None = None) -> Path:
        """Writes a file."""
        target = (top or self.top) / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
        return target

    def commit(self, message: str) -> str:
        """Commits everything."""
        self.git("add", "-A", ".")
        self.git("commit", "-q", "--allow-empty", "-m", message)
        return self.git("rev-parse", "HEAD")

    def set_traps(self) -> None:
        """Hooks, filters, an fsmonitor, aliases and settings that would each change what git does or says."""
        shout = f"echo $0 >> {self.log}; cat"
        for name in ("post-checkout", "pre-commit", "reference-transaction", "post-index-change", "post-commit"):
            hook = self.put(f".git/hooks/{name}", f"#!/bin/sh\n{shout} > /dev/null\nexit 1\n")
            hook.chmod(0o755)
        for name, value in (
            ("filter.shout.clean", shout),
            ("filter.shout.smudge", shout),
            ("filter.shout.required", "true"),
            ("diff.external", shout),
            ("diff.shout.textconv", shout),
            ("core.fsmonitor", shout),
            ("core.autocrlf", "true"),
            ("core.fileMode", "false"),
            ("core.ignoreCase", "true"),
            ("core.excludesFile", str(self.home / "ignore")),
            ("core.attributesFile", str(self.home / "attributes")),
            ("core.sparseCheckout", "true"),
            ("status.showUntrackedFiles", "no"),
            ("commit.gpgSign", "true"),
            ("gpg.program", shout),
            ("diff.noprefix", "true"),
            ("diff.renames", "copies"),
        ):
            self.git("config", name, value)
        self.put("../home/ignore", "*\n")
        self.put("../home/attributes", "* filter=shout diff=shout text eol=crlf ident\n")
        self.put(".git/info/attributes", "* filter=shout diff=shout\n")
        self.put(".git/info/exclude", "*\n")
        self.put(".git/info/sparse-checkout", "/README\n")

    def state(self) -> tuple[str, ...]:
        """What must stay as it is: HEAD, the branches, the index's and the checkout's contents, the settings."""
        index = (self.top / ".git/index").read_bytes()
        files = sorted(str(path) for path in self.top.rglob("*") if ".git" not in path.parts)
        config = (self.top / ".git/config").read_text(encoding="utf-8")
        return (self.git("rev-parse", "HEAD"), self.git("branch"), str(index), str(files), config)

    async def worktrees(self, directory: str = "") -> Worktrees:
        """The worktrees of the run."""
        return await Worktrees.open(str(self.top / directory), str(self.run), self.env)


def told(changes: Changes) -> dict[str, str]:
    """The statuses by path."""
    return {change.path: change.status for change in changes.files}


def reasons(changes: Changes) -> dict[str, str]:
    """The problems' reasons by path; that they can be told as JSON is checked on the way."""
    msgspec.json.encode(changes)
    return {problem.path: problem.reason for problem in changes.problems}
