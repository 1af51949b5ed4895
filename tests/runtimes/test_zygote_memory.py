"""What the zygote does so that its forks are small and fast."""

import os
import threading
from pathlib import Path

from avenor.runtimes.rehearsal import rehearse


def test_a_rehearsal_leaves_no_file_descriptor_thread_or_file_behind(tmp_path: Path) -> None:
    """Every fork would have them."""
    before = sorted(os.listdir("/dev/fd")), threading.enumerate()
    rehearse(str(tmp_path))
    assert (sorted(os.listdir("/dev/fd")), threading.enumerate()) == before
    assert list(tmp_path.iterdir()) == []
