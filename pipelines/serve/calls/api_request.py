"""Turn a tool's `call` record and arguments into an HTTP request.

Arguments become parts of the path, the query, headers, cookies or the body, as the OpenAPI document places them; none
of them can change the host, or leave its part of the path.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, urlencode

from pipelines.serve.calls.outcomes import CallFailure

READ_ONLY = ("GET", "HEAD", "OPTIONS", "QUERY")
METHODS = (*READ_ONLY, "POST", "PUT", "PATCH", "DELETE")
DESTRUCTIVE = ("PUT", "PATCH", "DELETE")
_SEPARATORS = {"spaceDelimited": " ", "pipeDelimited": "|"}
_RESERVED = {
    "host", "content-length", "transfer-encoding", "connection", "upgrade", "expect", "te", "trailer", "cookie",
    "authorization", "proxy-authorization", "x-http-method", "x-http-method-override", "x-method-override",
}  # fmt: skip
"""Headers that no argument may set."""


@dataclass(slots=True)
class ApiRequest:
    """A request without its base URL."""

    method: str
    path: str
    query: list[tuple[str, str]] = field(default_factory=list)
    headers: dict[str, str] = field(default_factory=dict)
    cookies: dict[str, str] = field(default_factory=dict)
    body: bytes | None = None

    def url(self, base: str) -> str:
        """The whole address."""
        query = urlencode(self.query, quote_via=quote)
        return base.rstrip("/") + self.path + (f"?{query}" if query else "")

    def all_headers(self) -> dict[str, str]:
        """Headers with the cookies."""
        cookies = "; ".join(f"{name}={quote(value, safe='')}" for name, value in self.cookies.items())
        return {**self.headers, **({"Cookie": cookies} if cookies else {})}


def build_request(call: Mapping[str, Any], arguments: Mapping[str, Any]) -> ApiRequest:
    """The request that calls the tool with these arguments."""
    method, path = str(call.get("method", "")), str(call.get("path", ""))
    if method not in METHODS or not path.startswith("/"):
        raise CallFailure("not_callable", "the catalogue does not say how this tool is called")
    request, body = ApiRequest(method, path), dict[str, Any]()
    parameters = [item for item in call.get("parameters", []) if isinstance(item, dict)]
    if unknown := [str(name)[:60] for name in arguments if name not in {item.get("name") for item in parameters}]:
        known = ", ".join(str(item.get("name")) for item in parameters[:20]) or "none"
        raise CallFailure("arguments", f"unknown argument {', '.join(unknown[:5])}; the tool has {known}")
    for parameter in parameters:
        name, goes = str(parameter.get("name")), parameter.get("in")
        if name not in arguments:
            continue
        value = arguments[name]
        match goes:
            case "path":
                request.path = request.path.replace(f"{{{name}}}", _path_part(name, value))
            case "query":
                request.query += _query(name, value, parameter)
            case "header" if name.lower() not in _RESERVED:
                request.headers[name] = _header(name, value)
            case "cookie":
                request.cookies[name] = _text(value)
            case "body":
                body[name] = value
    if "{" in request.path:
        missing = request.path.partition("{")[2].partition("}")[0][:60]
        raise CallFailure("arguments", f"missing: {missing}, a part of the tool's path")
    if body:
        _set_body(request, call.get("body") or {}, body)
    return request


def add_credentials(request: ApiRequest, security: Any, secret: str, provider: str) -> None:
    """Put the secret where the document wants it. Without a statement of the document it is a bearer token."""
    if security == [] or (not secret and (not security or {} in security)):
        return
    schemes = [alternative for alternative in security or [{"": {"type": "oauth2"}}] if alternative]
    single = next((alternative for alternative in schemes if len(alternative) == 1), None)
    if single is None:
        raise CallFailure("not_callable", f"{provider} wants several credentials at once, which is not supported")
    if not secret:
        message = f"{provider} needs credentials, which this server does not have; its operator can set `key_variable`"
        raise CallFailure("unavailable", message)
    [scheme] = single.values()
    name, goes = str(scheme.get("name", "")), scheme.get("in")
    match scheme.get("type"):
        case "apiKey" if goes == "query":
            request.query = [pair for pair in request.query if pair[0] != name] + [(name, secret)]
        case "apiKey" if goes == "cookie":
            request.cookies[name] = secret
        case "apiKey":
            same = [header for header in request.headers if header.lower() == name.lower()]
            for header in same:  # of an argument
                del request.headers[header]
            request.headers[name or "Authorization"] = secret
        case "basic":
            request.headers["Authorization"] = _basic(secret)
        case "http" if str(scheme.get("scheme", "")).lower() == "basic":
            request.headers["Authorization"] = _basic(secret)
        case _:
            request.headers["Authorization"] = f"Bearer {secret}"


def _basic(secret: str) -> str:
    return "Basic " + base64.b64encode(secret.encode()).decode()


def _set_body(request: ApiRequest, sending: Mapping[str, Any], body: dict[str, Any]) -> None:
    media = str(sending.get("media_type") or "application/json")
    value = body.get("body") if sending.get("whole") else body
    if "json" in media or media == "*/*":
        request.headers["Content-Type"] = "application/json" if media == "*/*" else media
        request.body = json.dumps(value, ensure_ascii=False).encode()
    elif media == "application/x-www-form-urlencoded" and isinstance(value, dict):
        request.headers["Content-Type"] = media
        pairs = [pair for name, field_value in value.items() for pair in _query(name, field_value, {})]
        request.body = urlencode(pairs).encode()
    elif media.startswith("text/") or isinstance(value, str):
        request.headers["Content-Type"] = media
        request.body = _text(value).encode()
    else:
        raise CallFailure("not_callable", f"bodies of type {media} are not supported here")


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if value is None:
        return ""
    return json.dumps(value, ensure_ascii=False) if isinstance(value, dict | list) else str(value)


def _path_part(name: str, value: Any) -> str:
    text = ",".join(map(_text, value)) if isinstance(value, list) else _text(value)
    if text in ("", ".", ".."):
        raise CallFailure("arguments", f"argument {name!r} is a part of the path: it must not be empty or only dots")
    return quote(text, safe=",")


def _header(name: str, value: Any) -> str:
    text = ",".join(map(_text, value)) if isinstance(value, list) else _text(value)
    if not text.isprintable() or not text.isascii():
        raise CallFailure("arguments", f"argument {name!r} is a header: it must be printable ASCII on one line")
    return text


def _query(name: str, value: Any, parameter: Mapping[str, Any]) -> list[tuple[str, str]]:
    style = str(parameter.get("style") or {"multi": "form", "ssv": "spaceDelimited", "pipes": "pipeDelimited"}.get(
        str(parameter.get("collectionFormat")), "form"
    ))  # fmt: skip
    explodes = bool(parameter.get("explode", style == "form" and parameter.get("collectionFormat") in (None, "multi")))
    if isinstance(value, dict):
        if style == "deepObject":
            return [(f"{name}[{key}]", _text(part)) for key, part in value.items()]
        return [(str(key), _text(part)) for key, part in value.items()] if explodes else [(name, _text(value))]
    if isinstance(value, list):
        if explodes:
            return [(name, _text(part)) for part in value]
        return [(name, _SEPARATORS.get(style, ",").join(map(_text, value)))]
    return [(name, _text(value))]
