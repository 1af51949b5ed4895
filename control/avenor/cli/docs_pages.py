"""Where the pages of the documentation are, and how they are called.

In an installed package, and in a zipapp, they are beside this module, in `pages`; in a checkout they are in `docs`.
"""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from avenor.cli.docs_text import ENTRANCES, without_comments

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from importlib.resources.abc import Traversable

AGENTS_PAGE = "how-to/for-agents"
_SUFFIX = ".md"
# In which order the parts are told; others come after them.
_PARTS = ("tutorials", "how-to", "reference", "explanation")


class NoSuchPage(Exception):
    """There is no page of that name; the message names the closest."""


class Page:
    """One page.

    Attributes:
        name: Its path in the documentation, without `.md`.
    """

    def __init__(self, name: str, file: Traversable) -> None:
        self.name = name
        self._file = file

    def text(self) -> str:
        """Its Markdown, without comments: those are for the tests of the documentation."""
        return without_comments(self._file.read_text(encoding="utf-8"))


def load() -> list[Page]:
    """All pages, by part and name.

    Raises:
        FileNotFoundError: They were not installed with the command.
    """
    folder = _folder()
    pages = [Page(name, file) for name, file in _pages_in(folder, "")]
    if not pages:
        raise FileNotFoundError(f"no documentation is installed in {folder}")
    return sorted(pages, key=_place)


def find(pages: Sequence[Page], name: str) -> Page:
    """The page of this name, or the one whose name ends so.

    Raises:
        NoSuchPage: There is none, or several could be meant.
    """
    wanted = name.removesuffix(_SUFFIX).strip("/").removeprefix("docs/")
    found = [page for page in pages if page.name == wanted]
    found = found or [page for page in pages if page.name.endswith(f"/{wanted}")]
    if len(found) == 1:
        return found[0]
    if found:
        raise NoSuchPage(f"several pages are called {name!r}: {', '.join(page.name for page in found)}")
    closest = _closest(pages, wanted)
    hint = f"the closest: {', '.join(closest)}" if closest else "`avenor docs` lists them"
    raise NoSuchPage(f"no page {name!r}; {hint}")


def title_of(markdown: str) -> str:
    """The first heading, as plain words."""
    line = next((line for line in markdown.splitlines() if line.startswith("# ")), "")
    return line[2:].replace("`", "").strip()


def _folder() -> Traversable:
    installed = files("avenor.cli") / "pages"
    return installed if installed.is_dir() else Path(__file__).resolve().parents[3] / "docs"


def _pages_in(folder: Traversable, prefix: str) -> Iterator[tuple[str, Traversable]]:
    for entry in folder.iterdir():
        if entry.is_dir():
            yield from _pages_in(entry, f"{prefix}{entry.name}/")
            continue
        stem = entry.name.removesuffix(_SUFFIX)
        # `x.prompt.md` is a prompt of an example.
        if stem != entry.name and "." not in stem and stem not in ENTRANCES:
            yield f"{prefix}{stem}", entry


def _place(page: Page) -> tuple[int, str]:
    part = page.name.partition("/")[0]
    return _PARTS.index(part) if part in _PARTS else len(_PARTS), page.name


def _closest(pages: Sequence[Page], wanted: str) -> list[str]:
    from difflib import get_close_matches

    last = wanted.rpartition("/")[2]
    by_word = {page.name.rpartition("/")[2]: page.name for page in pages}
    return [by_word[word] for word in get_close_matches(last, list(by_word), n=3, cutoff=0.5)]
