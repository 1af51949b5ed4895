"""The token, and the file in which those find it who may read this user's files."""

import os
import secrets
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from avenor.host.atomic import write_atomic
from avenor.protocol.errors import SpawnError

# As many random bytes as the standard library advises against guessing.
_BYTES: Final = 32


@contextmanager
def token_file(path: str) -> Generator[str, None, None]:
    """A new token, which stands in a file (0600) for as long as this lasts.

    At the end the file is removed, unless it is another server's by now.

    Raises:
        SpawnError: It cannot be written; nothing is left behind.
    """
    token = secrets.token_urlsafe(_BYTES)
    try:
        write_atomic(path, token.encode() + b"\n", durable=False)
    except OSError as error:
        text = f"--http-token-file: cannot write {path}: {error.strerror}; choose another file"
        raise SpawnError(text, reason="http_token_file") from error
    try:
        yield token
    finally:
        with suppress(OSError):
            if _read(path) == token:
                os.unlink(path)


def _read(path: str) -> str:
    return Path(path).read_text(encoding="utf-8", errors="replace").strip() if os.path.isfile(path) else ""
