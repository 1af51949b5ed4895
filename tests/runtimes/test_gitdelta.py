"""What phases are told of git, on real repositories with the system's git."""

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog.testing
import trio
from trio.testing import MockClock

from avenor.host.identity import read_stat
from avenor.runtimes import git as git_module
from avenor.runtimes.git import LIMIT_BYTES
from avenor.runtimes.gitdelta import GitDelta, GitDeltas, GitMark, _Repository  # pyright: ignore[reportPrivateUsage]
from tests.helpers import eventually, kill_each

HOSTILE_SETTINGS = {
    "color.ui": "always",
    "color.diff": "always",
    "core.pager": "touch RAN; cat",
    "pager.diff": "true",
    "diff.external": "touch RAN; echo external",
    "diff.noprefix": "true",
    "diff.mnemonicPrefix": "true",
    "diff.renames": "false",
    "diff.relative": "true",
    "diff.orderFile": "missing-order-file",
    "diff.statGraphWidth": "2",
    "diff.statNameWidth": "4",
    "diff.renameLimit": "1",
    "diff.ignoreSubmodules": "all",
    "diff.submodule": "log",
    "diff.algorithm": "patience",
    "diff.wild.textconv": "touch RAN; cat",
    "diff.wild.command": "touch RAN; cat",
    "status.showUntrackedFiles": "no",
    "status.relativePaths": "false",
    "core.quotePath": "true",
    "core.bigFileThreshold": "1",
    "core.safecrlf": "true",
    "core.autocrlf": "input",
    "core.untrackedCache": "true",
    "core.splitIndex": "true",
    "core.fsmonitor": "touch RAN; false",
    "core.hooksPath": "hooks",
    "filter.wild.clean": "touch RAN; cat",
    "filter.wild.smudge": "touch RAN; cat",
    "filter.wild.process": "touch RAN; false",
    "filter.wild.required": "true",
    "filter.a=b.clean": "touch RAN; cat",
    "filter.a=b.required": "true",
    "commit.gpgSign": "true",
    "gpg.program": "missing-gpg",
    "log.showSignature": "true",
    "interactive.diffFilter": "touch RAN; cat",
    "submodule.recurse": "true",
}
HOSTILE_VARIABLES = {
    "GIT_DIR": "/nowhere",
    "GIT_WORK_TREE": "/nowhere",
    "GIT_INDEX_FILE": "/nowhere/index",
    "GIT_OBJECT_DIRECTORY": "/nowhere/objects",
    "GIT_COMMON_DIR": "/nowhere",
    "GIT_NAMESPACE": "odd",
    "GIT_PREFIX": "odd/",
    "GIT_CONFIG": "/nowhere/config",
    "GIT_CONFIG_PARAMETERS": "'color.ui=always'",
    "GIT_EXTERNAL_DIFF": "touch RAN; echo external",
    "GIT_PAGER": "touch RAN; cat",
    "PAGER": "touch RAN; cat",
    "GIT_DIFF_OPTS": "--unified=9",
    "GIT_LITERAL_PATHSPECS": "1",
    "GIT_ICASE_PATHSPECS": "1",
    "GIT_OPTIONAL_LOCKS": "1",
    "GIT_TRACE": "2",
    "GIT_TRACE_SETUP": "1",
    "LC_ALL": "de_DE.UTF-8",
    "LANGUAGE": "de",
    "COLUMNS": "20",
    "TERM": "xterm-256color",
}


class Repository:
    """A repository, and git as its user calls it."""

    def __init__(self, path: Path, env: dict[str, str]) -> None:
        self.path = path
        self.env = env
        path.mkdir(parents=True, exist_ok=True)

    def git(self, *arguments: str, cwd: Path | None = None) -> str:
        done = subprocess.run(
            ["git", *arguments], cwd=cwd or self.path, env=self.env, stdin=subprocess.DEVNULL, capture_output=True
        )
        assert done.returncode == 0, done.stderr.decode()
        return done.stdout.decode().rstrip("\n")

    def write(self, name: str, text: str = "text\n") -> Path:
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def commit(self, *names: str) -> str:
        for name in names:
            self.write(name, f"text of {name}\n")
        self.git("add", "-A")
        self.git("commit", "--quiet", "-m", "a change")
        return self.git("rev-parse", "HEAD")

    def deltas(self, inside: str = "", **options: Any) -> GitDeltas:
        return GitDeltas(str(self.path / inside), self.env, **options)


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    """An environment in which git knows nothing of this machine's configuration."""
    home = tmp_path / "home"
    home.mkdir()
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("GIT_", "XDG_"))}
    return {
        **kept,
        "HOME": str(home),
        "GIT_CONFIG_GLOBAL": str(home / "gitconfig"),
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CEILING_DIRECTORIES": str(tmp_path),
        "GIT_AUTHOR_NAME": "A",
        "GIT_AUTHOR_EMAIL": "a@example.org",
        "GIT_COMMITTER_NAME": "C",
        "GIT_COMMITTER_EMAIL": "c@example.org",
    }


@pytest.fixture
def repository(tmp_path: Path, env: dict[str, str]) -> Repository:
    """One with the committed files a, b and dir/c."""
    made = Repository(tmp_path / "repository", env)
    made.git("init", "--quiet", "-b", "main")
    made.commit("a", "b", "dir/c")
    return made


@pytest.fixture
def deltas(repository: Repository) -> Iterator[GitDeltas]:
    with repository.deltas() as made:
        yield made


async def changes(deltas: GitDeltas, change: Callable[[], object]) -> list[str]:
    """The changed files that are told after a change."""
    mark = await deltas.mark()
    assert mark is not None
    assert mark.tree
    change()
    return (await deltas.since(mark)).changed_files.splitlines()


def state_of(directory: Path) -> dict[str, object]:
    """Every file below a directory with its content and time.

    Without the times of what is named by its content: git renews them whenever it comes upon one.
    """
    state: dict[str, object] = {}
    for path in sorted(directory.rglob("*")):
        status = path.lstat()
        content = path.read_bytes() if path.is_file() else None
        is_named_by_content = path.parent.parent.name == "objects" or path.name.startswith("sharedindex.")
        mtime = None if is_named_by_content else status.st_mtime_ns
        state[str(path.relative_to(directory))] = (content, mtime, status.st_mode, status.st_ino)
    return state


def size_of(directory: Path, pattern: str) -> int:
    return sum(path.stat().st_size for path in directory.glob(pattern) if path.is_file())


def traces(directory: Path) -> list[Path]:
    """The files that the programs in hostile settings leave."""
    return list(directory.rglob("RAN"))


async def test_before_the_first_phase_there_is_nothing_to_tell(repository: Repository, deltas: GitDeltas) -> None:
    """Without a mark everything is empty, whatever there is to see in the repository."""
    repository.write("new")
    assert await deltas.since(None) == GitDelta()


async def test_a_phase_that_changed_nothing_leaves_only_the_commit_to_tell(
    repository: Repository, deltas: GitDeltas
) -> None:
    """What was untracked or changed before the mark is no change."""
    repository.write("untracked")
    repository.write("a", "changed before\n")
    mark = await deltas.mark()
    assert mark is not None
    assert mark.commit == repository.git("rev-parse", "HEAD")
    assert await deltas.since(mark) == GitDelta(prev_commit=mark.commit)


async def test_committed_uncommitted_and_untracked_changes_are_told_alike(
    repository: Repository, deltas: GitDeltas
) -> None:
    """The list has all of them, each once, and the statistics only what was committed."""
    mark = await deltas.mark()
    assert mark is not None
    repository.commit("committed")
    repository.write("a", "changed\n")
    repository.write("staged")
    repository.git("add", "staged")
    repository.write("dir/untracked")
    delta = await deltas.since(mark)
    assert delta.prev_commit == mark.commit
    assert delta.changed_files.splitlines() == ["a", "committed", "dir/untracked", "staged"]
    assert delta.diff_stat == repository.git("diff", "--stat", f"{mark.commit}..HEAD")
    assert delta.diff_stat.splitlines() == [" committed | 1 +", " 1 file changed, 1 insertion(+)"]


async def test_committing_what_was_there_before_is_no_change_of_files(
    repository: Repository, deltas: GitDeltas
) -> None:
    """The statistics know the commit; the files are as they were."""
    repository.write("new")
    mark = await deltas.mark()
    repository.commit()
    delta = await deltas.since(mark)
    assert delta.changed_files == ""
    assert "new | 1 +" in delta.diff_stat


async def test_a_change_within_one_tick_of_the_index_is_seen(repository: Repository, deltas: GitDeltas) -> None:
    """Same size, same time as the index: only the index's own time tells git to look at the content."""
    index = repository.path / ".git" / "index"
    moment = 1_000_000_000_000_000_000
    repository.git("config", "core.trustCtime", "false")  # it would give the change away
    os.utime(repository.path / "a", ns=(moment, moment))
    repository.git("update-index", "--refresh")
    os.utime(index, ns=(moment, moment))

    def change() -> None:
        repository.write("a", "TEXT OF A\n")
        os.utime(repository.path / "a", ns=(moment, moment))

    assert await changes(deltas, change) == ["a"]


async def test_deleted_files_are_told(repository: Repository, deltas: GitDeltas) -> None:
    """Whether the deletion was committed or not, and for untracked files too."""
    repository.write("untracked")

    def change() -> None:
        repository.git("rm", "--quiet", "a")
        repository.git("commit", "--quiet", "-m", "gone")
        (repository.path / "b").unlink()
        (repository.path / "untracked").unlink()

    assert await changes(deltas, change) == ["a", "b", "untracked"]


async def test_a_change_of_mode_is_told(repository: Repository, deltas: GitDeltas) -> None:
    """Making a file executable changes it."""
    assert await changes(deltas, lambda: (repository.path / "a").chmod(0o755)) == ["a"]


async def test_a_renamed_file_shows_by_both_names(repository: Repository, deltas: GitDeltas) -> None:
    """In the list; the statistics show renames as git does."""
    mark = await deltas.mark()
    repository.git("mv", "a", "z")
    repository.commit()
    delta = await deltas.since(mark)
    assert delta.changed_files.splitlines() == ["a", "z"]
    assert delta.diff_stat.splitlines()[0] == " a => z | 0"


async def test_ignored_files_are_not_told(repository: Repository, deltas: GitDeltas) -> None:
    """By .gitignore, info/exclude and the user's own file; tracked ones are told nonetheless."""
    repository.git("config", "--global", "core.excludesFile", str(repository.write(".git/mine", "*.mine\n")))
    repository.write(".git/info/exclude", "*.excluded\n")
    repository.write("tracked.log")
    repository.git("add", "tracked.log")
    repository.write(".gitignore", "*.log\n")
    repository.commit()

    def change() -> None:
        for name in ("x.log", "x.excluded", "x.mine", "x.other"):
            repository.write(name)
        repository.write("tracked.log", "changed\n")

    assert await changes(deltas, change) == ["tracked.log", "x.other"]


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("grün 文.txt", "grün 文.txt"),
        ('quo"te', 'quo"te'),
        ("back\\slash", "back\\slash"),
        ("tab\there", "tab\there"),
        (" spaces ", " spaces "),
        ("two\nlines\r", "two\\nlines\\r"),
        (os.fsdecode(b"latin\xe9"), "latin\ufffd"),
        (":(top)magic", ":(top)magic"),
        ("-n", "-n"),
    ],
)
@pytest.mark.parametrize("is_committed", [True, False])
async def test_names_are_told_unquoted_and_one_a_line(
    repository: Repository, deltas: GitDeltas, name: str, shown: str, is_committed: bool
) -> None:
    """Only a line break within a name is shown as something else."""

    def change() -> None:
        repository.write(name)
        if is_committed:
            repository.commit()

    mark = await deltas.mark()
    change()
    assert (await deltas.since(mark)).changed_files == shown


async def test_a_folder_of_the_repository_stands_for_all_of_it(repository: Repository) -> None:
    """Paths are the root's in both values, and changes elsewhere count."""
    with repository.deltas("dir") as deltas:
        mark = await deltas.mark()
        repository.commit("dir/d", "e")
        delta = await deltas.since(mark)
    assert delta.changed_files.splitlines() == ["dir/d", "e"]
    assert [line.split()[0] for line in delta.diff_stat.splitlines()[:-1]] == ["dir/d", "e"]


async def test_a_link_to_a_folder_finds_the_repository(repository: Repository, tmp_path: Path) -> None:
    """It is the link's target from whose parents the way to the root leads."""
    link = tmp_path / "elsewhere" / "link"
    link.parent.mkdir()
    link.symlink_to(repository.path / "dir")
    with GitDeltas(str(link), repository.env) as deltas:
        assert await changes(deltas, lambda: repository.write("e")) == ["e"]


async def test_odd_paths_of_the_repository_are_no_obstacle(tmp_path: Path, env: dict[str, str]) -> None:
    """Colons, quotes, backslashes and line breaks: git takes lists of object directories apart at colons."""
    odd = Repository(tmp_path / 'a:b"c\\d\ne', env)
    odd.git("init", "--quiet")
    odd.commit("dir/f")
    with odd.deltas(scratch=str(tmp_path)) as deltas:
        assert await changes(deltas, lambda: None) == []
        assert not size_of(tmp_path, "avenor-git-*/objects/**/*")  # nothing was written that is there
        assert await changes(deltas, lambda: odd.write("g")) == ["g"]


async def test_a_git_directory_with_a_line_break_elsewhere_is_a_failure(tmp_path: Path, env: dict[str, str]) -> None:
    """Git tells two paths in lines; what cannot be told apart is not guessed at."""
    odd = Repository(tmp_path / "two\nlines", env)
    odd.git("init", "--quiet")
    odd.commit("f")
    odd.git("worktree", "add", "--quiet", str(tmp_path / "linked"), "-b", "other")
    with GitDeltas(str(tmp_path / "linked"), env) as deltas, structlog.testing.capture_logs() as logs:
        assert await deltas.mark() is None
    assert [entry["reason"] for entry in logs] == ["the path of the git directory has a line break"]


async def test_history_that_was_rewritten_is_still_compared(repository: Repository, deltas: GitDeltas) -> None:
    """The mark's commit is on no branch any more."""
    repository.commit("lost")
    mark = await deltas.mark()
    assert mark is not None
    repository.git("reset", "--quiet", "--hard", "HEAD~1")
    repository.commit("instead")
    repository.git("commit", "--quiet", "--amend", "-m", "amended")
    delta = await deltas.since(mark)
    assert delta.changed_files.splitlines() == ["instead", "lost"]
    assert delta.diff_stat.splitlines()[:2] == [" instead | 1 +", " lost    | 1 -"]


async def test_a_commit_that_is_gone_leaves_the_files_to_tell(repository: Repository, deltas: GitDeltas) -> None:
    """Pruned objects cost their own value only, and the log says so."""
    mark = await deltas.mark()
    assert mark is not None
    repository.write("new")
    with structlog.testing.capture_logs() as logs:
        delta = await deltas.since(GitMark(commit="1" * 40, tree=mark.tree))
    assert delta == GitDelta(prev_commit="1" * 40, changed_files="new")
    assert [(entry["event"], entry["step"]) for entry in logs] == [("git.failed", "diff_stat")]


async def test_a_detached_head_is_a_head(repository: Repository, deltas: GitDeltas) -> None:
    """Commits on no branch are compared all the same."""
    repository.git("checkout", "--quiet", "--detach")
    mark = await deltas.mark()
    repository.commit("new")
    delta = await deltas.since(mark)
    assert delta.changed_files == "new"
    assert "new | 1 +" in delta.diff_stat


async def test_a_linked_working_tree_has_its_own_index_and_head(repository: Repository, tmp_path: Path) -> None:
    """What happens in the main one is none of its business."""
    repository.git("worktree", "add", "--quiet", str(tmp_path / "linked"), "-b", "other")
    linked = Repository(tmp_path / "linked", repository.env)
    with linked.deltas() as deltas:
        mark = await deltas.mark()
        assert mark is not None
        repository.commit("main only")
        linked.commit("committed")
        linked.write("untracked")
        delta = await deltas.since(mark)
    assert delta.changed_files.splitlines() == ["committed", "untracked"]
    assert " committed | 1 +" in delta.diff_stat


async def test_without_commits_only_the_files_are_told(tmp_path: Path, env: dict[str, str]) -> None:
    """The mark has no commit, and there is nothing for the statistics, even after the first one."""
    empty = Repository(tmp_path / "empty", env)
    empty.git("init", "--quiet")
    with empty.deltas() as deltas:
        mark = await deltas.mark()
        assert mark is not None
        assert mark.commit == ""
        assert await deltas.since(mark) == GitDelta()
        empty.commit("first")
        assert await deltas.since(mark) == GitDelta(changed_files="first")


async def test_a_repository_with_long_object_ids_is_told_of(tmp_path: Path, env: dict[str, str]) -> None:
    """Nothing depends on SHA-1, not even for files under a filter."""
    long = Repository(tmp_path / "long", env)
    long.git("init", "--quiet", "--object-format=sha256")
    long.git("config", "filter.own.clean", "cat")
    long.write(".gitattributes", "*.big filter=own\n")
    long.commit("a", "c.big")
    with long.deltas() as deltas:
        mark = await deltas.mark()
        assert mark is not None
        assert len(mark.commit) == len(mark.tree) == 64
        long.write("b")
        long.write("c.big", "bigger\n")
        assert (await deltas.since(mark)).changed_files.splitlines() == ["b", "c.big"]


async def test_files_and_directories_may_take_each_others_place(repository: Repository, deltas: GitDeltas) -> None:
    """A file becomes a directory, a directory a file, another one a link."""
    repository.commit("linked/f", "was_dir/f", "was_file")

    def change() -> None:
        (repository.path / "was_file").unlink()
        repository.write("was_file/f")
        shutil.rmtree(repository.path / "was_dir")
        repository.write("was_dir")
        (repository.path / "linked").rename(repository.path / "moved")
        (repository.path / "linked").symlink_to("moved")

    expected = ["linked", "linked/f", "moved/f", "was_dir", "was_dir/f", "was_file", "was_file/f"]
    assert sorted(await changes(deltas, change)) == expected


async def test_what_is_no_file_is_passed_over(repository: Repository, deltas: GitDeltas) -> None:
    """A pipe is never opened, not even where a tracked file was."""

    def change() -> None:
        (repository.path / "a").unlink()
        os.mkfifo(repository.path / "a")
        os.mkfifo(repository.path / "pipe")
        repository.write("new")

    assert "new" in await changes(deltas, change)


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
async def test_a_file_that_may_not_be_read_is_passed_over(repository: Repository, deltas: GitDeltas) -> None:
    """The others are told."""

    def change() -> None:
        repository.write("secret").chmod(0)
        repository.write("new")

    assert await changes(deltas, change) == ["new"]


async def test_a_conflict_is_told_as_one_file(repository: Repository, deltas: GitDeltas) -> None:
    """An index with a merge under way still makes a snapshot: both changed, and one deleted."""
    repository.commit("gone")
    repository.git("checkout", "--quiet", "-b", "other")
    repository.write("a", "theirs\n")
    repository.write("gone", "theirs\n")
    repository.commit()
    repository.git("checkout", "--quiet", "main")
    repository.write("a", "ours\n")
    (repository.path / "gone").unlink()
    repository.commit()

    def change() -> None:
        with pytest.raises(AssertionError):
            repository.git("merge", "other")
        assert "UU a" in repository.git("status", "--short")
        (repository.path / "gone").unlink()

    mark = await deltas.mark()
    change()
    assert (await deltas.since(mark)).changed_files == "a"
    during = await deltas.mark()
    assert during is not None
    assert during.tree
    repository.write("a", "solved\n")
    assert (await deltas.since(during)).changed_files == "a"


async def test_submodules_and_other_repositories_inside_are_not_entered(
    repository: Repository, deltas: GitDeltas, env: dict[str, str]
) -> None:
    """A submodule is told of by its commit alone; a repository that is none is left out, even without commits."""
    module = Repository(repository.path / "module", env)
    module.git("init", "--quiet")
    module.commit("inside")
    repository.write(".gitmodules", '[submodule "module"]\npath = module\nurl = nowhere\nignore = all\n')
    repository.git("config", "diff.ignoreSubmodules", "all")
    repository.git("-c", "advice.addEmbeddedRepo=false", "add", "module")
    repository.commit()
    # Git asks it whether a submodule is changed inside, and has no settings of ours there.
    module.git("config", "core.fsmonitor", f"touch '{repository.path / 'RAN'}'; false")
    assert await changes(deltas, lambda: module.write("untracked inside")) == []
    assert not traces(repository.path)
    module.git("config", "--unset", "core.fsmonitor")
    assert await changes(deltas, lambda: module.commit("committed inside")) == ["module"]

    def change() -> None:
        bare_of_commits = Repository(repository.path / "other", env)
        bare_of_commits.git("init", "--quiet")
        bare_of_commits.write("x")

    assert await changes(deltas, change) == []


async def test_nothing_of_the_repository_is_touched(repository: Repository, deltas: GitDeltas) -> None:
    """Nothing in .git or in the working tree: index, refs, stash, objects, what `git status` says."""
    repository.write("a", "stashed\n")
    repository.git("stash", "--quiet")
    repository.write("b", "changed\n")
    repository.write("staged")
    repository.git("add", "staged")
    repository.write("untracked")
    os.utime(repository.path / "dir" / "c", ns=(1, 1))  # the index is out of date: a refresh would be written
    before = state_of(repository.path)
    status_before = repository.git("--no-optional-locks", "status", "--porcelain")
    mark = await deltas.mark()
    assert state_of(repository.path) == before
    untracked = repository.write("untracked", "longer\n")
    facts = untracked.stat()
    before["untracked"] = (b"longer\n", facts.st_mtime_ns, facts.st_mode, facts.st_ino)
    assert (await deltas.since(mark)).changed_files == "untracked"
    assert state_of(repository.path) == before
    assert repository.git("--no-optional-locks", "status", "--porcelain") == status_before


async def test_temporary_files_inside_the_repository_are_no_changes(repository: Repository, tmp_path: Path) -> None:
    """They may lie in it, are never told, and are gone after the close, which does no harm twice."""
    scratch = repository.path / "tmp"
    scratch.mkdir()
    deltas = repository.deltas(scratch=str(scratch))
    mark = await deltas.mark()
    assert len(list(scratch.iterdir())) == 1
    assert await deltas.since(mark) == GitDelta(prev_commit=repository.git("rev-parse", "HEAD"))
    deltas.close()
    deltas.close()
    assert list(scratch.iterdir()) == []


async def test_contents_are_not_copied(repository: Repository, tmp_path: Path) -> None:
    """However large untracked files are, a snapshot stays small."""
    with (repository.path / "huge").open("wb") as huge:
        huge.write(os.urandom(4_000_000))
    with repository.deltas(scratch=str(tmp_path)) as deltas:
        mark = await deltas.mark()
        assert mark is not None
        assert 0 < size_of(tmp_path, "avenor-git-*/**/*") < 10_000


@pytest.mark.parametrize("where", ["outside", "missing", "bare", "git directory", "broken", "somebody else's"])
async def test_without_a_usable_repository_everything_is_empty(
    tmp_path: Path, env: dict[str, str], repository: Repository, where: str
) -> None:
    """No error and no warning: a run does not need git."""
    place = tmp_path / "place"
    if where == "outside":
        place.mkdir()
    elif where == "bare":
        repository.git("init", "--quiet", "--bare", str(place))
    elif where == "git directory":
        place = repository.path / ".git"
    elif where == "broken":
        place = repository.path
        (place / ".git" / "HEAD").write_text("nonsense\n")
    elif where == "somebody else's":
        place = repository.path
        env["GIT_TEST_ASSUME_DIFFERENT_OWNER"] = "1"
    with GitDeltas(str(place), env) as deltas, structlog.testing.capture_logs() as logs:
        if where == "somebody else's":
            deltas._env["GIT_TEST_ASSUME_DIFFERENT_OWNER"] = "1"  # pyright: ignore[reportPrivateUsage]
        assert await deltas.mark() is None
        assert await deltas.since(GitMark("1" * 40, "2" * 40)) == GitDelta()
    assert {entry["log_level"] for entry in logs} <= {"debug"}


async def test_somebody_elses_repository_is_used_where_the_user_says_so(
    repository: Repository, env: dict[str, str]
) -> None:
    """Also when he says it in his environment, as containers do."""
    allowed = {"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "safe.directory", "GIT_CONFIG_VALUE_0": "*"}
    repository.git("config", "filter.own.clean", "cat")  # whose override must not take the place of what he said
    with GitDeltas(str(repository.path), {**env, **allowed}) as deltas:
        deltas._env["GIT_TEST_ASSUME_DIFFERENT_OWNER"] = "1"  # pyright: ignore[reportPrivateUsage]
        assert await changes(deltas, lambda: repository.write("new")) == ["new"]


async def test_without_git_everything_is_empty(repository: Repository, tmp_path: Path) -> None:
    """A PATH without it: nothing to tell, and nothing to complain of."""
    env = {**repository.env, "PATH": str(tmp_path / "home")}
    with GitDeltas(str(repository.path), env) as deltas, structlog.testing.capture_logs() as logs:
        assert await deltas.mark() is None
        assert await deltas.since(GitMark("1" * 40, "2" * 40)) == GitDelta()
    assert {entry["log_level"] for entry in logs} <= {"debug"}


async def test_a_broken_index_leaves_the_commit_to_tell(repository: Repository, deltas: GitDeltas) -> None:
    """The mark has no snapshot then, and the log has the reason."""
    (repository.path / ".git" / "index").write_bytes(b"nonsense")
    with structlog.testing.capture_logs() as logs:
        mark = await deltas.mark()
    commit = repository.git("rev-parse", "HEAD")
    assert mark == GitMark(commit=commit, tree="")
    assert [(entry["event"], entry["step"], entry["log_level"]) for entry in logs] == [
        ("git.failed", "snapshot", "warning")
    ]
    assert await deltas.since(mark) == GitDelta(prev_commit=commit)


async def test_a_temporary_directory_that_cannot_be_made_is_a_failure(repository: Repository, tmp_path: Path) -> None:
    """Logged, and nothing is told."""
    with repository.deltas(scratch=str(tmp_path / "missing")) as deltas, structlog.testing.capture_logs() as logs:
        assert await deltas.mark() is None
    assert [(entry["event"], entry["reason"]) for entry in logs] == [("git.failed", "No such file or directory")]


LONG_TEXT = "".join(f"line {number}\n" for number in range(20))


async def told_after_a_phase(repository: Repository, env: dict[str, str]) -> GitDelta:
    """What is told after a phase that did a bit of everything."""
    with GitDeltas(str(repository.path / "dir"), env) as deltas:
        mark = await deltas.mark()
        repository.git("mv", "b", "renamed")
        for name in ("p", "q"):  # alike, so each could be the other's new name
            repository.git("mv", f"dir/{name}", f"dir/{name}.renamed")
            repository.write(f"dir/{name}.renamed", LONG_TEXT + name)
        repository.write("dir/letters", "".join(f"{letter}\n" for letter in "eebdadce"))  # diffed in two ways
        repository.write("long/" + "name/" * 12 + "grün", "line\n" * 300)
        repository.write("dir/c", "other\r\ntext\n")
        repository.commit("-d", "sub.wild")
        repository.write("a", "uncommitted\r\n")
        repository.write("untracked.wild")
        return await deltas.since(mark)


@pytest.fixture
def wild(repository: Repository) -> Repository:
    """A repository whose attributes name the drivers of the hostile settings, and whose hooks leave a trace."""
    repository.write(".gitattributes", "*.wild diff=wild filter=wild\na filter=wild diff=wild\nb filter=a=b\n")
    repository.write("dir/p", LONG_TEXT)
    repository.write("dir/q", LONG_TEXT + "end\n")
    repository.write("dir/letters", "".join(f"{letter}\n" for letter in "eefadfeb"))
    repository.commit("old.wild")
    for hook in ("post-index-change", "fsmonitor-watchman", "reference-transaction"):
        for folder in ("hooks", ".git/hooks"):
            repository.write(f"{folder}/{hook}", f"#!/bin/sh\ntouch '{repository.path}/RAN'\n").chmod(0o755)
    repository.write(".git/info/exclude", "RAN\nhooks\n")
    return repository


@pytest.fixture
async def plain_telling(wild: Repository, tmp_path: Path) -> GitDelta:
    """What is told of a copy of the repository without any setting."""
    shutil.copytree(wild.path, tmp_path / "plain", symlinks=True)
    shutil.rmtree(tmp_path / "plain" / ".git" / "hooks")
    told = await told_after_a_phase(Repository(tmp_path / "plain", wild.env), wild.env)
    assert told.changed_files.splitlines() == [
        "-d",
        "a",
        "b",
        "dir/c",
        "dir/letters",
        "dir/p",
        "dir/p.renamed",
        "dir/q",
        "dir/q.renamed",
        "long/" + "name/" * 12 + "grün",
        "renamed",
        "sub.wild",
        "untracked.wild",
    ]
    assert "b => renamed" in told.diff_stat
    assert "/grün " in told.diff_stat
    assert "dir/letters" in told.diff_stat
    assert "{p => p.renamed}" in told.diff_stat
    assert "8 files changed, 309 insertions(+), 5 deletions(-)" in told.diff_stat
    return told


@pytest.mark.parametrize("name", ["everything", *HOSTILE_SETTINGS])
async def test_configuration_changes_nothing_that_is_told(
    wild: Repository, plain_telling: GitDelta, tmp_path: Path, name: str
) -> None:
    """One setting at a time and all together; none of the programs that they name runs."""
    shutil.rmtree(wild.path / ".git" / "hooks")
    chosen = HOSTILE_SETTINGS if name == "everything" else {name: HOSTILE_SETTINGS[name]}
    hostile = tmp_path / "hostile"
    for setting, value in chosen.items():
        wild.git("config", "--file", str(hostile), setting, value)
    told = await told_after_a_phase(wild, {**wild.env, "GIT_CONFIG_GLOBAL": str(hostile)})
    assert without_commit(told) == without_commit(plain_telling)
    assert not traces(tmp_path)


@pytest.mark.parametrize("name", ["everything", *HOSTILE_VARIABLES])
async def test_the_environment_changes_nothing_that_is_told(
    wild: Repository, plain_telling: GitDelta, tmp_path: Path, name: str
) -> None:
    """Variables that git would heed, as they are set inside hooks and aliases or by users."""
    shutil.rmtree(wild.path / ".git" / "hooks")
    chosen = HOSTILE_VARIABLES if name == "everything" else {name: HOSTILE_VARIABLES[name]}
    told = await told_after_a_phase(wild, {**wild.env, **chosen})
    assert without_commit(told) == without_commit(plain_telling)
    assert not traces(tmp_path)


def without_commit(delta: GitDelta) -> tuple[str, str]:
    return delta.diff_stat, delta.changed_files


async def test_the_repositorys_own_hooks_do_not_run(wild: Repository, deltas: GitDeltas, tmp_path: Path) -> None:
    """A snapshot writes an index, which has a hook."""
    wild.write("a", "changed\n")
    assert (await deltas.mark()) is not None
    assert not traces(tmp_path)
    wild.git("add", "a")
    assert traces(tmp_path)  # git itself does run it


async def test_a_file_under_a_filter_is_told_by_size_and_time(repository: Repository, deltas: GitDeltas) -> None:
    """Being committed or looked at again by git does not change it; being written does."""
    repository.git("config", "filter.own.clean", "tr a-z A-Z")
    repository.git("config", "filter.own.smudge", "tr A-Z a-z")
    repository.write(".gitattributes", "*.big filter=own\n")
    (repository.path / "link.big").symlink_to("elsewhere")  # has no content that a filter could change
    repository.commit("committed.big", "other.big")
    index = repository.path / ".git" / "index"
    moment = (repository.path / "other.big").stat().st_mtime_ns
    os.utime(index, ns=(moment, moment))  # git cannot trust the times in it now, and would ask the filter
    repository.write("new.big")
    repository.write("committed.big", "changed\n")
    assert await changes(deltas, repository.commit) == []
    assert repository.git("show", "HEAD:committed.big") == "CHANGED"
    assert await changes(deltas, lambda: repository.write("new.big", "longer than before\n")) == ["new.big"]
    assert await changes(deltas, lambda: os.utime(repository.path / "other.big", ns=(1, 1))) == ["other.big"]
    assert await changes(deltas, (repository.path / "other.big").unlink) == ["other.big"]


async def test_a_split_index_is_read_and_not_written(repository: Repository, deltas: GitDeltas) -> None:
    """Its shared half stays where and as it is."""
    repository.git("update-index", "--split-index")
    before = state_of(repository.path / ".git")
    assert any(name.startswith("sharedindex.") for name in before)
    assert await changes(deltas, lambda: repository.write("new")) == ["new"]
    assert state_of(repository.path / ".git") == before


async def test_sparse_files_are_no_deletions(repository: Repository, deltas: GitDeltas) -> None:
    """What the user has not checked out is not told as gone, with a sparse index either."""
    repository.git("sparse-checkout", "set", "--cone", "--sparse-index", "other")
    assert not (repository.path / "dir" / "c").exists()
    assert await changes(deltas, lambda: repository.write("a", "changed\n")) == ["a"]


async def test_a_long_list_is_cut_at_a_line(repository: Repository, deltas: GitDeltas) -> None:
    """At most 64 KiB, whole lines, and how many more there are; the statistics alike."""
    names = [f"many/{number:04}-" + "x" * 60 for number in range(1500)]

    def change() -> None:
        for name in names:
            repository.write(name)
        repository.commit()

    mark = await deltas.mark()
    change()
    delta = await deltas.since(mark)
    *shown, last = delta.changed_files.split("\n")
    assert shown == names[: len(shown)]
    assert last == f"… and {len(names) - len(shown)} more"
    assert LIMIT_BYTES - 200 < len(delta.changed_files.encode()) <= LIMIT_BYTES
    *shown, last = delta.diff_stat.split("\n")
    assert last == f"… and {len(names) + 1 - len(shown)} more"
    assert LIMIT_BYTES - 200 < len(delta.diff_stat.encode()) <= LIMIT_BYTES


async def test_a_listing_that_is_too_long_to_hold_is_a_failure(
    repository: Repository, deltas: GitDeltas, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of untracked files; the commit is told nonetheless."""
    monkeypatch.setattr(git_module, "_LISTING_BYTES", 100)
    for number in range(30):
        repository.write(f"untracked {number}")
    with structlog.testing.capture_logs() as logs:
        mark = await deltas.mark()
    assert mark == GitMark(repository.git("rev-parse", "HEAD"), "")
    assert [entry["reason"] for entry in logs] == ["git ls-files: more than 100 bytes"]


async def test_many_calls_at_once_do_not_disturb_each_other(repository: Repository, deltas: GitDeltas) -> None:
    """Marks and deltas of one object and of others, in one repository."""
    first = await deltas.mark()
    repository.write("new")
    told: list[GitDelta] = []
    marks: set[GitMark | None] = set()

    async def tell() -> None:
        told.append(await deltas.since(first))

    async def mark() -> None:
        with repository.deltas() as others:
            marks.add(await others.mark())
        marks.add(await deltas.mark())

    async with trio.open_nursery() as nursery:
        for _ in range(4):
            nursery.start_soon(tell)
            nursery.start_soon(mark)
    assert [delta.changed_files for delta in told] == ["new"] * 4
    assert len(marks) == 1
    assert None not in marks


async def test_those_who_wait_share_one_snapshot_that_is_begun_after_they_asked(
    repository: Repository, deltas: GitDeltas, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fifty members cost two snapshots, and what changed before one asked is in what it is told."""
    taken: list[str] = []
    is_begun, may_go_on = trio.Event(), trio.Event()
    snapshot = _Repository.snapshot

    async def slow_snapshot(self: _Repository) -> str:
        tree = await snapshot(self)
        taken.append(tree)
        is_begun.set()
        await may_go_on.wait()
        return tree

    monkeypatch.setattr(_Repository, "snapshot", slow_snapshot)
    marks: list[GitMark | None] = []

    async def mark() -> None:
        marks.append(await deltas.mark())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(mark)
        await is_begun.wait()
        repository.write("new")
        for _ in range(49):
            nursery.start_soon(mark)
        await eventually(lambda: deltas._snapshots.statistics().tasks_waiting == 49)  # pyright: ignore[reportPrivateUsage]
        may_go_on.set()
    assert len(taken) == len(set(taken)) == 2
    assert [found.tree for found in marks if found] == [taken[0]] + [taken[1]] * 49


@pytest.fixture
def stuck_git(tmp_path: Path, env: dict[str, str]) -> Iterator[tuple[dict[str, str], Path]]:
    """An environment with a git that never ends and has a child, and the file with their process ids."""
    folder, pids = tmp_path / "bin", tmp_path / "pids"
    folder.mkdir()
    program = folder / "git"
    program.write_text(
        f"#!/bin/sh\ntrap '' TERM\nsleep 600 &\necho $$ $! > '{pids}.new'\nmv '{pids}.new' '{pids}'\nwait\n"
    )
    program.chmod(0o755)
    yield {**env, "PATH": f"{folder}:{env['PATH']}"}, pids
    kill_each(process_ids(pids))


def process_ids(path: Path) -> list[int]:
    return [int(word) for word in path.read_text().split()] if path.exists() else []


def is_running(pid: int) -> bool:
    found = read_stat(pid)
    return found is not None and not found.is_dead


async def test_git_that_never_ends_is_killed_with_its_group(
    repository: Repository, stuck_git: tuple[dict[str, str], Path], shifted_clock: MockClock
) -> None:
    """After the limit nothing of it runs, nothing is told, and the log says why."""
    env, pids = stuck_git

    async def pass_the_time() -> None:
        await eventually(pids.exists)
        shifted_clock.jump(300)

    with (
        GitDeltas(str(repository.path), env, step_seconds=300) as deltas,
        structlog.testing.capture_logs() as logs,
    ):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(pass_the_time)
            assert await deltas.mark() is None
    assert [(entry["event"], entry["step"], entry["reason"]) for entry in logs] == [
        ("git.failed", "head", "took longer than 300 s")
    ]
    started = process_ids(pids)
    assert len(started) == 2
    await eventually(lambda: not any(is_running(pid) for pid in started))


async def test_a_cancelled_mark_leaves_no_process(
    repository: Repository, stuck_git: tuple[dict[str, str], Path], tmp_path: Path
) -> None:
    """A phase that is cancelled does not wait for git, and the close removes what it left."""
    env, pids = stuck_git
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    with GitDeltas(str(repository.path), env, scratch=str(scratch)) as deltas:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(deltas.mark)
            await eventually(pids.exists)
            nursery.cancel_scope.cancel()
    started = process_ids(pids)
    await eventually(lambda: not any(is_running(pid) for pid in started))
    assert list(scratch.iterdir()) == []


async def test_a_clone_that_lacks_contents_does_not_fetch_them(
    repository: Repository, tmp_path: Path, env: dict[str, str]
) -> None:
    """What would come over the network stays untold; the list of files needs no contents."""
    repository.git("config", "uploadpack.allowFilter", "true")
    repository.write("a", "second\n")
    repository.commit()
    repository.git(
        "clone", "--quiet", "--no-local", "--filter=blob:none", repository.path.as_uri(), str(tmp_path / "c")
    )
    clone = Repository(tmp_path / "c", env)
    first = clone.git("rev-parse", "HEAD~1")
    with clone.deltas() as deltas:
        mark = await deltas.mark()
        assert mark is not None
        clone.write("new")
        with structlog.testing.capture_logs() as logs:
            delta = await deltas.since(GitMark(first, mark.tree))
    assert delta == GitDelta(prev_commit=first, changed_files="new")
    assert [entry["step"] for entry in logs] == ["diff_stat"]
