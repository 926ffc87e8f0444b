"""HTTP requests with retries after 429, 5xx, failed connections and timeouts.

The API key comes from an environment variable and appears in no message, even where a server repeats it.
"""

from __future__ import annotations

import os
import random
import time
from email.utils import parsedate_to_datetime
from threading import Event
from typing import Any

import httpx

from rewrite.errors import BackendDown, RewriteError
from rewrite.settings import ServerSettings

FIRST_WAIT = 0.5
"""Maximum seconds before the second attempt; the maximum doubles with every further one."""
MAX_RETRY_AFTER = 60.0
"""Seconds that a server may ask to wait (Retry-After); one that asks for more counts as down."""


class HttpClient:
    """Client of one server."""

    def __init__(self, settings: ServerSettings) -> None:
        self.url = settings.url.rstrip("/")
        self._timeout, self._retries = settings.timeout, settings.retries
        self._key = os.environ.get(settings.key_variable, "").strip()
        if not _is_plain(self.url):
            raise RewriteError(
                "a server's url is like http://localhost:8000/v1 and holds no password; "
                f"put the key into ${settings.key_variable}"
            )
        if not (self._key.isascii() and self._key.isprintable()):
            raise RewriteError(
                f"${settings.key_variable} is no API key: it holds characters other than printable ASCII"
            )
        self._client = httpx.Client(
            headers={"Authorization": f"Bearer {self._key}"} if self._key else {},
            timeout=httpx.Timeout(settings.timeout, pool=None),
            limits=httpx.Limits(max_connections=settings.concurrency),
        )
        self._random = random.Random()  # leaves the global random numbers alone

    def send(
        self, method: str, url: str, body: Any = None, stop: Event | None = None, retry: bool = True
    ) -> httpx.Response:
        """The server's final response, success or refusal; BackendDown where there is none.

        `stop` ends the waiting. Without `retry` any response is final, even a 5xx.
        """
        stop, reason = stop or Event(), ""
        for attempt in range(self._retries + 1):
            delay = 0.0
            try:
                response = self._request(method, url, body)
                if not retry or (response.status_code not in (408, 429) and response.status_code < 500):
                    return response
                reason, delay = self.message(response), _retry_after(response)
            except httpx.TimeoutException:
                reason = f"no answer within {self._timeout:g} seconds"
            except httpx.RequestError as error:
                reason = str(error) or type(error).__name__
            wait = delay + self._random.uniform(0, FIRST_WAIT * 2**attempt)
            if delay > MAX_RETRY_AFTER or attempt == self._retries or stop.wait(wait):
                break
        raise BackendDown(f"the server {self.url} does not answer ({reason}); check that it runs, and its url")

    def _request(self, method: str, url: str, body: Any) -> httpx.Response:
        """A response that is complete within the timeout: the library's own timeout is per chunk, and some servers send
        empty lines while they compute."""
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
        """The server's error message without the key."""
        try:
            facts = response.json()
            error = facts.get("error", facts)
            text = error.get("message") or error.get("detail") if isinstance(error, dict) else error
        except (ValueError, AttributeError):
            text = None
        words = " ".join(str(text or response.text).split())
        words = words.replace(self._key, "***") if self._key else words
        return f"{response.status_code} {words[:300]}".strip()


def _is_plain(url: str) -> bool:
    try:
        parts = httpx.URL(url)
    except httpx.InvalidURL:
        return False
    return bool(parts.host) and not parts.userinfo and not parts.query


def _retry_after(response: httpx.Response) -> float:
    """Seconds of the Retry-After header, which holds seconds or a date."""
    value = response.headers.get("Retry-After", "0")
    try:
        seconds = float(value)
    except ValueError:
        try:
            seconds = parsedate_to_datetime(value).timestamp() - time.time()
        except ValueError:
            return 0.0
    return max(0.0, seconds)
