"""The page of a proposal: whole, escaped, self-contained, with the figures of `--json`."""

import re
from html.parser import HTMLParser
from xml.etree import ElementTree as ET

import pytest
from tuned_pages import PAGES, SUBJECT, TunedPage, bucketed_page, dynamic_page, ragged_page

from torchserve_neuron_lstm.archiver_ext.commands.tuning.page import html_page
from torchserve_neuron_lstm.archiver_ext.commands.tuning.proposal import propose
from torchserve_neuron_lstm.archiver_ext.commands.tuning.target import Target

SVG = "{http://www.w3.org/2000/svg}"
NAMESPACE = SVG.strip("{}")
every_page = pytest.mark.parametrize("name", PAGES)


class Strict(HTMLParser):
    """A parser that checks that all tags are closed, and that no resource is loaded."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert not {"src", "href", "xlink:href", "srcset", "action"} & {name for name, _ in attrs}
        assert not any(name.startswith("on") for name, _ in attrs)
        self.seen.append(tag)
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def parsed(page: TunedPage) -> Strict:
    parser = Strict()
    parser.feed(page.html)
    parser.close()
    assert parser.open == []
    return parser


def drawings(page: TunedPage) -> list[ET.Element]:
    return [ET.fromstring(svg) for svg in re.findall(r"<svg xmlns.*?</svg>", page.html, re.DOTALL)]


def cells(page: TunedPage, caption: str) -> list[list[str]]:
    (table,) = re.findall(rf"<caption>{caption}</caption>(.*?)</table>", page.html, re.DOTALL)
    return [re.findall(r"<td[^>]*>(.*?)</td>", row) for row in re.findall(r"<tr>(<td>.*?)</tr>", table)]


@every_page
def test_a_page_is_whole_and_needs_nothing_else_and_texts_are_text(name: str) -> None:
    page = PAGES[name]()

    assert not {"script", "link", "img", "iframe", "object", "base"} & set(parsed(page).seen)
    assert "@import" not in page.html
    assert set(re.findall(r"url\((.*?)\)", page.html)) == {"#padding"}
    assert set(re.findall(r"\w+://[^\s\"']*", page.html)) == {NAMESPACE}
    assert "default-src 'none'" in page.html
    assert "<script" not in page.html
    assert f"Bucket lengths for {SUBJECT}" in parsed(page).text
    assert name != "bucketed" or {"A <note> of the engine."} <= set(parsed(page).text)
    ids = re.findall(r' id="(.*?)"', page.html)
    assert len(ids) == len(set(ids))
    for drawing in drawings(page):
        title, description = drawing.find(f"{SVG}title"), drawing.find(f"{SVG}desc")
        assert title is not None
        assert title.text
        assert description is not None
        assert description.text
        assert drawing.get("aria-labelledby") == f"{title.get('id')} {description.get('id')}"


@every_page
def test_the_numbers_are_those_of_json(name: str) -> None:
    page = PAGES[name]()
    told = page.proposal.to_json()
    rows = cells(page, "Both grids" if told["today"] else "The grid")

    for row, grid in zip(rows, [one for one in (told["today"], told["proposed"]) if one], strict=True):
        share, computed = grid["padded_share"], grid["computed_timesteps"]
        assert row[1] == ("by batch" if share is None else f"{100 * share:.1f} %")
        assert row[2] == ("by batch" if computed is None else f"{computed:,}")
        assert row[3:5] == [f"{grid['useful_timesteps']:,}", f"{grid['refused_sequences']:,}"]
        assert row[-1] == ", ".join(map(str, grid["lengths"]))
        known = grid["milliseconds_per_sequence"]
        assert row[5] == "not known" if known is None else float(row[5]) == pytest.approx(known, rel=5e-3)


def test_rows_that_stop_have_no_padding() -> None:
    page = ragged_page()

    assert "Other bucket lengths save no time" in page.html
    assert not any(one.get("class") == "padded" for one in drawings(page)[0].iter(f"{SVG}rect"))


def test_padding_by_batch_is_told() -> None:
    text = " ".join(parsed(dynamic_page()).text)

    assert "a call is padded to its longest sequence, so by batch." in text
    assert "padding by batch" in text


@pytest.mark.parametrize("histogram", [{1: 1}, {7: 10**12}, {1: 1, 999_999_999: 1}, {1000: 1, 1001: 5}])
def test_awkward_histograms_are_drawn_all_the_same(histogram: dict[int, int]) -> None:
    proposal = propose(histogram, Target(lengths=(16, 32)))

    parsed(TunedPage(proposal, Target(), html_page(proposal, Target(), "")))


def test_the_drawing_of_lengths_is_what_was_counted() -> None:
    page = bucketed_page()
    boxes = list(drawings(page)[0].iter(f"{SVG}rect"))
    middle = max(float(one.get("y", "")) + float(one.get("height", "")) for one in boxes) - 200

    def area(kind: str, *, last: bool) -> float:
        own = [one for one in boxes if one.get("class") == kind and (float(one.get("y", "")) > middle) == last]
        # bars overlap their neighbour a little
        return sum((float(one.get("width", "")) - 0.4) * float(one.get("height", "")) for one in own)

    scale = area("useful", last=True) / page.proposal.proposed.useful
    for grid, last in zip(page.proposal.grids, (False, True), strict=True):
        assert grid.computed is not None
        assert area("padded", last=last) == pytest.approx(scale * (grid.computed - grid.useful), rel=0.02)
