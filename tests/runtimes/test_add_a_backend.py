"""The examples of docs/how-to/add-a-backend.md are a profile that can be used, and a package that is found."""

import re
import sys
import tomllib
from pathlib import Path

import pytest

from avenor.runtimes.backends.base import Backend
from avenor.runtimes.backends.profiles import Profile
from avenor.runtimes.backends.registry import find_backend
from tests.runtimes.agent_kit import RecordingSink, make_params, opened

PAGE = Path(__file__).parents[2] / "docs/how-to/add-a-backend.md"
TEXT = PAGE.read_text(encoding="utf-8")
PROFILE, ENTRY_POINT = re.findall(r"```toml\n(.*?)```", TEXT, re.DOTALL)
(MODULE,) = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
# The agent of the example: ours, which it starts only with a token.
_PROGRAM = f"""#!{sys.executable}
import os
assert len(os.environ["NEST_TOKEN"]) > 30
os.execv("{sys.executable}", ["{sys.executable}", "-m", "avenor.runtimes.scripted"])
"""


def test_the_profile_of_the_page_is_one(tmp_path: Path) -> None:
    """It has the name of its file, and no mistakes."""
    (tmp_path / "hermes.toml").write_text(PROFILE, encoding="utf-8")
    found = find_backend("hermes", str(tmp_path))
    assert (found.source, found.backend.name) == ("profile", "hermes")
    assert found.profile is not None
    assert re.search(found.profile.failures[0].pattern, "HTTP 401: stand-in error 401")


def test_the_keys_that_the_page_names_are_those_of_a_profile() -> None:
    """In the table, and beside it."""
    rows = [line.split("|")[3] for line in TEXT.splitlines() if line.startswith("| ") and not line.startswith("| Look")]
    named = {re.findall(r"`(?:\[\[)?(\w+)", row)[0] for row in rows}
    assert len(rows) == len(named)
    assert named | {"install", "argv", "adapter"} <= set(Profile.__struct_fields__)


async def test_the_package_of_the_page_is_a_backend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Installed as an entry point, it opens sessions."""
    site, programs = tmp_path / "site", tmp_path / "bin"
    metadata = site / "nest_avenor-1.0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: nest-avenor\nVersion: 1.0\n")
    points = tomllib.loads(ENTRY_POINT)["project"]["entry-points"]
    lines = [f"[{group}]\n" + "\n".join(f"{k} = {v}" for k, v in named.items()) for group, named in points.items()]
    (metadata / "entry_points.txt").write_text("\n".join(lines))
    (site / "nest_avenor.py").write_text(MODULE, encoding="utf-8")
    programs.mkdir()
    (programs / "nest-acp").write_text(_PROGRAM)
    (programs / "nest-acp").chmod(0o755)
    monkeypatch.setattr(sys, "path", [str(site), *sys.path])
    backend: Backend = find_backend("nest", str(tmp_path)).backend
    params = make_params(tmp_path)
    env = {**params.env, "PATH": f"{programs}:{params.env['PATH']}"}
    sink = RecordingSink()
    async with opened(backend, make_params(tmp_path, env=env), sink) as session:
        assert (await session.prompt("Hello.")).stop_reason == "end_turn"
    assert sink.text()
