"""Which run is meant, and what it was asked to do."""

from pathlib import Path
from typing import Final

import msgspec
import trio

from avenor.host.regular import read_regular
from avenor.host.rundir import RunDir
from avenor.protocol.errors import NoSuchRuntime, Unsupported
from avenor.protocol.snapshot import Snapshot
from avenor.protocol.spec import Record, RunSpec, SpawnParams

# A record holds prompts and resolved configs; a prompt is at most a line of the control protocol.
_RECORD_LIMIT_BYTES: Final = 64 * 1024 * 1024


def choose(snapshots: list[Snapshot], name: str) -> Snapshot:
    """The run of this run id, runtime id or label.

    Of several runs with one label the only live one is meant, else the newest: a follow-up of an ended run
    has its label.

    Raises:
        NoSuchRuntime: There is none, or several live ones have the label.
    """
    for snapshot in snapshots:
        if name in (snapshot.run_id, snapshot.runtime_id):
            return snapshot
    labelled = [snapshot for snapshot in snapshots if snapshot.label == name]
    live = [snapshot for snapshot in labelled if snapshot.status != "ended"]
    if len(live) > 1:
        ids = [snapshot.run_id for snapshot in live]
        raise NoSuchRuntime(
            f"{len(ids)} live runs have the label {name!r}: give the run_id of one", data={"candidates": ids}
        )
    if not labelled:
        raise NoSuchRuntime(f"no run has the run_id, runtime_id or label {name!r}")
    return live[0] if live else max(labelled, key=lambda snapshot: snapshot.started_at or 0)


async def resuming_params(snapshot: Snapshot, prompt: str, run_id: str, parent_id: str | None = None) -> SpawnParams:
    """The spawn that goes on with the session of an ended run: all as it was, but the prompt and the files.

    Args:
        snapshot: Of the run that has ended.
        prompt: The next task.
        run_id: Of the new run.
        parent_id: Whose child that is: of who goes on with it, for the parent of the old one may be gone.

    Raises:
        Unsupported: It has no session that a single run could go on with.
    """
    if snapshot.kind != "single":
        raise Unsupported(
            f"{snapshot.run_id} was a {snapshot.kind}: there is no one session to go on with; "
            "start another with avenor_spawn"
        )
    if not snapshot.session_id:
        raise Unsupported(
            f"{snapshot.run_id} ended before it had a session: start another with avenor_spawn",
        )
    spec = await trio.to_thread.run_sync(_spec_of, snapshot)
    changes: dict[str, object] = {
        "prompt": prompt,
        "prompt_file": None,
        "resume": snapshot.session_id,
        "run_id": run_id,
        "on_event": None,
        "sentinel_file": None,
        "permission_handler": None,
    }
    members = {name: getattr(spec, name) for name in RunSpec.__struct_fields__}
    around = {"key": run_id, "parent_id": parent_id}
    return msgspec.convert({**members, **changes, **around}, SpawnParams)


def _spec_of(snapshot: Snapshot) -> RunSpec:
    """What the run was asked to do: from its record, else as far as the snapshot tells."""
    if snapshot.on_event is not None:
        path = RunDir(Path(snapshot.on_event).parent).record_path
        try:
            record = msgspec.json.decode(read_regular(str(path), limit_bytes=_RECORD_LIMIT_BYTES), type=Record)
        except (OSError, msgspec.DecodeError):  # its log is elsewhere, or its files are gone
            record = None
        if record is not None and record.runtime_id == snapshot.runtime_id and record.run_id == snapshot.run_id:
            return record.spec
    return RunSpec(
        prompt="",
        dir=snapshot.dir,
        backend=snapshot.backend,
        agent=snapshot.agent,
        model=snapshot.model,
        label=snapshot.label,
    )
