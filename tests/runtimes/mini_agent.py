"""What agents that are a few lines of Python share: `PRELUDE` is the beginning of each, run without our packages."""

PRELUDE = r'''
import json, os, sys, time

def send(**message):
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()

def raw(data):
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()

def recv():
    line = sys.stdin.readline()
    if not line:
        sys.exit(0)
    return json.loads(line)

def expect(method):
    message = recv()
    assert message.get("method") == method, message
    return message

def reply(message, result):
    send(id=message["id"], result=result)

def fail(message, code, text, **data):
    send(id=message["id"], error={"code": code, "message": text, "data": data})

def update(update_kind, session="s1", **members):
    params = {"sessionId": session, "update": {"sessionUpdate": update_kind, **members}}
    send(method="session/update", params=params)

def say(text, session="s1"):
    update("agent_message_chunk", session, content={"type": "text", "text": text})

def heard(text, session="s1"):
    update("user_message_chunk", session, content={"type": "text", "text": text})

def hello(**capabilities):
    reply(expect("initialize"), {"protocolVersion": 1, "agentCapabilities": capabilities})

def start(session="s1", result=None, **capabilities):
    hello(**capabilities)
    reply(expect("session/new"), {"sessionId": session, **(result or {})})

def ask(request_id, options=(("yes", "allow_once"), ("no", "reject_once")), **tool):
    params = {"sessionId": "s1", "toolCall": {"toolCallId": "t", **tool},
              "options": [{"optionId": o, "kind": k, "name": o} for o, k in options]}
    send(id=request_id, method="session/request_permission", params=params)

def end(prompt, reason="end_turn"):
    reply(prompt, {"stopReason": reason})

def turns():
    """Answers prompts with what they said, until stdin ends."""
    while True:
        prompt = expect("session/prompt")
        say(prompt["params"]["prompt"][0]["text"])
        end(prompt)
'''
