"""Records of runtimes: made for a new spawn, and read back from their directories."""

import os
import time
import uuid
from collections.abc import Mapping
from pathlib import Path

import msgspec

from avenor.host.atomic import sync_path, write_atomic
from avenor.host.backend_names import profiles_folder
from avenor.host.rundir import RunDir
from avenor.protocol.spec import OnCrash, Record, SpawnParams
from avenor.stable.requests import SpawnRequest


class Surroundings(msgspec.Struct, frozen=True, kw_only=True):
    """What every runtime of a supervisor gets from it."""

    socket: str
    environ: dict[str, str]
    umask: int
    parked_timeout: float
    on_crash: OnCrash
    version: str


def make_record(
    request: SpawnRequest, directory: RunDir, around: Surroundings, *, parent: Record | None = None
) -> Record:
    """The record of a new runtime, whose files lie in its directory where the spawn did not name them."""
    sentinel = request.spec.sentinel_file or str(directory.sentinel_path)
    spec = msgspec.structs.replace(
        request.spec,
        sentinel_file=sentinel,
        permission_handler=request.spec.permission_handler or _handler_beside(sentinel),
    )
    return Record(
        runtime_id=directory.path.name,
        run_id=request.spec.run_id or uuid.uuid4().hex,
        spec=spec,
        prompt=request.prompt,
        config=request.config,
        parks=request.config is None,
        supervisor_socket=around.socket,
        environ={**around.environ, **request.spec.env},
        # The spawn's own variables are its agents': they do not say where our configuration is.
        profiles_folder=profiles_folder(around.environ),
        umask=around.umask,
        parked_timeout=around.parked_timeout,
        created_at=time.time_ns() // 1_000_000,
        key=request.params.key,
        parent_id=request.params.parent_id,
        depth=0 if parent is None else parent.depth + 1,
        on_crash=request.params.on_crash or around.on_crash,
        version=around.version,
    )


def spawn_of(record: Record, directory: RunDir) -> SpawnParams:
    """What a spawn of the same run would ask for; what lies in a directory of its own would lie in another one."""
    params, sentinel = record.spawn_params, str(directory.sentinel_path)
    if params.sentinel_file == sentinel:
        params = msgspec.structs.replace(params, sentinel_file=None)
    if params.permission_handler == _handler_beside(sentinel):
        params = msgspec.structs.replace(params, permission_handler=None)
    return params


def _handler_beside(sentinel: str) -> str:
    return f"file:{sentinel}.perm"


def write_record(directory: RunDir, record: Record) -> None:
    """Put a record in its place in one step; `sync_record` makes that survive a power failure.

    Raises:
        OSError: It could not be written; there is no record.
    """
    write_atomic(directory.record_path, msgspec.json.encode(record), durable=False)


def sync_record(directory: RunDir) -> None:
    """Return when a record that was written, and the names that lead to it, are on the disk. Blocks.

    Raises:
        OSError: They could not be brought there.
    """
    for path in (directory.record_path, directory.path, directory.path.parent):
        sync_path(path)


def read_record(directory: RunDir) -> Record | None:
    """The record of a directory; None if the spawn was never accepted.

    Raises:
        OSError: It is there and cannot be read.
        msgspec.DecodeError: It is damaged.
    """
    data = directory.read_record()
    return None if data is None else msgspec.json.decode(data, type=Record)


def own_environ(environ: Mapping[bytes, bytes]) -> tuple[dict[str, str], list[str]]:
    """This process's environment as a record can hold it, and the names of the variables that it cannot hold.

    Args:
        environ: As `os.environb` has it; what is not UTF-8 does not fit into JSON.
    """
    kept: dict[str, str] = {}
    skipped: list[str] = []
    for name, value in environ.items():
        try:
            kept[name.decode()] = value.decode()
        except UnicodeDecodeError:
            skipped.append(name.decode(errors="replace"))
    return kept, skipped


def read_umask(status: Path = Path("/proc/self/status")) -> int:
    """This process's umask."""
    try:
        lines = status.read_text().splitlines()
        return next(int(line.split()[1], 8) for line in lines if line.startswith("Umask:"))
    except (OSError, StopIteration):
        # The portable way shows other threads another mask for a moment; there are none when this is called.
        mask = os.umask(0o077)
        os.umask(mask)
        return mask
