"""`avenor control claim --hold`: stay the owner until interrupted, or until another client takes over."""

from avenor.cli.output import complain
from avenor.cli.wire import NOTICE_PREFIX, Connection, NoServer
from avenor.control.safetext import one_line


def hold(connection: Connection) -> int:
    """Keep the connection, and so the ownership. Status 1 when another client took it.

    Raises:
        NoServer: The server went away, and the ownership with it.
    """
    import json

    for batch in connection.batches():
        for line in batch:
            if not line.startswith(NOTICE_PREFIX):
                continue
            notice = json.loads(line)["params"]
            if notice.get("kind") == "owner.changed":
                owner = one_line(str(notice.get("owner") or "nobody"))
                complain(f"avenor control claim: {owner} owns {notice.get('runtime_id') or 'it'} now")
                return 1
    raise NoServer(f"{connection.path}: the server went away")
