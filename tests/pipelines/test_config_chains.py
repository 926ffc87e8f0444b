"""Shipped configs hang together: what one command names as its input is what another one's config writes."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from paths import ROOT

CONFIGS = ROOT / "configs"


def _all(kind: str) -> dict[str, dict[str, Any]]:
    return {path.stem: yaml.safe_load(path.read_text()) for path in sorted((CONFIGS / kind).glob("*.yaml"))}


def _outputs(*kinds: str) -> set[str]:
    return {facts["output"] for kind in kinds for facts in _all(kind).values()}


@pytest.mark.parametrize("kind", ["sft", "align", "pairs", "probe"])
def test_targets_are_made_by_a_config(kind: str) -> None:
    made = _outputs("targets")
    for name, facts in _all(kind).items():
        assert {each["targets"] for each in facts["data"]} <= made, name


@pytest.mark.parametrize("kind", ["align", "pairs", "probe"])
def test_policies_come_from_a_training(kind: str) -> None:
    made = _outputs("sft", "align")
    for name, facts in _all(kind).items():
        assert facts["start"]["path"] in made, name


def test_rewriters_that_are_evaluated_come_from_a_training() -> None:
    made = _outputs("sft", "align")
    for name, facts in _all("eval").items():
        paths = {each["path"] for each in facts.get("rewriters", {}).values() if "path" in each}
        assert paths <= made, name


def test_no_two_trainings_share_a_folder() -> None:
    outputs = [facts["output"] for kind in ("targets", "sft", "align") for facts in _all(kind).values()]
    assert len(set(outputs)) == len(outputs)


def test_who_aligns_on_what_was_held_out_has_something_held_out() -> None:
    keys = ("hold_out_tools", "hold_out_queries")
    held = {facts["output"] for facts in _all("targets").values() if any(map(facts.get, keys))}
    asked = {
        source["targets"]
        for facts in _all("align").values()
        for source in facts["data"]
        if source.get("split") in ("align", "all")
    }
    assert asked
    assert asked <= held
    for facts in _all("align").values():
        start = next((each for each in _all("sft").values() if each["output"] == facts["start"]["path"]), None)
        if start is not None and any(source.get("split") == "align" for source in facts["data"]):
            # The same targets in both stages: what one learns from is kept from the other.
            assert {each["targets"] for each in facts["data"]} <= {each["targets"] for each in start["data"]}
