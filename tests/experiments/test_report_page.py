"""The page, read by a parser: its content, what is escaped, and that it loads nothing from outside."""

import base64
import hashlib
import json
import re
from html.parser import HTMLParser

import pytest
from report_samples import AWKWARD, sections

from looksam.experiments.report.document import Figure, Section, Series
from looksam.experiments.report.page import page

VOID = {"meta", "link", "circle", "path", "br"}


class Reader(HTMLParser):
    """Collects tags with attributes, and text by the tag it stands in; fails if a tag is not closed in order."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.tags, self.texts, self.open = [], [], []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open:
            self.texts.append((self.open[-1], data))

    def text_in(self, tag):
        return [text for where, text in self.texts if where == tag]


@pytest.fixture(scope="module")
def text():
    return page(sections(), f"Report: {AWKWARD}", ["How to read it.", AWKWARD])


@pytest.fixture(scope="module")
def reader(text):
    return Reader(text)


def test_every_section_has_its_address(reader):
    names = [attributes["id"] for tag, attributes in reader.tags if tag == "section"]
    assert names == [section.name for section in sections()]
    links = [attributes["href"] for tag, attributes in reader.tags if tag == "a"]
    assert {f"#{name}" for name in names} == set(links)


def test_all_words_are_there_and_none_is_markup(reader):
    words = [text for _, text in reader.texts]
    for section in sections():
        assert {section.title, section.question, *section.answers, *section.notes} <= set(words)
        assert {table.title for table in section.tables} | {figure.title for figure in section.figures} <= set(words)
    assert reader.text_in("title") == [f"Report: {AWKWARD}"]
    figures = sum(len(section.figures) for section in sections())
    assert len(reader.text_in("script")) == figures + 1  # one of data for each figure, and ours


def test_nothing_comes_from_outside(reader, text):
    for tag, attributes in reader.tags:
        assert not {"src", "srcset", "style", "onclick", "onload"} & set(attributes), tag
        assert attributes.get("href", "#").startswith(("#", "data:,", "data:image/png;base64,"))
    assert "url(" not in text and "@import" not in text and "http://" not in text and "https://" not in text


def test_the_policy_names_our_style_and_our_script_alone(reader):
    (policy,) = [tags["content"] for tag, tags in reader.tags if tags.get("http-equiv") == "Content-Security-Policy"]
    assert policy.startswith("default-src 'none';")
    for kind, content in (("style-src", reader.text_in("style")[0]), ("script-src", reader.text_in("script")[-1])):
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert f"{kind} 'sha256-{digest}';" in policy


def test_figures_are_labelled_and_carry_their_values(reader):
    plots = [tags for tag, tags in reader.tags if tag == "svg" and tags.get("class") == "plot"]
    figures = [figure for section in sections() for figure in section.figures]
    assert [tags["aria-label"].split(".")[0] for tags in plots] == [figure.title for figure in figures]
    data = [json.loads(text) for text in reader.text_in("script")[:-1]]
    for figure, values in zip(figures, data, strict=True):
        if isinstance(figure, Figure):
            assert [series["label"] for series in values["series"]] == [series.label for series in figure.series]


def test_no_id_occurs_twice_and_every_marker_is_defined(reader):
    ids = [attributes["id"] for _, attributes in reader.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    used = {attributes["href"].removeprefix("#") for tag, attributes in reader.tags if tag == "use"}
    assert used and used <= set(ids)


def test_every_series_is_tagged_and_follows_the_theme(reader):
    tags = [attributes for tag, attributes in reader.tags if "series" in attributes.get("class", "").split()]
    assert {attributes["class"] for attributes in tags} >= {"series style-sam", "series style-paper", "series style-11"}
    assert {attributes["data-series"] for attributes in tags} == {str(number) for number in range(12)}
    colours = {attributes[name] for _, attributes in reader.tags for name in ("fill", "stroke") if name in attributes}
    assert colours == {"none", "#bbbbbb", "var(--c)", "var(--page)", "var(--soft)", "var(--text)"}


def test_awkward_labels_of_a_series():
    figure = Figure("f", AWKWARD, AWKWARD, AWKWARD, [Series(AWKWARD, [1], [2]), Series("b", [1], [3], style="paper")])
    reader = Reader(page([Section("s", "t", "q", ["a"], figures=[figure])], "t"))
    assert len(reader.text_in("script")) == 2
    data = reader.text_in("script")[0]
    assert json.loads(data)["series"][0]["label"] == AWKWARD
    assert "<" not in data  # neither </script nor <!--
    assert AWKWARD in reader.text_in("button")


def test_numbers_sort_by_their_full_value(text):
    assert 'class="number" data-value="73.481">73.48 ± 0.18<' in text
    assert 'class="number" data-value="-3.0">−3.00<' in text
    assert re.search(r'class="number paper">–<', text)  # None has no value


def test_the_same_page_again(text):
    assert page(sections(), f"Report: {AWKWARD}", ["How to read it.", AWKWARD]) == text


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["a", "b", "a"], "'a' is the name of 2 sections"),
        (["a b"], "'a b' is not a valid name"),
        ([""], "'' is not a valid name"),
    ],
)
def test_names_that_cannot_be_addresses(names, message):
    with pytest.raises(ValueError, match=message):
        page([Section(name, "t", "q", ["a"]) for name in names], "t")
