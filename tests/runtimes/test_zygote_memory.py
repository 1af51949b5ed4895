"""What the zygote does so that its forks are small and fast."""

import os
import threading
from pathlib import Path

import pytest

from avenor.runtimes.rehearsal import rehearse


def test_a_rehearsal_leaves_no_file_descriptor_thread_or_signal_setting_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every fork would have them."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    before = sorted(os.listdir("/dev/fd")), threading.enumerate()
    rehearse()
    assert (sorted(os.listdir("/dev/fd")), threading.enumerate()) == before
    assert list(tmp_path.iterdir()) == []
