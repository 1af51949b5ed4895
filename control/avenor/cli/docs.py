"""`avenor docs`: the documentation, from the files that are installed with the command."""

from __future__ import annotations

from avenor.cli.commands import DOCS
from avenor.cli.docs_pages import AGENTS_PAGE, NoSuchPage, Page, find, load, title_of
from avenor.cli.docs_text import rendered
from avenor.cli.output import complain, is_terminal, write_text
from avenor.cli.parsing import parse
from avenor.cli.terminal import style_for

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence


def docs(words: Sequence[str]) -> int:
    """Run `avenor docs` with these words and give its exit status.

    Raises:
        UsageError: They make no sense, or there is no such page.
        HelpAsked: They ask for help.
    """
    values = parse(DOCS, words)
    pages = load()
    name, word = values.text("page"), values.text("search")
    if values.switch("names"):
        write_text("".join(f"{each.name}\n" for each in pages))
        return 0
    if name is not None:
        try:
            pages = [find(pages, name)]
        except NoSuchPage as error:
            complain(f"avenor docs: {error}")
            return 2
    if word is not None:
        return _search(pages, word)
    if name is not None:
        _show(pages[0].text())
        return 0
    _show(f"{find(pages, AGENTS_PAGE).text()}\n{_contents(pages)}")
    return 0


def _show(markdown: str) -> None:
    write_text(rendered(markdown, style_for(1)) if is_terminal(1) else markdown)


def _contents(pages: Sequence[Page]) -> str:
    """All pages, a line each."""
    width = max(len(page.name) for page in pages)
    lines = [f"{page.name:{width}}  {title_of(page.text())}" for page in pages]
    return "\n".join(["# All pages", "", "`avenor docs PAGE` prints one:", "", "```text", *lines, "```", ""])


def _search(pages: Sequence[Page], word: str) -> int:
    """Print the lines with the word, with page and number."""
    wanted, style = word.casefold(), style_for(1)
    found = [
        f"{style.paint(f'{page.name}:{number}:', 'cyan')} {line.strip()}\n"
        for page in pages
        for number, line in enumerate(page.text().splitlines(), 1)
        if wanted in line.casefold()
    ]
    write_text("".join(found))
    if not found:
        complain(f"avenor docs: nothing has {word!r} in it")
        return 1
    return 0
