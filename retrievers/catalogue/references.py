"""An OpenAPI document's $refs: followed for its objects, spelled out in its schemas.

A schema that leaves the document must stand alone, so its $refs are replaced by what they point at. Types that hold
themselves, or trees of types wide enough to fill the memory, end in a note that names the type instead.
"""

from __future__ import annotations

from collections.abc import Mapping

from retrievers.catalogue.fields import as_object
from retrievers.catalogue.pointers import pointed
from retrievers.errors import BadInput

DEPTHS = (5, 3, 2)
"""$refs within $refs that are spelled out: the first of these that keeps the schema within its length."""
LONGEST = 20_000
"""Characters of a spelled-out schema, about; an agent cannot be shown more of them."""
OVERLONG = 400_000
"""Characters at which even the top level is cut off: no document, but an attack, gets here."""

_NAMED = {"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"}
_LITERAL = {"default", "enum", "const", "required", "type"}
_LISTED = {"allOf", "anyOf", "oneOf", "prefixItems", "items"}
_ASIDE = {"example", "examples", "xml", "externalDocs", "discriminator"}


class References:
    """Looks up the $refs of one document."""

    def __init__(self, document: Mapping[str, object]) -> None:
        self._document = document
        self._spelled: dict[str, dict[str, object]] = {}

    def followed(self, value: object, place: str) -> dict[str, object]:
        """The object behind a chain of $refs; what stands beside a $ref wins over what it points at."""
        found = as_object(value, place)
        seen: set[str] = set()
        while isinstance(reference := found.get("$ref"), str):
            if reference in seen:
                raise BadInput(f"{place}: the $ref {reference!r} leads back to itself; point it at a definition")
            seen.add(reference)
            found = _beside(found, self.target(reference, place))
        return found

    def spelled_out(self, schema: object, place: str) -> dict[str, object]:
        """A schema without $refs. It may be shared, and is not to be changed."""
        alone = schema["$ref"] if isinstance(schema, dict) and schema.keys() == {"$ref"} else None
        if not isinstance(alone, str):
            return self._fitting(schema, place)
        if alone not in self._spelled:  # create, replace and update take the same type
            self._spelled[alone] = self._fitting(schema, place)
        return self._spelled[alone]

    def _fitting(self, schema: object, place: str) -> dict[str, object]:
        """The schema spelled out as deeply as its length allows."""
        for depth in DEPTHS:
            speller = _Speller(self, place, depth, LONGEST)
            spelled = speller.schema(schema, ())
            if speller.left > 0:
                break
        else:
            # Cutting at a length would lose arguments; cutting at a depth only says less about each.
            spelled = _Speller(self, place, 1, OVERLONG).schema(schema, ())
        return spelled if isinstance(spelled, dict) else {}

    def target(self, reference: str, place: str) -> dict[str, object]:
        """The object a $ref points at."""
        if not reference.startswith("#"):
            raise BadInput(f"{place}: the $ref {reference!r} leaves the file; bundle the document into one file first")
        target = pointed(self._document, reference)
        if not isinstance(target, dict):
            raise BadInput(f"{place}: the $ref {reference!r} points at no object in the file; define it or correct it")
        return target


class _Speller:
    """Spells out one schema, and counts what is left of its length."""

    def __init__(self, references: References, place: str, depth: int, length: int) -> None:
        self._references = references
        self._place = place
        self._depth = depth
        self.left = length

    def schema(self, value: object, within: tuple[str, ...]) -> object:
        """The schema with its $refs replaced; `within` are those being replaced right now."""
        if not isinstance(value, dict):
            return value if isinstance(value, bool) else {}
        reference = value.get("$ref")
        if isinstance(reference, str):
            target = self._references.target(reference, self._place)
            if reference in within or len(within) >= self._depth or self.left <= 0:
                self.left -= 60  # about the length of the note
                return _note(reference, target)
            return self.schema(_beside(value, target), (*within, reference))
        found: dict[str, object] = {}
        for key, part in value.items():
            if key in _ASIDE or key.startswith("x-"):
                continue
            self.left -= len(key) + 6
            if self.left <= 0:
                break
            found[key] = self._part(key, part, within)
        return found

    def _part(self, key: str, part: object, within: tuple[str, ...]) -> object:
        if isinstance(part, list) and key in _LISTED:
            return [self.schema(inner, within) for inner in part if self.left > 0]
        if key in _LITERAL or not isinstance(part, dict):
            return self._literal(part)
        if key not in _NAMED:
            return self.schema(part, within)
        named: dict[str, object] = {}
        for name, inner in part.items():
            self.left -= len(name) + 6
            if self.left > 0:
                named[name] = self.schema(inner, within)
        return named

    def _literal(self, value: object) -> object:
        self.left -= len(value) if isinstance(value, str) else 6
        if isinstance(value, dict):
            return {key: self._literal(inner) for key, inner in value.items() if self.left > 0}
        if isinstance(value, list):
            return [self._literal(inner) for inner in value if self.left > 0]
        return value


def _beside(value: Mapping[str, object], target: Mapping[str, object]) -> dict[str, object]:
    return {**target, **{key: part for key, part in value.items() if key != "$ref"}}


def _note(reference: str, target: Mapping[str, object]) -> dict[str, object]:
    name = reference.rpartition("/")[2]
    kinds = {"type": target["type"]} if isinstance(target.get("type"), str) else {}
    return {**kinds, "description": f"{name}, not spelled out again"}
