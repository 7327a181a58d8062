"""Solve the Poisson equation on the unit square by conjugate gradients. Each process of MPI computes some of the rows.

The right side is chosen so that the exact solution is u = x (1 - x) y (1 - y). The process of rank 0 writes the largest
difference between the computed solution and the exact one.
"""

from __future__ import annotations

import json
import os
import platform
import sys

from mpi4py import MPI

WORLD = MPI.COMM_WORLD
Rows = list[list[float]]


def main(points: int) -> None:
    step = 1 / (points + 1)
    mine = range(points * WORLD.rank // WORLD.size, points * (WORLD.rank + 1) // WORLD.size)
    grid = [[((row + 1) * step, (column + 1) * step) for column in range(points)] for row in mine]
    right = [[2 * (x * (1 - x) + y * (1 - y)) * step**2 for x, y in line] for line in grid]
    solution, iterations = solve(right)
    errors = (
        abs(u - x * (1 - x) * y * (1 - y))
        for line, places in zip(solution, grid, strict=True)
        for u, (x, y) in zip(line, places, strict=True)
    )
    error = WORLD.allreduce(max(errors, default=0.0), MPI.MAX)
    hosts = WORLD.gather(platform.node())
    if WORLD.rank == 0:
        print(f"{WORLD.size} processes on {len(set(hosts))} hosts: {iterations} iterations, error {error:.1e}")
        result = {"processes": WORLD.size, "hosts": sorted(set(hosts)), "iterations": iterations, "error": error}
        with open(os.environ["GANG_RESULT_PATH"], "w") as file:
            json.dump(result, file)


def solve(right: Rows) -> tuple[Rows, int]:
    """Return the solution of laplace(solution) = right, and the number of iterations."""
    solution = [[0.0] * len(line) for line in right]
    residual, direction = right, right
    square, iterations = dot(residual, residual), 0
    while square > 1e-24:
        product = laplace(direction)
        length = square / dot(direction, product)
        solution = combine(solution, length, direction)
        residual = combine(residual, -length, product)
        last, square = square, dot(residual, residual)
        direction = combine(residual, square / last, direction)
        iterations += 1
    return solution, iterations


def laplace(rows: Rows) -> Rows:
    """Apply the five-point stencil. Each process gets the edge rows of its neighbours; outside, all values are zero."""
    before = WORLD.rank - 1 if WORLD.rank > 0 else MPI.PROC_NULL
    after = WORLD.rank + 1 if WORLD.rank + 1 < WORLD.size else MPI.PROC_NULL
    zeros = [0.0] * len(rows[0])
    below = WORLD.sendrecv(rows[0], dest=before, source=after) or zeros
    above = WORLD.sendrecv(rows[-1], dest=after, source=before) or zeros
    padded = [above, *rows, below]
    return [
        [
            4 * value - north - south - west - east
            for value, north, south, west, east in zip(line, up, down, [0.0, *line], [*line[1:], 0.0], strict=False)
        ]
        for up, line, down in zip(padded, rows, padded[2:], strict=False)
    ]


def combine(first: Rows, factor: float, second: Rows) -> Rows:
    """Return first + factor * second."""
    return [[a + factor * b for a, b in zip(*lines, strict=True)] for lines in zip(first, second, strict=True)]


def dot(first: Rows, second: Rows) -> float:
    """Return the scalar product over the rows of all processes."""
    own = sum(a * b for lines in zip(first, second, strict=True) for a, b in zip(*lines, strict=True))
    return WORLD.allreduce(own)


if __name__ == "__main__":
    main(int(sys.argv[1]))
