"""The run of a manifest on this machine: its git, its sandbox, its desk."""

import os
from typing import Final

from avenor.protocol.outcomes import Outcome
from avenor.protocol.spec import Record
from avenor.runtimes.host import RunHost
from avenor.runtimes.manifest.desk import open_desk
from avenor.runtimes.manifest.policies import make_policy
from avenor.runtimes.manifest.working import work_off
from avenor.runtimes.manifest.workshop import open_workshop

_GATEWAY_LOG: Final = "gateway.ndjson"


async def run_manifest(record: Record, host: RunHost) -> Outcome:
    """Runs the record's manifest; returns what the run came to.

    Raises:
        ConfigError: It cannot be run here: no sandbox, no repository, no such revision, no room for its branches.
    """
    environ = {**os.environ, **record.spec.env}
    workshop = await open_workshop(record, host.scratch, environ)
    log = os.path.join(host.scratch, _GATEWAY_LOG)
    return await work_off(
        record,
        host,
        workshop,
        open_desk=lambda meter, tools: open_desk(meter, tools, log=log, environ=environ),
        make_policy=make_policy,
    )
