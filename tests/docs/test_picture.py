"""The README's moving picture: drawn from what a terminal has shown, and readable without any motion."""

import importlib.util
import re
import sys
from types import ModuleType
from typing import Any
from xml.etree import ElementTree

import pytest

from tests.docs.sandbox import ROOT

_SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def picture() -> ModuleType:
    """The program that draws it, which is no part of a package."""
    spec = importlib.util.spec_from_file_location("picture", ROOT / "docs/picture.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["picture"] = module
    spec.loader.exec_module(module)
    return module


def rows_of(svg: str) -> list[tuple[float, list[str]]]:
    """Of each row that is not blank, when it appears and its pieces."""
    found: list[tuple[float, list[str]]] = []
    for group in ElementTree.fromstring(svg).iter(f"{_SVG}g"):
        delay = group.attrib["style"].removeprefix("animation-delay:").removesuffix("s")
        found.append((float(delay), [str(piece.text) for piece in group]))
    return found


def draw(picture: ModuleType, *lines: tuple[float, str]) -> str:
    """The picture of these lines."""
    recorded: list[Any] = [picture.Line(at, text) for at, text in lines]
    return str(picture.draw(recorded, "a <title>"))


def test_each_line_appears_when_it_did_but_nobody_waits_for_long(picture: ModuleType) -> None:
    """Pauses are cut, and what came at once comes one after the other."""
    svg = draw(picture, (0.0, "one"), (0.0, "two"), (0.5, ""), (0.5, "three"), (60.0, "four"))
    assert rows_of(svg) == [(0.06, ["one"]), (0.12, ["two"]), (0.68, ["three"]), (2.18, ["four"])]


def test_colours_and_columns_stay_and_text_is_only_text(picture: ModuleType) -> None:
    """A painted word is a piece of its own; the columns hold in any font."""
    svg = draw(picture, (0.0, "  \x1b[36m  left\x1b[0m  <b> & more"))
    pieces = [piece for group in ElementTree.fromstring(svg).iter(f"{_SVG}g") for piece in group]
    assert [(piece.text, piece.get("class")) for piece in pieces] == [("left", "c36"), ("<b> & more", None)]
    assert [float(piece.attrib["x"]) for piece in pieces] == pytest.approx([18 + 4 * 8.4, 18 + 10 * 8.4], abs=0.1)


def test_a_long_line_goes_on_in_the_next_row(picture: ModuleType) -> None:
    """As on a terminal, with nothing lost."""
    words = " ".join(["word"] * 40)
    rows = rows_of(draw(picture, (0.0, words)))
    assert len(rows) == 2
    assert " ".join(piece for _, pieces in rows for piece in pieces) == words


def test_the_picture_in_the_repository_asks_nobody_for_anything_and_can_stand_still() -> None:
    """It is small enough for a README, and what is hidden at its beginning is hidden by the animation alone."""
    path = ROOT / "docs/demo.svg"
    svg = path.read_text()
    assert path.stat().st_size < 200_000
    assert re.findall(r"https?://[^\"')\s]+", svg) == ["http://www.w3.org/2000/svg"]
    assert "@media (prefers-reduced-motion:reduce){g{animation:none}}" in svg
    assert svg.count("opacity") == 1
    shown = " ".join(piece for _, pieces in rows_of(svg) for piece in pieces)
    assert "$ avenor control shutdown graceful" in shown
    assert "every log ends with run.end" in shown
    assert "NO " not in shown
