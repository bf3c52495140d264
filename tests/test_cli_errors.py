"""What a user does wrong gets one error line, a hint where one helps, exit code 2, and no trace."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import pytest
from process import Ran, run

from attncli.text import did_you_mean

if TYPE_CHECKING:
    from pathlib import Path

Run = Callable[..., Ran]
QKV = "q.csv k.csv v.csv"


@pytest.fixture
def wrong(tutorial: Path) -> Path:
    """Files named by their defect, beside the tutorial's."""
    texts = {
        "ragged.csv": "1,2,3\n1,2\n",
        "words.csv": "1,2,3\n4,5,six\n",
        "nan.csv": "1,0,1\n0,nan,1\n",
        "two.csv": "1,1,0\n0,1,2\n",
        "empty.csv": "",
        "spaces.csv": "1 0 1\n0 1 1\n",
        "kt.csv": "1,1,0\n0,1,0\n",
        "typo.yaml": "query: [[1]]\nkey: [[1]]\ncuasal: true\n",
        "twice.yaml": "query: [[1]]\nq: [[1]]\nkey: [[1]]\n",
        "no_key.yaml": "query: [[1]]\nvalue: [[1]]\n",
        "plain_scale.yaml": "query: [[1]]\nkey: [[1]]\nplain: true\nscale: 2\n",
        "plain_maybe.yaml": "query: [[1]]\nkey: [[1]]\nplain: maybe\n",
        "words.yaml": "query: [a, b]\nkey: [[1]]\n",
        "scales.yaml": "query: [[1]]\nkey: [[1]]\nscale: [1, 2]\n",
        "formula.yaml": "query: [[1]]\nkey: [[1]]\nscale: 1/sqrt(64)\n",
        "quoted.yaml": 'query: [[1]]\nkey: [[1]]\nscale: "0.5"\n',
        "weights.yaml": "weights: [[1]]\n",
        "none.json": "{}",
        "flag.json": '{"causal": true}',
        "files.yaml": "query: nope.csv\nkey: [[1]]\n",
        "yes.yaml": "query: [[1]]\nkey: [[1], [2]]\nmask: [[yes, no]]\n",
        "bars.csv": "1|2\n3|4\n",
        "sentence.yaml": "query: [[1], [2]]\nkey: [[1], [2]]\ntokens: [The, cat]\n",
    }
    for name, text in texts.items():
        (tutorial / name).write_text(text)
    (tutorial / "folder").mkdir()
    np.save("heads.npy", np.ones((2, 3, 4, 5)))
    np.save("lines.npy", np.ones((3, 4, 5)))
    np.save("five.npy", np.ones((1, 1, 1, 2, 3)))
    np.save("model.npy", np.full((3, 2, 2, 4, 4), 0.25))
    np.save("models.npy", np.full((1, 3, 2, 2, 4, 4), 0.25))
    np.save("lone.npy", np.full((3, 1, 2, 4, 4), 0.25))
    np.save("query.npy", np.full((3, 1, 2, 1, 4), 0.25))
    np.save("lonely.npy", np.full((1, 1, 1, 2, 1, 4), 0.25))
    np.savez("model.npz", attentions=np.full((3, 2, 2, 4, 4), 0.25))
    np.save("scalar.npy", np.float32(1))
    np.savez("none.npz", q=np.ones((0, 3)))
    np.save("seen.npy", np.ones((2, 3), bool))
    np.save("far.npy", np.array([[0, 1e39, 0]] * 2))
    np.save("large.npy", np.full((2, 3), 1e200))
    return tutorial


# The command line, the error, and what the hint holds ("" where there is none).
CASES = {
    # files
    "compute nope.csv k.csv v.csv": ("nope.csv does not exist", None),
    "compute files.yaml": ("files.yaml#query: nope.csv does not exist", None),
    "compute yes.yaml": (
        "yes.yaml: line 3, column 9: expected a number; found 'yes'",
        "in a mask, write true or false",
    ),
    "compute bars.csv": (
        "bars.csv: line 2, column 1: expected a number; found '3|4'",
        "not with |",
    ),
    "compute q.csv k.csv v.csv --mask --causal": (
        "expected a file; found --causal, which looks like an option",
        "the option before it needs a file",
    ),
    "compute folder k.csv v.csv": ("folder: expected a file; found a folder", ""),
    "compute five.npy k.csv v.csv": (
        "five.npy: expected 1 to 4 axes; found 5 (shape (1, 1, 1, 2, 3))",
        "save one part of it",
    ),
    **dict.fromkeys(
        ("compute model.npy", "heatmap model.npy", "compute model.npy k.csv v.csv"),
        (
            "model.npy: expected 1 to 4 axes; found 5 (shape (3, 2, 2, 4, 4))",
            "save one part of it",
        ),
    ),
    "heatmap model.npz#attentions": (
        "model.npz#attentions: expected 1 to 4 axes; found 5 (shape (3, 2, 2, 4, 4))",
        "save one part of it",
    ),
    "compute models.npy": (
        "models.npy: expected 1 to 4 axes; found 6 (shape (1, 3, 2, 2, 4, 4))",
        "save one part of it",
    ),
    "compute lone.npy": (
        "lone.npy: expected 1 to 4 axes; found 5 (shape (3, 1, 2, 4, 4))",
        "save one part of it",
    ),
    "heatmap query.npy": (
        "query.npy: expected 1 to 4 axes; found 5 (shape (3, 1, 2, 1, 4))",
        "save one part of it",
    ),
    "heatmap lonely.npy": (
        "lonely.npy: expected 1 to 4 axes; found 6 (shape (1, 1, 1, 2, 1, 4))",
        "save one part of it",
    ),
    "compute q.csv k.csv v.csv --bias scalar.npy": (
        "scalar.npy: expected 1 to 4 axes; found 0 (shape ())",
        "",
    ),
    "compute none.npz#q k.csv v.csv": ("none.npz#q holds no numbers: its shape is (0, 3)", ""),
    "heatmap five.npy": (
        "five.npy: expected 1 to 4 axes; found 5 (shape (1, 1, 1, 2, 3))",
        "save one part of it",
    ),
    "compute empty.csv k.csv v.csv": ("empty.csv is empty", ""),
    "compute ragged.csv k.csv v.csv": (
        "ragged.csv: line 2, column 3: expected 3 cells, as in the first row; found 2",
        "",
    ),
    "compute words.csv k.csv v.csv": (
        "words.csv: line 2, column 3: expected a number; found 'six'",
        "",
    ),
    "compute spaces.csv k.csv v.csv": (
        "spaces.csv: line 1, column 1: expected a number; found '1 0 1'",
        "separate the columns",
    ),
    f"compute {QKV} q.csv": (
        "expected one problem file, or the files Q K V; found 4 files",
        "a problem file",
    ),
    f"compute {QKV} --show weights context": (
        "context is no file, but an output",
        "a list behind an option has commas and no spaces (--show weights,context)",
    ),
    "compute --show weights context": (
        "context is no file, but an output",
        "a list behind an option has commas",
    ),
    "compute --mask": ("Option '--mask' requires an argument", "attncli compute --help"),
    **{
        line: (f"'{word}' is no file, but {kind}", "a switch such as --causal has no value")
        for line, word, kind in (
            (f"compute {QKV} --causal true", "true", "a truth value"),
            ("compute q.csv k.csv --causal true", "true", "a truth value"),
            ("compute q.csv k.csv --window 1 0", "0", "a number"),
            ("heatmap sentence.yaml --annotate 3", "3", "a number"),
        )
    },
    f"compute {QKV} more": (
        "expected one problem file, or the files Q K V; found 4, and 'more' is no file",
        "a switch such as --causal has no value",
    ),
    f"compute {QKV} --mask causal": ("mask: expected a file; found 'causal'", "give --causal"),
    f"compute {QKV} --scale 0,5": (
        "--scale: expected a number; found '0,5'",
        "write decimal points instead of decimal commas",
    ),
    f"explain {QKV} --query 0 -f latex": (
        "--format: expected one of text, markdown, json; found 'latex'",
        "did you mean markdown?",
    ),
    "compute q.csv": (
        "q.csv: expected query, key and value; found a single array (finished weights?)",
        "embeddings are given three times, or with --wq, --wk and --wv, or --checkpoint",
    ),
    "compute q.csv#x k.csv": ("q.csv is one array; it has no member 'x'", ""),
    f"compute {QKV} --positions sinusoidal": (
        "positions are added to embeddings, but there are none",
        "--wq, --wk and --wv",
    ),
    # shapes
    "compute v.csv k.csv q.csv": (
        ("query (v.csv) has shape (3, 2) and key (k.csv) (3, 3): expected the same width; "
        "found 2 and 3"),
        "each row is one token",
    ),
    "compute q.csv v.csv k.csv": (
        ("query (q.csv) has shape (2, 3) and key (v.csv) (3, 2): expected the same width; "
        "found 3 and 2"),
        "each row is one token",
    ),
    "compute q.csv k.csv q.csv": (
        ("key (k.csv) has shape (3, 3) and value (q.csv) (2, 3): expected a value for each key; "
        "found 3 keys and 2 values"),
        "each row is one token",
    ),
    # values
    "compute nan.csv k.csv v.csv": (
        "query (nan.csv): expected finite numbers; found nan at index (1, 1)",
        None,
    ),
    f"compute {QKV} --mask two.csv": (
        "mask (two.csv): expected booleans, or 0 and 1; found 2 at index (1, 2)",
        "--bias",
    ),
    f"compute {QKV} --mask v.csv": None,
    f"compute {QKV} --mask k.csv": (
        ("mask (k.csv): expected a shape that broadcasts to the weights' (2, 3), "
        "(…, queries, keys); found (3, 3)"),
        "",
    ),
    # problem files
    "compute typo.yaml": ("typo.yaml: unknown entry 'cuasal'", "did you mean causal?"),
    "compute twice.yaml": ("twice.yaml: both query and q are given", ""),
    "compute no_key.yaml": (
        "no_key.yaml: expected query, key and value; key is missing (found query, value)",
        "",
    ),
    "compute plain_scale.yaml": (
        "plain_scale.yaml: both plain and scale are given",
        "plain is scale 1",
    ),
    "compute plain_maybe.yaml": (
        "plain (plain_maybe.yaml#plain): expected true or false; found 'maybe'",
        "",
    ),
    "compute words.yaml": None,
    "compute scales.yaml": (
        "scale (scales.yaml#scale): expected a finite number; found [1.0, 2.0]",
        "",
    ),
    "compute formula.yaml": (
        "scale (formula.yaml#scale): expected a finite number; found '1/sqrt(64)'",
        "",
    ),
    "compute quoted.yaml": (
        "scale (quoted.yaml#scale): expected a finite number; found '0.5'",
        "",
    ),
    "compute weights.yaml": None,
    # options
    f"compute {QKV} --cuasal": None,
    f"compute {QKV} --out w.png": ("No such option: --out", "heatmap a picture with --out"),
    f"heatmap {QKV} --save w.png": ("No such option: --save", "heatmap a picture with --out"),
    f"compute {QKV} --scale abc": ("--scale: expected a number; found 'abc'", None),
    f"compute {QKV} --key-padding-mask 1,1,0": (
        "1,1,0 does not exist",
        "this is read as the name of a file: write the numbers into one",
    ),
    "compute -q.csv k.csv": ("No such option: -", "given as ./-name"),
    f"compute {QKV} --max-rows 'x'": ("--max-rows: expected a whole number; found ''x''", None),
    **{
        f"compute {QKV} {words}": (
            f"{words.split()[0]}: expected {kind}; found '{words.split()[1]}'",
            "write it in the digits 0 to 9, without underscores",
        )
        for kind, several in {
            "a number": ("--scale 1_0", "--scale ٢", "--softcap 1_0"),
            "a whole number": ("--max-rows 1_0", "--heads ٢", "--threads 1_0"),
        }.items()
        for words in several
    },
    f"compute {QKV} --scale 1e400": ("--scale: '1e400' is beyond the range of float64", None),
    f"compute {QKV} --max-rows 1.5": ("--max-rows: expected a whole number; found '1.5'", None),
    f"compute {QKV} --max-rows -4": ("--max-rows: expected a number of at least 0; found -4", None),
    "heatmap --dpi 5": ("--dpi: expected a number from 10 to 2400; found 5", None),
    f"compute {QKV} --format jsn": (
        "--format: expected one of table, markdown, json, yaml, csv, tsv, npy, npz; found 'jsn'",
        "did you mean json?",
    ),
    f"compute {QKV} --precision half": (
        "--precision: expected one of float32, float64; found 'half'",
        "inputs of 16 bits are read as they are, and computed with in float32",
    ),
    "explain heads.npy heads.npy --head 0,1": (
        "--head: expected a whole number; found '0,1'",
        "give one",
    ),
    **{
        f"compute heads.npy heads.npy --head {words}": (f"--head: expected {message}", None)
        for words, message in {
            "x": "an index, several (0,3) or a range (4:8); found 'x'",
            "0;1": "an index, several (0,3) or a range (4:8); found '0;1'",
            "1.0": "an index, several (0,3) or a range (4:8); found '1.0'",
            "٠": "an index, several (0,3) or a range (4:8); found '٠'",
            "0,": "an index, several (0,3) or a range (4:8); found '0,'",
            "0:1:2": "an index, several (0,3) or a range (4:8); found '0:1:2'",
            "0,-3": "each index once; found 0 twice",
            "0:2,1": "each index once; found 1 twice",
            "0,3": "an index from -3 to 2; found 3",
            "1:4": "a range within 0:3; found 4, beyond the end",
            "2:1": "a range within 0:3; found an empty one",
        }.items()
    },
    f"compute {QKV} --scale 1/8": (
        "--scale: expected a number; found '1/8'",
        "formulas are not computed: write the number itself",
    ),
    f"compute {QKV} --scale 1/sqrt(D)": (
        "--scale: expected a number; found '1/sqrt(D)'",
        "formulas are not computed: write the number itself",
    ),
    f"check {QKV} --expect weight=q.csv": (
        ("--expect weight=q.csv: expected NAME=FILE with a name of weights, context, scores, raw, "
        "capped, lse; found 'weight'"),
        "did you mean weights?",
    ),
    f"compute {QKV} --scale nan": ("scale: expected a finite number; found nan", ""),
    f"compute {QKV} --softcap 0": ("softcap: expected a number above 0; found 0", ""),
    f"compute {QKV} --heads 0": ("heads: expected a whole number of at least 1; found 0", ""),
    f"compute {QKV} --plain --scale 2": (
        "both plain and scale are given",
        "plain is scale 1",
    ),
    f"compute {QKV} --alibi --alibi-slopes 1": (
        "--alibi takes the slopes of the paper: leave out --alibi-slopes",
        "",
    ),
    f"compute {QKV} --sinks 1e400": ("sinks: '1e400' is beyond the range of float64", ""),
    f"compute {QKV} --sinks one": (
        "sinks: expected numbers, as in 3 or 3,5, or a file; found 'one'",
        "",
    ),
    f"compute {QKV} --window 1,2,3": (
        "window: expected one number or a pair (left, right); found 3 numbers",
        "",
    ),
    f"compute {QKV} --causal --query-offset 1e99": (
        ("query_offset: expected whole numbers from -9007199254740991 to 9007199254740991; "
        "found 1e+99 at index (0,)"),
        "",
    ),
    f"compute {QKV} --causal --query-offset 9007199254740993": (
        ("query_offset: expected whole numbers from -9007199254740991 to 9007199254740991; "
        "found 9.0072e+15 at index (0,)"),
        "",
    ),
    f"compute {QKV} --causal-align top-left": (
        "causal_align says where the queries stand among the keys, but no rule depends on it",
        "causal",
    ),
    f"compute {QKV} --mask-means drop": (
        "mask_means says how a mask is read, but there is no mask",
        "",
    ),
    f"compute {QKV} --head 0": ("--head 0: the inputs have no such axis", "see --layout"),
    "compute lines.npy lines.npy --layout hsd --batch 0": (
        "--batch 0: the inputs have no such axis", "see --layout",
    ),
    "compute heads.npy heads.npy --head 3": ("--head: expected an index from -3 to 2; found 3", ""),
    "compute heads.npy heads.npy --batch -3": (
        "--batch: expected an index from -2 to 1; found -3",
        "",
    ),
    f"explain {QKV} --query -3": (
        "query: expected an index from -2 to 1; found '-3'",
        "",
    ),
    "explain heads.npy heads.npy --head -4": (
        "--head: expected an index from -3 to 2; found -4",
        "",
    ),
    f"compute {QKV} --tokens a,b": (
        "key_labels (tokens): expected 3 labels, one for each key; found 2",
        "query_labels (--query-labels) name the queries alone, key_labels the keys",
    ),
    f"compute {QKV} --key-labels names.txt": (
        "names.txt does not exist",
        "",
    ),
    # outputs
    f"compute {QKV} --show Weight": (
        ("--show: expected names of weights, context, scores, raw, capped, lse, stats, top, query, "
        "key, value; found "
        "'Weight'"),
        "did you mean weights?",
    ),
    "explain sentence.yaml --query Cat": (
        "query: expected an index from -2 to 1 or one of the labels ('The', 'cat'); found 'Cat'",
        "did you mean cat?",
    ),
    f"heatmap {QKV} --out w.png --cmap blues": (
        "there is no colour map 'blues' in matplotlib", "did you mean Blues?",
    ),
    f"compute {QKV} -o c.csv": ("No such option: -o", "--save"),
    f"compute {QKV} --attn-mask m.csv": (
        "No such option: --attn-mask",
        "here it is --mask, or --bias if its numbers are added to the scores",
    ),
    f"compute {QKV} --no-causal": (
        "No such option: --no-causal",
        "leave --causal out; --without causal leaves out what a problem file or --config says",
    ),
    f"compute {QKV} --no-alibi": (
        "No such option: --no-alibi",
        "leave --alibi out; --without alibi_slopes leaves out what a problem file or --config says",
    ),
    f"explain {QKV} --average_attn_weights": (
        "No such option: --average_attn_weights", "attncli explain --help",
    ),
    "info q.csv --num-heads 4": (
        "No such option: --num-heads (Possible options: --no-numbers, --numbers)",
        "attncli info --help",
    ),
    f"compute {QKV} --no-without": (
        "No such option: --no-without (Possible options: --score-weight, --without)",
        "attncli compute --help",
    ),
    "heatmap sentence.yaml --rows The,cat": (
        ("--rows: expected a:b, as in 0:64, an index from -2 to 1 or one of the labels ('The', "
        "'cat'); found 'The,cat'"),
        "rows and columns lie side by side: give the first and the last, as in a:b",
    ),
    f"heatmap {QKV} --format json": (
        "No such option: --format",
        "compute --format prints numbers; --out names a picture's format",
    ),
    f"compute {QKV} --zz-zz": ("No such option: --zz-zz", "attncli compute --help"),
    f"compute {QKV} --nonpad_kv_seqlen 2": (
        "No such option: --nonpad_kv_seqlen",
        "here it is --kv-lengths; if causal or in a window, with --causal-align bottom-right",
    ),
    f"compute {QKV} --no-scale": ("No such option: --no-scale", "--plain computes with scale 1"),
    f"compute {QKV} --mask m.csv --mask m.csv": (
        "--mask is given twice", "combine them in one file, or give padding with",
    ),
    f"compute {QKV} --scale 1 --scale 2": ("--scale is given twice", None),
    "heatmap heads.npy heads.npy --head 0 --head=2": (
        "--head is given twice", "give several heads with commas: --head 0,3",
    ),
    "heatmap heads.npy heads.npy -o a.png --out b.png": ("--out is given twice", None),
    "explain heads.npy heads.npy --head 0 --head 2": ("--head is given twice", None),
    f"compute {QKV} --heads 0,3": (
        "--heads: expected a whole number; found '0,3'",
        "--heads says how many there are; --head picks some of them",
    ),
    f"compute {QKV} --Mask m.csv": (
        "No such option: --Mask", "options are written in small letters: --mask",
    ),
    f"compute {QKV} --show entropy": (
        ("--show: expected names of weights, context, scores, raw, capped, lse, stats, top, query, "
        "key, value; found 'entropy'"),
        "did you mean stats, which holds the entropy?",
    ),
    f"explain {QKV} sat": (
        "expected one problem file, or the files Q K V; found 4, and 'sat' is no file",
        "the query that explain follows stands behind --query",
    ),
    "heatmap q.csv k.csv w.png": ("w.png does not exist", "behind --out: --out w.png"),
    "heatmap q.csv k.csv --minus sentence.yaml": (
        "--minus: expected finished weights; sentence.yaml holds a problem",
        "attncli compute sentence.yaml --show weights --save weights.npy makes them",
    ),
    "explain sentence.yaml cat": (
        "'cat' is no file, and sentence.yaml holds a problem by itself",
        "the query that explain follows stands behind --query",
    ),
    "heatmap sentence.yaml a.png": ("a.png does not exist", "behind --out: --out a.png"),
    "plot q.csv": ("No such command 'plot'", "here it is heatmap"),
    "help": ("No such command 'help'", "here it is --help"),
    f"check {QKV} --tol 1": ("No such option: --tol", "--atol and --rtol say what passes"),
    f"compute {QKV} --causal --causal-align lower_right": (
        "--causal-align: expected one of top-left, bottom-right; found 'lower_right'",
        "did you mean bottom-right?",
    ),
    f"compute {QKV} --dtype float16": (
        "--dtype: expected one of bfloat16; found 'float16'", "files say themselves",
    ),
    f"heatmap {QKV} --dark": ("No such option: --dark", "--cmap sets the colours, --dpi"),
    f"heatmap {QKV} --font-size 8": ("No such option: --font-size", "changed in an .svg file"),
    f"heatmap {QKV} --colormap Reds": ("No such option: --colormap", "here it is --cmap"),
    f"heatmap {QKV} --xlabel K": (
        "No such option: --xlabel", "the axes are always Queries and Keys",
    ),
    f"compute {QKV} --batch-first": (
        "No such option: --batch-first", "here it is --layout sbd if it is false, and nothing",
    ),
    QKV: ("No such command 'q.csv'", "give a command before the files: attncli compute FILES"),
    f"compute {QKV} --no-key-padding-mask": (
        "No such option: --no-key-padding-mask",
        "--without key_padding_mask leaves out",
    ),
    f"compute {QKV} --no-query": ("No such option: --no-query", "attncli compute --help"),
    f"compute {QKV} --no-zzz": ("No such option: --no-zzz", "attncli compute --help"),
    f"heatmap {QKV} --is-causal": ("No such option: --is-causal", "here it is --causal"),
    f"compute {QKV} --dropout-p 0.1": ("No such option: --dropout-p", "attncli drops nothing out"),
    f"explain {QKV} --output x.md": ("No such option: --output", "> FILE"),
    "compute q.csv k.csv --show context": ("the context needs a value", None),
    f"compute {QKV} --show weights,lse -f csv": (
        "csv holds one array; found weights and lse",
        "name one",
    ),
    "compute heads.npy heads.npy --average-heads --head 1": (
        "--average-heads averages the heads, and --head 1 picks one",
        "leave one of the two out",
    ),
    "heatmap heads.npy heads.npy --average-heads --head 1": (
        "--average-heads averages the heads, and --head 1 picks one",
        "leave one of the two out",
    ),
    "compute none.json k.csv": ("none.json: expected one array; found nothing", None),
    "compute flag.json k.csv": (
        "flag.json: expected one array; found 1 entry, none of them an array",
        None,
    ),
    "compute heads.npy heads.npy heads.npy -f csv": (
        "CSV holds a matrix, but context has shape (2, 3, 4, 5)",
        "--batch and --head",
    ),
    f"compute {QKV} --format xml": None,
    f"compute {QKV} --save q.csv": (
        "the output q.csv is the same file as the input q.csv",
        "nothing was changed",
    ),
    f"compute {QKV} --save x.csv --save ./x.csv": (
        "the outputs x.csv and ./x.csv are the same file",
        None,
    ),
    f"compute {QKV} --save missing/x.csv": None,
    f"compute {QKV} --save weigths=w.csv": None,
    f"compute {QKV} --save=": ("--save: expected [NAME=]PATH; found no path", ""),
    f"compute {QKV} --save weights=": (
        "--save weights=: expected [NAME=]PATH; found no path",
        "",
    ),
    f"compute {QKV} --save folder": None,
    "heatmap q.csv k.csv --out x.gif": (
        "--out: expected a .png, .svg or .pdf file; found 'x.gif'",
        "",
    ),
    "heatmap q.csv k.csv --rows 1:1": (
        "--rows: expected a range within 0:2; found an empty one",
        "",
    ),
    "heatmap q.csv k.csv --rows 0:3": (
        "--rows: expected a range within 0:2; found 3, beyond the end",
        "",
    ),
    "heatmap q.csv k.csv --rows=-4:": (
        "--rows: expected a range within 0:2; found -4, before the beginning",
        "",
    ),
    "heatmap q.csv k.csv --rows 2": (
        "--rows: expected a:b, as in 0:64, or an index from -2 to 1; found '2'",
        "",
    ),
    "heatmap q.csv k.csv --rows x": (
        "--rows: expected a:b, as in 0:64, or an index from -2 to 1; found 'x'",
        "",
    ),
    "heatmap q.csv k.csv --vmax 1e400": ("--vmax: '1e400' is beyond the range of float64", ""),
    "heatmap q.csv k.csv --vmax x": ("--vmax: expected auto or a number; found 'x'", ""),
    "heatmap q.csv k.csv --cmap Blues": ("--cmap is only for files: give --out", ""),
    "heatmap q.csv k.csv --out= --cmap Blues": (
        "--out: expected a .png, .svg or .pdf file; found ''",
        "",
    ),
    "compute q.csv k.csv v.csv --bias seen.npy": (
        "bias (seen.npy): expected numbers, which are added to the scores; found booleans",
        "what says which keys are seen are a mask (--mask)",
    ),
    "compute q.csv k.csv v.csv --bias far.npy --precision float32": (
        (
            "bias (far.npy): expected numbers up to 8.50706e+37, a quarter of the range of "
            "float32; found 1e+39 at index (0, 1)"
        ),
        "",
    ),
    "compute large.npy large.npy": (
        "the scores exceed the range of float64: query and key are too large",
        "give a smaller scale",
    ),
    "heatmap q.csv k.csv --dpi 150": ("--dpi is only for files: give --out", ""),
    "heatmap heads.npy heads.npy --annotate --digits 17": (
        "--annotate: the cells here have no room for numbers",
        "choose a part with --rows and --cols, give fewer --digits, or give --out",
    ),
    "compute q.csv k.csv v.csv --top 3": (
        "--top says how many keys --show top lists: add top to --show",
        "",
    ),
    "heatmap nan.csv": (
        "nan.csv: expected finished weights, finite and not negative; found nan at query 1, key 1",
        None,
    ),
    "heatmap q.csv k.csv --rows 1:2:3": (
        "--rows: expected a:b, as in 0:64, or an index from -2 to 1; found '1:2:3'",
        None,
    ),
    "heatmap q.csv k.csv --rows ١:2": (
        "--rows: expected a:b, as in 0:64, or an index from -2 to 1; found '١'",
        None,
    ),
    f"explain q.csv k.csv v.csv --query {'9' * 5000}": (
        f"query: expected an index from -2 to 1; found '{'9' * 39}…'",
        None,
    ),
    "compute q.csv k.csv --save =w.csv": (
        "--save =w.csv: expected NAME=PATH; found no name",
        "for a file of that name write ./=w.csv",
    ),
    "compute q.csv k.csv --show weights --show wieghts": (
        ("--show: expected names of weights, context, scores, raw, capped, lse, stats, top, query, "
        "key, value; found "
        "'wieghts'"),
        "did you mean weights?",
    ),
    "heatmap v.csv --causal": (
        ("v.csv is a single array, which is taken for finished weights: causal has nothing to "
        "act on"),
        "give the files Q K V",
    ),
    "comptue": ("No such command 'comptue'. Did you mean 'compute'?", "attncli --help"),
    "--nope": ("No such option: --nope", "attncli --help"),
}  # fmt: skip


@pytest.mark.parametrize("line", CASES)
def test_one_error_line_a_hint_and_exit_code_2(line: str, wrong: Path, attncli: Run) -> None:
    before = sorted(path.name for path in wrong.iterdir())
    ran = attncli(*line.split(" "))
    assert (ran.code, ran.out) == (2, b"")
    error, *rest = ran.messages
    assert error.startswith("error: ")
    assert len(rest) <= 1
    assert all(hint.startswith("hint: ") for hint in rest)
    if CASES[line] is not None:
        message, hint = CASES[line]
        assert error == f"error: {message}"
        assert hint is None or (hint in rest[0] if hint else not rest)
    assert sorted(path.name for path in wrong.iterdir()) == before


def test_a_wrong_name_of_an_output_is_answered_with_all_of_them(
    tutorial: Path, attncli: Run
) -> None:
    error = attncli("compute", "q.csv", "k.csv", "--show", "weights,weight").messages[0]
    assert error.startswith("error: --show: expected names of weights, context, scores, raw, ")
    assert error.endswith("; found 'weight'")


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("q", "did you mean query?"),
        ("k", "did you mean key?"),
        ("v", "did you mean value?"),
        ("out", "did you mean context?"),
        ("output", "did you mean context?"),
        ("attn", "did you mean weights?"),
        ("probs", "did you mean weights?"),
        ("logits", "did you mean scores?"),
        ("logsumexp", "did you mean lse?"),
        ("Attention", "did you mean weights?"),
        ("contxt", "did you mean context?"),
        ("all", "give the names: --show weights,context,scores"),
    ],
)
def test_what_an_output_is_called_elsewhere_is_answered_with_its_name(
    name: str, hint: str, tutorial: Path, attncli: Run
) -> None:
    messages = attncli("compute", "q.csv", "k.csv", "--show", name).messages
    assert messages[1:] == [f"hint: {hint}"]


def test_a_wrong_name_before_a_path_makes_no_file(tutorial: Path, attncli: Run) -> None:
    error, hint = attncli("compute", "q.csv", "k.csv", "--save", "weigths=w.csv").messages
    assert error.startswith(
        "error: --save weigths=w.csv: expected NAME=PATH with a name of weights"
    )
    assert error.endswith("; found 'weigths'")
    assert hint == "hint: did you mean weights?"
    assert len(list(tutorial.iterdir())) == 3


def test_a_wrong_option_is_answered_with_a_likely_one(tutorial: Path, attncli: Run) -> None:
    error, hint = attncli("compute", "q.csv", "k.csv", "--cuasal").messages
    assert "--causal" in error
    assert hint == "hint: attncli compute --help shows what there is"


def test_a_missing_file_is_answered_with_a_similar_one(tutorial: Path, attncli: Run) -> None:
    assert attncli("compute", "q.cvs", "k.csv").messages[1] == "hint: did you mean q.csv?"


def test_a_single_letter_is_no_slip_of_the_pen() -> None:
    assert did_you_mean("b", ["wb", "context"]) is None


def test_a_missing_folder_is_named_and_how_to_make_it(tutorial: Path, attncli: Run) -> None:
    error, hint = attncli("compute", "q.csv", "k.csv", "--save", "no/w.csv").messages
    assert "cannot write no/w.csv" in error
    assert f"{tutorial}/no" in error
    assert "mkdir -p" in hint
    _, hint = attncli("compute", "q.csv", "k.csv", "--save", "no such/w.csv").messages
    assert f"mkdir -p '{tutorial}/no such'" in hint


def test_numbers_too_large_for_the_format_are_an_error_not_nan(folder: Path, attncli: Run) -> None:
    np.save("x.npy", np.full((2, 2), 1e308))
    ran = attncli("compute", "x.npy", "x.npy")
    assert ran.code == 2
    assert ran.messages[0].startswith("error: the scores exceed the range of float64")


def test_words_of_the_user_cannot_write_escape_sequences(tutorial: Path, attncli: Run) -> None:
    ran = attncli("compute", "\x1b[31mred.csv", "k.csv")
    assert b"\x1b" not in ran.err
    assert ran.messages[0] == r"error: \x1b[31mred.csv does not exist"
    named = attncli("compute", "q.csv", "k.csv", "--key-labels", "a\x1b[2J,b\tc,d\ne")
    assert b"\x1b" not in named.good().out
    assert r"a\x1b[2J" in named.text


def test_a_real_process_says_the_same(tutorial: Path) -> None:
    ran = run("compute", "v.csv", "k.csv", "q.csv")
    assert (ran.code, ran.out) == (2, b"")
    assert ran.messages[0].startswith(
        "error: query (v.csv) has shape (3, 2) and key (k.csv) (3, 3)"
    )
    assert ran.messages[1].startswith("hint: ")
    assert len(ran.messages) == 2


def test_what_was_doubtful_in_a_file_is_told_before_the_error(folder: Path, attncli: Run) -> None:
    (folder / "q.csv").write_text("1,0,1\n0,1,1\n")
    (folder / "k.csv").write_text("0,1,2\n1,0,1\n1,1,0\n")
    (folder / "v.csv").write_text("1,2\n3,4\n")
    ran = attncli("compute", "q.csv", "k.csv", "v.csv")
    assert ran.code == 2
    assert "the first row counts 0 to 2 as a header" in ran.messages[0]
    assert ran.messages[1].startswith("error: ")
    assert not any("warning" in line for line in attncli("compute", *"qkv", "-q").messages)


@pytest.mark.parametrize("value", ["a_b", "dé"])
def test_a_word_with_an_underscore_is_no_number_in_other_digits(tutorial, attncli, value):
    ran = attncli("compute", "q.csv", "k.csv", "v.csv", "--scale", value)
    assert ran.code == 2
    assert "digits 0 to 9" not in ran.err.decode()


PLAIN = "--plain computes with scale 1"
TOLERANCE = "--atol and --rtol say what passes"
DRAWN = "--what scores draws the scores; compute --show prints numbers"


@pytest.mark.parametrize(
    ("command", "option", "hint"),
    [
        ("compute", "--no-scale", PLAIN),
        ("compute", "--unscaled", PLAIN),
        ("compute", "--no-scaling", PLAIN),
        ("compute", "--json", "--format json prints JSON"),
        ("heatmap", "--json", "compute --format json prints JSON"),
        ("heatmap", "--show", DRAWN),
        ("heatmap", "--scores", DRAWN),
        ("compute", "--scores", "--show scores prints the scores"),
        ("compute", "--labels", "--tokens names queries and keys alike, --query-labels and"),
        ("compute", "--no-color", "--color never prints no colours"),
        ("compute", "--no-colour", "--color never prints no colours"),
        ("check", "--tol", TOLERANCE),
        ("check", "--tolerance", TOLERANCE),
        ("compute", "--tolerance", "attncli compute --help shows"),
        ("info", "--labels", "attncli info --help shows"),
        ("explain", "--show", "attncli explain --help shows"),
        ("compute", "--Attn-Mask", "here it is --mask, or --bias"),
        ("compute", "--weights", "--show weights prints them"),
        ("heatmap", "--weights", "weights are drawn unless"),
        ("heatmap", "--softmax", "the softmax is always taken; --what scores"),
        ("explain", "--round", "--digits sets"),
        ("explain", "--row", "--query names the query"),
        ("heatmap", "--row", "--rows draws one query, or some; attncli explain --query"),
        ("compute", "--row", "attncli explain --query follows one query"),
        ("check", "--temperature", "--scale gives 1/√D divided by"),
        ("heatmap", "--figsize", "--size sets the inches, --dpi how many"),
        ("compute", "--value", "files have no option in front: attncli compute Q K V"),
    ],
)
def test_options_that_users_try_are_answered_with_what_serves(
    command: str, option: str, hint: str, tutorial: Path, attncli: Run
) -> None:
    messages = attncli(command, "q.csv", "k.csv", "v.csv", option, "x").messages
    assert messages[0].startswith(f"error: No such option: {option}")
    assert messages[1].startswith(f"hint: {hint}")


@pytest.mark.parametrize(
    ("corner", "meant"),
    [
        ("upper-left", "top-left"),
        ("UPPER_LEFT", "top-left"),
        ("lower_right", "bottom-right"),
        ("bottom_right", "bottom-right"),
    ],
)
def test_corners_have_other_names_elsewhere(
    corner: str, meant: str, tutorial: Path, attncli: Run
) -> None:
    ran = attncli("compute", "q.csv", "k.csv", "--causal", "--causal-align", corner)
    assert ran.messages[1:] == [f"hint: did you mean {meant}?"]


def test_a_word_that_is_no_file_needs_no_command(tutorial: Path, attncli: Run) -> None:
    assert attncli("frobnicate").messages[1:] == ["hint: attncli --help shows what there is"]


@pytest.mark.parametrize(
    "words",
    [
        "--color never --color never",
        "--threads 1 --threads 2",
        "--causal --causal",
        "--show weights --show context",
        "--save a.npy --save b.npy",
    ],
)
def test_what_may_be_given_twice(words: str, tutorial: Path, attncli: Run) -> None:
    attncli("compute", "q.csv", "k.csv", "v.csv", *words.split()).good()


def test_finished_weights_are_no_queries_and_keys(folder: Path, attncli: Run) -> None:
    weights = np.array([[0.25, 0.75], [1.0, 0.0]])
    np.save("w.npy", weights)
    np.save("u.npy", weights.T[:, ::-1] / weights.T.sum(axis=1, keepdims=True))
    (message,) = attncli("heatmap", "w.npy", "u.npy").good().messages
    assert "w.npy and u.npy look like finished weights" in message
    assert "attncli heatmap w.npy --minus u.npy compares them" in message
    np.save("eye.npy", np.eye(2))
    np.save("q.npy", weights - 0.5)
    (message,) = attncli("heatmap", "w.npy", "u.npy", "w.npy").good().messages
    assert "w.npy, u.npy and w.npy look like finished weights" in message
    assert "are read as query, key and value; attncli heatmap w.npy --minus u.npy" in message
    for files in (("eye.npy", "eye.npy"), ("w.npy", "q.npy"), ("w.npy", "u.npy", "q.npy")):
        assert attncli("heatmap", *files).good().messages == []


def test_null_among_numbers_is_called_so(folder: Path, attncli: Run) -> None:
    eye = [[1, 0], [0, 1]]
    matrices = {"x": [[1, None], [0, 1]], "wq": eye, "wk": eye, "wv": eye}
    (folder / "p.json").write_text(json.dumps(matrices))
    found = "found -inf (null in JSON and YAML) at index (0, 1)"
    assert attncli("compute", "p.json").messages == [
        f"error: x (p.json#x): expected finite numbers; {found}"
    ]
    (folder / "q.json").write_text("[[1, null]]")
    message, _ = attncli("compute", "q.json", "q.json").messages
    assert message == f"error: query (q.json): expected finite numbers; {found}"
    message, _ = attncli("heatmap", "q.json").messages
    assert message.endswith("found -inf (null in JSON and YAML) at query 0, key 1")


@pytest.mark.parametrize(
    ("rows", "told"),
    [
        ([[0.5, 0.495], [0.5, 0.495]], True),
        ([[0.5, 0.6], [0.5, 0.6]], False),
        ([[0.5, 0.5], [0.5, 0.9]], False),
    ],
)
def test_weights_may_be_rounded_and_are_told_by_all_their_rows(
    rows: list[list[float]], told: bool, folder: Path, attncli: Run
) -> None:
    np.save("w.npy", rows)
    messages = attncli("heatmap", "w.npy", "w.npy").good().messages
    assert any("look like finished weights" in message for message in messages) == told
