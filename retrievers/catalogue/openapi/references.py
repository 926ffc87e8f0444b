"""The $refs of an OpenAPI document: followed for its objects, replaced in its schemas.

A $ref may lead to another file in the folder of the document, or in the folder that was given; never further, and never
to the network. A schema that leaves the document has its $refs replaced by their targets. Recursive types, and trees
of types wide enough to fill the memory, end in a note that names the type.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from urllib.parse import quote, unquote

from retrievers.catalogue.fields import as_object
from retrievers.catalogue.plain_text import plain_text
from retrievers.catalogue.schema import resolve_pointer
from retrievers.catalogue.source import CatalogueSource
from retrievers.errors import BadInput

DEPTHS = (5, 3, 2)  # levels of $refs that are replaced: the first of these that keeps the schema within its length
MAX_SCHEMA = 20_000  # approximate characters of a schema; an agent cannot be shown more
MAX_TOP_LEVEL = 400_000  # characters at which even the top level is cut: only an attack gets here

_NAMED = {"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"}
_LITERAL = {"default", "enum", "const", "required", "type"}
_LISTED = {"allOf", "anyOf", "oneOf", "prefixItems", "items"}
_IGNORED = {"example", "examples", "xml", "externalDocs", "discriminator"}


def load(source: CatalogueSource) -> object:
    """The value of a JSON or YAML file."""
    if source.text.lstrip().startswith(("{", "[")):
        return source.document
    from retrievers.catalogue.openapi.yaml_values import yaml_document

    return yaml_document(source.text, source.path)


class References:
    """Looks up the $refs of one document and of the files it points at."""

    def __init__(self, document: Mapping[str, object], source: CatalogueSource) -> None:
        self.source = source
        self._files: dict[Path, object] = {source.path.resolve(): document}
        self._inlined: dict[str, dict[str, object]] = {}

    def follow(self, value: object, location: str) -> dict[str, object]:
        """The object behind a chain of $refs; keys next to a $ref win over those of its target."""
        target = as_object(value, location)
        seen: set[str] = set()
        while isinstance(reference := target.get("$ref"), str):
            if reference in seen:
                raise BadInput(f"{location}: the $ref {reference!r} leads back to itself; point it at a definition")
            seen.add(reference)
            target = _overlay(target, self.target(reference, location))
        return target

    def inline(self, schema: object, location: str) -> dict[str, object]:
        """A schema without $refs. It may be shared, so it must not be changed."""
        alone = schema["$ref"] if isinstance(schema, dict) and schema.keys() == {"$ref"} else None
        if not isinstance(alone, str):
            return self._inline_within_length(schema, location)
        if alone not in self._inlined:  # create, replace and update take the same type
            self._inlined[alone] = self._inline_within_length(schema, location)
        return self._inlined[alone]

    def _inline_within_length(self, schema: object, location: str) -> dict[str, object]:
        for depth in DEPTHS:
            inliner = _Inliner(self, location, depth, MAX_SCHEMA)
            inlined = inliner.schema(schema, ())
            if inliner.left > 0:
                break
        else:
            # Cutting at a length would lose arguments; cutting at a depth only says less about each.
            inlined = _Inliner(self, location, 1, MAX_TOP_LEVEL).schema(schema, ())
        return inlined if isinstance(inlined, dict) else {}

    def target(self, reference: str, location: str) -> dict[str, object]:
        """The object a $ref points at."""
        name, _, pointer = reference.partition("#")
        path = self.source.path.resolve() if not name else self._inside(name, reference, location)
        if path not in self._files:
            self._files[path] = self._load(path, reference, location)
        target = resolve_pointer(self._files[path], f"#{pointer}")
        if not isinstance(target, dict):
            raise BadInput(
                f"{location}: the $ref {reference!r} points at no object in the file; define it or correct it"
            )
        return target

    def _inside(self, name: str, reference: str, location: str) -> Path:
        """The file of a $ref, which has to be inside the folder."""
        root = self.source.root.resolve()
        if "://" in name or name.startswith("//"):
            raise BadInput(f"{location}: the $ref {reference!r} is on the network; download it and point at the file")
        try:
            path = (self.source.path.resolve().parent / unquote(name)).resolve()
            is_file = path.is_relative_to(root) and path.is_file()
        except (OSError, ValueError):  # a name too long, a NUL in it
            is_file = False
        if not is_file:
            raise BadInput(
                f"{location}: the $ref {reference!r} is no file inside the folder; give the folder that holds all "
                "files, or bundle them into one"
            )
        return path

    def _load(self, path: Path, reference: str, location: str) -> object:
        """Another file of the document, with $refs that no longer depend on the file they are in."""
        self.source.included.add(path)
        try:
            document = load(CatalogueSource(path))
        except BadInput as error:
            raise BadInput(f"{location}: the $ref {reference!r} cannot be read: {error}") from None
        _make_absolute(document, path)
        return document


def _make_absolute(document: object, path: Path) -> None:
    """Write every $ref of a file with the path of its file; values shared by YAML anchors are visited once."""
    waiting, seen = [document], set()
    while waiting:
        value = waiting.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, list):
            waiting.extend(value)
        elif isinstance(value, dict):
            waiting.extend(value.values())
            reference = value.get("$ref")
            if isinstance(reference, str) and "://" not in reference:
                name, mark, pointer = reference.partition("#")
                file = f"{quote(str(path.parent))}/{name}" if name else quote(str(path))
                value["$ref"] = f"{file}{mark}{pointer}"


class _Inliner:
    """Replaces the $refs of one schema, and counts the length left."""

    def __init__(self, references: References, location: str, depth: int, length: int) -> None:
        self._references = references
        self._place = location
        self._depth = depth
        self.left = length

    def schema(self, value: object, within: tuple[str, ...]) -> object:
        """The schema with its $refs replaced; `within` are those being replaced right now."""
        if not isinstance(value, dict):
            return value if isinstance(value, bool) else {}
        reference = value.get("$ref")
        if isinstance(reference, str):
            try:
                target = self._references.target(reference, self._place)
            except BadInput as error:
                self._references.source.skip(error)  # the tool is usable without the details of one argument
                return {}
            if reference in within or len(within) >= self._depth or self.left <= 0:
                self.left -= 60  # about the length of the note
                return _note(reference, target)
            return self.schema(_overlay(value, target), (*within, reference))
        result: dict[str, object] = {}
        for key, part in value.items():
            if key in _IGNORED or key.startswith("x-"):
                continue
            self.left -= len(key) + 6
            if self.left <= 0:
                break
            result[key] = self._part(key, part, within)
        return result

    def _part(self, key: str, part: object, within: tuple[str, ...]) -> object:
        if isinstance(part, list) and key in _LISTED:
            return [self.schema(inner, within) for inner in part if self.left > 0]
        if key in _LITERAL or not isinstance(part, dict):
            return self._literal(plain_text(part) if key == "description" and isinstance(part, str) else part)
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


def _overlay(value: Mapping[str, object], target: Mapping[str, object]) -> dict[str, object]:
    return {**target, **{key: part for key, part in value.items() if key != "$ref"}}


def _note(reference: str, target: Mapping[str, object]) -> dict[str, object]:
    name = reference.rpartition("/")[2]
    kinds = {"type": target["type"]} if isinstance(target.get("type"), str) else {}
    return {**kinds, "description": f"{name}, not spelled out again"}
