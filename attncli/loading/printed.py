"""How many digits the numbers of a text were printed with."""

from __future__ import annotations

import re

__all__ = ["printed_alike"]

# What the first numbers are found in.
_BEGINNING = 2**13
_NUMBER = re.compile(
    r"(?<![\w.])([-+]?\d+(?:\.(\d*))?(e[-+]?\d+)?)(?![\w.])", re.ASCII | re.IGNORECASE
)


def printed_alike(text: str) -> str | None:
    """Return the format of the first numbers of a text, in the words of C; None without one.

    All have as many decimals, and some of them would be written otherwise if they were written
    as they are: with an exponent, with a zero less at the end, or with many digits more. Those
    of 0.25 and 0.875 are all that they have.

    Examples
    --------
    >>> printed_alike("3.00,0.75"), printed_alike("0.73,0.27"), printed_alike("7.3e-01")
    ('%.2f', '%.2f', '%.1e')
    >>> printed_alike("3.0,0.7"), printed_alike("0.25,0.75"), printed_alike("0.25,0.731")
    (None, None, None)
    """
    found = _NUMBER.findall(text[:_BEGINNING])
    # The last one may be cut in two.
    found = found[:-1] if len(text) > _BEGINNING else found
    kinds = {(len(decimals), bool(exponent)) for _, decimals, exponent in found}
    if len(kinds) != 1:
        return None
    ((decimals, exponents),) = kinds
    if exponents:
        return f"%.{decimals}e" if decimals else None
    shortened = any(number.endswith("0") or float(number) * 8 % 1 for number, *_ in found)
    # 3.0 is how whole numbers are written as they are.
    return f"%.{decimals}f" if shortened and decimals > 1 else None
