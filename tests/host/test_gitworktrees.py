"""Removing what a manifest run has left whose process is dead."""

import os
import socket
import subprocess
from pathlib import Path

import pytest

from avenor.host.gitworktrees import clear_worktrees, remove_run, worktree_of


class Left:
    """A repository, and the directory of a run that had worktrees of it."""

    def __init__(self, folder: Path) -> None:
        self.repository = folder / "repository"
        self.run = folder / "run"
        self.worktrees = self.run / "worktrees"
        self.repository.mkdir()
        self.git("init", "-q")
        self.git("commit", "-q", "--allow-empty", "-m", "first")
        proof = self.worktrees / ".proof" / "objects" / "info"
        proof.mkdir(parents=True)
        (proof / "alternates").write_text(f"{self.repository}/.git/objects\n")

    def git(self, *words: str) -> str:
        """What git says in the repository."""
        identity = ("-c", "user.name=a", "-c", "user.email=a@example", "-c", "commit.gpgsign=false")
        return subprocess.check_output(["git", *identity, *words], cwd=self.repository, text=True)

    def add(self, path: Path) -> Path:
        """A worktree, as a run has it: locked, and with a file in it."""
        self.git("worktree", "add", "-q", "--detach", "--lock", str(path))
        (path / "file").write_text("changed")
        return path

    @property
    def known(self) -> list[str]:
        """The names of the worktrees that the repository knows."""
        lines = self.git("worktree", "list", "--porcelain").splitlines()
        return [Path(line.removeprefix("worktree ")).name for line in lines if line.startswith("worktree ")]


@pytest.fixture
def left(tmp_path: Path) -> Left:
    return Left(tmp_path)


def test_worktrees_go_and_those_of_others_stay(left: Left, tmp_path: Path) -> None:
    """Also the entry of one whose files are gone already, and what is in a closed directory."""
    closed = left.add(left.worktrees / "reader.1") / "closed"
    closed.mkdir()
    (closed / "file").touch()
    closed.chmod(0)
    gone = left.add(left.worktrees / "reader.2")
    for path in (gone / "file", gone / ".git"):
        path.unlink()
    gone.rmdir()
    left.add(tmp_path / "other")
    clear_worktrees(left.run, lambda _name: False)
    assert left.known == ["repository", "other"]
    assert [path.name for path in left.worktrees.iterdir()] == [".proof"]


def test_what_is_kept_is_plain_files(left: Left) -> None:
    """The repository knows nothing of them any more; nor is anything else touched that has their name."""
    kept = left.add(left.worktrees / "writer.1")
    inside = left.add(left.worktrees / "writer.2")
    (inside / ".git").unlink()
    (inside / ".git").mkdir()
    link = left.worktrees / "writer.3"
    link.symlink_to(left.repository)
    clear_worktrees(left.run, lambda name: name.startswith("writer"))
    assert left.known == ["repository"]
    assert sorted(path.name for path in kept.iterdir()) == ["file"]
    assert (inside / ".git").is_dir()
    assert (left.repository / ".git").is_dir()


def test_the_private_places_go_and_all_can_be_done_again(left: Left) -> None:
    """Copies of logins are there; a run that had no worktree yet, or no directory, has nothing to remove."""
    login = left.run / "private" / "reader.1" / "login"
    login.parent.mkdir(parents=True)
    login.write_text("secret")
    for _ in range(2):
        clear_worktrees(left.run, lambda _name: False)
        assert not (left.run / "private").exists()
    (left.worktrees / ".proof" / "objects" / "info" / "alternates").unlink()
    clear_worktrees(left.run, lambda _name: False)
    clear_worktrees(left.run / "nowhere", lambda _name: False)


def test_the_directory_of_a_run_goes_but_for_what_is_nowhere_else(tmp_path: Path) -> None:
    """Files that could not be taken into the repository stay; without any nothing does."""
    directory = tmp_path / "run-1"
    (directory / "left" / "writer.1").mkdir(parents=True)
    (directory / "private").mkdir()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(directory / "control.sock"))
        remove_run(directory)
    assert [path.name for path in directory.rglob("*")] == ["left", "writer.1"]
    (directory / "left" / "writer.1").rmdir()
    (directory / "left").rmdir()
    remove_run(directory)
    assert not directory.exists()


def test_an_entry_that_is_no_file_is_about_no_worktree(tmp_path: Path) -> None:
    """A named pipe there is not waited for: it is the user's repository, and an agent may have been in it."""
    os.mkfifo(tmp_path / "gitdir")
    assert worktree_of(tmp_path) is None
    assert worktree_of(tmp_path / "gone") is None
