"""Wordings of the larger metro presets: full names, vertex and edge tables, user weights."""

from __future__ import annotations

from evals.suites.metro_network import Network
from evals.suites.metro_preset import Problem, Rendering
from evals.suites.metro_text import INSTRUCTIONS, directed_lines, map_text, question_text

STATION_GAP = " > "
"""Between stations in a row, where names hold spaces."""
WEIGHTED_INSTRUCTIONS = (
    "Find the route with the lowest score. The score sums f(x) over all edges and over all stations but the "
    "destination, plus wT * Transfer Time / 3 at every line change. f(x) = wT * Time / 3 + wP * Price / 1.5 "
    "+ wC * (1 - Comfort Level) + wR * (1 - Reliability); a Comfort Level or Reliability of 0 adds nothing."
)
INSTRUCTIONS_BY_RENDERING: dict[Rendering, str] = {
    "codes": INSTRUCTIONS,
    "listing": INSTRUCTIONS,
    "tables": WEIGHTED_INSTRUCTIONS,
}


def listing_text(network: Network) -> str:
    """Every line in both directions, then every interchange with its lines."""
    rows = [f"{label}: {STATION_GAP.join(stops)}" for label, stops in directed_lines(network).items()]
    for station in network.stations():
        lines = network.lines_of(station)
        if len(lines) > 1:
            rows.append(f"Change at {station}: {', '.join(lines)}")
    return "\n".join(rows)


def tables_text(network: Network) -> str:
    """Vertex table and edge table, columns as in the MapTab layout."""
    rows = ["Vertex | Line | Time | Price | Comfort Level | Reliability | Transfer Time"]
    for vertex in network.vertices.values():
        values = (vertex.time, vertex.price, vertex.comfort, vertex.reliability, vertex.transfer_time)
        rows.append(" | ".join((vertex.name, ", ".join(vertex.lines), *map(str, values))))
    rows.append("Edge | Line | Time | Price | Comfort Level | Reliability")
    for edge in network.edges:
        grades = (edge.time, edge.price, edge.comfort, edge.reliability)
        rows.append(" | ".join((f"{edge.station_1}-{edge.station_2}", edge.line, *map(str, grades))))
    return "\n".join(rows)


def problem_inputs(problem: Problem, rendering: Rendering) -> dict[str, str]:
    """The named texts of a task's prompt: ``question`` and ``map``."""
    question = question_text(problem.start, problem.goal)
    if problem.weights is not None:
        at = problem.weights
        question += f" Weights: wT {at.time}, wP {at.price}, wC {at.comfort}, wR {at.reliability}."
    texts = {"codes": map_text, "listing": listing_text, "tables": tables_text}
    return {"question": question, "map": texts[rendering](problem.network)}
