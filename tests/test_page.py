"""The page of `heatmap --out view.html` and of `attncli.view`: its numbers, and a real browser."""

from __future__ import annotations

import base64
import html
import json
import re
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from process import ROOT, Run

import attncli
from attncli.errors.names import HIDING_RULES
from attncli.summaries.maps import Computed
from attncli.view.page import Map, Patches, image_address, page
from attncli.view.page.maps import REASONS, MapMaker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from playwright.sync_api import Browser, Page

MINILM = ROOT / "samples" / "minilm"
TOKENS = (MINILM / "tokens.txt").read_text().split()
CHROMIUM = Path("/usr/bin/chromium")


def data_of(text: str) -> Any:
    """Return what a page knows before it unpacks anything."""
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    assert found
    return json.loads(found[1])


def block(text: str, name: str, dtype: str) -> Any:
    found = re.search(f'id="{name}">(.*?)</script>', text)
    assert found, name
    return np.frombuffer(zlib.decompress(base64.b64decode(found[1])), dtype)


def softmaxed(shape: tuple[int, ...], spread: float = 1.0) -> Any:
    scores = np.random.default_rng(1).normal(size=shape) * spread
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return (weights / weights.sum(-1, keepdims=True)).astype(np.float32)


# --- the command --------------------------------------------------------------------------


def test_heatmap_writes_the_weights_of_every_head(attncli: Run, folder: Path) -> None:
    files = [str(MINILM / f"{name}.npy") for name in ("query", "key")]
    attncli("heatmap", *files, "--tokens", str(MINILM / "tokens.txt"), "--out", "w.html").good()
    text = Path("w.html").read_text(encoding="utf-8")
    data = data_of(text)
    assert [(m["layer"], m["batch"], m["head"]) for m in data["maps"]] == [
        (0, 0, head) for head in range(12)
    ]
    finished = np.load(MINILM / "weights.npy")
    for one in data["maps"]:
        weights = block(text, f"w-{one['name']}-0", "<f4").reshape(13, 13)
        np.testing.assert_allclose(weights, finished[0, one["head"]], atol=2e-6)
        p = finished[0, one["head"]].astype(float)
        np.testing.assert_allclose(one["stats"]["entropy"], -(p * np.log(p)).sum(1).mean(), 1e-4)
        np.testing.assert_allclose(one["stats"]["first"], p[:, 0].mean(), rtol=1e-4)
    assert data["labels"][data["maps"][0]["queryLabels"]] == TOKENS


def dump(folder: Path, layer: int, causal: bool, **names: Any) -> None:
    from safetensors.numpy import save_file

    rng = np.random.default_rng(layer)
    arrays = {name: rng.normal(size=(1, 2, 4, 3)) for name in ("query", "key", "value")}
    facts = {"schema": 1, "options": {"causal": causal}, "layer": layer, "call": 0, **names}
    name = folder / f"layer-{layer:03}-call-0000.safetensors"
    save_file(arrays, str(name), {"attncli": json.dumps(facts)})


def test_all_layers_of_a_folder_are_in_one_page(attncli: Run, folder: Path) -> None:
    (folder / "dumps").mkdir()
    for layer, causal in ((0, True), (3, False)):
        dump(folder / "dumps", layer, causal, module=f"encoder.{layer}.attention")
    attncli("heatmap", "dumps", "--out", "w.html").good()
    data = data_of(Path("w.html").read_text())
    assert data["layers"] == {"0": "encoder.0.attention", "3": "encoder.3.attention"}
    maps = data["maps"]
    assert [(one["layer"], one["head"]) for one in maps] == [(0, 0), (0, 1), (3, 0), (3, 1)]
    assert [one["reasons"] for one in maps] == [0, 0, None, None]
    attncli("heatmap", "dumps", "--layer", "3", "--out", "w.html").good()
    assert {one["layer"] for one in data_of(Path("w.html").read_text())["maps"]} == {3}
    folder.joinpath("empty").mkdir()
    assert attncli("heatmap", "empty", "--out", "w.html").code == 2


@pytest.mark.parametrize(
    "words",
    ["--vmax 1", "--rows 0:2", "--average-heads", "--what scores", "--dpi 90", "--head 7"],
)
def test_what_a_page_cannot_do_is_refused(attncli: Run, folder: Path, words: str) -> None:
    np.save("w.npy", softmaxed((2, 3, 3)))
    Path("w.html").write_text("old")
    ran = attncli("heatmap", "w.npy", "--out", "w.html", *words.split())
    assert (ran.code, Path("w.html").read_text()) == (2, "old")


def test_a_page_of_too_many_weights_is_refused(attncli: Run, folder: Path) -> None:
    np.save("q.npy", np.ones((1, 60, 1500, 1), np.float32))
    ran = attncli("heatmap", "q.npy", "q.npy", "--out", "w.html")
    assert (ran.code, Path("w.html").exists()) == (2, False)


# --- what it holds ------------------------------------------------------------------------


def test_every_rule_that_hides_a_key_is_told() -> None:
    rng = np.random.default_rng(2)
    bias = np.where(rng.random((2, 5, 6)) < 0.2, -np.inf, rng.normal(size=(2, 5, 6)))
    problem = attncli.pose(
        rng.normal(size=(2, 2, 5, 3)),
        rng.normal(size=(2, 2, 6, 3)),
        mask=rng.random((5, 6)) < 0.8,
        key_padding_mask=rng.random((2, 6)) < 0.8,
        kv_lengths=[5, 6],
        query_lengths=[5, 4],
        causal=True,
        query_offset=1,
        window=(3, -1),
        segment_ids=[0, 0, 1, 1, 1],
        kv_segment_ids=[0, 0, 0, 1, 1, 1],
        bias=bias[None],
    )
    found = set()
    for one in MapMaker().maps(Computed(problem)):
        assert one.reasons is not None
        for query, key in np.ndindex(5, 6):
            rules = problem.visible.reasons(one.batch, one.head, query, key)
            rules += ("bias",) * bool(bias[one.head, query, key] == -np.inf)
            bits = int(one.reasons[query, key])
            names = [n for n in range(8) if bits >> n & 1]
            assert tuple((*HIDING_RULES, "bias")[n] for n in names) == rules
            found |= {*names}
    assert found == {*range(len(REASONS))}


def test_scores_that_say_so_hide_finished_weights(attncli: Run, folder: Path) -> None:
    weights = np.array([[1.0, 0.0], [1.0, 0.0]])
    np.savez("w.npz", weights=weights, scores=np.array([[1.0, -np.inf], [800.0, 0.0]]))
    attncli("heatmap", "w.npz", "--out", "w.html").good()
    codes = block(Path("w.html").read_text(), "r-0-0", "u1")
    assert [*(codes > 0)] == [False, True, False, False]


def test_more_weights_are_rounded_to_seven_bits_and_stay_small() -> None:
    weights = softmaxed((2500, 2500))
    text = page([Map(0, 0, 0, weights)], title="")
    data = data_of(text)
    assert (data["exact"], data["note"] != "") == (False, True)
    # Twelve layers of twelve heads and 512 tokens would take 40 megabytes.
    assert len(text) * 144 * 512**2 / weights.size < 40e6
    rows = data["maps"][0]["band"]
    found = []
    for number in range(-(-2500 // rows)):
        band = block(text, f"w-0-0-0-{number}", "u1")
        count = min(rows, 2500 - number * rows)
        largest = band[: 4 * count].view("<f4")
        shares = (band[4 * count :].reshape(count, 2500) / 127.0) ** 2
        found.append(shares * largest[:, None])
    off = np.abs(np.concatenate(found) - weights) / weights.max(1, keepdims=True)
    assert off.max() < 0.008  # as the page says


@pytest.mark.parametrize("title", ["{data}{script}", "</title><script>1</script>", "a & b"])
def test_a_title_is_text(title: str) -> None:
    text = page([Map(0, 0, 0, np.eye(2))], title=title)
    assert f"<title>{html.escape(title)}</title>" in text


# --- in Python ----------------------------------------------------------------------------


def test_view_shows_a_problem_in_a_frame_without_rights() -> None:
    shown = attncli.view(attncli.pose([[1.0]], [[1.0]]), title='a"b')
    frame = shown._repr_html_()
    assert re.match('<iframe sandbox="allow-scripts" ', frame)
    inside = re.search('srcdoc="([^"]*)"', frame)
    assert inside
    assert html.unescape(inside[1]) == shown.html


@pytest.mark.parametrize("wrong", [[1.0], [[-1.0]], [[np.nan]], [["a"]], np.ones((0, 2))])
def test_view_refuses_what_are_no_weights(wrong: Any) -> None:
    with pytest.raises(attncli.AttnError):
        attncli.view(wrong)


def test_view_refuses_other_tokens(folder: Path) -> None:
    with pytest.raises(attncli.ShapeError):
        attncli.view(np.eye(2), tokens=["a"])
    with pytest.raises(attncli.UsageError):
        attncli.view(attncli.pose([[1.0]], [[1.0]]), tokens=["a"])
    attncli.view(np.eye(2), tokens=["a", "b"]).save("x.html")
    assert data_of(Path("x.html").read_text())["labels"] == [["a", "b"]]


# --- a browser ----------------------------------------------------------------------------

browser_test = pytest.mark.browser


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One Chromium for all tests."""
    playwright = pytest.importorskip("playwright.sync_api")
    if not CHROMIUM.exists():
        pytest.skip("no Chromium here")
    flags = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
    with playwright.sync_playwright() as started:
        running = started.chromium.launch(executable_path=str(CHROMIUM), args=flags)
        yield running
        running.close()


class Opened:
    """A page in the browser, and what it did."""

    def __init__(self, browser: Browser, path: Path, link: str = "", **looks: Any) -> None:
        self.tab: Page = browser.new_page(**{"viewport": {"width": 1200, "height": 800}, **looks})
        self.tab.set_default_timeout(10_000)
        self.requests: list[str] = []
        self.errors: list[str] = []
        self.tab.on("request", lambda request: self.requests.append(request.url))
        self.tab.on("pageerror", lambda error: self.errors.append(str(error)))
        self.tab.on("console", lambda m: self.errors.append(m.text) if m.type == "error" else None)
        self.tab.goto(f"file://{path}{link}")
        self.tab.wait_for_selector("#row tbody tr", state="attached")

    def text(self, selector: str) -> str:
        return self.tab.locator(selector).inner_text()

    def rows(self) -> list[list[str]]:
        found = self.tab.locator("#row tbody tr").all()
        return [row.locator("td").all_inner_texts() for row in found]

    def until(self, selector: str, words: str) -> None:
        self.tab.locator(selector, has_text=words).first.wait_for(state="attached")

    @property
    def link(self) -> dict[str, str]:
        pairs = self.tab.url.partition("#")[2].split("&")
        return dict(pair.split("=") for pair in pairs)


@pytest.fixture
def opened(browser: Browser) -> Iterator[Callable[..., Opened]]:
    tabs: list[Opened] = []

    def open_page(path: Path, link: str = "", **looks: Any) -> Opened:
        tabs.append(Opened(browser, path, link, **looks))
        return tabs[-1]

    yield open_page
    for one in tabs:
        one.tab.close()
        assert one.errors == []
        assert [url for url in one.requests if not url.startswith(("file://", "data:"))] == []


@pytest.fixture(scope="module")
def causal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page of two layers, two heads and twelve tokens, causal with a window."""
    rng = np.random.default_rng(5)
    tokens = [f"tok{n}" for n in range(11)] + ["last"]
    maps = []
    for layer in range(2):
        query, key = rng.normal(size=(2, 1, 2, 12, 4))
        problem = attncli.pose(
            query, key, causal=True, window=(6, 0), query_labels=tokens, key_labels=tokens
        )
        maps += MapMaker().maps(Computed(problem), layer=layer)
    path = tmp_path_factory.mktemp("page") / "view.html"
    path.write_text(page(maps, title="Attention", reasons=REASONS), encoding="utf-8")
    return path


@browser_test
def test_the_numbers_are_those_of_compute(opened: Any, attncli: Run, folder: Path) -> None:
    files = [str(MINILM / f"{name}.npy") for name in ("query", "key")]
    words = [*files, "--causal", "--tokens", str(MINILM / "tokens.txt")]
    attncli("heatmap", *words, "--out", "w.html").good()
    ran = attncli("compute", *words, "--show", "weights,scores", "--format", "json").good()
    weights = np.array(ran.json["weights"], float)[0]
    scores = ran.json["scores"][0]
    for head, query in ((0, 5), (11, 9)):
        shown = opened(folder / "w.html", f"#head={head}&query={query}")
        rows = shown.rows()
        order = np.argsort(-weights[head, query, : query + 1])
        assert [row[0] for row in rows] == [f"{key} “{TOKENS[key]}”" for key in order]
        for row, key in zip(rows, order, strict=True):
            assert float(row[1]) == pytest.approx(weights[head, query, key], abs=6e-5)
            assert float(row[2]) == pytest.approx(scores[head][query][key], abs=1e-4)


@browser_test
def test_pointing_tells_and_clicking_chooses(opened: Any, causal: Path) -> None:
    shown = opened(causal, "#layer=1&head=1")
    box = shown.tab.locator("#matrix").bounding_box()
    cell = shown.tab.evaluate("geometry().cell")
    left, top = shown.tab.evaluate("[geometry().left, geometry().top]")

    def place(query: int, key: int) -> tuple[float, float]:
        return box["x"] + left + (key + 0.5) * cell, box["y"] + top + (query + 0.5) * cell

    shown.tab.mouse.move(*place(9, 1))
    shown.until("#cell", "query 9 “tok9”")
    assert "hidden: the key lies outside the window" in shown.text("#cell")
    shown.tab.mouse.move(*place(3, 4))
    shown.until("#cell", "causal: the key comes after the query")
    shown.tab.mouse.move(*place(3, 2))
    shown.until("#cell", "score")
    assert shown.link["query"] == "0"
    shown.tab.mouse.click(*place(3, 2))
    shown.until("#row-title", "Query 3 “tok3”")
    assert (shown.link["query"], shown.link["key"], len(shown.rows())) == ("3", "2", 4)


@browser_test
def test_the_keyboard_goes_everywhere(opened: Any, causal: Path) -> None:
    shown = opened(causal)
    keys = shown.tab.keyboard
    shown.tab.focus("#tab-matrix")
    keys.press("Tab")  # to the matrix: the other tabs are reached by arrows
    assert shown.tab.evaluate("document.activeElement.id") in ("view-matrix", "scroller")
    shown.tab.focus("#scroller")
    for name in ("ArrowDown", "ArrowDown", "ArrowRight", "PageDown", "End", "ArrowUp", "Home"):
        keys.press(name)
    shown.until("#cell", ["query 10 “tok10”", "key 0 “tok0”"][0])
    assert (shown.link["query"], shown.link["key"]) == ("10", "0")
    keys.press("+")
    assert shown.link["zoom"] == "1"
    shown.tab.focus("#tab-matrix")
    keys.press("ArrowRight")
    assert shown.tab.evaluate("document.activeElement.id") == "tab-lines"
    shown.tab.locator("#left button").nth(4).focus()
    keys.press("Enter")
    assert shown.link["query"] == "4"
    assert shown.tab.evaluate("document.activeElement.textContent") == "tok4"
    shown.tab.focus("#tab-lines")
    keys.press("ArrowRight")
    shown.tab.locator("#grid button").nth(3).focus()
    keys.press("Enter")
    assert [shown.link[name] for name in ("view", "layer", "head")] == ["matrix", "1", "1"]


@browser_test
def test_the_link_holds_the_state(opened: Any, causal: Path) -> None:
    shown = opened(causal, "#layer=1&head=1&query=8&view=lines&colours=viridis&log=1")
    assert shown.text("#row-title") == "Query 8 “tok8” attends to"
    assert shown.tab.locator("#layer").input_value() == "1"
    assert shown.tab.locator("#log").is_checked()
    assert shown.tab.locator("#view-lines").is_visible()
    shown.tab.evaluate("location.hash = '#layer=0&query=2'")
    shown.until("#row-title", "Query 2")
    # Nonsense is put right.
    shown.tab.evaluate("location.hash = '#layer=9&query=-5&view=x&colours=constructor&zoom=99'")
    shown.until("#row-title", "Query 0")


HOSTILE = [
    "</script><script>hacked=1</script>",
    "<img src=x onerror=hacked=1>",
    "a&amp;b",
    "\u2028",
]


@browser_test
def test_labels_are_text(opened: Any, folder: Path) -> None:
    shown = attncli.view(np.full((4, 4), 0.25), tokens=HOSTILE, title=HOSTILE[0])
    shown.save("x.html")
    tab = opened(folder / "x.html")
    assert tab.text("#title") == HOSTILE[0]
    assert [row[0] for row in tab.rows()][:3] == [f"{n} “{HOSTILE[n]}”" for n in range(3)]
    tab.tab.click("#tab-lines")
    assert tab.tab.locator("#left button").first.inner_text() == HOSTILE[0]
    assert tab.tab.evaluate("typeof hacked") == "undefined"
    assert tab.tab.locator("img").count() == 0


@browser_test
def test_nothing_leaves_the_page(opened: Any, causal: Path) -> None:
    shown = opened(causal)
    refused = shown.tab.evaluate(
        """async () => {
          const found = [];
          const note = (event) => found.push(event.violatedDirective);
          document.addEventListener("securitypolicyviolation", note);
          await fetch("https://example.org/").catch(() => {});
          const image = new Image();
          image.src = "https://example.org/x.png";
          const script = document.createElement("script");
          script.textContent = "hacked = 1";
          document.body.append(image, script);
          await new Promise((done) => setTimeout(done, 200));
          return [found.sort(), typeof hacked];
        }"""
    )
    assert refused == [["connect-src", "img-src", "script-src-elem"], "undefined"]
    shown.errors.clear()  # what the browser said of it
    shown.requests[:] = [url for url in shown.requests if "example.org" not in url]


@browser_test
def test_a_notebook_frame_works_without_rights(opened: Any, folder: Path) -> None:
    frame = attncli.view(np.eye(3), tokens=["a", "b", "c"])._repr_html_()
    Path("note.html").write_text(f"<table id=row><tbody><tr></table>{frame}")
    shown = opened(folder / "note.html")
    inside = shown.tab.frame_locator("iframe")
    inside.locator("#row-title", has_text="Query 0").wait_for()
    inside.locator("#tab-lines").click()
    inside.locator("#left button").nth(1).click()
    inside.locator("#row-title", has_text="Query 1").wait_for()


@browser_test
def test_patches_lie_over_an_image(opened: Any, folder: Path) -> None:
    """Behind a class token lie 2 x 2 patches: query 0 attends to the third, others to the last."""
    weights = np.zeros((5, 5), np.float32)
    weights[0, 3] = weights[1:, 4] = 1
    image = image_address(np.full((6, 6, 3), 40, np.uint8))
    patches = Patches((2, 2), 1, image, smooth=False)
    Path("p.html").write_text(page([Map(0, 0, 0, weights)], title="", patches=patches))
    shown = opened(folder / "p.html")
    canvas = shown.tab.locator("#patches")

    def brightest() -> int:
        shown.tab.wait_for_timeout(200)
        red = [
            shown.tab.evaluate(f"patches.getContext('2d').getImageData({x}, {y}, 1, 1).data[0]")
            for y in (100, 450) for x in (100, 450)
        ]  # fmt: skip
        return max(range(4), key=red.__getitem__)

    assert brightest() == 2
    assert "class token" in shown.text("#ramp-text")
    canvas.hover(position={"x": 100, "y": 450})
    shown.until("#cell", "key 3\nweight 1.0")
    canvas.click(position={"x": 450, "y": 100})
    shown.until("#row-title", "Query 2")
    assert brightest() == 3
    shown.tab.fill("#query", "0")
    shown.tab.press("#query", "Enter")
    shown.until("#row-title", "Query 0")


@browser_test
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_everybody_can_use_it(opened: Any, causal: Path, folder: Path, scheme: str) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    shown = opened(causal, color_scheme=scheme)
    patches = Patches((2, 6), 0, image_address(np.zeros((4, 12, 3), np.uint8)))
    Path("p.html").write_text(page([Map(0, 0, 0, np.eye(12))], title="", patches=patches))
    laid = opened(folder / "p.html", color_scheme=scheme)
    for name in ("matrix", "lines", "grid", "patches"):
        tab = (laid if name == "patches" else shown).tab
        tab.click(f"#tab-{name}")
        found = axe.run(tab)
        assert found.violations_count == 0, found.generate_report()
