"""Requests to a server, sent again for as long as it makes sense: 429, 5xx, connections that fail, timeouts.

The key comes from an environment variable and is in no message: a server that repeats it is not quoted with it.
"""

from __future__ import annotations

import os
import random
import time
from email.utils import parsedate_to_datetime
from threading import Event
from typing import Any

import httpx

from rewrite.errors import BackendDown, Unfit
from rewrite.settings import ServerSettings

FIRST_WAIT = 0.5
"""Seconds before the second try at the most; every further wait may be twice as long."""
LONGEST_WAIT = 60.0
"""Seconds that a server may ask to be left alone; one that wants more is down."""


class HttpClient:
    """One server, its key, and how often it is asked again."""

    def __init__(self, settings: ServerSettings) -> None:
        self.url = settings.url.rstrip("/")
        self._timeout, self._retries = settings.timeout, settings.retries
        self._key = os.environ.get(settings.key_variable, "").strip()
        if not _plain(self.url):
            raise Unfit(
                "the url of a server is like http://localhost:8000/v1 and holds no password; "
                f"put the key into ${settings.key_variable}"
            )
        if not (self._key.isascii() and self._key.isprintable()):
            raise Unfit(f"${settings.key_variable} is no API key: it holds more than plain letters")
        self._client = httpx.Client(
            headers={"Authorization": f"Bearer {self._key}"} if self._key else {},
            timeout=httpx.Timeout(settings.timeout, pool=None),
            limits=httpx.Limits(max_connections=settings.concurrency),
        )
        self._random = random.Random()  # the caller's random numbers are the caller's

    def send(
        self, method: str, url: str, body: Any = None, stop: Event | None = None, again: bool = True
    ) -> httpx.Response:
        """A response that is the server's word, good or bad; BackendDown where there is none.

        `stop` ends the waiting. `again` is False where any response is such a word, even a 5xx.
        """
        stop, reason = stop or Event(), ""
        for attempt in range(self._retries + 1):
            asked = 0.0
            try:
                response = self._whole(method, url, body)
                if not again or (response.status_code not in (408, 429) and response.status_code < 500):
                    return response
                reason, asked = self.message(response), _retry_after(response)
            except httpx.TimeoutException:
                reason = f"no answer within {self._timeout:g} seconds"
            except httpx.RequestError as error:
                reason = str(error) or type(error).__name__
            wait = asked + self._random.uniform(0, FIRST_WAIT * 2**attempt)
            if asked > LONGEST_WAIT or attempt == self._retries or stop.wait(wait):
                break
        raise BackendDown(f"the server {self.url} does not answer ({reason}); is it up, and is its url right?")

    def _whole(self, method: str, url: str, body: Any) -> httpx.Response:
        """A response that came within the timeout: the library's own is for each piece of one, and some servers send
        empty lines for as long as they compute."""
        deadline, pieces = time.monotonic() + self._timeout, list[bytes]()
        with self._client.stream(method, url, json=body) as response:
            for piece in response.iter_raw():
                pieces.append(piece)
                if time.monotonic() > deadline:
                    raise httpx.ReadTimeout("", request=response.request)
        return httpx.Response(
            response.status_code, headers=response.headers, content=b"".join(pieces), request=response.request
        )

    def message(self, response: httpx.Response) -> str:
        """The server's own words, less the key should it repeat it."""
        try:
            facts = response.json()
            told = facts.get("error", facts)
            text = told.get("message") or told.get("detail") if isinstance(told, dict) else told
        except (ValueError, AttributeError):
            text = None
        words = " ".join(str(text or response.text).split())
        words = words.replace(self._key, "***") if self._key else words
        return f"{response.status_code} {words[:300]}".strip()


def _plain(url: str) -> bool:
    try:
        parts = httpx.URL(url)
    except httpx.InvalidURL:
        return False
    return bool(parts.host) and not parts.userinfo and not parts.query


def _retry_after(response: httpx.Response) -> float:
    """Seconds for which the server asks to be left alone, told as seconds or as a date."""
    told = response.headers.get("Retry-After", "0")
    try:
        seconds = float(told)
    except ValueError:
        try:
            seconds = parsedate_to_datetime(told).timestamp() - time.time()
        except ValueError:
            return 0.0
    return max(0.0, seconds)
