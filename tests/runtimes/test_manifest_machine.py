"""A manifest on a real repository with a real sandbox and desk; only its agents are played."""

import os
import subprocess
from pathlib import Path

import msgspec
import pytest
import trio

from avenor.protocol.events import decode_event
from avenor.protocol.manifest.binding import BoundReceipt
from avenor.protocol.manifest.events import CandidateEvent, ManifestEnd, ReceiptEvent
from avenor.runtimes.backends.base import TurnStop
from avenor.runtimes.life import live
from avenor.runtimes.manifest.runner import run_manifest
from tests.runtimes.fake_backend import FakeSession
from tests.runtimes.manifest_rig import ManifestRig, manifest, member


def _git(directory: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=a", "-c", "user.email=a@example", "-c", "commit.gpgsign=false"]
    return subprocess.check_output(["git", *identity, *arguments], cwd=directory, text=True).strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """One file, committed and tagged `r1`."""
    directory = tmp_path / "work"
    directory.mkdir()
    (directory / "answer.txt").write_text("41\n")
    _git(directory, "init", "-q", "-b", "main")
    _git(directory, "add", ".")
    _git(directory, "commit", "-q", "-m", "one")
    _git(directory, "tag", "r1")
    return directory


async def test_a_candidate_is_committed_checked_and_accepted(tmp_path: Path, repository: Path) -> None:
    """The diff of the worktree becomes the candidate, and the check runs on exactly that commit."""
    declared = manifest(
        member("writer", writes=["answer.txt"]),
        member("evaluator", needs=["writer"], verdict=True, contexts=["candidate_diff", "raw_receipts"]),
        receipts=[BoundReceipt(name="answer", command=["grep", "-x", "42", "answer.txt"], timeout=30.0)],
    )
    rig = ManifestRig(tmp_path, declared, dir=str(repository))

    async def play(session: FakeSession, text: str) -> TurnStop:
        here = Path(session.params.cwd)
        revision = _git(here, "rev-parse", "HEAD")
        if "`writer`" in text:
            (here / "answer.txt").write_text("42\n")
            finding = {"subject": "answer", "claim": "42", "finding": "it is 42"}
            record = {"source_revision": revision, "plan_epoch": 7, "findings": [finding]}
        else:
            assert "+42" in text
            assert "passed: yes" in text
            record = {"verdict": "accept", "revision": revision}
        session.say(f"```avenor-result\n{msgspec.json.encode(record).decode()}\n```\n")
        return TurnStop(stop_reason="end_turn")

    rig.backend.play = play
    with trio.fail_after(60):
        outcome = await live(rig.host, run_manifest)
    events = [decode_event(line) for line in rig.log_path.read_bytes().splitlines()]
    assert outcome.exit_code == 0, [event for event in events if isinstance(event, ManifestEnd)]
    (candidate,) = [event for event in events if isinstance(event, CandidateEvent)]
    assert candidate.files == ["answer.txt"]
    assert _git(repository, "rev-parse", "avenor/run_1/candidate") == candidate.revision
    (receipt,) = [event for event in events if isinstance(event, ReceiptEvent)]
    assert (receipt.passed, receipt.revision, receipt.output) == (True, candidate.revision, "42\n")
    assert _git(repository, "worktree", "list").count("\n") == 0
    assert [name for name in os.listdir(tmp_path / "worktrees") if not name.startswith(".")] == []
