"""The parts of the HTTP server that need no server: addresses, tokens, files, routes."""

import os
import socket
from pathlib import Path
from typing import Any

import pytest

from avenor.control.address import Address, listen, parse_address
from avenor.control.debug.assets import load_assets, page_folder
from avenor.control.debug.guard import Guard
from avenor.control.debug.refusals import HttpRefusal, shown
from avenor.control.debug.routes import find_route, name_runtime
from avenor.control.debug.tokenfile import token_file
from avenor.protocol.errors import SpawnError


@pytest.mark.parametrize(
    ("text", "name", "ip", "port"),
    [
        (":8080", "127.0.0.1", "127.0.0.1", 8080),
        ("127.0.0.1:0", "127.0.0.1", "127.0.0.1", 0),
        ("127.5.0.1:80", "127.5.0.1", "127.5.0.1", 80),
        ("[::1]:8080", "::1", "::1", 8080),
        ("LocalHost:8080", "localhost", "127.0.0.1", 8080),
    ],
)
def test_loopback_addresses_are_taken(text: str, name: str, ip: str, port: int) -> None:
    """With the IP address to which they resolve, IPv4 first."""
    assert parse_address(text) == Address(name=name, ip=ip, port=port)


@pytest.mark.parametrize(
    "text", ["", "8080", "127.0.0.1", ":", ":x", ":65536", ":-1", ":٣", "::1:8080", "127.0.0.1:80 "]
)
def test_what_is_no_address_is_refused(text: str) -> None:
    """Before anything listens."""
    with pytest.raises(ValueError, match=r"HOST:PORT|brackets"):
        parse_address(text)


@pytest.mark.parametrize("text", ["0.0.0.0:80", "[::]:80", "192.0.2.1:80", "8.8.8.8:80"])
def test_other_addresses_than_loopback_are_refused(text: str) -> None:
    """Nobody else may reach it."""
    with pytest.raises(ValueError, match="no loopback address"):
        parse_address(text)


def test_a_name_that_resolves_to_more_than_loopback_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """One foreign address among them is enough."""

    def resolve(*_args: object, **_options: object) -> list[Any]:
        return [(0, 0, 0, "", ("127.0.0.1", 0)), (0, 0, 0, "", ("192.0.2.1", 0))]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    with pytest.raises(ValueError, match=r"'twofold' is 192\.0\.2\.1"):
        parse_address("twofold:80")


def test_a_name_that_does_not_resolve_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the resolver's reason."""

    def fail(*_args: object, **_options: object) -> None:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", fail)
    with pytest.raises(ValueError, match="Name or service not known"):
        parse_address("nowhere:80")


def test_a_name_that_no_resolver_takes_is_refused() -> None:
    """Python refuses some before it asks."""
    with pytest.raises(ValueError, match="cannot be resolved"):
        parse_address(f"{'a' * 64}.b:80")


@pytest.mark.parametrize(("text", "host"), [(":0", "127.0.0.1"), ("[::1]:0", "[::1]")])
def test_it_listens_at_the_address(text: str, host: str) -> None:
    """On a free port, where 0 was asked for."""
    address = parse_address(text)
    with listen(address) as listener:
        assert listener.getsockname()[:1] == (address.ip,)
        assert listener.getsockname()[1] > 0
    assert address.host == host


def test_hosts_are_those_of_the_address() -> None:
    """The name that was given is one, with the port that is listened on."""
    guard = Guard(Address(name="box", ip="127.0.0.1", port=0), 8080, "t")
    for host in ("127.0.0.1:8080", "localhost:8080", "BOX:8080", "[::1]:8080"):
        guard.check_place([(b"host", host.encode()), (b"origin", f"http://{host}".lower().encode())])
    for host in ("127.0.0.1", "127.0.0.1:80", "evil:8080", "box.evil:8080", ""):
        with pytest.raises(HttpRefusal) as refusal:
            guard.check_place([(b"host", host.encode())])
        assert refusal.value.response.status == 403


def test_on_port_80_browsers_leave_it_out() -> None:
    """So it may be missing there, and only there."""
    guard = Guard(Address(name="127.0.0.1", ip="127.0.0.1", port=80), 80, "t")
    guard.check_place([(b"host", b"localhost"), (b"origin", b"http://localhost")])


def test_the_token_stands_in_its_file_and_is_new_each_time(tmp_path: Path) -> None:
    """For this user alone, and gone afterwards."""
    path = tmp_path / "token"
    path.write_text("old")
    path.chmod(0o644)
    with token_file(str(path)) as first:
        assert path.read_text() == first + "\n"
        assert path.stat().st_mode & 0o777 == 0o600
    assert not path.exists()
    with token_file(str(path)) as second:
        assert second != first
        assert len(second) >= 40


def test_a_token_file_of_another_is_left_alone(tmp_path: Path) -> None:
    """The server that came later has its own there."""
    path = tmp_path / "token"
    with token_file(str(path)):
        path.write_text("another's\n")
    assert path.read_text() == "another's\n"


def test_a_token_file_that_was_removed_is_no_fault(tmp_path: Path) -> None:
    """Nor is something else in its place, which is not looked into."""
    path = tmp_path / "token"
    with token_file(str(path)):
        path.unlink()
        os.mkfifo(path)
    assert path.is_fifo()


def test_a_token_file_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    """With its flag and path."""
    with (
        pytest.raises(SpawnError, match=r"--http-token-file: cannot write .*No such file"),
        token_file(str(tmp_path / "no" / "token")),
    ):
        pass


def test_the_page_is_the_files_of_its_folder(tmp_path: Path) -> None:
    """Of the kinds that a page is made of; nothing below, nothing else."""
    (tmp_path / "index.html").write_text("<p>")
    (tmp_path / "board.js").write_text("1")
    (tmp_path / "notes.txt").write_text("secret")
    (tmp_path / ".css").write_text("x")
    (tmp_path / "below.js").mkdir()
    assets = load_assets(tmp_path)
    assert sorted(assets) == ["/", "/board.js", "/index.html"]
    assert assets["/"].content_type == "text/html; charset=utf-8"
    assert assets["/board.js"].content_type == "text/javascript; charset=utf-8"
    assert assets["/"].body == b"<p>"


def test_a_folder_without_a_front_page_has_none(tmp_path: Path) -> None:
    """Then there is nothing at `/`."""
    (tmp_path / "board.js").write_text("1")
    assert sorted(load_assets(tmp_path)) == ["/board.js"]


def test_the_page_of_ours_loads_only_what_is_there() -> None:
    """Every file that its front page names is served, and from this host."""
    assets = load_assets(page_folder())
    front = assets["/"].body.decode()
    named = {part.split('"')[0] for part in front.replace('href="', 'src="').split('src="')[1:]}
    assert named
    assert {f"/{name.lstrip('./')}" for name in named if not name.startswith("#")} <= assets.keys()


@pytest.mark.parametrize(
    ("verb", "path", "method", "runtime_id"),
    [
        ("GET", "/status", "status", None),
        ("HEAD", "/status/rt_1", "status", "rt_1"),
        ("GET", "/status/a%2Fb%20c", "status", "a/b c"),
        ("GET", "/status/a/b", "status", "a/b"),
        ("GET", "/runtimes", "list", None),
        ("GET", "/events", "subscribe", None),
        ("POST", "/cancel/rt_1", "cancel", "rt_1"),
        ("POST", "/prompt", "prompt", None),
        ("POST", "/answer-permission", "answer_permission", None),
    ],
)
def test_routes_are_methods_of_the_control_protocol(verb: str, path: str, method: str, runtime_id: str | None) -> None:
    """With the runtime that the path names, percent signs undone."""
    route, named = find_route(verb, path)
    assert (route.method, named) == (method, runtime_id)


@pytest.mark.parametrize(
    "path", ["/nope", "/statuses", "/status/", "/runtimes/rt_1", "/answer-permission/x", "//status", "/../status", "*"]
)
def test_other_paths_are_not_found(path: str) -> None:
    """And the refusal lists those that are."""
    with pytest.raises(HttpRefusal) as refusal:
        find_route("GET", path)
    assert refusal.value.response.status == 404
    assert b'"POST /cancel[/ID]"' in refusal.value.response.body


def test_other_methods_are_refused_with_those_that_there_are() -> None:
    """As HTTP asks for."""
    with pytest.raises(HttpRefusal) as refusal:
        find_route("GET", "/cancel/rt_1")
    assert refusal.value.response.status == 405
    assert refusal.value.response.headers == ((b"allow", b"POST"),)


def test_a_runtime_is_named_in_one_place() -> None:
    """Twice the same is as good; two are none."""
    assert name_runtime({"a": 1}, None) == {"a": 1}
    assert name_runtime({"a": 1}, "rt_1") == {"a": 1, "runtime_id": "rt_1"}
    assert name_runtime({"runtime_id": "rt_1"}, "rt_1") == {"runtime_id": "rt_1"}
    with pytest.raises(HttpRefusal):
        name_runtime({"runtime_id": "rt_2"}, "rt_1")


def test_long_values_are_shown_in_part() -> None:
    """A refusal does not send back what was too much already."""
    assert shown("x" * 1000) == "x" * 200 + "…"
    assert shown(5) == 5
