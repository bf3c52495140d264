"""What `explain` shows: it fits, it says the numbers, and labels are never markup."""

import itertools
import json
import math
import re
from io import StringIO

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_blocks import blocks
from rich.cells import cell_len
from rich.console import Console
from strategies import problems

from attncli import load, pose
from attncli.explanation.explaining import explain
from attncli.view.color import blues, blues_256, xterm
from attncli.view.explanation.latex import Latex, math_text
from attncli.view.explanation.mapping import as_dict
from attncli.view.explanation.markdown import as_markdown
from attncli.view.explanation.sums import sum_pieces
from attncli.view.explanation.terminal import as_text, renderable
from attncli.view.markdown import words
from attncli.view.notation import Notation

pytestmark = pytest.mark.filterwarnings("ignore::attncli.errors.AttnWarning")

QUERY = [[1.0, 0.0, 1.0], [0.0, 1.0, 1.0]]
KEY = [[1.0, 0.0, 1.0], [1.0, 1.0, 0.0], [0.0, 1.0, 1.0]]
VALUE = [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]
LATIN = ["[/b]", "$x$ & {y}_2^3 \\ # %", "\x1b[31m\n", "a|b`c*d~<e>", "a|b`c*d~<e>"]
HOSTILE = [*LATIN, "中文字符" * 9]


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
    text = re.sub(r"\((d|k)\d+\)|\(\d+ (more|smaller)\)|for the sink", "", formula)
    text = re.sub(r"\|([^|]*)\|", r"abs(\1)", text)
    text = re.sub(r"√(\d+)", r"sqrt(\1)", text).replace("ln ", "1*ln_")
    text = re.sub(r"ln_([\d.e+-]+)", r"log(\1)", text)
    for sign, instead in (("·", "*"), ("−", "-")):
        text = text.replace(sign, instead)
    names = {name: getattr(math, name) for name in ("exp", "tanh", "sqrt", "log")}
    return eval(text, {"__builtins__": {}, "abs": abs}, names)


NAMED = re.compile(r"\s*(score|raw|capped|denominator|lse|weight|context\[\d+\])(\(.*?\))? = ")


def formulas(text):
    """Yield the formulas of numbers in a text: a name, and what its equals signs part."""
    joined = []
    for line in text.splitlines():
        # What is wrapped goes on below the first equals sign.
        key = re.match(r"\s*k(\d+|\(.*\)) = ", line)
        if line.startswith("   ") and not NAMED.match(line) and not key:
            joined[-1] += " " + line.strip()
        else:
            joined.append(line)
    for line in joined:
        name = NAMED.match(line)
        sides = [side for side in line.split(" = ")[1:] if "ln Σ" not in side]
        if name and not re.search(r"\bq\b|score|hidden", sides[0]):
            yield name[1], sides


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"scale": 1},
        {"scale": -0.3},
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


@pytest.mark.parametrize("width", [60, 80])
def test_formulas_that_are_cut_still_add_up(width):
    random = np.random.default_rng(2)
    q, k, v = (random.normal(size=(n, 64)) for n in (1, 30, 30))
    way = explain(pose(q, k, v, scale=1), query=0, keys=5)
    text = as_text(way, width=width, digits=9)
    assert "more)" in text
    assert "smaller)" in text
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


@pytest.mark.parametrize("width", [40, 45, 50, 60])
def test_formulas_break_at_operators(width):
    labels = ["internationalisation", "counterrevolutionary", "antidisestablishment"]
    rng = np.random.default_rng(1)
    query, key, value = (rng.normal(size=(3, size)) for size in (3, 3, 2))
    way = explain(pose(query, key, value, key_labels=labels, query_labels=labels), query=0)
    lines = as_text(way, width=width).splitlines()
    for line, following in itertools.pairwise(lines):
        assert not (re.search(r"[\d.√(]$", line) and re.match(r" +[\d.)]", following))


def test_counts_have_separators():
    way = explain(pose(np.ones((1, 2)), np.ones((1200, 2))), query=0, keys=1)
    assert "1,200 keys" in as_text(way).splitlines()[0]
    assert "There are 1,199 more keys." in as_markdown(way)
    assert "1,200 keys" in as_markdown(way)


def test_words_have_commas_and_formulas_products_in_ascii():
    title, *lines = as_text(tutorial(), unicode=False).splitlines()
    assert re.fullmatch(r"How query 0 .*attends, \d keys, float64", title)
    assert any("q * k" in line for line in lines)


def test_the_tutorial_reads_as_a_teacher_writes_it():
    text = as_text(
        tutorial(query_labels=["cat", "dog"], key_labels=["the", "mat", "sat"]), width=80
    )
    assert "How query 0 “cat” attends · 3 keys · float64" in text
    assert "score(cat → mat) = (1·1 + 0·1 + 1·0) / √3 = 1 / 1.7321 = 0.5774" in text
    assert "weight = exp(score − 1.1547) / denominator" in text
    assert "weight(the) = 1 / 2.1228 = 0.4711" in text
    assert "context[0] = 0.4711·1 + 0.2645·3 + 0.2645·5 = 2.5868" in text


def table_lines(text):
    """Return the lines of the table: headings, rule, rows."""
    lines = text.splitlines()
    rule = next(i for i, line in enumerate(lines) if set(line) == {"─"})
    end = next(i for i in range(rule, len(lines)) if lines[i].startswith("sum"))
    return lines[rule - 1 : end + 1]


def table_rows(text):
    return table_lines(text)[2:]


def test_bars_are_as_long_as_weights_and_the_strongest_is_full():
    way = explain(pose([[1.0]], [[0.0], [math.log(4)], [math.log(2)]], scale=1), query=0)
    lengths = [row.count("█") for row in table_rows(as_text(way, width=120))]
    assert lengths == [8, 32, 16, 0]


def test_stronger_keys_are_darker_blue():
    shown = drawn(tutorial(scale=3), 80, "truecolor").export_text(styles=True)
    weights = [step.weight for step in tutorial(scale=3).steps]
    codes = [";".join(map(str, blues(0.4 + 0.4 * weight))) for weight in weights]
    assert all(f"38;2;{code}m" in shown for code in codes)
    assert len(set(codes[:2])) == 2


def test_bars_are_of_the_colours_that_the_terminal_has():
    way = tutorial(scale=3)
    lines = [part for part in renderable(way, depth="256").renderables if "█" in part.plain]
    codes = [{getattr(span.style, "color", None) for span in line.spans} for line in lines]
    expected = [xterm(blues_256(0.4 + 0.4 * step.weight)) for step in way.steps]
    found = [color.number for colors in codes for color in colors if color]
    assert found == [
        code for code, step in zip(expected, way.steps, strict=True) if step.weight > 0.01
    ]


def test_hidden_keys_say_why_and_show_no_arithmetic():
    text = as_text(tutorial(causal=True, causal_align="top-left"), width=80)
    assert "score(q0 → k1) = −inf, hidden by causal: key 1 comes after position 0" in text
    assert table_rows(text)[1].split() == ["k1", "−inf", "hidden", "by", "causal"]
    markdown = as_markdown(tutorial(causal=True, causal_align="top-left"))
    assert "Hidden by causal: key 1 comes after position 0." in markdown


def test_a_blind_query_says_so():
    way = tutorial(mask=np.zeros((2, 3)))
    assert "this query sees no key, so every weight is 0" in as_text(way)
    assert "This query sees no key" in as_markdown(way)
    assert "context[0] = 0\n" in as_text(way)


def test_long_problems_sum_up_the_rest_in_one_line():
    random = np.random.default_rng(0)
    problem = pose(*(random.normal(size=(300, 4)) for _ in range(3)), causal=True)
    way = explain(problem, query=200, keys=4)
    text = as_text(way, width=80)
    assert "… 197 more with smaller scores and 99 more hidden: 99 by causal" in text
    (rest,) = [row for row in table_rows(text) if row.startswith("…")]
    assert rest.split()[:3] == ["…", "197", "more"]
    assert float(rest.split()[-1]) == pytest.approx(way.rest.weight, abs=1e-4)
    first = as_text(explain(problem, query=3, keys=4), width=80)
    (rest,) = [row for row in table_rows(first) if row.startswith("…")]
    assert rest.split()[:3] == ["…", "296", "hidden"]
    assert "There are 296 more keys, 99 of them hidden: 99 by causal." in as_markdown(way)


def test_keys_that_several_rules_hide_are_said_to_be():
    """Of 6 keys that are hidden by the mask, 4 are behind the query, too; so are 2 more."""
    q = np.ones((10, 2))
    mask = np.arange(10) < 4
    way = explain(pose(q, q, q, causal=True, mask=mask[None]), query=5, keys=1)
    counts = "6 by mask, 4 by causal (some by several rules)"
    assert f"6 more hidden: {counts}" in as_text(way, width=100)
    assert f"6 of them hidden: {counts}" in as_markdown(way)


def test_the_key_value_head_that_is_read_is_in_the_title():
    random = np.random.default_rng(0)
    shapes = (6, 2, 4), (3, 5, 4), (3, 5, 4)
    problem = pose(*(random.normal(size=shape) for shape in shapes), layout="hsd")
    way = explain(problem, query=0, head=5)
    assert " · head 5 · key/value head 2 · 5 keys" in as_text(way)
    assert "Head 5, key/value head 2, 5 keys" in as_markdown(way)


def test_narrow_terminals_lose_columns_and_never_the_weight():
    texts = {width: as_text(everything(), width=width) for width in (40, 60, 200)}
    header = {width: table_lines(text)[0].split() for width, text in texts.items()}
    full = ["key", "raw", "capped", "bias", "ALiBi", "score", "shifted", "exp", "weight"]
    assert header[200] == full
    for width in (40, 60):
        assert [x for x in full if x in header[width]] == header[width]
        assert header[width][-1] == "weight"


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


def test_markdown_holds_the_formulas_in_latex():
    markdown = as_markdown(tutorial(query_labels=["cat", "dog"], key_labels=["a_b", "c", "c"]))
    assert r"\mathrm{sum} = 1 \cdot 1 + 0 \cdot 0 + 1 \cdot 1 = 2" in markdown
    score = r"\mathrm{score}(\text{cat} \to \text{a}\_\text{b}) = "
    assert score + r"\frac{2}{\sqrt{3}} = 1.1547" in markdown
    assert "$1.1547$ is the largest, and subtracting it" in markdown
    assert r"\mathrm{lse} = \ln \sum e^{\mathrm{score}} = 1.1547 + \ln 2.1228 = 1.9074" in markdown
    assert r"\text{c}_{2}" in markdown
    assert r"| 0 a\_b | 1.1547 | 0.0000 | 1.0000 | 0.4711 |" in markdown
    rule = r"\mathrm{weight} = \frac{e^{\mathrm{score} - 1.1547}}{\mathrm{denominator}}"
    assert rule in markdown
    # 1 + 2 exp(-1/√3), and its inverse.
    assert r"\mathrm{weight}(\text{a}\_\text{b}) = \frac{1}{2.1228} = 0.4711" in markdown
    assert r"\mathrm{context}_{0} = 0.4711 \cdot 1 + 0.2645 \cdot 3" in markdown


@pytest.mark.parametrize("label", [*HOSTILE, "$$", "}", "\\end{x}", "^^", "<script>"])
def test_latex_of_any_label_is_balanced_and_closes_no_formula(label):
    latex = math_text(label)
    plain = re.sub(r"\\[{}$]", "", latex)
    depth = 0
    for character in plain:
        depth += (character == "{") - (character == "}")
        assert depth >= 0
    assert depth == 0
    assert "$" not in plain
    assert not re.search(r"<\w|[`*\x00-\x1f]", latex)


@pytest.mark.parametrize(
    ("options", "added"),
    [
        ({}, []),
        ({"softcap": 1.0}, ["raw", "capped"]),
        ({"bias": np.ones((3, 3))}, ["raw", "bias"]),
        ({"softcap": 2.0, "alibi_slopes": [0.5], "sinks": [0.1]}, ["raw", "capped", "ALiBi"]),
    ],
)
def test_the_table_of_markdown_has_the_columns_and_numbers_of_the_terminals(options, added):
    way = explain(pose(KEY, KEY, VALUE, causal=True, **options), query=1, keys=2)
    (_, (columns, *rows)) = next(b for b in blocks(as_markdown(way)) if b[0] == "table")
    assert columns[:-3] == ["key", *added, "score"]
    assert table_lines(as_text(way))[0].split()[:-3] == columns[:-3]
    assert {row[0] for row in rows[:2]} == {"$k_{0}$", "$k_{1}$"}
    told = [re.findall(r"-?\d+\.\d{4}", line) for line in table_rows(as_text(way))]
    assert [[cell for cell in row[1:] if cell] for row in rows] == told
    if "softcap" in options:
        cap, raw = options["softcap"], 1 / math.sqrt(3)
        first = next(row for row in rows if row[0] == "$k_{0}$")
        assert first[1:3] == [f"{raw:.4f}", f"{cap * math.tanh(raw / cap):.4f}"]


def test_a_hidden_key_in_the_table_of_markdown_has_its_raw_score_and_the_rule():
    way = explain(pose(KEY, KEY, causal=True, softcap=1.0), query=1)
    _, table = next(b for b in blocks(as_markdown(way)) if b[0] == "table")
    raw = 1 / math.sqrt(3)
    known = [f"{raw:.4f}", f"{math.tanh(raw):.4f}", "−∞"]
    assert table[3] == ["$k_{2}$", *known, "hidden by causal", "0", "0"]


def test_markdown_of_labels_renders_as_the_label():
    parser = pytest.importorskip("markdown_it").MarkdownIt("commonmark").enable("table")
    for label in LATIN:
        table = f"| key |\n|---|\n| {words(label)} |\n"
        cell = [token for token in parser.parse(table) if token.type == "inline"][-1]
        shown = "".join(child.content for child in cell.children)
        assert shown == label.replace("\x1b", "\\x1b").replace("\n", "\\x0a")


def long_way():
    random = np.random.default_rng(0)
    q, k, v = (random.normal(size=(13, 32)) for _ in range(3))
    return explain(pose(2 * q, k, v), query=3)


@pytest.mark.parametrize("width", [60, 80, 120, 200])
def test_all_columns_of_the_context_are_written_in_one_form(width):
    text = as_text(long_way(), width=width).split("Context\n")[1]
    sums = re.split(r"context\[\d\] = ", text)[1:]
    assert len(sums) == 8
    keys = {tuple(re.findall(r"\((k\d+)\)", formula)) for formula in sums}
    assert len(keys) == 1
    if any(keys):
        strongest = sorted(long_way().steps, key=lambda step: -step.weight)
        names = {f"k{step.index}" for step in strongest[: len(*keys)]}
        assert set(*keys) == names
    assert "… 24 more columns (--format json has all)" in text


def test_a_key_has_one_name_in_the_table_and_the_formulas():
    text = as_text(long_way(), width=200)
    told = set(re.findall(r"score\(q3 → (k\d+)\)", text))
    assert {row.split()[0] for row in table_rows(text)} - {"…", "sum"} == told
    assert len(told) == 12
    markdown = as_markdown(long_way())
    for name in told:
        assert f"\n| $k_{{{name[1:]}}}$ | " in markdown


def test_numbers():
    plain, latex = Notation(4), Latex(4)
    assert [plain.number(x) for x in (0.5, -2.0, 0.0, -0.0, 1 / 3, 1e7, -3e-9, -math.inf)] == [
        "0.5", "-2", "0", "0", "0.3333", "1e+07", "-3e-09", "−inf",
    ]  # fmt: skip
    # A few more zeros are read easily beside 0.5; with more the exponent says it sooner.
    assert [plain.number(x) for x in (5.9234e-5, -5.9e-6, 5.9e-7, 9.99999e-5, 1e-4)] == [
        "0.00005923", "-0.0000059", "5.9e-07", "0.0001", "0.0001",
    ]  # fmt: skip
    assert plain.plus(-0.5) == "− 0.5"
    assert plain.factor(-0.5) == "(-0.5)"
    assert latex.number(-1.5e-9) == r"-1.5 \cdot 10^{-9}"
    assert latex.factor(1e9) == r"\left(1 \cdot 10^{9}\right)"
    assert latex.number(-math.inf) == r"-\infty"


def test_sums_keep_the_largest_terms_and_say_what_is_left():
    terms, sizes = [f"t{i}" for i in range(100)], np.arange(100.0) - 50
    pieces = sum_pieces(terms, sizes, Notation(), 20, tags=[str(i) for i in range(100)])
    assert pieces[0] == "t0 (0)"
    kept = [int(piece.split("(")[1][:-1]) for piece in pieces[:-1]]
    left = sum(sizes) - sum(sizes[kept])
    assert pieces[-1] == f"{Notation().plus(left)} ({100 - len(kept)} smaller)"
    assert min(abs(sizes[kept])) >= max(abs(np.delete(sizes, kept)))


class TestOfAQueryThatWasProjected:
    X, WQ, BQ = [[2.0, -1.0]], [[0.5, 1.0, 0.25], [3.0, -2.0, 1.0]], [10.0, 20.0, 30.0]

    def way(self, **options):
        given = {"x": self.X, "wq": self.WQ, "wk": self.WQ, "wv": self.WQ, "bq": self.BQ}
        return explain(load(**given, **options), query=0)

    def test_its_numbers_are_put_in(self):
        text = as_text(self.way())
        for line in (
            "q = x · wq + bq; x is the embedding of the query; likewise keys and values",
            "   x = (2, -1)",
            "q[0] = 2·0.5 + (-1)·3 + 10 = 8",
            "q[1] = 2·1 + (-1)·(-2) + 20 = 24",
            "   q = (8, 24, 29.5)",
        ):
            assert f"{line}\n" in text
        placed = as_text(self.way(positions="sinusoidal"))
        assert "the embedding of the query with its position added;" in placed
        # sin 0 and cos 0 are added.
        assert "x = (2, -1) + (0, 1)\nposition = (sin 0, cos 0)\n       x = (2, 0)\n" in placed

    @pytest.mark.parametrize(
        ("norms", "with_values", "alone"),
        [
            ("qk", "keys with k_norm; values have no norm", "keys with k_norm"),
            ("q", "keys and values, without a norm", "keys, without a norm"),
            ("k", "values, and keys, which have a norm, k_norm", "keys, which have a norm, k_norm"),
        ],
    )
    def test_what_else_has_a_norm(self, norms, with_values, alone):
        ones = {f"{letter}_norm": [1.0] * 3 for letter in norms}
        assert f"; likewise {with_values}\n" in as_text(self.way(**ones))
        bare = load(x=self.X, wq=self.WQ, wk=self.WQ, **ones)
        assert f"; likewise {alone}\n" in as_text(explain(bare, query=0))

    def test_as_formulas(self):
        text = as_markdown(self.way())
        assert r"x = \left(2, -1\right)" in text
        placed = as_markdown(self.way(positions="sinusoidal"))
        added = r"\left(2, -1\right) + \left(0, 1\right) = \left(2, 0\right)"
        assert f"x = {added}" in unbroken(placed)
        assert r"\mathrm{position} = \left(\sin 0, \cos 0\right)" in placed
        assert r"q = x \, W_q + b_q" in text
        sums = r"q_{1} = 2 \cdot 1 + \left(-1\right) \cdot \left(-2\right) + 20 = 24"
        assert sums in text

    def test_terms_that_stay_say_which_they_are(self):
        random = np.random.default_rng(2)
        key = random.normal(size=(12, 20))
        way = explain(pose(random.normal(size=(1, 20)), key, key, sinks=[3.0]), query=0)
        text = unbroken(as_markdown(way))
        for step in way.steps:
            strongest = int(np.argmax(np.abs(step.products)))
            number = Latex().factor(step.key[strongest])
            assert rf"\cdot {number}}}_{{d_{{{strongest}}}}}" in text
        (denominator,) = re.findall(r"\\mathrm\{denominator\} = .*", text)
        strongest = max(way.steps, key=lambda step: step.weight)
        assert rf"_{{k_{{{strongest.index}}}}}" in denominator
        assert denominator.count("sink") == 1
        assert denominator.count(r"\underbrace") == 9

    def test_as_data(self):
        made = as_dict(self.way())["query"]["made"]
        assert made == {
            "embedding": self.X[0],
            "given": self.X[0],
            "position": None,
            "weight": self.WQ,
            "columns": None,
            "bias": self.BQ,
            "norm": None,
        }
        assert as_dict(tutorial())["query"]["made"] is None

    def test_wide_ones_are_cut(self):
        random = np.random.default_rng(0)
        x, *weights = (random.normal(size=shape) for shape in [(5, 300)] + [(300, 64)] * 3)
        way = explain(load(x=x, **dict(zip(("wq", "wk", "wv"), weights, strict=True))), query=4)
        for width in (40, 80, 200):
            text = as_text(way, width=width)
            assert max(map(cell_len, text.splitlines())) <= width
            sums = [line for line in text.splitlines() if line.strip().startswith("q[")]
            assert len(sums) == 4
        assert re.search(r"q\[0\] = .* \(x\d+\) .* \(29\d smaller\) = ", text)
        for column, line in enumerate(sums):
            kept = [int(index) for index in re.findall(r"\(x(\d+)\)", line)]
            products = np.abs(x[4] * weights[0][:, column])
            assert set(kept) == {*np.argsort(-products)[: len(kept)]}
        assert "largest products, with their component: (d0) is of q[0] and k[0]\n" in text
        assert "largest products" not in as_text(self.way())


def test_what_a_wide_context_adds_to_the_output_keeps_its_own_largest_terms():
    random = np.random.default_rng(0)
    x, wo = random.normal(size=(4, 300)), random.normal(size=(300, 3))
    eye = np.eye(300)
    way = explain(load(x=x, wq=eye, wk=eye, wv=eye, wo=wo), query=1)
    sums = [
        line for line in as_text(way, width=200).splitlines() if line.strip().startswith("output[")
    ]
    assert len(sums) == 3
    for column, line in enumerate(sums):
        kept = [int(index) for index in re.findall(r"\(context(\d+)\)", line)]
        products = np.abs(way.context * wo[:, column])
        assert set(kept) == {*np.argsort(-products)[: len(kept)]}
        assert "smaller) = " in line


def test_the_rotation_of_the_first_pair_is_worked_out():
    """At position 2 the pairs of four components turn by 2 · 10000^0 and 2 · 10000^(−1/2)."""
    query, key = [[9.0] * 4] * 2 + [[1.5, 2.0, -0.5, 0.5]], np.ones((3, 4))
    way = explain(pose(query, key, rope="half"), query=2)
    text, markdown = as_text(way), as_markdown(way)
    first = 1.5 * math.cos(2) - -0.5 * math.sin(2)
    rule = "radians: 2 · 10000^(−2p/4) for pair p = 0, 1, …; pair 0 is components 0 and 2"
    assert f"angles = (2, 0.02) {rule}" in text
    assert "Pair 0 is components 0 and 2:" in markdown
    assert f"rotated[0] = 1.5·cos 2 − (-0.5)·sin 2 = {first:.4f}" in text
    assert "\\theta = \\left(2, 0.02\\right)" in markdown
    assert f"\\sin 2 = {first:.4f}" in markdown
    assert as_dict(way)["query"]["angles"] == pytest.approx([2, 0.02])
    assert "angles" not in as_text(explain(pose(query, key), query=2))
    # At position 1 a key of ones turns by 1 and by 0.01.
    turned = [
        math.cos(1) - math.sin(1),
        math.cos(0.01) - math.sin(0.01),
        math.cos(1) + math.sin(1),
        math.cos(0.01) + math.sin(0.01),
    ]
    rounded = ", ".join(f"{number:.4f}".rstrip("0") for number in turned)
    assert f"k1 = (1, 1, 1, 1) rotated ({rounded})" in text
    assert rf"\tilde k_{{1}} = \left({rounded}\right)" in unbroken(markdown)
    assert as_dict(way)["keys"][1]["given"] == [1, 1, 1, 1]
    assert as_dict(way)["keys"][1]["vector"] == pytest.approx(turned)


def test_alibi_is_in_the_rule_of_markdown():
    problem = pose(*[np.eye(3)] * 3, alibi_slopes=True)
    text = as_markdown(explain(problem, query=1))
    # One head has the slope 2^-8.
    assert r"- 0.0039 \cdot \mathrm{distance}" in text
    assert r"- 0.0039 \cdot \lvert 1 - 0 \rvert" in text


def test_a_product_that_is_only_capped_is_raw():
    text = str(explain(pose([[1.0, 0, 1]], [[0.0, 1, 1]], [[1.0]], softcap=5), query=0))
    raw = 1 / math.sqrt(3)
    assert f"= {raw:.4f}" in text
    assert "raw(q0 → k0)" in text
    assert f"score = 5 · tanh({raw:.4f} / 5) = {5 * math.tanh(raw / 5):.4f}" in text


def test_numbers_of_embeddings_keep_their_digits_beside_float32():
    x = np.full((2, 2), 0.1)
    given = {"wq": np.full((2, 2), 0.3), "wk": np.eye(2), "wv": np.eye(2)}
    problem = load(x=x, **given, precision="float32")
    made = as_dict(explain(problem, query=0))["query"]["made"]
    assert made["embedding"] == [0.1, 0.1]


def test_a_query_one_of_whose_keys_is_hidden_is_not_blind():
    assert explain(pose(*[np.eye(3)] * 3, causal=True), query=0).fully_masked is False


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


def latex_value(formula):
    """Calculate what a formula in LaTeX says, by itself."""
    text = re.sub(r"\\left|\\right", "", formula).replace(r"\cdot", "*")
    text = (
        re.sub(r"(?<=[\d)]) ?\\tanh", " * tanh", text).replace(r"\tanh", "tanh").replace(r"\,", "")
    )
    text = re.sub(r"\\sqrt\{(\d+)\}", r"sqrt(\1)", text)
    text = re.sub(r"\\frac\{(.*)\}\{(.*)\}", r"((\1) / (\2))", text)
    names = {name: getattr(math, name) for name in ("tanh", "sqrt")}
    return eval(text, {"__builtins__": {}}, names)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("heads", [1, 2])
def test_the_output_of_a_layer_and_each_score_in_markdown(kind, heads):
    way, scores, output = layer(kind, heads)
    text = unbroken(as_markdown(way, digits=9))
    word = "output" if heads == 1 else "share"
    name = r"\mathrm{{" + word + "}}_{{{}}}"
    for (formula, result), right in zip(numbers_of(text, name, range(3)), output, strict=True):
        assert float(result) == pytest.approx(right, rel=1e-7)
        assert latex_value(formula) == pytest.approx(right, rel=1e-6)
    name = r"\mathrm{{score}}(q_{{1}} \to k_{{{}}})"
    for (formula, *_, result), right in zip(numbers_of(text, name, range(3)), scores, strict=True):
        assert float(result) == pytest.approx(right, rel=1e-7)
        assert latex_value(formula) == pytest.approx(right, rel=1e-6)
    sums = re.findall(r"\\mathrm\{sum\} = (.*) = (.*)", text)
    assert len(sums) == (3 if way.scale != 1 or kind == "cosine" else 0)
    for step, (formula, result) in zip(way.steps, sums, strict=False):
        assert float(result) == pytest.approx(step.dot, rel=1e-7)
        assert latex_value(formula) == pytest.approx(step.dot, rel=1e-6)


def test_long_sums_in_markdown_stand_on_several_lines():
    """A page has room for about four products beside the name of the result."""
    text = as_markdown(everything())
    lines = [line for line in text.splitlines() if r" \cdot " in line and "|" not in line]
    assert max(line.count(r" \cdot ") for line in lines) <= 8  # four, each perhaps times 10^n
    assert text.count(r"\begin{aligned}") == text.count(r"\end{aligned}") > 10
    blocks = re.findall(r"\$\$\n(.*?)\n\$\$", text, re.DOTALL)
    assert "\\\\" not in "".join(blocks)


def test_a_long_vector_in_markdown_says_that_it_is_cut():
    text = as_markdown(explain(pose(*np.ones((2, 2, 10)), rope="half"), query=1))
    assert r"\ldots\right)" in text


def test_the_heads_of_a_layer_are_counted_from_0_everywhere():
    x = np.eye(4)
    problem = load(x=x, wq=x, wk=x, wv=x, wo=x, heads=2)
    way = explain(problem, query=1, head=1)
    markdown = as_markdown(way)
    assert r"\sum_{h=0}^{1} \mathrm{context}^{(h)} \, W_o^{(h)}" in markdown
    assert r"this head, $\mathrm{context}^{(1)} \, W_o^{(1)}$:" in markdown
    assert "Columns 2 to 3 of the projection are head 1's:" in markdown
    assert "q = columns 2 to 3 of x · wq, those of head 1; x is the embedding" in as_text(way)
    assert as_dict(way)["query"]["made"]["columns"] == [2, 3]
    alone = load(x=x, wq=x[:, :2], wk=x[:, :2], wv=x[:, :2], heads=2)
    assert "q = column 1 of x · wq, those of head 1" in as_text(explain(alone, query=0, head=1))


def test_softmax_is_named_and_what_is_subtracted_explained():
    text = as_text(tutorial())
    assert "softmax: weight = exp(score − 1.1547) / denominator\n" in text
    assert "1.1547 is the largest score: subtracting it keeps exp within range" in text
    assert "lse = ln Σ exp(score) = 1.1547 + ln 2.1228 = 1.9074" in text
    equal = as_text(tutorial(scale=0))
    assert "all scores are equal, and so are all weights" in equal
    assert "exp(0 − 0) + exp(0 − 0)" in equal
    assert "all scores are equal, and so are all weights." in as_markdown(tutorial(scale=0))
    sunk = explain(pose([[1.0]], [[1.0]], sinks=[3.0]), query=0)
    assert "largest of scores and sink" in as_text(sunk)
    blind = as_text(explain(pose(QUERY, KEY, VALUE, mask=[False] * 3), query=0))
    assert "lse = ln 0 = −inf" in blind
    assert "softmax" not in blind


def test_numbers_are_said_to_be_rounded():
    assert "shown with 4 decimals (--digits), computed with all" in as_text(tutorial())
    assert "shown with 1 decimal (--digits)" in as_text(tutorial(), digits=1)
    assert "shown with" not in as_text(tutorial(), digits=17)


def test_a_wide_position_tells_its_first_components():
    x = np.ones((3, 6))
    way = explain(load(x=x, wq=x.T, wk=x.T, positions="sinusoidal"), query=2)
    waves = "(sin 2, cos 2, sin(2 / 10000^(2/6)), cos(2 / 10000^(2/6)), …)"
    assert f"position = {waves}" in as_text(way)
    expected = [math.sin(2), math.cos(2), math.sin(2 / 10000 ** (2 / 6))]
    assert way.made.position[:3] == pytest.approx(expected)
    assert r"\sin \frac{2}{10000^{2/6}}, \cos \frac{2}{10000^{2/6}}, \ldots" in as_markdown(way)


def test_the_sum_of_the_weights_counts_the_sink():
    problem = pose([[1.0]], [[1.0], [2.0]], [[1.0], [2.0]], sinks=[1.0])
    row = next(line for line in str(explain(problem, query=0)).splitlines() if line[:3] == "sum")
    assert row.split()[-1] == "1.0000"


def test_a_score_vector_of_ones_is_not_written_out():
    told = str(explain(pose([[1.0, 2.0]], [[1.0, 2.0]], score="additive"), query=0))
    assert not any(line.lstrip().startswith("v =") for line in told.splitlines())
    vector = pose([[1.0, 2.0]], [[1.0, 2.0]], score="additive", score_vector=[1.0, 2.0])
    assert any(
        line.lstrip().startswith("v =") for line in str(explain(vector, query=0)).split("\n")
    )


def test_an_at_sign_mentions_nobody():
    assert words("@a") == "\\@a"


def test_one_key_that_is_left_out_is_one():
    told = as_markdown(explain(pose([[1.0]], [[1.0], [2.0]]), query=0, keys=1))
    assert "There is 1 more key" in told


@pytest.mark.parametrize("number", [7.038531e-26, 9.007199e15, 1e-45, 3.4e38])
def test_json_of_float32_is_read_back_as_the_same_number(number):
    for near in (0, np.inf):
        value = np.nextafter(np.float32(number), np.float32(near))
        problem = pose(np.ones((1, 1), "f4"), np.ones((1, 1), "f4"), value[None, None])
        told = json.loads(json.dumps(as_dict(explain(problem, query=0))))
        assert np.float32(told["context"][0]) == value


def test_json_of_very_many_keys_tells_the_strongest(folder, attncli):
    for count, told in ((1000, 1000), (1001, 12)):
        np.save("k.npy", np.random.default_rng(0).normal(size=(count, 1)))
        found = attncli("explain", "k.npy", "k.npy", "-f", "json").good().json
        assert (len(found["keys"]), found["key_count"]) == (told, count)


def test_json_tells_every_key_unless_fewer_are_asked_for(folder, attncli):
    np.save("x.npy", np.random.default_rng(0).normal(size=(20, 4)))
    words = ["explain", "x.npy", "x.npy"]
    for more, told in (([], 20), (["--keys", "0"], 20), (["--keys", "3"], 3)):
        assert len(attncli(*words, "-f", "json", *more).good().json["keys"]) == told
    assert "8 more" in attncli(*words).good().text


@pytest.mark.parametrize(("count", "more"), [(12, None), (13, None), (14, "2 more")])
def test_one_key_is_told_where_leaving_it_out_would_take_a_line(folder, attncli, count, more):
    np.save("x.npy", np.random.default_rng(0).normal(size=(count, 4)))
    text = attncli("explain", "x.npy", "x.npy", "--query", "0").good().text
    assert "more" not in text if more is None else more in text


def test_the_row_of_the_sink_has_its_weight():
    way = explain(pose([[1.0]], [[1.0], [2.0]], sinks=[1.5]), query=0)
    (row,) = [line.split() for line in as_text(way, width=120).splitlines() if "(sink)" in line]
    weight = np.exp(1.5) / np.exp([1.0, 2.0, 1.5]).sum()
    assert f"{weight:.4f}" in row


def test_a_column_has_exponents_from_a_million_on():
    assert Notation().cells([1e6, 0.5]) == ["1.000e+06", "5.000e-01"]
    assert Notation().cells([999999.0, 0.5]) == ["999999.0000", "0.5000"]
