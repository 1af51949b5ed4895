"""How the agent of an attempt is started: as its profile says, in its worktree, with credentials of its own."""

from collections.abc import Mapping
from typing import Final

from msgspec.structs import replace

from avenor.protocol.manifest.binding import BoundMember
from avenor.protocol.manifest.state import Attempt
from avenor.protocol.spec import RunSpec
from avenor.runtimes.backends.base import OpenParams
from avenor.runtimes.environment import RUNTIME_ID, SOCKET
from avenor.runtimes.manifest.desk import Credentials
from avenor.runtimes.manifest.plan import Plan
from avenor.runtimes.manifest.services import Bench

# Which attempt it is, and the commit that its worktree was cut from, for what an agent starts.
ATTEMPT_ID: Final = "AVENOR_ATTEMPT_ID"
REVISION: Final = "AVENOR_REVISION"


class Opening:
    """What the host needs to open an attempt's session.

    Args:
        member: Whose profile counts.
        attempt: Whose session it is.
        bench: Where it works.
        credentials: Its own.
        spec: The run's.
        plan: Knows the keys that no agent may have.
        offers_tools: Whether its agent takes a server of ours.
    """

    def __init__(
        self,
        member: BoundMember,
        attempt: Attempt,
        bench: Bench,
        credentials: Credentials,
        spec: RunSpec,
        plan: Plan,
        *,
        offers_tools: bool = True,
    ) -> None:
        self._member = member
        self._attempt = attempt
        self._bench = bench
        self._credentials = credentials
        self._servers = [credentials.mcp_server] if offers_tools else []
        self._spec = spec
        endpoints = [each.profile.endpoint for each in plan.members.values()]
        self._secret = {each.key_env for each in endpoints if each is not None and each.key_env is not None}

    def spec(self) -> RunSpec:
        """The run's spec, as this attempt's."""
        profile = self._member.profile
        return replace(
            self._spec,
            dir=self._bench.directory,
            backend=profile.backend,
            agent=profile.agent,
            model=profile.model,
            thinking=profile.thinking,
            agent_command=profile.agent_command,
            script=profile.script,
            server_url=None,
            mcp_servers=self._servers,
            resume=None,
            auto_approve=False,
        )

    def shape(self, params: OpenParams) -> None:
        """Puts the sandbox before the program, and the environment of this attempt in the place of the run's."""
        dropped = {SOCKET, RUNTIME_ID, *self._secret}
        env = {name: value for name, value in params.env.items() if name not in dropped}
        own = {ATTEMPT_ID: self._attempt.attempt_id, REVISION: self._attempt.revision}
        env = {**env, **self._profile_env(), **self._bench.environ, **own, params.tag[0]: params.tag[1]}
        params.env = {**env, **_past_proxies(env)}
        params.prefix = self._bench.prefix

    def _profile_env(self) -> dict[str, str]:
        url, token = self._credentials.gateway_url, self._credentials.gateway_token
        values = {"{gateway_url}": url, "{gateway_token}": token, "{model}": self._member.profile.model or ""}
        return {name: _filled(value, values) for name, value in self._member.profile.env.items()}


def _past_proxies(env: Mapping[str, str]) -> dict[str, str]:
    """The desk is on this machine: no proxy of the environment is asked for it."""
    own = ("127.0.0.1", "localhost")
    return {name: ",".join([*filter(None, [env.get(name)]), *own]) for name in ("NO_PROXY", "no_proxy")}


def _filled(text: str, values: dict[str, str]) -> str:
    for name, value in values.items():
        text = text.replace(name, value)
    return text
