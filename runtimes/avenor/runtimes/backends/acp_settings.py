"""Setting the agent (mode), the model and the thinking level of an ACP session, each checked after it was set."""

from avenor.runtimes.backends.acp_errors import classify
from avenor.runtimes.backends.acp_options import Setting, list_offers
from avenor.runtimes.backends.acp_session import AcpSession
from avenor.runtimes.backends.acp_types import ConfigResult
from avenor.runtimes.backends.acp_wire import CallFailed
from avenor.runtimes.backends.base import BackendRefused, OpenParams
from avenor.runtimes.backends.profiles import Profile


async def apply_settings(profile: Profile, session: AcpSession, params: OpenParams) -> None:
    """Sets what was asked for, and the mode in which the agent asks where no other was.

    Raises:
        BackendRefused: The agent does not offer it, refused it, or uses something else all the same.
    """
    for kind in ("agent", "model", "thinking"):  # an agent may bring its model, a model its thinking levels
        wanted = getattr(params, kind)
        if wanted is not None:
            await _set(session, kind, wanted)
        elif kind == "agent" and not params.auto_approve:
            await _make_it_ask(profile, session)
    for kind in ("agent", "model", "thinking"):  # setting one thing may have changed another
        wanted, setting = getattr(params, kind), session.offers.setting(kind)
        if wanted is not None and setting is not None:
            _verify(session, kind, setting.find(wanted) or wanted)


async def _make_it_ask(profile: Profile, session: AcpSession) -> None:
    """Sets the mode in which the agent asks, where it would approve by itself.

    Raises:
        BackendRefused: It offers no such mode: it is not let loose without anybody having said so.
    """
    modes = profile.asking_agents
    if not modes:
        return
    offered = session.offers.values("agent")
    mode = next((mode for mode in modes if mode in offered), None)
    if mode is None:
        raise BackendRefused(
            f"the agent does not offer the mode in which it asks before it acts ({' or '.join(modes)}), only: "
            f"{list_offers(offered) or 'none'}; name the mode to use with --agent, or let it do as it likes with "
            "--auto-approve",
            reason="unknown_agent",
            data={"field": "agent", "value": modes[0], "offers": offered},
        )
    await _set(session, "agent", mode)


async def _set(session: AcpSession, kind: str, wanted: str) -> None:
    setting = session.offers.setting(kind)
    if setting is None:
        raise _unknown(kind, wanted, [], "this agent does not let it be chosen")
    value = setting.find(wanted)
    if value is None:
        raise _unknown(kind, wanted, setting.values(), "this agent does not offer it")
    if value != setting.current:
        try:
            await _send(session, setting, value)
        except CallFailed as failure:
            reason = classify(failure.error).message
            raise _unknown(kind, wanted, setting.values(), f"the agent refused it: {reason}") from failure
    _verify(session, kind, value)


async def _send(session: AcpSession, setting: Setting, value: str) -> None:
    offers = session.offers
    common = {"sessionId": session.session_id}
    match setting.via:
        case "config":
            params = {**common, "configId": setting.config_id, "value": value}
            result = await session.call("session/set_config_option", params, ConfigResult)
            offers.take_config(result.config_options)
        case "mode":
            await session.call("session/set_mode", {**common, "modeId": value}, object)
            offers.take_mode(value)
        case "model":
            await session.call("session/set_model", {**common, "modelId": value}, object)
            offers.take_model(value)


def _verify(session: AcpSession, kind: str, value: str) -> None:
    current = session.offers.current(kind)
    if current != value:
        raise BackendRefused(
            f"{kind} {value!r} was set, but the agent uses {current!r}",
            reason="not_applied",
            data={"field": kind, "value": value, "current": current},
        )


def _unknown(kind: str, wanted: str, offered: list[str], why: str) -> BackendRefused:
    choice = f"choose one of: {list_offers(offered)}" if offered else f"leave {kind} out"
    return BackendRefused(
        f"{kind} {wanted!r}: {why}; {choice}",
        reason=f"unknown_{kind}",
        data={"field": kind, "value": wanted, "offers": offered},
    )
