"""Claude Code's own program, which is a host of MCP servers; as a worker it runs behind its adapter (`acp_agents`)."""

import sys
from typing import Final

from tests.agents.install import MACHINE, Program

_PACKAGE: Final = f"@anthropic-ai/claude-code-{sys.platform}-{MACHINE}"
PROGRAM: Final = Program("claude-code", (f"{_PACKAGE}@2.1.332",), f"{_PACKAGE}/claude")
# What the adapter's profile sets as well: nothing but the model is asked for anything.
QUIET: Final = {
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    "DISABLE_AUTOUPDATER": "1",
    "DISABLE_ERROR_REPORTING": "1",
    "DISABLE_TELEMETRY": "1",
}
