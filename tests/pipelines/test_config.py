from __future__ import annotations

import dataclasses
import typing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_commands import CONFIG_KINDS

from pipelines.config import ConfigError, dump, load, parse
from pipelines.index.build import IndexConfig
from pipelines.renamed_keys import RENAMED_KEYS
from retrievers.settings import BM25Settings, HybridSettings
from rewrite.align.settings import CollapseLimits, PpoSettings

GOOD = """# a comment
index: runs/x
catalogue: [a.json, b.yaml]
retrievers:
  words: {kind: bm25, k1: 2}
  other: {kind: bm25}
  both:
    kind: hybrid
    of: [words, other]
    fusion: {method: weighted, weights: [1, 2]}
"""


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "config.yaml"
    path.write_text(text)
    return path


def test_a_config_becomes_typed_settings(tmp_path: Path) -> None:
    config = load(write(tmp_path, GOOD), IndexConfig)
    assert config.catalogue == ("a.json", "b.yaml")
    assert config.retrievers["words"] == BM25Settings(k1=2.0)
    both = config.retrievers["both"]
    assert isinstance(both, HybridSettings)
    assert both.fusion.weights == (1.0, 2.0)


def test_what_is_dumped_is_what_was_loaded(tmp_path: Path) -> None:
    config = load(write(tmp_path, GOOD), IndexConfig)
    assert load(write(tmp_path, dump(config)), IndexConfig) == config


def test_the_command_line_wins_for_every_key(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD)
    config = load(
        path,
        IndexConfig,
        ["index=elsewhere", "retrievers.words.k1=0.5", "retrievers.both.fusion.method=max", "text=[name]"],
    )
    assert config.index == "elsewhere"
    assert config.retrievers["words"] == BM25Settings(k1=0.5)
    assert config.text == ("name",)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (("index: runs/x", "indx: runs/x"), "config.yaml:2: unknown key indx; did you mean index?"),
        (("k1: 2", "k1: high"), "config.yaml:5: retrievers.words.k1 must be a number, not 'high'"),
        (
            ("k1: 2", "k1: -2"),
            "config.yaml:5: retrievers.words.k1 must be more than 0, got -2",
        ),
        (("kind: bm25", "kind: bm52"), "config.yaml:5: retrievers.words.kind cannot be 'bm52'; did you mean bm25?"),
        (("kind: bm25, ", ""), "config.yaml:5: retrievers.words needs a kind: bm25, dense, hybrid"),
        (
            ("method: weighted", "method: wighted"),
            "config.yaml:10: retrievers.both.fusion.method cannot be 'wighted'; did you mean weighted?",
        ),
        (
            ("weights: [1, 2]", "weights: [1, two]"),
            "config.yaml:10: retrievers.both.fusion.weights.1 must be a number, not 'two'",
        ),
        (("catalogue: [a.json, b.yaml]\n", ""), "config.yaml: the key catalogue is missing"),
        (("index: runs/x", "index: runs/x\nindex: runs/y"), "config.yaml:3: duplicate key index"),
        (("index: runs/x", "index: [runs/x"), "config.yaml:3: not valid YAML"),
        (("index: runs/x", "index: 5"), "config.yaml:2: index must be text, not 5"),
    ],
)
def test_a_wrong_config_is_named_by_file_line_and_key(tmp_path: Path, change: tuple[str, str], complaint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(write(tmp_path, GOOD.replace(*change)), IndexConfig)
    assert complaint in str(caught.value)
    assert "\n" not in str(caught.value)


def test_overrides_reach_list_items_and_read_exponents(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD)
    config = load(path, IndexConfig, ["catalogue.1=c.csv", "retrievers.words.k1=2e-1", "retrievers.3={kind: bm25}"])
    assert config.catalogue == ("a.json", "c.csv")
    assert config.retrievers["words"] == BM25Settings(k1=0.2)
    assert "3" in config.retrievers


@pytest.mark.parametrize("override", ["novalue", "=x", "index.deeper=1", "k1={", "catalogue.7=x", "catalogue.x=y"])
def test_a_wrong_override_is_refused(tmp_path: Path, override: str) -> None:
    with pytest.raises(ConfigError):
        load(write(tmp_path, GOOD), IndexConfig, [override])


@dataclass(frozen=True)
class Small:
    number: int = 1
    choice: Literal["a", "b"] = "a"
    maybe: float | None = None
    many: dict[str, bool] = field(default_factory=dict)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
)
def test_any_data_gives_a_config_or_one_error(data: object) -> None:
    try:
        config = parse(Small, data)
    except ConfigError:
        return  # refused by name; any other exception fails the test
    assert isinstance(config, Small)


def _config_classes(kind: Any, seen: set[type]) -> set[type]:
    """All dataclasses that a config of this kind may hold."""
    if dataclasses.is_dataclass(kind) and isinstance(kind, type) and kind not in seen:
        seen.add(kind)
        for hint in typing.get_type_hints(kind, include_extras=True).values():
            _config_classes(hint, seen)
    for argument in typing.get_args(kind):
        _config_classes(argument, seen)
    return seen


def test_renamed_keys_lead_from_no_field_to_a_field() -> None:
    classes: set[type] = set()
    for kind in CONFIG_KINDS.values():
        _config_classes(kind, classes)
    fields = [{field.name for field in dataclasses.fields(kind)} for kind in classes]
    assert list(RENAMED_KEYS) == sorted(RENAMED_KEYS)
    for old, new in ((old, new) for old, names in RENAMED_KEYS.items() for new in names):
        assert any(new in names for names in fields), f"{new}, the new name of {old}, is no field"
        assert not any({old, new} <= names for names in fields), f"{old} and {new} are fields of one class"


def test_the_error_of_an_old_key_names_the_new_one_of_its_block() -> None:
    for old, kind, new in (("kl", CollapseLimits, "max_kl"), ("kl", PpoSettings, "kl_weight")):
        with pytest.raises(ConfigError, match=f"unknown key {old}; did you mean {new}\\?"):
            parse(kind, {old: 1})
