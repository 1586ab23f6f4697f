"""Where the stations of a metro map stand: points of a grid, by integer arithmetic alone.

Each line runs straight from a station that stands already, in the direction that collides least; what still
collides moves to the nearest free cell. The same network gives the same places on every machine.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence

Cell = tuple[int, int]
"""Column and row."""

DIRECTIONS: tuple[Cell, ...] = ((1, 0), (0, 1), (1, 1), (1, -1), (-1, 0), (0, -1), (-1, -1), (-1, 1))
TURNS = 4
"""Layouts tried, each with another direction first."""
REPAIRS = 60
"""Moves at most, of stations that a foreign line would run through."""


def place_stations(lines: Mapping[str, Sequence[str]]) -> dict[str, Cell]:
    """A cell for every station, columns and rows from 0 on; neighbours on a line are mostly two cells apart.

    Args:
        lines: stations of every line, in order.
    """
    best = _place(lines, DIRECTIONS)
    for turn in range(1, TURNS):
        if not false_stops(lines, best):
            break
        other = _place(lines, [*DIRECTIONS[turn:], *DIRECTIONS[:turn]])
        best = min(best, other, key=lambda cells: len(false_stops(lines, cells)))
    best = _repaired(lines, {name: (2 * x, 2 * y) for name, (x, y) in best.items()})
    left, top = min(x for x, _ in best.values()), min(y for _, y in best.values())
    return {name: (x - left, y - top) for name, (x, y) in best.items()}


def false_stops(
    lines: Mapping[str, Sequence[str]], cells: Mapping[str, Cell], ends: Mapping[str, Cell] | None = None
) -> list[tuple[str, str]]:
    """Lines with stations they run through without stopping there: a reader would take them for stops.

    Args:
        lines: stations of every line, in order.
        cells: of the stations to look at.
        ends: cells of all stations of the lines; None takes ``cells``.
    """
    ends = cells if ends is None else ends
    found = []
    for line, stops in lines.items():
        others = [(name, cell) for name, cell in cells.items() if name not in stops]
        for one, two in itertools.pairwise(stops):
            start, end = ends[one], ends[two]
            if abs(start[0] - end[0]) > 1 or abs(start[1] - end[1]) > 1:  # no cell lies between neighbours
                found += [(line, name) for name, cell in others if _is_near(cell, start, end)]
    return found


def _is_near(cell: Cell, one: Cell, two: Cell) -> bool:
    """Whether a cell lies within a third of a cell of the stretch between two others."""
    (x, y), (a, b), (c, d) = cell, one, two
    dx, dy = c - a, d - b
    square = dx * dx + dy * dy
    along = (x - a) * dx + (y - b) * dy
    if square == 0 or not 0 < along < square:
        return False
    across = abs((x - a) * dy - (y - b) * dx)
    return 9 * across * across < square


def _repaired(lines: Mapping[str, Sequence[str]], cells: dict[str, Cell]) -> dict[str, Cell]:
    """Move stations to free cells nearby as long as that takes false stops away."""
    for _ in range(REPAIRS):
        for _, name in false_stops(lines, cells):
            taken, now = set(cells.values()), _faults_at(lines, cells, name)
            near = [cell for cell in itertools.islice(_around(cells[name]), 81) if cell not in taken]
            faults = [_faults_at(lines, {**cells, name: cell}, name) for cell in near]
            if min(faults) < now:
                cells = {**cells, name: near[faults.index(min(faults))]}
                break
        else:
            break
    return cells


def _faults_at(lines: Mapping[str, Sequence[str]], cells: Mapping[str, Cell], name: str) -> int:
    """False stops that change with the place of one station: it on foreign lines, others on its own stretches."""
    own = {line: stops for line, stops in lines.items() if name in stops}
    foreign = {line: stops for line, stops in lines.items() if name not in stops}
    touching = {
        f"{line} {index}": pair
        for line, stops in own.items()
        for index, pair in enumerate(itertools.pairwise(stops))
        if name in pair
    }
    members = {key: lines[key.rpartition(" ")[0]] for key in touching}
    found = [(key, at) for key, at in false_stops(touching, cells) if at not in members[key]]
    return len(found) + len(false_stops(foreign, {name: cells[name]}, cells))


def _place(lines: Mapping[str, Sequence[str]], directions: Sequence[Cell]) -> dict[str, Cell]:
    cells: dict[str, Cell] = {}
    left = [*lines]
    while left:
        name = next((line for line in left if any(stop in cells for stop in lines[line])), left[0])
        left.remove(name)
        _place_line(lines, name, cells, directions)
    return cells


def _place_line(
    lines: Mapping[str, Sequence[str]], name: str, cells: dict[str, Cell], directions: Sequence[Cell]
) -> None:
    """Put the stations of a line that stand nowhere yet into ``cells``."""
    stops = lines[name]
    trials = [_straight(stops, step, cells) for step in directions]
    known = {line: at for line, at in lines.items() if line == name or all(stop in cells for stop in at)}
    costs = [_cost(known, trial, cells) for trial in trials]
    for stop, wanted in trials[costs.index(min(costs))].items():
        taken = set(cells.values())
        cells[stop] = next(cell for cell in _around(wanted) if cell not in taken)


def _cost(lines: Mapping[str, Sequence[str]], trial: Mapping[str, Cell], cells: Mapping[str, Cell]) -> int:
    taken = set(cells.values())
    clashes = len(trial) - len(set(trial.values()) - taken)
    return clashes + len(false_stops(lines, {**cells, **trial}))


def _straight(stops: Sequence[str], step: Cell, cells: Mapping[str, Cell]) -> dict[str, Cell]:
    """Places of the stations that have none: evenly between two that do, onwards in steps beyond the outer ones."""
    fixed = [index for index, stop in enumerate(stops) if stop in cells] or [0]
    known = {index: cells.get(stops[index], (0, 0)) for index in fixed}
    made = {}
    for index, stop in enumerate(stops):
        if stop in cells:
            continue
        before = max((at for at in fixed if at <= index), default=fixed[0])
        after = min((at for at in fixed if at >= index), default=before)
        (x, y), (a, b), away = known[before], known[after], index - before
        if before == after or index < before:
            made[stop] = (x + away * step[0], y + away * step[1])
        else:
            parts = after - before
            made[stop] = (x + (a - x) * away // parts, y + (b - y) * away // parts)
    return made


def _around(cell: Cell) -> Iterator[Cell]:
    """The cell, then all others in growing squares around it."""
    for reach in itertools.count():
        for x, y in _ring(reach):
            yield cell[0] + x, cell[1] + y


def _ring(reach: int) -> Iterable[Cell]:
    side = range(-reach, reach + 1)
    return ((x, y) for y in side for x in side if max(abs(x), abs(y)) == reach)
