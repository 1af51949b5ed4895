"""Every command that the README, the tutorials and the how-to guides show works when it is typed as it stands."""

import os
from pathlib import Path

import pytest

from tests.docs.blocks import Block, blocks_of
from tests.docs.sandbox import ROOT, Sandbox, describe
from tests.e2e.harness import Place, open_place

PAGES = [
    path.relative_to(ROOT)
    for path in (
        ROOT / "README.md",
        *sorted((ROOT / "docs/tutorials").glob("*.md")),
        *sorted((ROOT / "docs/how-to").glob("*.md")),
    )
]


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_the_commands_of_a_page_work_in_their_order(page: Path) -> None:
    """Those that cannot be run here carry a comment that says why."""
    blocks = blocks_of((ROOT / page).read_text())
    typed = [block for block in blocks if block.not_run is None]
    if not any(block.file is None for block in typed):
        return
    with open_place() as place:
        done = Sandbox(place).run(typed)
        assert done.returncode == 0, f"{page}: {describe(done)}"


def test_a_command_that_fails_fails_its_page_and_its_line_is_named(place: Place) -> None:
    """And nothing after it is run."""
    page = "# Title\n\n```sh\navenor --version\n```\n\n```sh\navenor control lisst\ntouch after\n```\n"
    done = Sandbox(place).run(blocks_of(page))
    assert done.returncode == 2
    assert "line 7: avenor control lisst: status 2" in done.stdout
    assert not os.path.exists(place.work / "after")


def test_a_reader_sees_no_comment_and_the_checker_all() -> None:
    """What is no command, and has no name as a file, is left out."""
    page = """
<!-- not run: it installs -->
```bash
pip install x
```

<!-- file: a.json -->
```json
{}
```

<!-- first: touch a
touch b -->

```console
$ avenor --version
avenor 0.1.0
```

```json
{"left": "out"}
```

1. In a list:

   ```sh
   avenor docs
   ```
"""
    assert blocks_of(page) == [
        Block(line=3, text="pip install x\n", not_run="it installs"),
        Block(line=8, text="{}\n", file="a.json"),
        Block(line=15, text="avenor --version\n", first="touch a\ntouch b"),
        Block(line=26, text="avenor docs\n"),
    ]
