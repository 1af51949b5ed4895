"""Who is let in: requests that are meant for this server, and, where there is data, whoever has the token."""

import hmac
from typing import Final

from avenor.control.address import Address
from avenor.control.debug.asgi import Headers, values_of
from avenor.control.debug.refusals import HttpRefusal, refused, shown

TOKEN_HEADER: Final = "X-Avenor-Token"
_NAME: Final = TOKEN_HEADER.lower().encode()
_HTTP_PORT: Final = 80


class Guard:
    """Checks requests.

    Args:
        address: What was asked for.
        port: What is listened on.
        token: What who wants data must have; ASCII.
    """

    def __init__(self, address: Address, port: int, token: str) -> None:
        names = dict.fromkeys((address.host, address.name, "localhost", "127.0.0.1", "[::1]"))
        hosts = [f"{name}:{port}" for name in names]
        if port == _HTTP_PORT:  # browsers leave it out
            hosts += names
        self._hosts = tuple(hosts)
        self._origins = tuple(f"http://{host}" for host in hosts)
        self._token = token.encode("ascii")

    def check_place(self, headers: Headers) -> None:
        """Lets through what asks for this server by a name of its own, and comes from no other's page.

        A page of anybody can send requests to loopback, also under a name of its own that it has made resolve to
        127.0.0.1 (DNS rebinding). Browsers do not let it choose these two headers.

        Raises:
            HttpRefusal: It is not such a request.
        """
        hosts = values_of(headers, b"host")
        if len(hosts) != 1 or _text(hosts[0]) not in self._hosts:
            raise self._foreign("Host", hosts, self._hosts)
        origins = values_of(headers, b"origin")
        if len(origins) > 1 or (origins and _text(origins[0]) not in self._origins):
            raise self._foreign("Origin", origins, self._origins)

    def check_token(self, headers: Headers, in_query: list[str] | None) -> None:
        """Lets through who has the token.

        Args:
            headers: Of the request.
            in_query: The tokens in its query, where one may be; else None.

        Raises:
            HttpRefusal: It has none, more than one, or a wrong one.
        """
        given = [*values_of(headers, _NAME), *(each.encode("utf-8", "replace") for each in in_query or ())]
        if len(given) == 1 and hmac.compare_digest(given[0], self._token):
            return
        wrong = "is wrong" if len(given) == 1 else "is missing" if not given else "was given more than once"
        also = "" if in_query is None else " (or the query token=…, which is for /events alone)"
        raise refused(
            401,
            f"the token {wrong}: send what is in the token file in the header {TOKEN_HEADER}{also}, once",
            reason="unauthorized",
            headers=((b"www-authenticate", TOKEN_HEADER.encode()),),
            field=TOKEN_HEADER,
        )

    @staticmethod
    def _foreign(field: str, values: list[bytes], allowed: tuple[str, ...]) -> HttpRefusal:
        found = ", ".join(map(_text, values))
        return refused(
            403,
            f"{field} {shown(found)!r} is not this server: ask for http://{allowed[0].removeprefix('http://')}/ itself",
            reason=f"foreign_{field.lower()}",
            field=field,
            value=shown(found),
        )


def _text(value: bytes) -> str:
    return value.decode("latin-1").strip().lower()
