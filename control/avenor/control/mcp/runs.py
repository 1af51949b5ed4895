"""How the session of a run that has ended is gone on with."""

import msgspec

from avenor.protocol.errors import Unsupported
from avenor.protocol.snapshot import Snapshot
from avenor.protocol.spec import SpawnParams


def resuming_params(
    snapshot: Snapshot, spec: SpawnParams, prompt: str, run_id: str, parent_id: str | None = None
) -> SpawnParams:
    """The spawn that goes on with the session of an ended run: all as it was, but the prompt and the files.

    Args:
        snapshot: Of the run that has ended.
        spec: What that was asked to do.
        prompt: The next task.
        run_id: Of the new run.
        parent_id: Whose child that is: of who goes on with it, for the parent of the old one may be gone.
    """
    return msgspec.structs.replace(
        spec,
        prompt=prompt,
        prompt_file=None,
        resume=snapshot.session_id,
        run_id=run_id,
        mcp_config=None,  # its servers are in the spec
        on_event=None,
        sentinel_file=None,
        permission_handler=None,
        key=run_id,
        parent_id=parent_id,
    )


def check_resumable(snapshot: Snapshot) -> None:
    """Refuses an ended run that cannot be gone on with.

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
