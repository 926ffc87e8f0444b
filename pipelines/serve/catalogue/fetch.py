"""A catalogue from a URL: hosts that were allowed, public addresses, no redirects, bounded in bytes and time."""

from __future__ import annotations

import ipaddress
import socket
import tempfile
import time
from pathlib import Path

import httpx

from pipelines.serve.errors import Refusal
from pipelines.serve.settings import Imports
from retrievers.catalogue import read_catalogue
from retrievers.errors import BadInput
from retrievers.types import Tool

_TRANSLATED = ipaddress.ip_network("64:ff9b::/96")
"""IPv4 as networks without it write it."""


def fetch_tools(url: str, format: str | None, settings: Imports) -> list[Tool]:
    """The tools of the catalogue at a URL."""
    return read_tools(fetch(url, settings), format)


def read_tools(data: bytes, format: str | None) -> list[Tool]:
    """The tools of a catalogue that somebody sent."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "catalogue"  # a name of ours: nothing of a request is a path here
        path.write_bytes(data)
        try:
            return read_catalogue(path, format)
        except BadInput as error:
            raise Refusal(422, "invalid", str(error).replace(str(path), "the catalogue")) from error


def fetch(url: str, settings: Imports) -> bytes:
    """What lies at a URL, if it may be asked for."""
    parts, address = checked(url, settings)
    # The address that was looked at is the one that is connected to, whatever the name says a moment later.
    host = f"[{address}]" if address.version == 6 else str(address)
    deadline, found = time.monotonic() + settings.seconds, bytearray()
    try:
        with (
            httpx.Client(timeout=settings.seconds, follow_redirects=False, trust_env=False) as client,
            client.stream(
                "GET",
                parts.copy_with(host=host),
                headers={"Host": parts.netloc.decode("ascii"), "Accept-Encoding": "identity"},
                extensions={"sni_hostname": parts.host},
            ) as response,
        ):
            if response.status_code != 200:
                raise Refusal(
                    422, "import_failed", f"the URL answered {response.status_code}; redirects are not followed"
                )
            for some in response.iter_bytes():
                found += some
                if len(found) > settings.bytes or time.monotonic() > deadline:
                    raise Refusal(422, "import_failed", "the catalogue is too large or comes too slowly")
    except httpx.HTTPError as error:
        raise Refusal(422, "import_failed", "the URL does not answer") from error
    return bytes(found)


def checked(url: str, settings: Imports) -> tuple[httpx.URL, ipaddress.IPv4Address | ipaddress.IPv6Address]:
    """The URL's parts and the address to connect to; refused where the config does not allow it."""
    try:
        parts = httpx.URL(url)
    except (httpx.InvalidURL, ValueError, TypeError) as error:
        raise Refusal(422, "invalid", "this is no URL") from error
    schemes = ("https", "http") if settings.private else ("https",)
    if parts.scheme not in schemes or parts.userinfo or not parts.host:
        raise Refusal(
            422, "invalid", f"a catalogue is fetched by {' or '.join(schemes)}, without a password in the URL"
        )
    if parts.host.casefold() not in {host.casefold() for host in settings.hosts}:
        raise Refusal(403, "forbidden", "this host is not among those that may be asked")
    try:
        told = socket.getaddrinfo(parts.host, parts.port or 443, type=socket.SOCK_STREAM)
        addresses = [ipaddress.ip_address(str(entry[4][0]).partition("%")[0]) for entry in told]
    except (OSError, UnicodeError, ValueError) as error:
        raise Refusal(422, "import_failed", "this host is not found") from error
    if not settings.private and not all(public(address) for address in addresses):
        raise Refusal(403, "forbidden", "this host has a private address")
    return parts, addresses[0]


def public(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    """Whether an address is anybody's on the internet; one wrapped into IPv6 is looked at as it is inside."""
    inner: ipaddress.IPv4Address | ipaddress.IPv6Address = address
    if isinstance(address, ipaddress.IPv6Address):
        translated = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF) if address in _TRANSLATED else None
        inner = address.ipv4_mapped or address.sixtofour or translated or address
    return inner.is_global and not inner.is_multicast and not address.is_multicast
