"""Figures: the same bytes for the same data, ticks at round places, thinning that loses no peak, one style for all."""

import base64
import dataclasses
import io
import math
import re
import xml.etree.ElementTree as ElementTree

import matplotlib
import numpy as np
import pytest
from PIL import Image
from report_samples import cloud, curves, drift, landscape, tradeoff

from looksam.experiments.report.document import Figure, Heatmap, Series
from looksam.experiments.report.figures import draw
from looksam.experiments.report.page import BOTTOM, LEFT, RIGHT, TOP, embed
from looksam.experiments.report.plot_data import (
    STYLES,
    fit_axis,
    heatmap_values,
    number_text,
    plotted_series,
    style,
    y_values,
)

SVG = "{http://www.w3.org/2000/svg}"


def groups(svg, style):
    """The groups that a page's figure has for the series of this style."""
    return [group for group in ElementTree.fromstring(svg).iter("g") if style in group.get("class", "").split()]


@pytest.mark.parametrize("sample", [tradeoff, curves, drift, cloud, landscape])
def test_svg_is_small_and_the_same_again(sample, tmp_path):
    svg, png = draw(sample(), tmp_path / "once")
    again, _ = draw(sample(), tmp_path / "again")
    assert (svg.name, png.name) == (f"{sample().name}.svg", f"{sample().name}.png")
    assert svg.read_bytes() == again.read_bytes()
    assert svg.stat().st_size < 60_000
    assert png.read_bytes().startswith(b"\x89PNG")


def test_text_of_an_svg_stays_text(tmp_path):
    figure = dataclasses.replace(tradeoff(), x_label="cost in $ & <k>, $x$")
    svg, _ = draw(figure, tmp_path)
    texts = {element.text for element in ElementTree.parse(svg).iter(f"{SVG}text")}
    assert {figure.title, figure.x_label, figure.y_label} <= texts
    assert {series.label for series in figure.series} <= texts
    assert {"1", "2", "3", "5", "10", "20"} <= texts  # the ks are the ticks


def test_a_figure_without_a_finite_value_reports_it(tmp_path):
    figure = Figure("empty", "t", "x", "y", [Series("diverged", [1, 2], [math.nan, math.inf])], log_y=True)
    svg, _ = draw(figure, tmp_path)
    assert "no finite value" in svg.read_text() and "no finite value" in embed(figure, "f").svg
    heatmap = Heatmap("h", "t", "x", "y", [0.0], [0.0], [[math.nan]])
    assert len(draw(heatmap, tmp_path)) == 2 and "#bbbbbb" in embed(heatmap, "f").svg


@pytest.mark.parametrize(
    ("values", "log", "ticks", "labels"),
    [
        ([0, 10], False, (0, 2, 4, 6, 8, 10), ("0", "2", "4", "6", "8", "10")),
        ([71.02, 73.48], False, (71, 71.5, 72, 72.5, 73, 73.5), ("71.0", "71.5", "72.0", "72.5", "73.0", "73.5")),
        (
            [-0.3, 0.3],
            False,
            (-0.3, -0.2, -0.1, 0, 0.1, 0.2, 0.3),
            ("−0.3", "−0.2", "−0.1", "0.0", "0.1", "0.2", "0.3"),
        ),
        ([0, 2e-5], False, (0, 5e-6, 1e-5, 1.5e-5, 2e-5), ("0", "0.5·10⁻⁵", "1.0·10⁻⁵", "1.5·10⁻⁵", "2.0·10⁻⁵")),
        ([1e6, 5e6], False, (1e6, 2e6, 3e6, 4e6, 5e6), ("1·10⁶", "2·10⁶", "3·10⁶", "4·10⁶", "5·10⁶")),
        ([1e-6, 1], True, (1e-6, 1e-4, 1e-2, 1), ("10⁻⁶", "10⁻⁴", "0.01", "1")),
        ([0.02, 5], True, (0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5), ("0.02", "0.05", "0.1", "0.2", "0.5", "1", "2", "5")),
        ([300, 700], True, (300, 400, 500, 600, 700), ("300", "400", "500", "600", "700")),
        ([4], False, (3.8, 3.9, 4.0, 4.1, 4.2), ("3.8", "3.9", "4.0", "4.1", "4.2")),
    ],
)
def test_ticks(values, log, ticks, labels):
    axis = fit_axis(values, log)
    assert axis.low < axis.high
    np.testing.assert_allclose(axis.ticks, ticks, rtol=1e-12, atol=1e-15)
    assert axis.labels == labels


def test_few_values_are_their_own_ticks():
    assert fit_axis([1024, 4096, 32768], log=True, tick_values=True).labels == ("1,024", "4,096", "32,768")
    assert fit_axis([0.5, 0.7, 1.0], tick_values=True).ticks == (0.5, 0.7, 1.0)
    assert fit_axis([1, 1.01, 10], tick_values=True).ticks == (2, 4, 6, 8, 10)  # 1 and 1.01 have no room side by side


def test_error_bars_end_where_a_logarithmic_axis_ends():
    figure = Figure("f", "t", "x", "y", [Series("s", [1, 2], [5.0, 50.0], [6.0, 6.0])], log_y=True)
    bars, _ = groups(embed(figure, "f").svg, "style-0")
    ends = [float(y) for y in re.findall(r"[\d.]+ ([\d.]+)", bars.find("path").get("d"))]
    assert len(ends) == 4 and max(ends) == BOTTOM and min(ends) > TOP


@pytest.mark.parametrize(
    ("number", "text"),
    [(0, "0"), (73.2, "73.2"), (1 / 3, "0.33333"), (-2.5, "−2.5"), (32768, "32,768"), (1e-7, "1e−7"), (2e12, "2e12")],
)
def test_numbers_of_hovering(number, text):
    assert number_text(number) == text


def test_thinning_keeps_first_last_and_extremes():
    values = np.sin(np.arange(20_000) / 700)
    values[[1234, 15_000]] = 9.0, -9.0
    (points,) = plotted_series(Figure("f", "t", "x", "y", [Series("s", range(20_000), values)]))
    assert len(points.x) <= 1802
    assert {0, 1234, 15_000, 19_999} <= set(points.x)
    np.testing.assert_array_equal(points.y, values[points.x.astype(int)])


def test_what_an_axis_cannot_show_is_left_out():
    series = Series("s", [0, 1, 2, 3], [1.0, -1.0, math.nan, 5.0], [0.1, 0.1, 0.1, 6.0])
    (points,) = plotted_series(Figure("f", "t", "x", "y", [series], log_x=True, log_y=True))
    assert (points.x.tolist(), points.y.tolist()) == ([3.0], [5.0])
    assert y_values([points], log=True) == [5.0, 11.0]  # 5 − 6 is not on a logarithmic axis
    assert y_values([points], log=False) == [-1.0, 5.0, 11.0]


def test_a_point_stands_where_its_axes_say():
    figure = Figure("f", "t", "x", "y", [Series("s", [1, 10, 100], [0.0, 1.0, 4.0], [0.5, 0, 0])], log_x=True)
    (hover,) = embed(figure, "f").series
    span, up = 2 * 1.1, 4.5 * 1.1  # with a twentieth of room on each side; the error reaches down to −0.5
    for (across, down, *_), x, y in zip(hover["points"], (0, 1, 2), (0.0, 1.0, 4.0), strict=True):
        assert across == pytest.approx(LEFT + (RIGHT - LEFT) * (x + 0.1) / span, abs=0.051)
        assert down == pytest.approx(BOTTOM - (BOTTOM - TOP) * (y + 0.5 + 0.225) / up, abs=0.051)
    assert [texts for _, _, *texts in hover["points"]] == [["1", "0 ± 0.5"], ["10", "1 ± 0"], ["100", "4 ± 0"]]


def test_cells_of_a_heatmap_carry_their_values():
    sample = landscape()
    values, colours = heatmap_values(sample)
    assert np.isnan(values[0, 0]) and (colours.low, colours.high) == pytest.approx(
        (np.nanmin(values), np.nanmax(values))
    )
    rows = embed(sample, "f").series
    assert rows[0]["points"][0][2:] == ["−1", "none"]
    assert rows[10]["label"] == "direction 2 0" and rows[10]["points"][10][2:] == ["0", "0.02"]
    assert rows[0]["points"][5][1] > rows[20]["points"][5][1]  # y rises upwards


def test_a_point_of_the_data_is_a_marker_at_its_place():
    svg, hover, _ = embed(tradeoff(), "f")
    for series, values in zip(tradeoff().series, hover, strict=True):
        markers = [use for group in groups(svg, f"style-{series.style}") for use in group.iter("use")]
        places = [(float(use.get("x")), float(use.get("y"))) for use in markers]
        np.testing.assert_allclose(places, [point[:2] for point in values["points"]], atol=0.06)


def test_heatmaps_are_coloured_by_viridis():
    svg = ElementTree.fromstring(embed(landscape(), "f").svg)
    data = next(svg.iter("image")).get("href").removeprefix("data:image/png;base64,")
    pixels = np.asarray(Image.open(io.BytesIO(base64.b64decode(data))).convert("RGBA"))
    height, width, _ = pixels.shape
    viridis = matplotlib.colormaps["viridis"]
    ends = np.array([viridis(0.0, bytes=True), viridis(1.0, bytes=True)], dtype=float)
    np.testing.assert_allclose([pixels[height // 2, width // 2], pixels[5, -5]], ends, atol=1)  # Agg rounds
    assert sorted([pixels[5, 5, 3], pixels[-5, 5, 3]]) == [0, 255]  # a corner that is not a number is not drawn


def test_a_page_and_a_file_draw_the_same_series(tmp_path):
    """Both come from ``plot``: the markers of a file and of a page are as many, of the same shapes."""
    svg, _ = draw(tradeoff(), tmp_path)
    in_file = len(list(ElementTree.parse(svg).getroot().find(f".//{SVG}g[@id='axes_1']").iter(f"{SVG}use")))
    in_page = len(list(ElementTree.fromstring(embed(tradeoff(), "f").svg).iter("use")))
    assert in_file == in_page


@pytest.mark.parametrize("sample", [tradeoff, curves, landscape])
def test_embedding_leaves_files_as_they_are(sample, tmp_path):
    before, _ = draw(sample(), tmp_path / "before")
    embed(sample(), "f")
    after, _ = draw(sample(), tmp_path / "after")
    assert before.read_bytes() == after.read_bytes()


def test_styles_can_be_distinguished():
    numbered = [style(number) for number in range(20)]
    assert len({(one.colour, one.marker) for one in numbered}) == 20
    assert len({one.colour for one in STYLES.values()}) == len(STYLES)
    assert style("paper").hollow and style("paper").dashed
    assert all(one.colour != style("paper").colour for one in numbered)


@pytest.mark.parametrize(
    ("name", "message"), [("sma", "style 'sma' is not known.*sam_k"), (-1, "style -1 is negative")]
)
def test_an_unknown_style_is_named(name, message):
    with pytest.raises(ValueError, match=message):
        style(name)
