"""Slips of kernels: tiles, parts of keys, caches and pages, sums and factors of few bits."""

from __future__ import annotations

import numpy as np
from referee.case import family
from referee.plain import FORMATS, as_bfloat16, as_float16, log_sum, of_bits, softmax

TILES = (1, 2, 70, 8)
for _size in (8, 16, 32):
    cases = family(f"tiles/{_size}", shapes=TILES, options={"causal": True})
    cases[f"causal_by_blocks_of_{_size}"] = lambda g, n=_size: g.j // n <= g.i // n
    cases[f"diagonal_block_of_{_size}_twice"] = lambda g, n=_size: _weighted(
        g, np.where(g.j // n == g.i // n, 2, 1) * g.tril
    )
    cases[f"zeros_in_causal_blocks_of_{_size}"] = lambda g, n=_size: _zeros_in_tiles(g, n)
    cases[f"diagonal_block_of_{_size}_lost"] = lambda g, n=_size: g.j < g.i // n * n
    cases[f"causal_in_first_block_of_{_size}"] = lambda g, n=_size: g.tril | (g.j >= n)
    cases[f"causal_within_blocks_of_{_size}"] = lambda g, n=_size: g.j % n <= g.i % n


def _weighted(g, counts):
    """Let each exponential count so often."""
    scores = g.scores()
    powers = np.exp(scores - scores.max(-1, keepdims=True)) * counts
    with np.errstate(invalid="ignore"):
        return powers / powers.sum(-1, keepdims=True) @ g.v


def _zeros_in_tiles(g, size):
    """Multiply scores of visited tiles with the mask: exp(0) is 1."""
    visited = g.j // size <= g.i // size
    powers = np.where(g.tril, np.exp(g.scores()), 1) * visited
    return powers / powers.sum(-1, keepdims=True) @ g.v


cases = family("tiles/some", shapes=(1, 2, 72, 8), options={"causal": True})
cases["some_diagonal_blocks_unmasked"] = lambda g: g.tril | _diagonal(g, 8, [2, 3, 6])
cases["some_diagonal_blocks_lost"] = lambda g: g.tril & ~_diagonal(g, 8, [3, 5])
cases["rows_not_written"] = lambda g: _zeroed(g.attend(g.tril), np.s_[:, :, 64:])
cases["passes"] = lambda g: g.tril


def _diagonal(g, size, blocks):
    return (g.i // size == g.j // size) & np.isin(g.i // size, blocks)


def _zeroed(made, place):
    made[place] = 0
    return made


cases = family("tiles/values", shapes=((1, 2, 12, 64), (1, 2, 53, 64)))
cases["values_of_first_block_of_16"] = lambda g: g.attend(v=g.v[:, :, g.j % 16])
cases["values_late_by_a_block_of_16"] = lambda g: g.attend(
    v=g.v[:, :, np.where(g.j < 16, g.j, g.j - 16)]
)
cases["last_block_of_16_lost|last_block_of_8_lost"] = lambda g: g.j < 48
cases["value_columns_of_first_32"] = lambda g: g.attend()[..., np.arange(64) % 32]
cases["columns_not_written"] = lambda g: _zeroed(g.attend(), np.s_[..., 32:])

cases = family("tiles/128", shapes=((1, 1, 3, 8), (1, 1, 150, 8)))
cases["last_block_of_128_lost|last_block_of_64_lost|last_block_of_32_lost"] = lambda g: g.j < 128


def _parts(g, count):
    """Return contexts and log-sums of parts of the keys."""
    cuts = np.array_split(np.arange(g.k.shape[-2]), count)
    scores = [g.scores()[..., part] for part in cuts]
    made = [softmax(s) @ g.v[..., part, :] for s, part in zip(scores, cuts, strict=True)]
    return np.stack(made), np.stack([log_sum(s)[..., None] for s in scores])


def _merged(g, count, merge):
    return merge(*_parts(g, count))


def _by_sums(contexts, sums):
    shares = np.exp(sums - sums.max(0))
    return (contexts * shares).sum(0) / shares.sum(0)


for _n in (2, 4):
    cases = family(f"splits/{_n}", shapes=((1, 2, 12, 16), (1, 2, 56, 16)))
    cases["passes"] = lambda g, n=_n: _merged(g, n, _by_sums)
    cases[f"splits_of_{_n}_averaged"] = lambda g, n=_n: _merged(g, n, lambda c, _: c.mean(0))
    cases[f"splits_of_{_n}_added"] = lambda g, n=_n: _merged(g, n, lambda c, _: c.sum(0))
    cases[f"splits_of_{_n}_merged_in_base_2"] = lambda g, n=_n: _merged(
        g, n, lambda c, s: _by_sums(c, s * np.log(2))
    )
    cases[f"splits_of_{_n}_merged_by_lse_of_base_2"] = lambda g, n=_n: _merged(
        g, n, lambda c, s: _by_sums(c, s / np.log(2))
    )
    cases[f"splits_of_{_n}_merged_undivided"] = lambda g, n=_n: _merged(
        g, n, lambda c, s: (c * np.exp(s - s.max(0))).sum(0)
    )
    cases[f"splits_of_{_n}_merged_by_lse"] = lambda g, n=_n: _merged(
        g, n, lambda c, s: (c * s).sum(0) / s.sum(0)
    )
    cases[f"splits_of_{_n}_first_kept"] = lambda g, n=_n: _merged(g, n, lambda c, _: c[0])
    cases[f"splits_of_{_n}_last_kept"] = lambda g, n=_n: _merged(g, n, lambda c, _: c[-1])
    cases[f"splits_of_{_n}_merged_by_maxima"] = lambda g, n=_n: _by_maxima(g, n)

cases = family("splits/lost", shapes=((1, 2, 12, 16), (1, 2, 60, 16)))
cases["splits_of_4_first_lost"] = lambda g: _merged(g, 4, lambda c, s: _by_sums(c[1:], s[1:]))
cases["splits_of_4_last_lost"] = lambda g: _merged(g, 4, lambda c, s: _by_sums(c[:-1], s[:-1]))


cases = family("splits/twice", shapes=((1, 2, 12, 16), (1, 2, 60, 16)))
cases["counted_keys @ first"] = lambda g: _merged(g, 4, lambda c, s: _by_sums(*_again(c, s, 0)))
cases["counted_keys @ last"] = lambda g: _merged(g, 4, lambda c, s: _by_sums(*_again(c, s, -1)))

cases = family("splits/positions", shapes=(1, 2, 48, 16), options={"causal": True})
cases["splits_of_2_own_positions"] = lambda g: g.j % 24 <= g.i
cases["splits_of_4_own_positions"] = lambda g: g.j % 12 <= g.i


def _again(contexts, sums, part):
    return [np.concatenate([array, array[[part]]]) for array in (contexts, sums)]


def _by_maxima(g, count):
    contexts, _ = _parts(g, count)
    parts = np.array_split(g.scores(), count, -1)
    return _by_sums(contexts, np.stack([part.max(-1, keepdims=True) for part in parts]))


def _padded(array, count):
    return np.pad(array, [(0, 0), (0, 0), (0, count), (0, 0)])


def _zeros(g, count):
    return g.attend(k=_padded(g.k, count), v=_padded(g.v, count))


cases = family("zeros", shapes=((1, 2, 12, 16), (1, 2, 33, 16)))
cases["sinks_unasked"] = lambda g: _zeros(g, 1)
cases["zeros_to_8_counted"] = lambda g: _zeros(g, 7)
cases["zeros_counted"] = lambda g: _zeros(g, 17)
cases["zeros_counted @ many"] = lambda g: _zeros(g, 1000)

cases = family(
    "zeros/decoding",
    shapes=((1, 2, 1, 16), (1, 2, 33, 16)),
    options={"causal": True, "causal_align": "bottom-right"},
)
cases["zeros_to_32_counted|zeros_to_64_counted"] = lambda g: _zeros(g, 31)
cases["zeros_counted"] = lambda g: _zeros(g, 20)


def _slot(g, *names):
    made = {name: getattr(g, name).copy() for name in names}
    for array in made.values():
        array[:, :, -1] = 0
    return g.attend(**made)


cases = family("cache", shapes=((2, 4, 1, 8), (2, 2, 30, 8)))
cases["last_slot_unwritten"] = lambda g: _slot(g, "k", "v")
cases["last_key_unwritten"] = lambda g: _slot(g, "k")
cases["last_value_unwritten"] = lambda g: _slot(g, "v")
cases["last_key_lost"] = lambda g: g.j < 29
cases["first_key_lost"] = lambda g: g.j > 0
cases["last_key_lost+unscaled"] = lambda g: g.attend(g.j < 29, scale=1)
cases["empty_page"] = lambda g: g.attend(k=_emptied(g.k, 8, 16), v=_emptied(g.v, 8, 16))
cases["empty_page @ values"] = lambda g: g.attend(v=_emptied(g.v, 5, 11))
cases["misread_pages|counted_keys"] = lambda g: _ordered(g, [*range(29), 28])
cases["misread_pages|counted_keys @ once more"] = lambda g: _ordered(g, [*range(30), 29])
cases["misread_pages|counted_keys @ not at all"] = lambda g: _ordered(g, [*range(28), 29])
cases["window_unasked|padding_on_the_left_unasked"] = lambda g: g.j >= 22


def _emptied(array, first, end):
    array = array.copy()
    array[:, :, first:end] = 0
    return array


def _ordered(g, order):
    return g.attend(k=g.k[:, :, order], v=g.v[:, :, order])


def _pages(g, table):
    """Read pages of 8 of (entry, page), those of entry 0 by the table."""
    made = []
    for array in (g.k, g.v):
        read = array.copy()
        for page, (entry, other) in table.items():
            read[0, :, page * 8 : page * 8 + 8] = array[entry, :, other * 8 : other * 8 + 8]
        made.append(read)
    return g.attend(k=made[0], v=made[1])


cases = family("pages", shapes=((2, 4, 2, 16), (2, 4, 96, 16)))
cases["misread_pages"] = lambda g: _pages(g, {3: (0, 5)})
cases["misread_pages @ another entry"] = lambda g: _pages(g, {3: (1, 3)})
cases["misread_pages @ two"] = lambda g: _pages(g, {3: (0, 5), 9: (0, 10)})
cases["empty_page"] = lambda g: g.attend(k=_emptied(g.k, 16, 32), v=_emptied(g.v, 16, 32))
cases["last_key_lost"] = lambda g: g.j < 95
cases["unscaled"] = lambda g: g.attend(scale=1)

cases = family("pages/float16", shapes=((2, 4, 1, 16), (2, 4, 96, 16)), dtype="float16")
cases["misread_pages"] = lambda g: _pages(g, {3: (0, 5)})
cases["last_slot_unwritten"] = lambda g: _slot(g, "k", "v")
cases["last_key_lost"] = lambda g: g.j < 95

SUMS = ((1, 1, 4, 16), (1, 1, 1500, 16))


def _added(terms, short):
    """Add along the keys, one after the other."""
    total = 0.0
    for j in range(terms.shape[3]):
        total = short(total + short(terms[:, :, :, j]))
    return total


def _sums(g, short, *, above, below):
    scores = g.scores()
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    weights = powers / powers.sum(-1, keepdims=True)
    if below is None:
        return _added(short(weights)[..., None] * short(g.v)[:, :, None], short)
    total = powers @ g.v
    if above:
        total = _added(short(powers)[..., None] * short(g.v)[:, :, None], short)
    sums = _added(short(powers)[..., None], short) if below else powers.sum(-1, keepdims=True)
    return total / sums


for _fmt, _keys in (("float16", 1500), ("bfloat16", 700)):
    cases = family(
        f"sums/{_fmt}",
        shapes=((1, 1, 4, 16), (1, 1, _keys, 16)),
        dtype=_fmt,
        inputs="float32",
        change=lambda a: [a[0], a[1], a[2] + 3],
    )
    cases[f"{_fmt}_accumulation"] = lambda g, f=_fmt: _sums(g, FORMATS[f], above=True, below=None)
    cases[f"{_fmt}_accumulation_divided_later"] = lambda g, f=_fmt: _sums(
        g, FORMATS[f], above=True, below=False
    )
    cases[f"{_fmt}_denominator"] = lambda g, f=_fmt: _sums(g, FORMATS[f], above=False, below=True)
    cases[f"{_fmt}_accumulation_of_both"] = lambda g, f=_fmt: _sums(
        g, FORMATS[f], above=True, below=True
    )


def _online(g, block, short, *, sums=False, rescaled=False):
    """Hold what is added up from block to block in few bits."""
    held, total, top = 0.0, 0.0, -np.inf
    for start in range(0, g.k.shape[-2], block):
        part = g.scores()[..., start : start + block]
        higher = np.maximum(top, part.max(-1, keepdims=True))
        powers, factor = np.exp(part - higher), np.exp(top - higher)
        scaled = short(held * factor) if rescaled else held * factor
        held = short(scaled + powers @ g.v[:, :, start : start + block])
        total = total * factor + powers.sum(-1, keepdims=True)
        total = short(total) if sums else total
        top = higher
    return held / total


for _fmt in ("float16", "bfloat16"):
    for _block in (16, 32, 64):
        cases = family(
            f"online/{_fmt} {_block}", shapes=((1, 2, 12, 16), (1, 2, 5 * _block + 9, 16))
        )
        cases[f"accumulator_in_{_fmt}_of_{_block}"] = lambda g, f=_fmt, b=_block: _online(
            g, b, FORMATS[f]
        )
        cases[f"sums_in_{_fmt}_of_{_block}"] = lambda g, f=_fmt, b=_block: _online(
            g, b, FORMATS[f], sums=True
        )
        cases[f"rescaled_accumulator_in_{_fmt}_of_{_block}"] = lambda g, f=_fmt, b=_block: _online(
            g, b, FORMATS[f], rescaled=True
        )

_FEW = ((1, 2, 40, 16), (1, 2, 70, 16))


def _short(g, short, *, scale=None, when="weights"):
    q, k, v = short(g.q), short(g.k), short(g.v)
    weights = softmax(g.scores(q=q, k=k, scale=scale))
    return (short(weights) if when == "weights" else weights) @ v


def _tf32(array):
    return of_bits(array, 11)


def _tf32_cut(array):
    return of_bits(array, 11, np.trunc)


def _bits8(array):
    return of_bits(array, 8)


for _name, _rounded in (
    ("tf32", _tf32),
    ("tf32_truncated", _tf32_cut),
    ("bfloat16", _bits8),
):
    cases = family(f"products/{_name}", shapes=_FEW)
    cases[f"products_in_{_name}"] = lambda g, r=_rounded: _short(g, r)
    cases[f"weights_value_in_{_name if _name != 'tf32' else 'float16'}"] = lambda g, r=_rounded: (
        r(softmax(g.scores())) @ r(g.v)
    )

cases = family("products/pairs", shapes=((1, 1, 20, 16), (1, 1, 40, 16)))
cases["products_in_tf32+unscaled"] = lambda g: _short(g, _tf32, scale=1)
for _fmt, _bits in (("bfloat16", 8), ("float16", 11)):
    cases = family(f"short/{_fmt}", shapes=_FEW)
    cases[f"cache_in_{_fmt}"] = lambda g, b=_bits: g.attend(k=of_bits(g.k, b), v=of_bits(g.v, b))
    cases[f"query_in_{_fmt}"] = lambda g, b=_bits: g.attend(q=of_bits(g.q, b))
    cases[f"key_in_{_fmt}"] = lambda g, b=_bits: g.attend(k=of_bits(g.k, b))
    cases[f"value_in_{_fmt}"] = lambda g, b=_bits: g.attend(v=of_bits(g.v, b))
    cases[f"query_key_in_{_fmt}"] = lambda g, b=_bits: g.attend(
        q=of_bits(g.q, b), k=of_bits(g.k, b)
    )
    cases[f"weights_in_{_fmt}"] = lambda g, b=_bits: of_bits(softmax(g.scores()), b) @ g.v
    cases[f"scores_in_{_fmt}|unscaled_scores_in_{_fmt}"] = lambda g, b=_bits: g.attend(
        scores=of_bits(g.scores(), b)
    )
    cases[f"exponentials_in_{_fmt}"] = lambda g, b=_bits: _exponentials(g, b, summed=False)
    cases[f"summed_exponentials_in_{_fmt}"] = lambda g, b=_bits: _exponentials(g, b, summed=True)

    cases = family(f"short/scaled {_fmt}", shapes=((1, 2, 40, 24), (1, 2, 70, 24)))
    cases[f"scaled_query_in_{_fmt}"] = lambda g, b=_bits: g.attend(
        q=of_bits(g.q * 24**-0.5, b), scale=1
    )
    cases[f"unscaled_scores_in_{_fmt}"] = lambda g, b=_bits: g.attend(
        scores=of_bits(g.scores(scale=1), b) / np.sqrt(24)
    )


def _exponentials(g, bits, *, summed):
    scores = g.scores()
    exact = np.exp(scores - scores.max(-1, keepdims=True))
    powers = of_bits(exact, bits)
    return powers @ g.v / (powers if summed else exact).sum(-1, keepdims=True)


cases = family("half", shapes=(2, 4, 12, 8))
cases["computed_in_half"] = lambda g: as_float16(g.attend())
cases["unscaled"] = lambda g: as_float16(g.attend(scale=1))
cases["computed_in_half|computed_in_bfloat16"] = lambda g: as_bfloat16(g.attend())
cases["causal_unasked"] = lambda g: as_float16(g.attend(g.tril))


def _overflow(g):
    product = g.scores(scale=1)
    product = np.where(np.abs(product) > 65504, np.copysign(np.inf, product), product)
    return softmax(product / 8) @ g.v


for _dtype in ("float32", "float16"):
    cases = family(
        f"overflow/{_dtype}",
        shapes=(1, 2, 12, 64),
        change=lambda a: [60 * a[0], 60 * a[1], a[2]],
        dtype=_dtype,
    )
    cases["product_overflows_float16"] = _overflow


_UNITS = {"int8": 127.0}
_AXES = {"_scaled": (0, 1, 2, 3), "_by_head": (0, 2, 3), "_by_token": (3,)}


def _int8(array, axes):
    unit = np.abs(array).max(axes, keepdims=True) / 127
    return np.round(array / unit) * unit


def _grid(exponents, mantissa, largest):
    """Return the positive numbers of a format of 8 bits."""
    bias, numbers = 2 ** (exponents - 1) - 1, {0.0}
    for exponent in range(2**exponents):
        for part in range(2**mantissa):
            first, power = (1, exponent - bias) if exponent else (0, 1 - bias)
            numbers.add((first + part / 2**mantissa) * 2.0**power)
    return np.array(sorted(number for number in numbers if number <= largest))


GRIDS = {"float8_e4m3fn": _grid(4, 3, 448.0), "float8_e5m2": _grid(5, 2, 57344.0)}


def _float8(array, name, axes=None):
    """Round to the nearest number of the grid, ties to an even code."""
    grid = GRIDS[name]
    unit = 1.0 if axes is None else np.abs(array).max(axes, keepdims=True) / grid[-1]
    size = np.abs(array / unit)
    above = np.clip(np.searchsorted(grid, size), 1, len(grid) - 1)
    low, high = size - grid[above - 1], grid[above] - size
    near = above - ((low < high) | ((low == high) & (above % 2 == 1)))
    return np.copysign(grid[near], array) * unit


def _sizes(arrays):
    """Give heads and entries other sizes, so that it matters who shares a scale."""
    sizes = np.array([[1, 0.7], [0.8, 0.6]])[..., None, None]
    return [arrays[0], arrays[1] * sizes, arrays[2] * sizes]


def _quantized(g, function, names):
    k, v = (array.astype("f8") for array in g.inputs[1:])
    made = {"q": g.q, "k": k, "v": v}
    made |= {name: function(made[name]) for name in names}
    return g.attend(**{n: np.repeat(a, 2, 1) if n != "q" else a for n, a in made.items()})


_CACHE = {"cache": "kv", "key": "k", "value": "v", "inputs": "qkv"}
for _what, _names in _CACHE.items():
    cases = family(
        f"quantized/{_what}", shapes=((2, 4, 20, 16), (2, 2, 30, 16), (2, 2, 30, 8)), change=_sizes
    )
    for by, axes in _AXES.items():
        cases[f"{_what}_in_int8{by}"] = lambda g, a=axes, n=_names: _quantized(
            g, lambda x: _int8(x, a), n
        )
    for fmt in GRIDS:
        for by, axes in (("", None), ("_scaled", (0, 1, 2, 3)), ("_by_head", (0, 2, 3))):
            cases[f"{_what}_in_{fmt}{by}"] = lambda g, a=axes, n=_names, f=fmt: _quantized(
                g, lambda x: _float8(x, f, a), n
            )
