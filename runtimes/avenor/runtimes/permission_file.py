"""Asks a permission through files: `BASE.req` holds the question, `BASE.req.response` gets the answer.

One request at a time is on disk. Which answers count, and when a request moves on, is decided by the broker.
"""

import contextlib
import os
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, Literal

import msgspec
import trio

from avenor.host.atomic import write_atomic
from avenor.host.lock import FileLock, is_locked
from avenor.host.regular import read_regular
from avenor.protocol.events import PermissionOption
from avenor.runtimes.file_watch import DirectoryWatch

FILE_SECONDS: Final = 600.0
# How often a run looks whether another one has stopped asking at the same BASE.
PLACE_POLL_SECONDS: Final = 0.1
# Where the system tells of changes it still cannot tell of those that another machine makes in a shared directory.
_LOOK_WHEN_NOTIFIED_SECONDS: Final = 1.0
_LOOK_SECONDS: Final = 0.1
# Of an answer: a message to the agent is text that somebody has written.
_LIMIT_BYTES: Final = 1024 * 1024


class FileRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The content of `BASE.req`."""

    request_id: str
    session_id: str
    tool: str
    question: str
    options: Sequence[PermissionOption]
    payload: msgspec.Raw


class FileResponse(msgspec.Struct, frozen=True, kw_only=True):
    """The content of `BASE.req.response`. Tolerant: people write it by hand."""

    outcome: Literal["selected", "cancelled"]
    option_id: str | None = None
    message: str | None = None
    request_id: str | None = None


class Presentation(msgspec.Struct, frozen=True, kw_only=True):
    """One request on its way over the disk.

    Attributes:
        request: What is asked.
        answer: Called with the first valid answer, (option id or None, message).
        expired: Called once when nobody answered for `FILE_SECONDS`; the file stays until another request wants its
            place, and an answer still counts.
    """

    request: FileRequest
    answer: Callable[[str | None, str | None], None]
    expired: Callable[[], None]


class FileHandler:
    """Presents requests at one BASE, in order.

    Args:
        base: The path before `.req`.
        report: Takes what is wrong with an answer or with the files, for the log and for people.
    """

    def __init__(self, base: str, report: Callable[[str], None]) -> None:
        self.request_path = f"{base}.req"
        self.response_path = f"{base}.req.response"
        self._report = report
        self._lock_path = f"{base}.lock"
        self._place = FileLock(self._lock_path)
        self._used = trio.Event()
        self._is_busy = False
        self._queue: deque[trio.Event] = deque()
        self._wanted = trio.Event()

    async def present(self, presentation: Presentation) -> None:
        """Puts the request on disk as soon as its turn comes, and waits for the answer.

        Returns only when the request was answered, its place was taken after it expired, or the disk refuses it.

        Cancellation: The request is taken off the disk; the broker cancels when somebody else has answered.
        """
        await self._enter()
        try:
            await self._wait_place()
            await self._put(presentation.request)
            await self._wait_answer(presentation)
        except OSError as error:
            self._report(f"cannot ask through {self.request_path}: {error.strerror}; answer over the control socket")
        finally:
            if self._place.is_held:
                self._clear()
            self._leave()

    async def watch_late(self) -> None:
        """Renames answers that come after their request was settled, for as long as it runs."""
        await self._used.wait()
        try:
            watch = DirectoryWatch(os.path.dirname(self.request_path))
        except OSError:
            return
        with watch:
            while watch.is_notified:  # else late answers are found before the next request, and at the end
                await watch.wait_change()
                if not self._is_busy:
                    self.set_late_aside()

    def set_late_aside(self) -> None:
        """Renames an answer to nothing, if there is one, to `.late`; what another run has asked there is its own."""
        # Where nobody can look, because BASE is too long or below a file, no answer is either.
        with contextlib.suppress(OSError):
            if self._place.is_held or not is_locked(self._lock_path):
                os.rename(self.response_path, f"{self.response_path}.late")

    async def _enter(self) -> None:
        if not self._is_busy:
            self._is_busy = True
            return
        mine = trio.Event()
        self._queue.append(mine)
        self._wanted.set()
        try:
            await mine.wait()
        except trio.Cancelled:
            if mine.is_set():
                self._leave()  # our turn came in the same moment: pass it on
            else:
                self._queue.remove(mine)
            raise

    def _leave(self) -> None:
        if self._queue:
            self._queue.popleft().set()
        else:
            self._is_busy = False

    async def _wait_place(self) -> None:
        """Waits until no other run asks at this BASE: request ids are unique within a run only."""
        # Polling: flock has no notification, and whoever holds it waits for a person.
        while not self._place.try_acquire():  # noqa: ASYNC110
            await trio.sleep(PLACE_POLL_SECONDS)

    async def _put(self, request: FileRequest) -> None:
        self._used.set()
        self.set_late_aside()
        await trio.to_thread.run_sync(write_atomic, self.request_path, msgspec.json.encode(request), 0o600)

    def _clear(self) -> None:
        """Takes the request off the disk and gives the place up, as far as the disk lets it."""
        with contextlib.suppress(OSError):
            os.unlink(self.request_path)
        self.set_late_aside()
        with contextlib.suppress(OSError):
            self._place.remove()

    async def _wait_answer(self, presentation: Presentation) -> None:
        with DirectoryWatch(os.path.dirname(self.request_path)) as watch:
            with trio.move_on_after(FILE_SECONDS):
                await self._look_until_answered(watch, presentation)
                return
            presentation.expired()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._wait_wanted, nursery.cancel_scope)
                await self._look_until_answered(watch, presentation)
                nursery.cancel_scope.cancel()

    async def _wait_wanted(self, scope: trio.CancelScope) -> None:
        while not self._queue:
            self._wanted = trio.Event()
            await self._wanted.wait()
        scope.cancel()

    async def _look_until_answered(self, watch: DirectoryWatch, presentation: Presentation) -> None:
        while not self._judge(presentation):
            if watch.is_notified:
                with trio.move_on_after(_LOOK_WHEN_NOTIFIED_SECONDS):
                    await watch.wait_change()
            else:
                # Polling, because without inotify nothing tells us of a new file.
                await trio.sleep(_LOOK_SECONDS)

    def _judge(self, presentation: Presentation) -> bool:
        """Reads the answer file; whether it settled the request."""
        try:
            raw = read_regular(self.response_path, limit_bytes=_LIMIT_BYTES)
        except OSError:
            return False
        if not _is_whole(raw):
            return False
        try:
            response = msgspec.json.decode(raw, type=FileResponse)
            option = _chosen(presentation.request, response)
        except (msgspec.ValidationError, ValueError) as error:
            self._reject(str(error))
            return False
        with contextlib.suppress(OSError):
            os.unlink(self.response_path)
        presentation.answer(option, response.message)
        return True

    def _reject(self, why: str) -> None:
        rejected = f"{self.response_path}.rejected"
        with contextlib.suppress(OSError):
            os.replace(self.response_path, rejected)
        self._report(f"the answer in {self.response_path} was rejected and moved to {rejected}: {why}")


def _is_whole(raw: bytes) -> bool:
    try:
        msgspec.json.decode(raw)
    except (msgspec.DecodeError, RecursionError):
        return False  # somebody is still writing it
    return True


def _chosen(request: FileRequest, response: FileResponse) -> str | None:
    """The chosen option, None for cancelled.

    Raises:
        ValueError: The answer does not fit the request.
    """
    if response.request_id not in (None, request.request_id):
        raise ValueError(f"it is for request {response.request_id}, and {request.request_id} is asked")
    if response.outcome == "cancelled":
        return None
    offered = [option.option_id for option in request.options]
    if response.option_id not in offered:
        raise ValueError(f"option {response.option_id!r} is not offered, choose one of {', '.join(offered)}")
    return response.option_id
