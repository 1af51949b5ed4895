"""Reading a file that may make us wait for others (a FIFO, a terminal), while signals still count."""

import os
import signal
import stat
import threading

from avenor.host.endsignals import END_SIGNALS

# Tells the waiting thread that the read is over. Blocked everywhere meanwhile, so nobody else's is taken for it.
_DONE = signal.SIGUSR1


class Interrupted(Exception):
    """A signal asked for the end before the file was read."""


def read_patiently(path: str) -> bytes:
    """All of a file. Call it in the main thread, with `END_SIGNALS` blocked.

    A signal between a check and a blocking read would be noticed only after the read, so the read has a thread of its
    own, and this one waits for a signal: one of the user's, or that thread's.

    Raises:
        OSError: It cannot be read.
        Interrupted: One of `END_SIGNALS` came first; the reading thread ends with the process.
    """
    if stat.S_ISREG(os.stat(path).st_mode):
        return _read(path)
    awaited = {_DONE, *(each for each in END_SIGNALS if signal.getsignal(each) != signal.SIG_IGN)}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, awaited)
    try:
        reader = _Reader(path)
        reader.start()
        number = signal.sigwait(awaited)
        if number != _DONE:
            raise Interrupted(f"signal {signal.Signals(number).name}")
        reader.join()
        return reader.result()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class _Reader(threading.Thread):
    def __init__(self, path: str) -> None:
        super().__init__(name="prompt file", daemon=True)
        self._path = path
        self._data = b""
        self._error: OSError | None = None

    def run(self) -> None:
        try:
            self._data = _read(self._path)
        except OSError as error:
            self._error = error
        finally:
            signal.pthread_kill(threading.main_thread().ident or 0, _DONE)

    def result(self) -> bytes:
        if self._error is not None:
            raise self._error
        return self._data


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()
