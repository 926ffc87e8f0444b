"""The report: true numbers, hostile text, nothing from outside, and a look in a real browser."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from dataclasses import replace
from html import escape, unescape
from html.parser import HTMLParser
from pathlib import Path
from tempfile import mkdtemp

import pytest

from pipelines.report import render
from pipelines.report.data import (
    ComparisonRow,
    FusionRow,
    GroupRow,
    QueryChange,
    RankedTool,
    ReportData,
    RewriteFigures,
    RewriterRow,
    RewriteSample,
    SystemChanges,
    SystemRow,
    TriedRow,
)
from pipelines.report.markup import tag
from pipelines.report.wording import bounds, duration, headline, p_clause, percent, points, probability

METRICS = ("recall@3", "recall@5", "ndcg@5", "comp@5", "mrr")
HOSTILE = (
    "<script>alert('x')</script>\"'><img src=x onerror=alert(1)> ]]> </style></title> &amp; {x} \u202e \x00 \ud800"
)
BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


def make(systems: int = 3, metrics: tuple[str, ...] = METRICS, changes: int = 2, text: str = "") -> ReportData:
    """A report like those of `rewrite-eval`; `text` goes into every string there is."""
    names = [f"system-{i}{text}" for i in range(systems)]
    metrics = tuple(metric + text for metric in metrics)
    rows = []
    for i, name in enumerate(names):
        values = {metric: 0.3123 + 0.05 * i + 0.01 * j for j, metric in enumerate(metrics)}
        intervals = {metric: (value - 0.0211, value + 0.0234) for metric, value in values.items()}
        rows.append(SystemRow(name, values, intervals, 0.0123 * i or None, f"{i:x}" * 64 + text))
    base = rows[0]
    comparisons = [
        ComparisonRow(
            system=row.name,
            baseline=base.name,
            metric=metric,
            difference=row.values[metric] - base.values[metric],
            interval=(0.011, 0.082),
            p_value=0.0004,
            p_holm=0.0123,
            better=140 + i,
            worse=41,
            same=918 - i,
        )
        for i, row in enumerate(rows[1:])
        for metric in metrics
    ]
    tools = [RankedTool(f"api/v2/{i}{text}", f"Get locale meta data {i}{text}", i % 3 == 0) for i in range(8)]
    query = f"I'm planning a trip to Athens and need the weather, hotels near the port, and a phrase book. {text}"
    change = QueryChange(query, tuple(tools[:5]), tuple(tools[3:]), (f"Find time zone{text}",), 0.5)
    told = [
        SystemChanges(
            row.name, base.name, metrics[0], (change,) * changes, (replace(change, difference=-0.5),) * changes, 77, 3
        )
        for row in rows[1:]
    ]
    groups = [GroupRow(f"G{i}{text}", 100 + i, {row.name: row.values for row in rows}) for i in range(3)]
    return ReportData(
        title=f"A title{text}",
        dataset=f"toolbench{text}",
        split=f"test{text}",
        protocol=f"official{text}",
        queries=1099,
        tools=16003,
        baseline=base.name,
        metrics=metrics,
        systems=tuple(rows),
        comparisons=tuple(comparisons),
        curve={name: tuple(min(0.99, 0.2 + 0.05 * i + 0.03 * k) for k in range(20)) for i, name in enumerate(names)},
        groups=tuple(groups),
        changes=tuple(told),
        facts={f"machine{text}": f"a laptop{text}"},
        notes=(f"A note{text}",),
        rewriters=tuple(rewriter(i, text) for i in range(2)),
        fusions=tuple(fusion(name, i, text) for i, name in enumerate(names[1:])),
    )


def rewriter(number: int, text: str) -> RewriterRow:
    figures = RewriteFigures(
        1099, 0.9871, 0.1234, 0.0119, 0.001, 0.0021, 0.0567, 2.345, None if number else 33.3, 0.4321
    )
    samples = (
        RewriteSample("q1", f"is it hot in Athens{text}", "rewritten", (f"weather by city{text}", f"heat index{text}")),
        RewriteSample("q2", f"hello{text}", "none", ()),
        RewriteSample("q3", f"what now{text}", "unparseable", (), f"I cannot say{text}"),
        RewriteSample("q4", f"a long story{text}", "too-long", ()),
    )
    return RewriterRow(f"rewriter-{number}{text}", f"a/model{text}", f"needs 1{text}", figures, samples)


def fusion(system: str, number: int, text: str) -> FusionRow:
    if number % 2:
        return FusionRow(system, f"rewriter-1{text}", f"interleave{text}", 0.0)
    tried = (
        TriedRow(f"weighted{text}", 0.3, 0.4567),
        TriedRow(f"rrf{text}", 0.5, 0.4444),
        TriedRow("rrf", 1.0, 0.2222),
    )
    return FusionRow(system, f"rewriter-0{text}", f"weighted{text}", 0.3, f"recall@5{text}", 123, tried, 0.62)


def rank(data: ReportData, difference: float, p: float) -> ReportData:
    """Two systems, the second `difference` from the baseline."""
    base = data.systems[0]
    other = replace(data.systems[1], name="new", values={**base.values, "recall@5": 0.5 + difference})
    row = replace(data.comparisons[0], system="new", metric="recall@5", difference=difference, p_holm=p)
    base = replace(base, name="bm25", values={**base.values, "recall@5": 0.5})
    return replace(data, baseline="bm25", systems=(base, other), comparisons=(row,))


class Page(HTMLParser):
    """The elements and attributes a browser would see, and whether every one is closed."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def words(page: str) -> str:
    body = re.sub(r"(?s)<(style|script)>.*?</\1>", "", page)
    return " ".join(unescape(re.sub(r"<[^>]*>", " ", body)).split())


@pytest.mark.parametrize("text", ["", HOSTILE], ids=["plain", "hostile"])
def test_the_page_holds_its_own_elements_only(text: str) -> None:
    page = render(make(text=text))
    seen = Page(page)
    assert seen.open == []
    assert [name for name, _ in seen.elements].count("script") == 1
    assert {name for name, _ in seen.elements}.isdisjoint({"img", "iframe", "link", "object", "a", "base"})
    for _, attributes in seen.elements:
        assert not [name for name in attributes if name in {"src", "href", "srcset"} or name.startswith("on")]
    assert not re.search(r"https?:|//\w|@import|url\(", page.replace("// ", ""))
    page.encode("utf-8")  # a lone surrogate would not let it be written


def test_hostile_text_is_shown_as_text_everywhere() -> None:
    page = render(make(text=HOSTILE))
    assert page.count("<script>") == 1
    assert "<img" not in page
    assert page.count(escape("<script>alert('x')</script>\"'>")) > 50
    assert "onerror=alert(1)" in words(page)
    assert not re.search("[\x00\u202e\ud800]", page)
    ids = [attributes["id"] for _, attributes in Page(page).elements if "id" in attributes]
    assert len(ids) == len(set(ids))


def test_numbers_are_the_data_s() -> None:
    data = make()
    page = words(render(data))
    for row in data.systems:
        assert f"{row.name} " in page
        assert row.fingerprint in page
        for metric in data.metrics:
            assert f"{row.values[metric] * 100:.1f}" in page
            assert bounds(row.intervals[metric]) in page
    for comparison in data.comparisons:
        assert f"▲ {comparison.better} = {comparison.same} ▼ {comparison.worse}" in page
        assert f"{comparison.difference * 100:+.1f}" in page
    assert "< .001" in page
    assert ".012" in page
    assert "+1.1 to +8.2" in page
    assert "1,099" in page
    assert "16,003" in page
    assert "77 queries by Recall@3, 2 shown" in page
    assert "✓ needed, in neither: Find time zone" in page
    assert "12.3 ms" in page


def test_rewrites_are_told_in_figures_fusions_and_samples() -> None:
    page = words(render(make()))
    assert "rewriter-0 a/model, template needs 1 98.7 12.3 1.2 0.1 0.2 5.7 2.3 33.3 432 ms" in page
    assert "rewriter-1 a/model, template needs 1 98.7 12.3 1.2 0.1 0.2 5.7 2.3 – 432 ms" in page
    assert "system-1 rewriter-0 weighted 0.3 0.62 by Recall@5 of 123 dev queries 45.7 22.2" in page
    assert "system-2 rewriter-1 interleave 0 never by the config – –" in page
    assert "Tried on dev for system-1" in page
    assert "rrf 0.5 never 44.4 rrf 1 never 22.2" in page
    assert "is it hot in Athens weather by city heat index" in page
    assert "hello left alone" in page
    assert "what now unparseable: I cannot say" in page
    assert "a long story too long, not asked" in page
    assert "Rewrites" not in words(render(replace(make(), rewriters=(), fusions=())))


def test_bars_are_as_long_as_their_values() -> None:
    data = make(1, ("recall@5",))
    seen = Page(render(data))
    widths = [attributes["width"] for _, attributes in seen.elements if attributes.get("class") == "fill"]
    assert widths == [f"{0.3123 / 0.4 * 100:.2f}".rstrip("0") + "%"]  # the axis ends at 40


def test_the_best_is_marked_once_a_column_and_not_where_all_are_alike() -> None:
    assert render(replace(make(), groups=())).count("★</span>") == len(METRICS)
    assert "★</span>" not in render(make(1))


def test_groups_show_which_systems_differ_there() -> None:
    data = make()
    page = words(render(replace(data, comparisons=())))
    assert "▲ p = .012" not in page
    group = replace(data.groups[0], comparisons=data.comparisons)
    assert "▲ p = .012" in words(render(replace(data, comparisons=(), groups=(group,))))


FOUND = "finds {}\u00a0% of the needed tools in its first five places"


@pytest.mark.parametrize(
    ("difference", "p", "value", "expected"),
    [
        (0.081, 0.0001, 58.1, f"new {FOUND}, 8.1 points more than bm25 (p < .001)."),
        (0.004, 0.31, 50.4, f"new {FOUND}, 0.4 points more than bm25, which may be chance (p = .310)."),
        (0.0, 1.0, 50.0, f"new {FOUND}, the same as bm25 (p = 1.000)."),
        (
            -0.02,
            0.004,
            50.0,
            f"Nothing beats bm25: bm25 {FOUND}; new, the other system, has 2.0 points less (p = .004).",
        ),
    ],
)
def test_the_headline_says_no_more_than_the_data(difference: float, p: float, value: float, expected: str) -> None:
    assert headline(rank(make(), difference, p)) == expected.format(value)


def test_the_headline_when_the_baseline_may_lead_by_chance() -> None:
    said = headline(rank(make(), -0.02, 0.4))
    assert said.endswith("new, the other system, has 2.0 points less, which may be chance (p = .400).")


def test_the_headline_without_anything_to_compare() -> None:
    assert headline(make(1)) == "system-0 finds 32.2\u00a0% of the needed tools in its first five places."
    assert headline(make(1, ("mrr",))) == "system-0 reaches 31.2 in MRR."
    assert headline(replace(make(1), systems=())) == "No system was evaluated."


def test_numbers_as_people_read_them() -> None:
    assert [percent(0.6123), percent(1.0), percent(None), percent(float("nan"))] == ["61.2", "100.0", "–", "–"]
    assert [points(0.081), points(-0.02), points(0.0), points(-1e-9)] == ["+8.1", "−2.0", "±0.0", "±0.0"]
    assert [probability(p) for p in (0.0001, 0.0312, 0.5, 0.9999, 1.0)] == ["< .001", ".031", ".500", "> .999", "1.000"]
    assert [p_clause(0.0001), p_clause(0.04)] == ["p < .001", "p = .040"]
    assert [duration(None), duration(0.00042), duration(0.0123), duration(1.338)] == [
        "–",
        "0.42 ms",
        "12.3 ms",
        "1.34 s",
    ]


@pytest.mark.parametrize(
    "data",
    [
        make(1),
        replace(make(), groups=(), changes=(), curve={}, comparisons=(), facts={}, notes=()),
        replace(make(1), systems=(), curve={}, groups=()),
        replace(make(), rewriters=make().rewriters[:1], fusions=()),
        replace(make(), curve={"system-0": (0.5,), "stranger": (0.2, 0.3)}),
        replace(make(), changes=(SystemChanges("system-1", "system-0", "recall@5", (), (), 0, 0),)),
        make(2, ("my-own@x",)),
    ],
)
def test_what_is_missing_is_left_out(data: ReportData) -> None:
    page = render(data)
    assert Page(page).open == []
    assert "nan" not in words(page)
    assert "None " not in words(page).replace("None .", "")


def test_the_largest_report_stays_light() -> None:
    metrics = tuple(f"{name}@{k}" for name in ("recall", "ndcg", "comp") for k in (1, 3, 5, 10))
    data = make(8, metrics, changes=22)
    assert len(render(data).encode()) < 1_000_000


@pytest.mark.skipif(BROWSER is None, reason="no chromium is installed")
@pytest.mark.parametrize("text", ["", HOSTILE, "_verylongword" * 30], ids=["plain", "hostile", "long"])
def test_a_browser_shows_it_without_sideways_scrolling_or_errors(tmp_path: Path, text: str) -> None:
    for width, seen in look(tmp_path, render(make(8, METRICS, text=text)), 320, 390, 800, 1280).items():
        assert seen == {
            "width": width,
            "overflow": 0,
            "ready": True,  # the script has run and shows the filter
            "panels": 4,  # one of each chooser is open
            "synced": True,  # a metric chosen in one place is chosen in the other
            "found": 0,  # the filter hides what does not match
        }


@pytest.mark.skipif(BROWSER is None, reason="no chromium is installed")
def test_the_browser_test_would_notice(tmp_path: Path) -> None:
    page = render(make())
    wide = page.replace("<main>", '<main><div style="width:700px">wide</div>')
    assert look(tmp_path, wide, 390)[390]["overflow"] > 300
    with pytest.raises(AssertionError, match="CONSOLE"):
        look(tmp_path, page.replace("<main>", "<main><script>alert(1)</script>"), 390)


LOOK = """
for (const frame of document.querySelectorAll("iframe"))
  frame.addEventListener("load", () => {
    const inside = frame.contentDocument, root = inside.documentElement, pick = (s) => [...inside.querySelectorAll(s)];
    for (const details of pick("details")) details.open = true;
    const panels = pick(".panel").filter((panel) => panel.offsetHeight).length;
    pick('input[name="metric-bars"]')[3].click();
    const synced = pick('input[name="metric-groups"]')[3].checked;
    const overflow = Math.max(root.scrollWidth, inside.body.scrollWidth) - root.clientWidth;
    const search = inside.querySelector(".find input");
    search.value = "no such words";
    search.dispatchEvent(new Event("input"));
    const found = pick(".change:not([hidden])").length, ready = !inside.querySelector(".find").hidden;
    const width = frame.contentWindow.innerWidth;
    document.body.dataset["w" + frame.width] = JSON.stringify({ width, overflow, ready, panels, synced, found });
  });
"""


def look(folder: Path, page: str, *widths: int) -> dict[int, dict[str, int]]:
    """What a browser makes of the page at each width, in frames: a window cannot be as narrow as a phone."""
    frames = [f'<iframe width="{w}" height="800" frameborder="0" srcdoc="{escape(page)}"></iframe>' for w in widths]
    path = folder / "wrapper.html"
    path.write_text(f"<!doctype html>{''.join(frames)}<script>{LOOK}</script>", encoding="utf-8")
    switches = (
        "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
        "--disable-component-update --disable-sync --enable-logging=stderr --window-size=1400,900 --dump-dom"
    ).split()
    assert BROWSER is not None
    command = [BROWSER, *switches, f"--user-data-dir={mkdtemp(dir=folder)}", path.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    errors = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    assert not errors, errors
    body = re.search(r"<body([^>]*)>", done.stdout)
    assert body is not None
    seen = {int(width): json.loads(unescape(said)) for width, said in re.findall(r'data-w(\d+)="([^"]*)"', body[1])}
    assert seen.keys() == set(widths)
    return seen


def test_no_child_of_an_element_is_lost() -> None:
    assert tag("rect", x=1) == '<rect x="1"/>'
    assert tag("rect", tag("title", "a & b"), x=1) == '<rect x="1"><title>a &amp; b</title></rect>'
