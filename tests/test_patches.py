"""`heatmap --grid`: one row of weights as the patches of an image, in a picture and in a page."""

from __future__ import annotations

import base64
import json
import re
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from PIL import Image

if TYPE_CHECKING:
    from process import Run


@pytest.fixture
def files(folder: Path) -> Any:
    """Weights of a class token and 3 x 4 patches, strongest at row 1, column 2; a green image."""
    weights = np.full((2, 13, 13), 0.01)
    weights[:, :, 0] = 0.09  # the class token
    weights[:, :, 1 + 1 * 4 + 2] = 0.8
    np.save("w.npy", weights)
    np.save("plain.npy", weights[:, 1:, 1:])
    Image.new("RGB", (80, 60), (0, 160, 0)).save("green.png")
    return weights


def pixels(path: str) -> Any:
    return np.asarray(Image.open(path).convert("RGB")).astype(int)


@pytest.mark.parametrize("file", ["w.npy", "plain.npy"])
def test_the_terminal_shows_the_grid_alone(files: Any, attncli: Run, file: str) -> None:
    ran = attncli("heatmap", file, "--head", "0", "--grid", "3x4", "--annotate").good()
    rows = [re.findall(r"0\.\d\d", line) for line in ran.text.splitlines()]
    rows = [row for row in rows if len(row) == 4]
    assert rows == [["0.01"] * 4, ["0.01", "0.01", "0.80", "0.01"], ["0.01"] * 4]
    assert ("class token" in ran.text) is (file == "w.npy")
    assert "query 0" in ran.text
    assert "rows down, columns across" in ran.text


@pytest.mark.parametrize("words", [(), ("--blocks",)])
def test_an_image_shines_through(files: Any, attncli: Run, words: tuple[str, ...]) -> None:
    arguments = ["w.npy", "--head", "1", "--query", "3", "--grid", "3x4", "--image", "green.png"]
    attncli("heatmap", *arguments, *words, "--size", "4x3", "--out", "o.svg").good()
    text = Path("o.svg").read_text(encoding="utf-8")
    assert "query 3" in text
    assert "class token" in text
    attncli("heatmap", *arguments, *words, "--size", "4x3", "--out", "o.png").good()
    found = pixels("o.png")
    green = (found[..., 1] > 90) & (found[..., 0] < 40) & (found[..., 2] < 60)  # small weights
    assert green.mean() > 0.2
    down, across = np.nonzero(green)
    box = found[down.min() : down.max() + 1, across.min() : across.max() + 1]
    high, wide = box.shape[:2]
    patches = [
        [box[int((r + 0.5) * high / 3), int((c + 0.5) * wide / 4)] for c in range(4)]
        for r in range(3)
    ]
    red = np.array(patches)[..., 0]
    assert np.unravel_index(red.argmax(), (3, 4)) == (1, 2)  # the strongest patch is the brightest
    # Smooth colours change inside a patch, blocks do not.
    inside = box[int(0.36 * high) : int(0.64 * high), int(0.52 * wide) : int(0.73 * wide), 0]
    assert bool(np.ptp(inside) > 20) is (words == ())


def test_the_page_has_patches(files: Any, attncli: Run) -> None:
    words = ["w.npy", "--query", "5", "--grid", "3x4", "--image", "green.png", "--out", "w.html"]
    attncli("heatmap", *words).good()
    text = Path("w.html").read_text(encoding="utf-8")
    found = re.search(r'id="data">(.*?)</script>', text, re.DOTALL)
    assert found
    data = json.loads(found[1])
    assert (data["query"], data["patches"]["grid"], data["patches"]["first"]) == (5, [3, 4], 1)
    image = Image.open(BytesIO(base64.b64decode(data["patches"]["image"].partition(",")[2])))
    assert image.size == (80, 60)
    assert abs(np.asarray(image, int) - (0, 160, 0)).max() < 8


@pytest.mark.parametrize(
    "words",
    [
        "w.npy --grid 3x5",
        "w.npy --grid 3x5 --image green.png --out w.png",
        "w.npy --grid 3x4 --query 13",
        "w.npy --grid 3x4 --rows 0:2",
        "w.npy --grid 3x4 --image green.png",  # no image fits into a terminal
        "w.npy --grid 3x4 --image w.npy --out w.png",
        "w.npy --grid 3x4 --image cut.png --out w.png",
        "w.npy --grid 3x4 --image green.png --out green.png",
        "w.npy --image green.png --out w.png",
        "w.npy --query 1",
    ],
)
def test_what_does_not_fit_is_one_error(files: Any, attncli: Run, words: str) -> None:
    Path("cut.png").write_bytes(Path("green.png").read_bytes()[:60])
    ran = attncli("heatmap", *words.split())
    assert ran.code == 2
    assert sum(line.startswith("error: ") for line in ran.messages) == 1
    assert b"Traceback" not in ran.err
    assert not Path("w.png").exists()
