"""What `explain` shows: it fits, it says the numbers, and labels are never markup."""

import json
import math
import re
from io import StringIO

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console
from strategies import problems

from attncli import load, pose
from attncli.explanation import printing
from attncli.explanation.explaining import explain
from attncli.explanation.formulas import name_of
from attncli.explanation.mapping import as_dict
from attncli.explanation.printing import as_markdown
from attncli.view.limits import Limits

pytestmark = pytest.mark.filterwarnings("ignore::attncli.errors.AttnWarning")

QUERY = [[1.0, 0.0, 1.0], [0.0, 1.0, 1.0]]
KEY = [[1.0, 0.0, 1.0], [1.0, 1.0, 0.0], [0.0, 1.0, 1.0]]
VALUE = [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]
LATIN = ["[/b]", "$x$ & {y}_2^3 \\ # %", "\x1b[31m\n", "a|b`c*d~<e>", "a|b`c*d~<e>"]
HOSTILE = [*LATIN, "中文字符" * 9]


def as_text(way, **limits):
    return printing.as_text(way, Limits(**limits))


def renderable(way, **limits):
    return printing.renderable(way, Limits(depth="truecolor", **limits))


def tutorial(query=0, **options):
    return explain(pose(QUERY, KEY, VALUE, **options), query=query)


def everything(keys=6, width=64):
    """Return the explanation of a query with every step that there is, and hostile labels."""
    random = np.random.default_rng(5)
    labels = (HOSTILE * keys)[:keys]
    problem = pose(
        random.normal(size=(4, keys, width)),
        *(random.normal(size=(2, keys, width)) for _ in range(2)),
        layout="hsd",
        causal=True,
        window=(4, 0),
        softcap=5.0,
        bias=random.normal(size=(keys, keys)),
        alibi_slopes=True,
        sinks=[0.5, 1.0, 1.5, 2.0],
        rope="half",
        query_labels=labels,
        key_labels=labels,
    )
    return explain(problem, query=keys - 2, head=2)


def drawn(way, width, color):
    """Return a console that remembers the explanation as it was printed."""
    console = Console(
        file=StringIO(), width=width, color_system=color, force_terminal=bool(color), record=True
    )
    console.print(renderable(way, width=width))
    return console


def longest_line(way, width, **options):
    """Return the columns of the longest line before a console could wrap it."""
    return max(cell_len(line.plain) for line in renderable(way, width=width, **options).renderables)


def value_of(formula):
    """Calculate what a formula of the text says, by itself."""
    text = re.sub(r" \((d|k|x|context)\d+\)|\(\d+ more\)| · \[sink\]", "", formula)
    text = re.sub(r"\|([^|]*)\|", r"abs(\1)", text)
    text = re.sub(r"√(\d+)", r"sqrt(\1)", text).replace("ln(", "log(")
    text = text.replace("·", "*")
    names = {name: getattr(math, name) for name in ("exp", "tanh", "sqrt", "log")}
    return eval(text, {"__builtins__": {}, "abs": abs}, names)


NAMED = re.compile(r"\s*(score|raw|capped|denominator|lse|weight|context\[\d+\])(\(.*?\))? = ")


def formulas(text):
    """Yield the formulas of numbers in a text: a name, and what its equals signs part."""
    joined = []
    for line in text.splitlines():
        # What is wrapped goes on below the first equals sign.
        key = re.match(r"\s*(rotated )?k(\d+|\(.*\)) = ", line)
        if line.startswith("   ") and not NAMED.match(line) and not key:
            joined[-1] += " " + line.strip()
        else:
            joined.append(line)
    for line in joined:
        name = NAMED.match(line)
        sides = [side for side in line.split(" = ")[1:] if "Σ" not in side]
        if name and sides and not re.search(r"\bq\b|score|hidden", sides[0]):
            yield name[1], sides


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"softcap": 0.7},
        {"softcap": 2.0, "bias": [0.5, -0.25, 1.0], "alibi_slopes": [0.25]},
        {"causal": True, "causal_align": "top-left"},
        {"score": "general", "score_weight": np.arange(9.0).reshape(3, 3) / 7},
        {"score": "additive", "score_vector": [1, -0.5, 2]},
        {"rope": "half"},
    ],
    ids=lambda options: "-".join(map(str, options)),
)
@pytest.mark.parametrize("width", [60, 200])
def test_every_formula_in_the_text_is_true(options, width):
    random = np.random.default_rng(1)
    size = 4 if "rope" in options else 3
    lead = (1,) if "alibi_slopes" in options else ()
    q, k, v = (random.normal(size=(*lead, n, size)) for n in (2, 3, 3))
    way = explain(pose(q, k, v, **options), query=1)
    found = list(formulas(as_text(way, width=width, digits=9)))
    names = {name for name, _ in found}
    assert {"score", "denominator", "lse", "weight", "context[0]"} <= names
    checked = 0
    for _, sides in found:
        values = [value_of(side) for side in sides]
        assert values == pytest.approx([values[-1]] * len(values), rel=1e-6, abs=1e-7)
        checked += len(values) - 1
    assert checked >= 8


def test_sums_that_are_cut_still_add_up():
    random = np.random.default_rng(2)
    q, k, v = (random.normal(size=(count, 64)) for count in (1, 30, 30))
    way = explain(pose(q, k, v, scale=1), query=0, keys=5)
    text = as_text(way, width=80, digits=9)
    assert "(60 more)" in text
    assert "(25 more)" in text
    for _, sides in formulas(text):
        values = [value_of(side) for side in sides]
        assert values == pytest.approx([values[-1]] * len(values), rel=1e-6, abs=1e-6)


@given(problem=problems(), data=st.data())
@settings(max_examples=15, deadline=None)
def test_no_line_is_wider_than_the_terminal(problem, data):
    *qkv, options = problem
    posed = pose(*qkv, **options)
    b, h, i = (data.draw(st.integers(0, size - 1)) for size in posed.shape[:3])
    way = explain(posed, query=i, batch=b, head=h, keys=data.draw(st.sampled_from([1, 3, None])))
    width, unicode = data.draw(st.sampled_from([40, 60, 80, 200])), data.draw(st.booleans())
    text = as_text(way, width=width, unicode=unicode)
    assert longest_line(way, width, unicode=unicode) <= width
    assert max(map(cell_len, text.splitlines())) <= width
    assert unicode or text.isascii()
    assert "nan" not in text
    json.dumps(as_dict(way), allow_nan=False)
    assert as_markdown(way).count("$$") % 2 == 0


@pytest.mark.parametrize("width", [40, 60, 80, 200])
@pytest.mark.parametrize("color", [None, "truecolor", "256"])
def test_hostile_labels_and_every_step_fit(width, color):
    assert longest_line(everything(), width) <= width
    lines = drawn(everything(), width, color).export_text().splitlines()
    assert max(map(cell_len, lines)) <= width
    # Nothing wraps at the terminal's edge: colour takes as many lines as plain text.
    assert [x.rstrip() for x in lines] == as_text(everything(), width=width).splitlines()
    assert any("[/b]" in line for line in lines)


def table_lines(text):
    """Return the lines of the table: headings, rule, rows."""
    lines = text.splitlines()
    rule = next(i for i, line in enumerate(lines) if set(line) == {"─"})
    end = next(i for i in range(rule, len(lines)) if lines[i].startswith("sum"))
    return lines[rule - 1 : end + 1]


def table_rows(text):
    return table_lines(text)[2:]


def test_the_dictionary_holds_exact_numbers_and_none_for_minus_infinity():
    q, k, v = (np.float32(x) / np.float32(3) for x in (QUERY, KEY, VALUE))
    way = explain(pose(q, k, v, causal=True), query=0)
    found = json.loads(json.dumps(as_dict(way), allow_nan=False))
    assert found["schema"] == 1
    assert found["query"]["vector"] == [0.33333334, 0.0, 0.33333334]
    assert np.float32(found["keys"][0]["raw"]) == way.steps[0].raw
    hidden = found["keys"][1]
    assert (hidden["score"], hidden["exponent"], hidden["weight"]) == (None, None, 0)
    assert hidden["hidden"] == [{"rule": "causal", "why": "key 1 comes after position 0"}]
    assert found["context"] == [float(str(x)) for x in way.context]


# --- Markdown and LaTeX ----------------------------------------------------------------------


def unbroken(markdown):
    """Return formulas that stand on several lines as if each stood on one."""
    for ends, instead in (
        (" \\cr\n&\\quad {}", " "),
        (" \\cr\n&= ", " = "),
        (" &= ", " = "),
        ("\\begin{aligned}\n", ""),
        ("\n\\end{aligned}", ""),
    ):
        markdown = markdown.replace(ends, instead)
    return markdown


@pytest.mark.parametrize("label", [*HOSTILE, "$$", "}", "\\end{x}", "^^", "<script>"])
def test_latex_of_any_label_is_balanced_and_closes_no_formula(label):
    latex = name_of("k", 0, label).tex
    plain = re.sub(r"\\[{}$]", "", latex)
    depth = 0
    for character in plain:
        depth += (character == "{") - (character == "}")
        assert depth >= 0
    assert depth == 0
    assert "$" not in plain
    assert not re.search(r"<\w|[`*\x00-\x1f]", latex)


KINDS = {
    "dot": {},
    "cosine": {"score": "cosine"},
    "general": {"score": "general", "score_weight": np.arange(16.0).reshape(4, 4) / 9},
    "additive": {"score": "additive", "score_vector": [1, -0.5, 2, 0.25]},
}


def layer(kind, heads):
    """Return the explanation of a head of a layer, and what the head adds to its output."""
    random = np.random.default_rng(2)
    q, k, v = (random.normal(size=(3, 4 * heads)) for _ in range(3))
    wo, bo = random.normal(size=(4 * heads, 3)), random.normal(size=3)
    way = explain(pose(q, k, v, **KINDS[kind], heads=heads, wo=wo, bo=bo), query=1, head=heads - 1)
    q, k, v = (array[:, -4:] for array in (q, k, v))
    scores = {
        "dot": lambda: k @ q[1] / 2,
        "cosine": lambda: k @ q[1] / np.linalg.norm(k, axis=1) / np.linalg.norm(q[1]),
        "general": lambda: k @ (q[1] @ KINDS["general"]["score_weight"]),
        "additive": lambda: np.tanh(k + q[1]) @ KINDS["additive"]["score_vector"],
    }[kind]()
    weights = np.exp(scores) / np.exp(scores).sum()
    return way, scores, weights @ v @ wo[-4:] + (bo if heads == 1 else 0)


def numbers_of(text, name, indices):
    """Return the formulas of some names, each as its sides."""
    lines = [" ".join(part.split()) for part in re.split(r"\n(?!\s{3})|\n\n", text)]
    found = {line.split(" = ")[0]: line.split(" = ")[1:] for line in lines if " = " in line}
    return [found[name.format(index)] for index in indices]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("heads", [1, 2])
def test_the_output_of_a_layer_and_each_score_in_the_text(kind, heads):
    way, scores, output = layer(kind, heads)
    text = as_text(way, width=200, digits=9)
    name = "output[{}]" if heads == 1 else "share[{}]"
    for (formula, result), right in zip(numbers_of(text, name, range(3)), output, strict=True):
        assert float(result) == pytest.approx(right, rel=1e-7)
        assert value_of(formula) == pytest.approx(right, rel=1e-6)
    for sides, right in zip(numbers_of(text, "score(q1 → k{})", range(3)), scores, strict=True):
        assert float(sides[-1]) == pytest.approx(right, rel=1e-7)
        assert value_of(sides[-2]) == pytest.approx(right, rel=1e-6)
    if kind == "cosine":
        ((norm,),) = numbers_of(text, "‖q‖", [0])
        assert float(norm) == pytest.approx(math.dist(way.given, [0] * 4))


def test_hidden_keys_say_why_and_show_no_arithmetic():
    way = tutorial(causal=True, causal_align="top-left")
    text, why = as_text(way, width=80), "idden by causal: key 1 comes after position 0"
    assert f"score(q0 → k1) = -inf, h{why}" in text
    assert table_rows(text)[1].split() == ["k1", "-inf", "hidden", "by", "causal"]
    assert f"H{why}." in as_markdown(way)


def test_markdown_and_text_are_written_from_the_same_formulas():
    way = tutorial(query_labels=["cat", "dog"], key_labels=["a_b", "c", "c"])
    markdown = unbroken(as_markdown(way))
    score = r"\mathrm{score}(\text{cat} \to \text{a}\_\text{b}) = "
    products = r"(1 \cdot 1 + 0 \cdot 0 + 1 \cdot 1) / \sqrt{3}"
    assert score + products + r" = \frac{2}{1.7321} = 1.1547" in markdown
    assert "score(cat → a_b) = (1·1 + 0·0 + 1·1) / √3 = 2 / 1.7321 = 1.1547" in as_text(way)
    assert r"\text{c}_{2}" in markdown
    assert r"| 0 a\_b | 1.1547 | 0.0000 | 1.0000 | 0.4711 |" in markdown
    # 1 + 2 exp(-1/√3), and its inverse.
    assert r"\mathrm{weight}(\text{a}\_\text{b}) = \frac{1}{2.1228} = 0.4711" in markdown
    assert r"\mathrm{context}_{0} = 0.4711 \cdot 1 + 0.2645 \cdot 3" in markdown
    told = [line for line in as_text(way).splitlines() if " = " in line]
    assert markdown.count("$$\n") == 2 * len(told)


def test_a_projection_its_bias_and_a_position_are_worked_out():
    """Row 1 of X is (2, -1); sin 1 and cos 1 are added to it as its position."""
    given = {"x": [[0.0, 0.0], [2.0, -1.0]], "wq": [[0.5, 1.0], [3.0, -2.0]], "bq": [10.0, 20.0]}
    way = explain(load(**given, wk=np.eye(2), wv=np.eye(2), heads=2), query=1, head=0)
    text, markdown = as_text(way), unbroken(as_markdown(way))
    assert "q[0] = 2·0.5 + (-1)·3 + 10 = 8" in text
    assert r"q_{0} = 2 \cdot 0.5 + (-1) \cdot 3 + 10 = 8" in markdown
    assert "column 0 of the projection" in text
    placed = explain(load(**given, wk=np.eye(2), positions="sinusoidal"), query=1)
    x = [2 + math.sin(1), math.cos(1) - 1]
    assert f"x = ({x[0]:.4f}, {x[1]:.4f})" in as_text(placed)
    assert placed.given == pytest.approx([x[0] * 0.5 + x[1] * 3 + 10, x[0] - 2 * x[1] + 20])
    made = as_dict(way)["query"]["made"]
    assert (made["embedding"], made["columns"], made["bias"]) == ([2, -1], [0, 0], [10])


def test_the_rotation_of_the_first_pair_is_worked_out():
    """At position 2 the pairs of four components turn by 2 · 10000^0 and 2 · 10000^(-1/2)."""
    query, key = [[9.0] * 4] * 2 + [[1.5, 2.0, -0.5, 0.5]], np.ones((3, 4))
    way = explain(pose(query, key, rope="half"), query=2)
    text, markdown = as_text(way), as_markdown(way)
    first = 1.5 * math.cos(2) - -0.5 * math.sin(2)
    assert "angles = (2, 0.02)" in text
    assert "pair 0 is components 0 and 2" in text
    assert f"rotated[0] = 1.5 · cos(2) - (-0.5) · sin(2) = {first:.4f}" in text
    assert r"\theta = \left(2, 0.02\right)" in markdown
    assert as_dict(way)["query"]["angles"] == pytest.approx([2, 0.02])
    assert "angles" not in as_text(explain(pose(query, key), query=2))
    # At position 1 a key of ones turns by 1 and by 0.01.
    ends = [(math.cos(a) - math.sin(a), math.cos(a) + math.sin(a)) for a in (1, 0.01)]
    turned = [ends[0][0], ends[1][0], ends[0][1], ends[1][1]]
    rounded = ", ".join(f"{number:.4f}".rstrip("0") for number in turned)
    assert f"k(k1) = ({rounded})" in text
    assert rf"\tilde k(k_{{1}}) = \left({rounded}\right)" in markdown
    assert as_dict(way)["keys"][1]["vector"] == pytest.approx(turned)


def test_several_queries_are_explained_one_after_the_other(folder, attncli):
    (folder / "p.yaml").write_text(
        "q: [[1], [2], [3]]\nk: [[1], [2], [3]]\ntokens: [a, b, 'c,d']\n"
    )
    for named, queries in {
        "0:2": [0, 1], "2,0": [2, 0], "b,a": [1, 0], "a:b": [0, 1], "c,d": [2],
        "-1": [2], "1:": [1, 2],
    }.items():  # fmt: skip
        text = attncli("explain", "p.yaml", f"--query={named}").good().text
        assert [int(n) for n in re.findall(r"^How query (\d)", text, re.MULTILINE)] == queries
        found = attncli("explain", "p.yaml", f"--query={named}", "--json").good().json
        told = found["queries"] if len(queries) > 1 else [found]
        assert [one["query"]["index"] for one in told] == queries
        assert found["schema"] == 1
    markdown = attncli("explain", "p.yaml", "--query", "0:3", "-f", "markdown").good().text
    assert markdown.count("\n# How query") == 2
