"""Projections and positions from their definitions: plain loops over Python floats."""

from __future__ import annotations

import math

import numpy as np

__all__ = ["linear", "positions"]


def linear(x, weight, bias=None):
    """Return x · weight + bias, every sum exactly rounded."""
    x, weight = np.asarray(x, dtype=float), np.asarray(weight, dtype=float)
    shift = np.zeros(weight.shape[1]) if bias is None else np.asarray(bias, dtype=float)
    made = [
        [
            math.fsum([*(a * b for a, b in zip(row, column, strict=True)), c])
            for column, c in zip(weight.T.tolist(), shift.tolist(), strict=True)
        ]
        for row in x.reshape(-1, x.shape[-1]).tolist()
    ]
    return np.array(made).reshape(*x.shape[:-1], weight.shape[1])


def positions(length, width):
    """Return the sinusoidal encoding as the paper writes it, term by term."""
    table = np.zeros((length, width))
    for position in range(length):
        for column in range(width):
            angle = position / 10000 ** (2 * (column // 2) / width)
            table[position, column] = math.cos(angle) if column % 2 else math.sin(angle)
    return table
