"""A prompt template: one object that writes prompts and reads answers, in training, evaluation and serving alike.

A template is a YAML file. Its answer is one query a line, or the word that says that no rewrite is needed:

    name: needs
    version: 1
    system: ...                     what the model is told once
    user: "{utterance}"             what it is asked; {candidates} where tools are shown
    candidate: "- {text}"           how one shown tool reads
    candidates: 0                   how many tools of the raw query are shown
    line: "- {query}"               how a line of the answer reads
    none: NONE                      the answer that leaves the query alone
    most_lines: 6                   lines read of an answer; the rest is dropped
    most_characters: 160            characters read of a line; the rest is dropped
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import yaml

from rewrite.errors import Unfit
from rewrite.types import Answer, Ask, Prompt, Rewrite, Status

HERE = Path(__file__).parent / "templates"
FILE = "template.yaml"
"""The template's file in a rewriter's folder."""
_CONTROLS = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]+")
_BREAK = re.compile(r"[\r\n\u2028\u2029]+")
# What ends or opens a turn in the chat formats about: in a user's text it must not.
_TURNS = re.compile(r"<(?=\|)|<(?=/?(?:s|start_of_turn|end_of_turn|eos|bos)>)|\[(?=/?(?:INST|SYS)\])")
# What a model that reasons puts before its answer. Some open it in the prompt, and a cap may end it in its midst.
_THOUGHTS = re.compile(r"\A.*</think>|<think>.*", re.DOTALL)
_BULLET = r"(?:[-*•]|\d{1,2}[.)])"
_PROOFS = (("find flights",), ("weather forecast by city", "convert a currency"), ())


@dataclass(frozen=True, slots=True)
class Template:
    """Writes prompts, reads answers."""

    name: str
    version: int
    system: str
    user: str
    line: str = "- {query}"
    none: str = "NONE"
    candidates: int = 0
    candidate: str = "- {text}"
    most_lines: int = 6
    most_characters: int = 160

    def __post_init__(self) -> None:
        if self.user.count("{utterance}") != 1 or self.line.count("{query}") != 1:
            raise Unfit(f"the template {self.name} must hold {{utterance}} once in `user` and {{query}} once in `line`")
        if (self.candidates > 0) != ("{candidates}" in self.user) or self.candidate.count("{text}") != 1:
            raise Unfit(
                f"the template {self.name} shows {self.candidates} candidates: `user` must hold {{candidates}} exactly "
                "when there are some, and `candidate` must hold {text} once"
            )
        if min(self.most_lines, self.most_characters) < 1 or self.candidates < 0 or not _word(self.none):
            raise Unfit(f"the template {self.name}: most_lines and most_characters are at least 1, `none` is a word")
        for lines in _PROOFS:
            meant = tuple(line[: self.most_characters].strip() for line in lines[: self.most_lines])
            read = self.parse(Answer(self.write(meant), 0))
            if read.lines != meant or read.status != ("rewritten" if meant else "none"):
                raise Unfit(
                    f"the template {self.name} does not read what it writes: {self.write(meant)!r} comes back as "
                    f"{list(read.lines)}; change its `line` or `none`"
                )

    def render(self, ask: Ask) -> Prompt:
        """The prompt of one query. The utterance goes in whole."""
        shown = [self.candidate.replace("{text}", self.clean(text)) for text in ask.candidates[: self.candidates]]
        parts = re.split(r"(\{utterance\}|\{candidates\})", self.user)
        values = {"{utterance}": _plain(ask.utterance).strip(), "{candidates}": "\n".join(shown)}
        content = "".join(values.get(part, part) for part in parts)
        system = [{"role": "system", "content": self.system.strip()}] if self.system.strip() else []
        return [*system, {"role": "user", "content": content}]

    def write(self, lines: Sequence[str]) -> str:
        """The answer that a model should give: what `parse` reads as these lines."""
        kept = [cleaned for line in lines[: self.most_lines] if (cleaned := self.clean(line))]
        return "\n".join(self.line.replace("{query}", line) for line in kept) or self.none

    def parse(self, answer: Answer) -> Rewrite:
        """What a model's answer asks for. Nothing in it is trusted: lines are capped, cleaned and counted."""
        before, _, after = self.line.partition("{query}")
        start = _BULLET if before.strip() == "-" else re.escape(before.strip())
        pattern = re.compile(rf"{start}\s*(.+?)\s*{re.escape(after.strip())}$")
        found: dict[str, None] = {}
        for row in _BREAK.split(uncut(_THOUGHTS.sub("", answer.text), answer.finished)):
            match = pattern.match(row.strip())
            line = self.clean(match[1]) if match else ""
            if _word(self.none) in (_word(row), _word(line)):
                if not found:
                    return Rewrite((), "none", answer.text, answer.tokens, answer.finished)
            elif line:  # `NONE` behind other lines asks for nothing
                found.setdefault(line)
        lines = tuple(found)[: self.most_lines]
        status: Status = "rewritten" if lines else "unparseable"
        return Rewrite(lines, status, answer.text, answer.tokens, answer.finished)

    def clean(self, text: str) -> str:
        """One line of text without control characters, at most `most_characters` long."""
        line, most = " ".join(_plain(text).split()), self.most_characters
        whole = line[:most].rfind(" ") if len(line) > most and line[most] != " " else 0
        return line[: whole if whole > most // 2 else most].strip()

    def dump(self) -> str:
        """The template as YAML."""
        facts = {field.name: getattr(self, field.name) for field in fields(self)}
        return yaml.safe_dump(facts, sort_keys=False, allow_unicode=True, width=100)


def _word(text: str) -> str:
    return text.strip(" .-*\"'`").casefold()


def uncut(text: str, finished: bool) -> str:
    """An answer without the line in whose midst a cap ended it, unless that is the only one."""
    bare = text.strip()
    breaks = [] if finished else list(_BREAK.finditer(bare))
    return bare[: breaks[-1].start()] if breaks else bare


def _plain(text: str) -> str:
    """Text without control characters, in which nothing can pass for the end of a turn."""
    return _TURNS.sub(lambda match: match[0] + " ", _CONTROLS.sub(" ", text))


def load_template(reference: str | Path) -> Template:
    """A template by the name of a bundled one, by its file, or by the rewriter folder that holds it.

    A bundled one is named by a text: a path is a path, even to a folder called `needs`.
    """
    bundled = HERE / f"{reference}.yaml"
    named = isinstance(reference, str) and re.fullmatch(r"[a-z][a-z0-9-]*", reference) and bundled.is_file()
    path = bundled if named else Path(reference)
    if path.is_dir():
        path = path / FILE
    if not path.is_file():
        known = ", ".join(sorted(file.stem for file in HERE.glob("*.yaml")))
        raise Unfit(f"no template {reference}; give a YAML file or one of {known}")
    try:
        facts = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise Unfit(f"{path} is not a template: {' '.join(str(error).split())}") from error
    return _checked(facts, path)


def _checked(facts: Any, path: Path) -> Template:
    known = {field.name: str(field.type) for field in fields(Template)}
    if not isinstance(facts, dict):
        raise Unfit(f"{path} is not a template: it holds no keys")
    kinds: dict[str, type] = {"str": str, "int": int}
    for key, value in facts.items():
        if key not in known:
            raise Unfit(f"{path}: unknown key {key}; a template has {', '.join(known)}")
        if type(value) is not kinds[known[key]]:
            raise Unfit(f"{path}: {key} must be {'text' if known[key] == 'str' else 'a whole number'}, not {value!r}")
    missing = [key for key in ("name", "version", "system", "user") if key not in facts]
    if missing:
        raise Unfit(f"{path}: the key {missing[0]} is missing")
    return Template(**facts)
