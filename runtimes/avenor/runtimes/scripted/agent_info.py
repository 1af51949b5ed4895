"""Who the scripted agent says it is."""

from typing import Final

# The version is that of the script format: looking up the package's is slow.
AGENT_INFO: Final = {"name": "avenor-scripted", "title": "Avenor's scripted agent", "version": "1"}
