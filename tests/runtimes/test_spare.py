"""The fork that is made ahead, as the one who made it sees it. What it does as a process, `test_launcher` tests."""

import os
import socket

from avenor.runtimes.spare import Spare


def test_one_that_is_ready_is_given_directory_and_descriptor() -> None:
    """In one message, after which nobody else speaks to it."""
    ours, theirs = socket.socketpair()
    out, into = os.pipe()
    with theirs, open(out, "rb") as read:
        spare = Spare(1, ours)
        assert not spare.take("/a/rt_1", into)
        theirs.sendall(b"r")
        assert spare.take("/a/rt_1", into)
        os.close(into)
        path, fds, _, _ = socket.recv_fds(theirs, 100, 2)
        assert (path, len(fds)) == (b"/a/rt_1", 1)
        os.write(fds[0], b"ready")
        os.close(fds[0])
        assert read.read() == b"ready"
        assert theirs.recv(1) == b""


def test_one_that_has_died_is_not_taken() -> None:
    """Neither before it was ready, nor after, when it has said so already."""
    for said in (b"", b"r"):
        ours, theirs = socket.socketpair()
        theirs.sendall(said)
        theirs.close()
        spare = Spare(1, ours)
        assert not spare.take("/a/rt_1", 0)
        assert not spare.take("/a/rt_1", 0)
        spare.close()
