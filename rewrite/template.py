"""A prompt template: one object that writes prompts and parses answers, in training, evaluation and serving alike.

A template is a YAML file. Its answer is one query per line, or the word for "no rewrite needed":

    name: needs
    version: 1
    system: ...                     the system message
    user: "{utterance}"             the user message; {candidates} where tools are shown
    candidate: "- {text}"           format of a shown tool
    candidates: 0                   number of the raw query's tools that are shown
    line: "- {query}"               format of a line of the answer
    none: NONE                      the answer that leaves the query alone
    max_lines: 6                    lines read of an answer; the rest is dropped
    max_characters: 160             characters read of a line; the rest is dropped
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import regex
import yaml

from rewrite.errors import RewriteError
from rewrite.types import Answer, Outcome, Prompt, Rewrite, RewriteRequest, Status

BUNDLED = Path(__file__).parent / "templates"
TEMPLATE_FILE = "template.yaml"
"""The template's file in a rewriter's folder."""
_CONTROLS = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]+")
_BREAK = re.compile(r"[\r\n\u2028\u2029]+")
# Marks that end or open a turn in common chat formats: disarmed in a user's text.
_TURNS = re.compile(r"<(?=\|)|<(?=/?(?:s|start_of_turn|end_of_turn|eos|bos)>)|\[(?=/?(?:INST|SYS)\])")
# Thoughts of a reasoning model. Some open them in the prompt, and the token limit may cut them.
_THOUGHTS = re.compile(r"\A.*</think>|<think>.*", re.DOTALL)
_BULLET = r"(?:[-*•]|\d{1,2}[.)])"
_WORD = re.compile(r"[^\W_]+")
_MARK_RUNS = regex.compile(r"\p{M}{31,}")
"""More marks than any letter has; bringing them into their normal order takes quadratic time."""
_ROUND_TRIPS = (("find flights",), ("weather forecast by city", "convert a currency"), ())


@dataclass(frozen=True, slots=True)
class Template:
    """Writes prompts, parses answers."""

    name: str
    version: int
    system: str
    user: str
    line: str = "- {query}"
    none: str = "NONE"
    candidates: int = 0
    candidate: str = "- {text}"
    max_lines: int = 6
    max_characters: int = 160

    def __post_init__(self) -> None:
        if self.user.count("{utterance}") != 1 or self.line.count("{query}") != 1:
            raise RewriteError(
                f"the template {self.name} must hold {{utterance}} once in `user` and {{query}} once in `line`"
            )
        if (self.candidates > 0) != ("{candidates}" in self.user) or self.candidate.count("{text}") != 1:
            raise RewriteError(
                f"the template {self.name} shows {self.candidates} candidates: `user` must hold {{candidates}} exactly "
                "when there are some, and `candidate` must hold {text} once"
            )
        if min(self.max_lines, self.max_characters) < 1 or self.candidates < 0 or not _normalize(self.none):
            raise RewriteError(
                f"the template {self.name}: max_lines and max_characters are at least 1, `none` is a word"
            )
        for lines in _ROUND_TRIPS:
            expected = tuple(line[: self.max_characters].strip() for line in lines[: self.max_lines])
            parsed = self.parse(Answer(self.write(expected), 0))
            if parsed.lines != expected or parsed.status != ("rewritten" if expected else "none"):
                raise RewriteError(
                    f"the template {self.name} does not parse its own answers: {self.write(expected)!r} is parsed as "
                    f"{list(parsed.lines)}; change its `line` or `none`"
                )

    def render(self, request: RewriteRequest) -> Prompt:
        """The prompt of one query. The utterance is never cut."""
        shown = [self.candidate.replace("{text}", self.clean(text)) for text in request.candidates[: self.candidates]]
        parts = re.split(r"(\{utterance\}|\{candidates\})", self.user)
        values = {"{utterance}": _disarm(request.utterance).strip(), "{candidates}": "\n".join(shown)}
        content = "".join(values.get(part, part) for part in parts)
        system = [{"role": "system", "content": self.system.strip()}] if self.system.strip() else []
        return [*system, {"role": "user", "content": content}]

    def write(self, lines: Sequence[str]) -> str:
        """The answer that `parse` reads as these lines."""
        kept = [cleaned for line in lines[: self.max_lines] if (cleaned := self.clean(line))]
        return "\n".join(self.line.replace("{query}", line) for line in kept) or self.none

    def parse(self, answer: Answer) -> Rewrite:
        """Parses a model's answer. Nothing in it is trusted: lines are cleaned, shortened and limited in number."""
        before, _, after = self.line.partition("{query}")
        start = _BULLET if before.strip() == "-" else re.escape(before.strip())
        pattern = re.compile(rf"{start}\s*(.+?)\s*{re.escape(after.strip())}$")
        queries: dict[str, None] = {}
        for row in _BREAK.split(drop_cut_line(_THOUGHTS.sub("", answer.text), answer.finished)):
            match = pattern.match(row.strip())
            line = self.clean(match[1]) if match else ""
            if _normalize(self.none) in (_normalize(row), _normalize(line)):
                if not queries:
                    return Rewrite((), "none", answer.text, answer.tokens, answer.finished)
            elif line:  # NONE after other lines means nothing
                queries.setdefault(line)
        lines = tuple(queries)[: self.max_lines]
        status: Status = "rewritten" if lines else "unparseable"
        votes = answer.votes if len(answer.votes) == len(lines) else ()
        return Rewrite(lines, status, answer.text, answer.tokens, answer.finished, votes=votes)

    def outcome(self, rewrite: Rewrite, utterance: str) -> Outcome:
        """The status of a rewrite; `echo` where every line is the utterance, but for case and punctuation."""
        words = _words(self.clean(utterance))
        is_echo = rewrite.status == "rewritten" and all(_words(line) == words for line in rewrite.lines)
        return "echo" if is_echo else rewrite.status

    def clean(self, text: str) -> str:
        """One line without control characters, at most `max_characters` long."""
        line, limit = " ".join(_disarm(text).split()), self.max_characters
        last_space = line[:limit].rfind(" ") if len(line) > limit and line[limit] != " " else 0
        return line[: last_space if last_space > limit // 2 else limit].strip()

    def dump(self) -> str:
        """The template as YAML."""
        facts = {field.name: getattr(self, field.name) for field in fields(self)}
        return yaml.safe_dump(facts, sort_keys=False, allow_unicode=True, width=100)


def _normalize(text: str) -> str:
    return text.strip(" .-*\"'`").casefold()


def _words(text: str) -> list[str]:
    return _WORD.findall(unicodedata.normalize("NFKC", _MARK_RUNS.sub("", text)).casefold())


def drop_cut_line(text: str, finished: bool) -> str:
    """An answer without a last line that was cut at the token limit, unless it is the only one."""
    bare = text.strip()
    breaks = [] if finished else list(_BREAK.finditer(bare))
    return bare[: breaks[-1].start()] if breaks else bare


def _disarm(text: str) -> str:
    """Text without control characters and without marks that could end a turn."""
    return _TURNS.sub(lambda match: match[0] + " ", _CONTROLS.sub(" ", text))


def load_template(reference: str | Path) -> Template:
    """Loads a template by the name of a bundled one, by its file, or by the rewriter folder that holds it.

    Only a string names a bundled one; a Path is a path, even to a folder called `needs`.
    """
    bundled = BUNDLED / f"{reference}.yaml"
    named = isinstance(reference, str) and re.fullmatch(r"[a-z][a-z0-9-]*", reference) and bundled.is_file()
    path = bundled if named else Path(reference)
    if path.is_dir():
        path = path / TEMPLATE_FILE
    if not path.is_file():
        known = ", ".join(sorted(file.stem for file in BUNDLED.glob("*.yaml")))
        raise RewriteError(f"no template {reference}; give a YAML file or one of {known}")
    try:
        facts = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise RewriteError(f"{path} is not a template: {' '.join(str(error).split())}") from error
    return _from_yaml(facts, path)


def _from_yaml(facts: Any, path: Path) -> Template:
    known = {field.name: str(field.type) for field in fields(Template)}
    types: dict[str, type] = {"str": str, "int": int}
    if not isinstance(facts, dict):
        raise RewriteError(f"{path} is not a template: it holds no keys")
    for key, value in facts.items():
        if key not in known:
            raise RewriteError(f"{path}: unknown key {key}; a template has {', '.join(known)}; rename or remove it")
        if type(value) is not types[known[key]]:
            raise RewriteError(
                f"{path}: {key} must be {'text' if known[key] == 'str' else 'a whole number'}, not {value!r}"
            )
    missing = [key for key in ("name", "version", "system", "user") if key not in facts]
    if missing:
        raise RewriteError(f"{path}: the key {missing[0]} is missing")
    return Template(**facts)
