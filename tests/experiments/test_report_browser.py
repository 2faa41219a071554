"""The page in a real browser: no error, sorting, hovering, the keyboard, dark mode, and a narrow screen."""

import pytest
from browser import REQUIRED, Browser, programs
from report_samples import AWKWARD, sections

from looksam.experiments.report.page import page

ARROWS = {"right": "\ue014", "down": "\ue015"}
ENTER = "\ue007"


@pytest.fixture(scope="module")
def window(tmp_path_factory):
    window = Browser(tmp_path_factory.mktemp("browser"))
    yield window
    window.close()


@pytest.fixture(scope="module")
def report_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(page(sections(), "A report", ["How to read it."]), encoding="utf-8")
    return path


@pytest.fixture
def report(window, report_file):
    """The page as opened from disk; whatever a test does with it, it must leave no error."""
    window.errors()
    window.visit(report_file)
    yield window
    assert window.errors() == []


def test_a_missing_browser_skips_or_fails_as_asked(monkeypatch):
    monkeypatch.setattr("shutil.which", lambda name: None)
    monkeypatch.delenv(REQUIRED, raising=False)
    with pytest.raises(pytest.skip.Exception, match="chromium is not installed: apt-get install"):
        programs()
    monkeypatch.setenv(REQUIRED, "1")
    with pytest.raises(pytest.fail.Exception, match="chromium is not installed.*REQUIRE_BROWSER is set"):
        programs()


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("<script>undefinedName()</script>", "undefinedName is not defined"),
        ("<script>console.error('said so')</script>", "said so"),
        ("<script>Promise.reject(new Error('not caught'))</script>", "not caught"),
        ("<img src='missing.png'>", "missing.png"),
        ("<link rel='stylesheet' href='missing.css'>", "missing.css"),
    ],
)
def test_a_faulty_page_is_caught(window, tmp_path, fault, message):
    window.errors()
    (tmp_path / "faulty.html").write_text(f"<!DOCTYPE html><title>x</title>{fault}")
    window.visit(tmp_path / "faulty.html")
    window.run("return 0")  # a turn of the event loop, in which a rejected promise is reported
    assert any(message in error for error in window.errors())


@pytest.mark.parametrize("addition", ["<script>window.foreign = 1</script>", "<img src='foreign.png'>"])
def test_the_policy_stops_what_is_not_ours(window, report_file, tmp_path, addition):
    window.errors()
    changed = tmp_path / "changed.html"
    changed.write_text(
        report_file.read_text(encoding="utf-8").replace("</main>", f"{addition}</main>"), encoding="utf-8"
    )
    window.visit(changed)
    assert window.run("return window.foreign === undefined")
    assert any("Content Security Policy" in error for error in window.errors())


def test_every_section_is_shown_and_nothing_is_loaded(report):
    heights = report.run("return [...document.querySelectorAll('main > section')].map(s => [s.id, s.offsetHeight])")
    assert [name for name, _ in heights] == [section.name for section in sections()]
    assert all(height > 200 for _, height in heights)
    assert report.texts("nav a") == report.texts("h2") == [section.title for section in sections()]
    assert report.run("return performance.getEntriesByType('resource').map(entry => entry.name)") == []


def test_awkward_text_stays_text(report):
    assert report.run("return window.broken === undefined")
    for selector in ("h2", ".question", ".answers li", ".notes li", "caption", "thead button"):
        assert AWKWARD in report.texts(f"#awkward {selector}"), selector


def column(report, number):
    return report.texts(f"#cifar100 tbody tr > :nth-child({number})")


def test_a_click_sorts_by_value(report):
    head = "#cifar100 thead th:nth-child(4)"
    report.click(f"{head} button")
    assert column(report, 4) == ["1.00×", "1.21×", "1.24×", "1.93×", "10.50×"]  # as text, 10.50 would come second
    assert column(report, 1)[-1] == "Look-LayerSAM-5"  # rows move as one
    assert report.run("return document.querySelector(arguments[0]).ariaSort", head) == "ascending"
    report.click(f"{head} button")
    assert column(report, 4) == ["10.50×", "1.93×", "1.24×", "1.21×", "1.00×"]
    assert report.run("return document.querySelector(arguments[0]).ariaSort", head) == "descending"


def test_the_keyboard_sorts_with_what_is_missing_last(report):
    report.run("document.querySelector('#cifar100 thead th:nth-child(3) button').focus()")
    report.press(ENTER)
    assert column(report, 3) == ["78.9", "80.6", "80.7", "–", "–"]
    report.press(ENTER)
    assert column(report, 3) == ["80.7", "80.6", "78.9", "–", "–"]
    report.click("#cifar100 thead th:nth-child(5) button")
    assert column(report, 5)[::2] == ["better than base", "no difference shown", "–"]
    report.click("#cifar100 thead th:nth-child(1) button")
    assert column(report, 1) == ["base", "Look-LayerSAM-5", "LookSAM-5", "SAM", "SAM-5"]


def centre(report, selector):
    """The centre of an element, in the window."""
    script = """
        const element = document.querySelector(arguments[0]);
        element.scrollIntoView({ block: "center", behavior: "instant" });
        const box = element.getBoundingClientRect();
        return [box.x + box.width / 2, box.y + box.height / 2];"""
    return report.run(script, selector)


def tip(report, figure):
    """The lines of the tooltip of a figure; none where it is hidden."""
    return report.texts(f"figure[data-name='{figure}'] .tip:not([hidden]) > *")


def test_hovering_shows_the_value(report):
    marker = "figure[data-name='cost'] .plot .style-look_sam .marker"
    report.point(*centre(report, marker))
    assert tip(report, "cost") == [
        "LookSAM-5",
        "time per step, relative to base: 1.24",
        "test accuracy, %: 73.2 ± 0.25",
    ]
    report.point(1, 1)
    assert tip(report, "cost") == []


def test_hovering_over_a_heatmap_shows_the_cell(report):
    plot = "figure[data-name='landscape'] svg.plot"
    # The middle cell is at the middle of the frame: 58 to 462 across, 34 to 302 down, of 560 by 350
    script = (
        "const box = document.querySelector(arguments[0]).getBoundingClientRect(); return [box.x, box.y, box.width]"
    )
    centre(report, plot)
    x, y, width = report.run(script, plot)
    report.point(x + (58 + 462) / 2 * width / 560, y + (34 + 302) / 2 * width / 560)
    assert tip(report, "landscape") == ["direction 2 0", "direction 1: 0", "training loss: 0.02"]


def test_arrow_keys_walk_over_the_values(report):
    report.run("document.querySelector(\"figure[data-name='tradeoff-accuracy'] svg.plot\").focus()")
    report.press(ARROWS["right"])
    assert tip(report, "tradeoff-accuracy") == ["LookSAM-k", "k: 1", "test accuracy, %: 73.4 ± 0.2"]
    report.press(ARROWS["right"])
    report.press(ARROWS["down"])
    assert tip(report, "tradeoff-accuracy") == ["SAM-k", "k: 2", "test accuracy, %: 72.9 ± 0.25"]


def test_the_legend_hides_a_series_and_shows_it(report):
    marker = "figure[data-name='cost'] .plot .style-look_sam .marker"
    button = "figure[data-name='cost'] .legend li:nth-child(3) button"
    place = centre(report, marker)
    report.click(button)
    report.point(*place)
    assert tip(report, "cost") == []
    assert report.run("return document.querySelector(arguments[0]).getBoundingClientRect().width", marker) == 0
    report.click(button)
    report.point(*place)
    assert tip(report, "cost")[0] == "LookSAM-5"


def colours(report):
    script = """
        const colour = (selector, name) => getComputedStyle(document.querySelector(selector))[name];
        const series = (style) => `figure[data-name='cost'] .plot .style-${style} .marker`;
        return [colour("body", "backgroundColor"), colour(series("base"), "fill"), colour(series("sam"), "stroke")];"""
    return report.run(script)


def test_dark_by_the_system_and_by_the_button(report):
    def prefer(scheme):
        report.devtools("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    light = ["rgb(255, 255, 255)", "rgb(0, 0, 0)", "rgb(213, 94, 0)"]
    dark = ["rgb(22, 24, 27)", "rgb(232, 232, 232)", "rgb(240, 128, 60)"]
    prefer("light")
    assert colours(report) == light
    report.click("#theme")
    assert colours(report) == dark
    report.click("#theme")
    assert colours(report) == light
    report.run("document.documentElement.style.colorScheme = ''")
    prefer("dark")
    assert colours(report) == dark
    prefer("")


@pytest.fixture
def telephone(report):
    report.devtools("Emulation.setDeviceMetricsOverride", width=400, height=800, deviceScaleFactor=1, mobile=True)
    yield report
    report.devtools("Emulation.clearDeviceMetricsOverride")


def test_a_telephone_needs_no_sideways_scrolling(telephone):
    assert telephone.run("return [innerWidth, document.documentElement.scrollWidth]") == [400, 400]
    sizes = telephone.run("""return [...document.querySelectorAll(".plot")].map(plot =>
        parseFloat(getComputedStyle(plot.querySelector("text")).fontSize) * plot.clientWidth / 560)""")
    assert len(sizes) == 5 and min(sizes) > 9  # letters, in pixels of the screen


@pytest.mark.parametrize("screen", ["report", "telephone"])
def test_labels_keep_inside_their_figure_and_apart(request, screen):
    script = """
        const box = (element) => element.getBoundingClientRect();
        const outside = (a, b) => a.left < b.left - 1 || a.right > b.right + 1 || a.bottom > b.bottom + 2;
        const meet = (a, b) => a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom;
        return [...document.querySelectorAll(".plot")].flatMap((plot) => {
          const texts = [...plot.querySelectorAll("text")].filter((text) => text.textContent);
          const bad = texts.filter((text, i) => outside(box(text), box(plot)) ||
            texts.slice(i + 1).some((other) => meet(box(text), box(other))));
          return bad.map((text) => `${text.textContent} in ${plot.ariaLabel}`);
        });"""
    assert request.getfixturevalue(screen).run(script) == []
