"""The built-in example: the tutorial problem of two queries and three keys.

Its dot products are (2, 1, 1) and (1, 1, 2).
"""

from __future__ import annotations

__all__ = ["EXAMPLE"]

EXAMPLE: dict[str, list[list[float]]] = {
    "query": [[1.0, 0.0, 1.0], [0.0, 1.0, 1.0]],
    "key": [[1.0, 0.0, 1.0], [1.0, 1.0, 0.0], [0.0, 1.0, 1.0]],
    "value": [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]],
}
