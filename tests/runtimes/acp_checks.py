"""Checks what we send against the published schema of ACP (`agent-client-protocol`)."""

from typing import Any

from acp import schema

_CALLS: dict[str, Any] = {
    "initialize": schema.InitializeRequest,
    "session/new": schema.NewSessionRequest,
    "session/load": schema.LoadSessionRequest,
    "session/resume": schema.ResumeSessionRequest,
    "session/list": schema.ListSessionsRequest,
    "session/prompt": schema.PromptRequest,
    "session/cancel": schema.CancelNotification,
    "session/set_mode": schema.SetSessionModeRequest,
    "session/set_config_option": schema.SetSessionConfigOptionSelectRequest,
}
_NOTIFICATIONS = {"session/cancel"}


def check_sent(message: dict[str, Any]) -> None:
    """One message of ours: a valid call, or a valid answer to a permission request or to an unknown one.

    A member that the schema does not know would be lost in the round trip, so misspelt names are found.
    """
    assert message["jsonrpc"] == "2.0"
    if "method" not in message:
        _check_answer(message)
        return
    method, params = message["method"], message["params"]
    assert ("id" in message) == (method not in _NOTIFICATIONS)
    if method == "session/set_model":  # was taken out of the schema; agents still have it
        assert params.keys() == {"sessionId", "modelId"}
        return
    model = _CALLS[method].model_validate(params)
    assert model.model_dump(mode="json", by_alias=True, exclude_unset=True) == params


def _check_answer(message: dict[str, Any]) -> None:
    if "error" in message:
        assert message.keys() == {"jsonrpc", "id", "error"}
        schema.Error.model_validate(message["error"])
        return
    assert message.keys() == {"jsonrpc", "id", "result"}
    answer = schema.RequestPermissionResponse.model_validate(message["result"])
    assert answer.model_dump(mode="json", by_alias=True, exclude_unset=True) == message["result"]
