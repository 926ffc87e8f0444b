"""Fetch a catalogue from a URL: allowed hosts, public addresses, no redirects, bounded in bytes and time."""

from __future__ import annotations

import ipaddress
import socket
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import httpx

from pipelines.serve.errors import Refusal
from pipelines.serve.settings import ImportRules
from retrievers.catalogue.collection import read_catalogues
from retrievers.errors import BadInput
from retrievers.lint.limits import complaint, describe_refusal, listed_sentences
from retrievers.types import Tool

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
_NAT64 = ipaddress.ip_network("64:ff9b::/96")


class ReadCatalogue(NamedTuple):
    """The tools of a catalogue, and a sentence about each entry that was skipped."""

    tools: list[Tool]
    skipped: list[str]


def fetch_tools(url: str, format: str | None, settings: ImportRules) -> ReadCatalogue:
    """The tools of the catalogue at a URL."""
    return read_tools(_fetch(url, settings), format)


def read_tools(data: bytes, format: str | None) -> ReadCatalogue:
    """The tools of a catalogue file."""
    skipped: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "catalogue"  # a fixed name: no part of a request becomes a path
        path.write_bytes(data)
        try:
            tools = read_catalogues([str(path)], format, report=skipped.append)
        except BadInput as error:
            raise Refusal(422, "invalid", str(error).replace(str(path), "the catalogue")) from error
    sentences = [text.removeprefix("skipped: ").replace(str(path), "the catalogue") for text in skipped]
    complaints = [(tool, complaint(tool)) for tool in tools]
    refused = [describe_refusal(tool, why) for tool, why in complaints if why]
    return ReadCatalogue([tool for tool, why in complaints if not why], [*sentences, *listed_sentences(refused)])


def _fetch(url: str, settings: ImportRules) -> bytes:
    parts, address = check_url(url, settings)
    # Connect to the address that was checked; the name may resolve to another one a moment later.
    host = f"[{address}]" if address.version == 6 else str(address)
    deadline, data = time.monotonic() + settings.seconds, bytearray()
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
                message = f"the URL answered {response.status_code}; redirects are not followed"
                raise Refusal(422, "import_failed", message)
            for chunk in response.iter_bytes():
                data += chunk
                if len(data) > settings.bytes or time.monotonic() > deadline:
                    raise Refusal(422, "import_failed", "the catalogue is too large or too slow")
    except httpx.HTTPError as error:
        raise Refusal(422, "import_failed", "the URL does not answer") from error
    return bytes(data)


def check_url(url: str, settings: ImportRules) -> tuple[httpx.URL, Address]:
    """The URL's parts and the address to connect to; refused unless the config allows it."""
    try:
        parts = httpx.URL(url)
    except (httpx.InvalidURL, ValueError, TypeError) as error:
        raise Refusal(422, "invalid", "the URL is not valid") from error
    schemes = ("https", "http") if settings.allow_private else ("https",)
    if parts.scheme not in schemes or parts.userinfo or not parts.host:
        raise Refusal(422, "invalid", f"the URL must be {' or '.join(schemes)}, without a password in it")
    if parts.host.casefold() not in {host.casefold() for host in settings.hosts}:
        raise Refusal(403, "forbidden", "this host is not in `imports.hosts` of the config")
    try:
        entries = socket.getaddrinfo(parts.host, parts.port or 443, type=socket.SOCK_STREAM)
        addresses = [ipaddress.ip_address(str(entry[4][0]).partition("%")[0]) for entry in entries]
    except (OSError, UnicodeError, ValueError) as error:
        raise Refusal(422, "import_failed", "this host is not found") from error
    if not settings.allow_private and not all(is_public(address) for address in addresses):
        raise Refusal(403, "forbidden", "this host has a private address")
    return parts, addresses[0]


def is_public(address: Address) -> bool:
    """True for a public internet address; an IPv4 address inside an IPv6 one is checked itself."""
    inner: Address = address
    if isinstance(address, ipaddress.IPv6Address):
        translated = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF) if address in _NAT64 else None
        inner = address.ipv4_mapped or address.sixtofour or translated or address
    return inner.is_global and not inner.is_multicast and not address.is_multicast
