"""The call of an operation, as one line of JSON; retrieval does not use it.

    {"method": "PUT", "server": "https://pets.example/v2", "path": "/pets/{id}", "version": "2.1",
     "parameters": [{"name": "id", "in": "path"}, {"name": "tag", "in": "body"}],
     "body": {"media_type": "application/json"},
     "security": [{"key": {"type": "apiKey", "in": "header", "name": "X-Key"}}]}

Missing keys: the document does not say. `security` lists alternatives; each may ask for several schemes, and `{}` asks
for none. Scopes are listed under `scopes`.
"""

from __future__ import annotations

from collections.abc import Mapping

from retrievers.catalogue.fields import text_or_nothing, tidy
from retrievers.catalogue.openapi.references import References
from retrievers.catalogue.schema import compact
from retrievers.errors import BadInput

_SCHEME = ("type", "in", "name", "scheme", "bearerFormat", "openIdConnectUrl", "flow", "tokenUrl", "authorizationUrl")


def call_of(
    references: References,
    document: Mapping[str, object],
    item: Mapping[str, object],
    operation: Mapping[str, object],
    endpoint: tuple[str, str],
    placed: Mapping[str, object],
) -> str:
    """The call of the operation. Parts that are wrong are left out: the tool can be found without them."""
    method, path = endpoint
    info = document.get("info")
    facts: dict[str, object] = {
        "method": method.upper(),
        "server": _server(document, item, operation),
        "path": tidy(path),
        "version": text_or_nothing(info, "version") if isinstance(info, dict) else "",
        **placed,
        "security": _security(references, document, operation),
    }
    return compact({key: value for key, value in facts.items() if value not in ("", None)})


def _server(document: Mapping[str, object], item: Mapping[str, object], operation: Mapping[str, object]) -> str:
    """The first server's address with the defaults of its variables."""
    for holder in (operation, item, document):
        servers = holder.get("servers")
        if isinstance(servers, list) and servers and isinstance(servers[0], dict):
            url = text_or_nothing(servers[0], "url")
            variables = servers[0].get("variables")
            for name, variable in variables.items() if isinstance(variables, dict) else ():
                default = variable.get("default") if isinstance(variable, dict) else None
                url = url.replace(f"{{{name}}}", str(default)) if default is not None else url
            return url.rstrip("/")
    host = text_or_nothing(document, "host")
    schemes = operation.get("schemes", document.get("schemes"))
    names = [name for name in schemes if isinstance(name, str)] if isinstance(schemes, list) else []
    scheme = "https" if "https" in names or not names else names[0]
    base = text_or_nothing(document, "basePath").rstrip("/")
    return f"{scheme}://{tidy(host)}{base}" if host else base


def _security(
    references: References, document: Mapping[str, object], operation: Mapping[str, object]
) -> list[dict[str, object]] | None:
    alternatives = operation.get("security", document.get("security"))
    if not isinstance(alternatives, list):
        return None
    components = document.get("components")
    schemes = components.get("securitySchemes") if isinstance(components, dict) else None
    schemes = schemes if isinstance(schemes, dict) else document.get("securityDefinitions")
    known = schemes if isinstance(schemes, dict) else {}
    return [
        {tidy(name): _scheme(references, known.get(name), scopes) for name, scopes in alternative.items()}
        for alternative in alternatives
        if isinstance(alternative, dict)
    ]


def _scheme(references: References, value: object, scopes: object) -> dict[str, object]:
    try:
        scheme = references.follow(value, "security")
    except BadInput:
        return {}
    facts = {key: scheme[key] for key in _SCHEME if key in scheme}
    if isinstance(flows := scheme.get("flows"), dict):
        # Lists of all scopes are long, and the operation names those it needs.
        facts["flows"] = {
            name: {key: part for key, part in flow.items() if key != "scopes"}
            for name, flow in flows.items()
            if isinstance(flow, dict)
        }
    return {**facts, "scopes": scopes} if isinstance(scopes, list) and scopes else facts
