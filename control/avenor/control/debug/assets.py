"""The page and what it loads: the files of the folder `page`, as they were when the server started."""

from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import PurePosixPath
from typing import Final

from avenor.control.debug.asgi import Response

# A file of any other kind is not served.
_TYPES: Final = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".ico": "image/x-icon",
    ".js": "text/javascript; charset=utf-8",
    ".png": "image/png",
    ".svg": "image/svg+xml",
}
_FRONT: Final = "/index.html"


def page_folder() -> Traversable:
    """Where the page's files are; also within a zip."""
    return files("avenor.control.debug") / "page"


def load_assets(folder: Traversable) -> dict[str, Response]:
    """The response for each path that there is; what is asked for never becomes the name of a file."""
    found = {f"/{file.name}": _asset(file) for file in folder.iterdir() if file.is_file() and _type_of(file.name)}
    return {"/": found[_FRONT], **found} if _FRONT in found else found


def _asset(file: Traversable) -> Response:
    return Response(200, file.read_bytes(), _type_of(file.name))


def _type_of(name: str) -> str:
    return _TYPES.get(PurePosixPath(name).suffix, "")
