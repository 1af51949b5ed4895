"""`avenor docs`: pages that are installed with the command, found by name and by word, on a terminal and in a pipe."""

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import tomllib
import zipfile
from pathlib import Path

import pytest

import avenor.cli
from avenor.cli import main
from avenor.cli.docs_pages import AGENTS_PAGE, find, load, title_of
from avenor.cli.docs_text import rendered
from avenor.cli.terminal import Style

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
COLOURED = Style(coloured=True)


def said(capfd: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    """Exit status, stdout and stderr."""
    status = main(["docs", *words])
    out, err = capfd.readouterr()
    return status, out, err


def test_without_a_page_it_prints_the_one_for_agents_and_then_all_there_are(capfd: pytest.CaptureFixture[str]) -> None:
    """So that one command is enough to begin with."""
    status, out, _ = said(capfd)
    page = (DOCS / f"{AGENTS_PAGE}.md").read_text()
    assert status == 0
    assert out.startswith(page)
    listed = out.removeprefix(page)
    for each in load():
        assert f"\n{each.name} " in listed
        assert title_of(each.text()) in listed


def test_the_page_for_agents_is_short() -> None:
    """It is read at once, by somebody who pays for each word."""
    assert len((DOCS / f"{AGENTS_PAGE}.md").read_text().splitlines()) < 120


@pytest.mark.parametrize("name", ["reference/team", "team", "team.md", "docs/reference/team.md"])
def test_a_page_goes_by_its_path_or_the_last_part_of_it(capfd: pytest.CaptureFixture[str], name: str) -> None:
    """In a pipe it is the Markdown as it is."""
    assert said(capfd, name) == (0, (DOCS / "reference/team.md").read_text(), "")


def test_what_is_said_to_the_tests_of_the_documentation_is_not_said_to_readers(
    capfd: pytest.CaptureFixture[str],
) -> None:
    """An agent would take it for something to do."""
    page = DOCS / "how-to/operate.md"
    assert "<!-- first:" in page.read_text()
    status, out, _ = said(capfd, "operate")
    assert (status, "<!--" in out) == (0, False)
    assert out.count("```") == page.read_text().count("```")


def test_an_unknown_page_names_the_closest(capfd: pytest.CaptureFixture[str]) -> None:
    """Status 2; where none is close, how to list them."""
    status, out, err = said(capfd, "answer-permision")
    assert (status, out) == (2, "")
    assert err.startswith("avenor docs: no page 'answer-permision'; the closest: how-to/answer-permissions")
    status, _, err = said(capfd, "zzzzzz")
    assert (status, err) == (2, "avenor docs: no page 'zzzzzz'; `avenor docs` lists them\n")


def test_every_page_has_a_title_and_a_name_of_its_own() -> None:
    """The last part of a name is enough to ask for it."""
    pages = load()
    for page in pages:
        assert title_of(page.text()), page.name
        assert find(pages, page.name.rpartition("/")[2]) is page


def test_what_is_installed_are_the_pages_of_the_repository() -> None:
    """None is forgotten in the wheel, and nothing that is no page is in it."""
    parts = ("tutorials", "how-to", "reference", "explanation")
    files = [*DOCS.glob("*.md"), *(path for part in parts for path in (DOCS / part).rglob("*.md"))]
    files = [path for path in files if path.stem not in ("README", "index")]
    expected = {str(path.relative_to(DOCS).with_suffix("")) for path in files}
    assert {page.name for page in load()} == expected
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert {f"docs/{path.relative_to(DOCS).parts[0]}" for path in files} <= set(wheel["only-include"])
    assert wheel["sources"]["docs"] == "avenor/cli/pages"


def test_a_word_is_searched_for_in_all_pages(capfd: pytest.CaptureFixture[str]) -> None:
    """With page and line; letter case does not matter. Nothing found is status 1."""
    status, out, _ = said(capfd, "--search", "RESUME_from_previous")
    assert status == 0
    found = [line.partition(":")[0] for line in out.splitlines()]
    assert "reference/team" in found
    name, number, _ = out.splitlines()[0].split(":", 2)
    assert "resume_from_previous" in (DOCS / f"{name}.md").read_text().splitlines()[int(number) - 1].lower()

    status, out, _ = said(capfd, "team", "--search", "resume_from_previous")
    assert {line.partition(":")[0] for line in out.splitlines()} == {"reference/team"}
    assert said(capfd, "--search", "no such word") == (1, "", "avenor docs: nothing has 'no such word' in it\n")
    assert said(capfd, "--search", "")[0] == 2


def test_names_are_for_completion(capfd: pytest.CaptureFixture[str]) -> None:
    """One a line."""
    assert said(capfd, "--names")[1].splitlines() == [page.name for page in load()]


def test_on_a_terminal_headings_are_bold() -> None:
    """And fences are gone; NO_COLOR keeps it plain."""
    first = title_of((DOCS / "how-to/rehearse.md").read_text())
    text = on_terminal("rehearse")
    assert text.startswith(f"\x1b[1m{first}\x1b[0m")
    assert "```" not in text
    assert "\x1b" not in on_terminal("rehearse", NO_COLOR="1")
    assert "\x1b[36m" in on_terminal("--search", "sentinel")


def on_terminal(*words: str, **environ: str) -> str:
    """What it shows there."""
    outer, inner = pty.openpty()
    fcntl.ioctl(inner, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 100, 0, 0))
    env = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
    process = subprocess.Popen(
        [sys.executable, "-m", "avenor.cli", "docs", *words], stdout=inner, env={**env, "TERM": "xterm", **environ}
    )
    os.close(inner)
    shown = b""
    try:
        while piece := os.read(outer, 65536):
            shown += piece
    except OSError:  # the other side is closed
        pass
    finally:
        os.close(outer)
        assert process.wait() == 0
    return shown.decode().replace("\r\n", "\n")


@pytest.mark.parametrize(
    ("markdown", "shown"),
    [
        ("# A `b` c", "\x1b[1mA b c\x1b[0m\n"),
        ("### Deep ###", "\x1b[1mDeep\x1b[0m\n"),
        ("#no heading", "#no heading\n"),
        ("a `code` b", "a \x1b[36mcode\x1b[0m b\n"),
        ("```sh\n# no\n`x`\n\n```\nafter", "    \x1b[36m# no\x1b[0m\n    \x1b[36m`x`\x1b[0m\n\nafter\n"),
        ("````\n```\n````\nafter", "    \x1b[36m```\x1b[0m\nafter\n"),
        ("see [teams](../reference/team.md#x), [here](#there), [it](https://a.example/b)",
         "see teams (avenor docs team), here, it (https://a.example/b)\n"),
        ("a\n<!-- not\nshown -->\nb", "a\nb\n"),
        ("bad \x1b]0;x\x07 text", "bad  text\n"),
    ],
)  # fmt: skip
def test_markdown_is_made_easier_to_read(markdown: str, shown: str) -> None:
    """It stays what it is; nothing in it acts on the terminal."""
    assert rendered(markdown, COLOURED) == shown


def test_every_command_in_place_of_a_link_prints_a_page() -> None:
    """What is no page, as the list of examples, is named by its words alone."""
    pages = load()
    text = "".join(rendered(page.text(), COLOURED) for page in pages)
    assert {find(pages, name).name for name in re.findall(r"\(avenor docs ([^\s)]+)\)", text)} > {"reference/team"}
    assert rendered("see [examples](../examples/README.md)", COLOURED) == "see examples\n"


def test_without_colours_code_keeps_its_marks() -> None:
    """It could not be told from the words around it."""
    assert rendered("# T\na `code` b", Style(coloured=False)) == "T\na `code` b\n"


def test_it_works_from_a_zip_file(tmp_path: Path) -> None:
    """As one file, without anything beside it."""
    archive = tmp_path / "avenor.zip"
    package = Path(avenor.cli.__file__).parent
    with zipfile.ZipFile(archive, "w") as made:
        made.writestr("avenor/", "")  # as zipapp writes it: without it, no namespace package is found
        for folder in (package, package.parent / "control", *_beside("host"), *_beside("protocol")):
            for path in folder.rglob("*.py"):
                made.write(path, f"avenor/{folder.name}/{path.relative_to(folder)}")
        made.writestr("avenor/cli/pages/how-to/for-agents.md", "# From the zip\n")
        made.writestr("avenor/cli/pages/reference/team.md", "# Team\n")
    command = [sys.executable, "-c", "import sys; from avenor.cli import main; sys.exit(main(sys.argv[1:]))", "docs"]
    # Isolated from what is installed, so that nothing but the file can be read.
    isolated = [command[0], "-I", "-S", "-c", f"import sys; sys.path.insert(0, {str(archive)!r}); {command[2]}", "docs"]
    done = subprocess.run(isolated, capture_output=True, text=True, cwd=tmp_path)
    assert done.stderr == ""
    assert done.stdout.startswith("# From the zip\n")
    assert "reference/team     Team" in done.stdout


def _beside(name: str) -> list[Path]:
    """The folders of another part of the package, wherever its root is."""
    import avenor

    return [Path(folder) / name for folder in avenor.__path__ if (Path(folder) / name).is_dir()]
