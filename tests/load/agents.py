"""Agents that cost next to nothing, in a few lines of shell, and do what the load rows need.

They answer by counting: our peer numbers its requests from 1, and asks one after the other.
"""

import shlex

from tests.e2e.harness import Place

_AGENT = r"""
n=0
say() { printf '{"jsonrpc":"2.0","id":%d,"result":%s}\n' "$n" "$1"; }
while IFS= read -r line; do
    case $line in
        *'"method":"initialize"'*) n=$((n + 1)); say '{"protocolVersion":1,"agentCapabilities":{}}' ;;
        *'"method":"session/new"'*) n=$((n + 1)); say '{"sessionId":"load"}' ;;
        *'"method":"session/prompt"'*)
            n=$((n + 1))
            case $line in
                *HANG*) ;;
                *GATE_*)
                    reason=${line##*GATE_}
                    read -r _ < "$1"
                    say "{\"stopReason\":\"reason_${reason%%_*}\"}" ;;
                *) say '{"stopReason":"end_turn"}' ;;
            esac ;;
        *'"method":"session/cancel"'*) say '{"stopReason":"cancelled"}' ;;
    esac
done
"""

HANG = "HANG"


def shell_agent(place: Place) -> dict[str, str]:
    """Spawn params for it. A prompt of `HANG` is answered when it is cancelled, any other at once.

    A prompt `GATE_7_` is answered with the stop reason `reason_7` when somebody opens the FIFO `gate` to write.
    """
    script = place.path / "agent.sh"
    script.write_text(_AGENT)
    return {"backend": "acp", "agent_command": shlex.join(["/bin/sh", str(script), str(place.path / "gate")])}
