"""Reading the MapTab layout: query files, edge and vertex tables, path resolution.

Source: METHODS §5.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable
from pathlib import Path
from typing import get_args

from pydantic import JsonValue

from evals.config import MapTabDomain, MapTabVariant
from evals.suites.route import normalise
from evals.suites.route_cost import Weights
from evals.suites.route_graph import Attributes, RouteGraph, Station, Track
from harness.errors import UserError
from harness.records import Record, Split

DOMAINS: tuple[MapTabDomain, ...] = get_args(MapTabDomain)
VARIANTS: tuple[MapTabVariant, ...] = get_args(MapTabVariant)
SPLITS: tuple[Split, ...] = get_args(Split)
ROOTS = ("", "raw", "assets")
"""Where a repo-relative path may lie below the root, in the order of trying."""
VERTEX_ONLY: MapTabVariant = "map_and_tab_with_constraint_1_2_3_4_only_vertex2"
_TOTALS = ("Total_Time", "Total_Price", "Average_Comfort Level", "Average_Reliability")
_FIELDS = {
    "country", "figure", "edge_tab", "vertex_tab", "Map_Difficulty", "Query_Difficulty", "question", "routes",
    "route_vertex_numbers", "transfer_vertex_numbers", "weights", *_TOTALS,
}  # fmt: skip


class MapTabQuery(Record):
    """One query with its gold, as the file states it."""

    domain: MapTabDomain
    variant: MapTabVariant
    split: Split
    index: int
    """Position in its file."""
    country: str
    place: str
    """City (metro) or scenic spot (travel)."""
    figure: str
    edge_tab: str = ""
    vertex_tab: str = ""
    start: str
    goal: str
    map_difficulty: str
    query_difficulty: str
    question: str
    routes: tuple[str, ...]
    route_vertex_numbers: tuple[int, ...]
    transfer_vertex_numbers: tuple[int, ...] = ()
    """Metro only."""
    weights: tuple[float, float, float, float] | None = None
    """Time, price, comfort, reliability; None in the unweighted variants."""
    totals: dict[str, float] = {}
    """The gold's totals, where stated."""
    others: dict[str, JsonValue] = {}
    """Fields that this loader does not interpret."""

    @property
    def query_id(self) -> str:
        """Stable name of the query."""
        return f"maptab-{self.domain}-{self.variant}-{self.split}-{self.index:05d}"

    @property
    def user_weights(self) -> Weights | None:
        """The weights as the solver takes them."""
        return None if self.weights is None else Weights(*self.weights)


def resolve(root: Path, relative: str) -> Path | None:
    """The file that a repo-relative path names: at the root, then ``raw/``, then ``assets/``."""
    candidates = (root / folder / relative for folder in ROOTS)
    return next((path for path in candidates if path.is_file()), None)


def find_table(root: Path, relative: str) -> Path | None:
    """As :func:`resolve`; a table that is absent as JSON may be there as CSV, and the other way round."""
    if not relative:
        return None
    other = {".json": ".csv", ".csv": ".json"}.get(Path(relative).suffix, "")
    found = resolve(root, relative)
    return found or (resolve(root, str(Path(relative).with_suffix(other))) if other else None)


def query_file(domain: MapTabDomain, variant: MapTabVariant, *, split: Split) -> str:
    """Repo-relative path of a query file."""
    return f"{domain}map/data/{split}_set/{domain}map_shortest_path_query_{variant}_{split}_set.json"


def _fault(path: Path, index: int, got: str, expected: str) -> UserError:
    return UserError(
        f"reading {path.name}, entry {index}, failed", got=got, expected=expected, do="compare the file with the layout"
    )


def _parse_query(
    path: Path, index: int, entry: dict[str, JsonValue], domain: MapTabDomain, variant: MapTabVariant, *, split: Split
) -> MapTabQuery:
    ends = ("station_1", "station_2") if domain == "metro" else ("spot_1", "spot_2")
    place = "city" if domain == "metro" else "scenic_spot"
    required = [*ends, place, "country", "figure", "Map_Difficulty", "Query_Difficulty", "question", "routes"]
    required += ["route_vertex_numbers", *(["transfer_vertex_numbers"] if domain == "metro" else [])]
    missing = [name for name in required if name not in entry]
    if missing:
        raise _fault(path, index, f"no {missing}", f"fields {required}")
    values: dict[str, JsonValue] = {
        "domain": domain, "variant": variant, "split": split, "index": index,
        "place": entry[place], "start": entry[ends[0]], "goal": entry[ends[1]],
        "map_difficulty": entry["Map_Difficulty"], "query_difficulty": entry["Query_Difficulty"],
        "totals": {name: entry[name] for name in _TOTALS if name in entry},
        "others": {name: value for name, value in entry.items() if name not in {*_FIELDS, *ends, place}},
    }  # fmt: skip
    copied = ["country", "figure", "edge_tab", "vertex_tab", "question", "routes", "weights"]
    copied += ["route_vertex_numbers", "transfer_vertex_numbers"]
    values |= {name: entry[name] for name in copied if name in entry}
    query = MapTabQuery.model_validate(values)
    lists = (query.route_vertex_numbers, *((query.transfer_vertex_numbers,) if domain == "metro" else ()))
    if not query.routes or any(len(numbers) != len(query.routes) for numbers in lists):
        raise _fault(path, index, f"{len(query.routes)} routes and lists of {[*map(len, lists)]}", "parallel lists")
    if (query.weights is None) == ("constraint" in variant):
        raise _fault(path, index, f"weights {query.weights} in {variant}", "weights in the weighted variants alone")
    return query


def read_queries(root: Path, domain: MapTabDomain, variant: MapTabVariant, *, split: Split) -> tuple[MapTabQuery, ...]:
    """All queries of one file, in file order; empty when the file is absent.

    Raises:
        UserError: the file is not a JSON list of queries in the layout.
    """
    path = resolve(root, query_file(domain, variant, split=split))
    if path is None:
        return ()
    entries = _read_json_list(path)
    return tuple(_parse_query(path, index, entry, domain, variant, split=split) for index, entry in enumerate(entries))


def _read_json_list(path: Path) -> list[dict[str, JsonValue]]:
    try:
        entries = json.loads(path.read_text(encoding="utf-8-sig"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"reading {path.name} failed", got=str(error), expected="a JSON list in UTF-8") from error
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise UserError(f"reading {path.name} failed", got=type(entries).__name__, expected="a JSON list of objects")
    return entries


def read_table(path: Path) -> list[dict[str, JsonValue]]:
    """Rows of an edge or vertex table, JSON list or CSV (a UTF-8 BOM is skipped)."""
    if path.suffix == ".json":
        return _read_json_list(path)
    text = path.read_text(encoding="utf-8-sig")
    return [{name.strip(): value for name, value in row.items()} for row in csv.DictReader(io.StringIO(text))]


def _number(row: dict[str, JsonValue], name: str, path: Path) -> float:
    value = row.get(name)
    try:
        return float(value) if isinstance(value, int | float | str) and value != "" else 0.0
    except ValueError:
        raise UserError(f"reading {path.name} failed", got=f"{name}={value!r}", expected="a number") from None


def _lines(value: JsonValue) -> tuple[str, ...]:
    """Lines of a track: a JSON list, or in CSV one name, a list literal, or names apart by ``,`` or ``;``."""
    if value is None or value == "":
        return ("",)
    if isinstance(value, list):
        return tuple(str(line).strip() for line in value) or ("",)
    text = str(value).strip().removeprefix("[").removesuffix("]").replace(";", ",")
    return tuple(part.strip().strip("'\"").strip() for part in text.split(",") if part.strip()) or ("",)


def _attributes(row: dict[str, JsonValue], path: Path) -> Attributes:
    time, price, comfort, reliability = (
        _number(row, name, path) for name in ("Time", "Price", "Comfort Level", "Reliability")
    )
    return Attributes(time, price, comfort, reliability)


def _read_stations(path: Path) -> dict[str, Station]:
    stations = {}
    for row in read_table(path):
        name = row.get("Vertex")
        if not isinstance(name, str) or not name.strip():
            raise UserError(f"reading {path.name} failed", got=f"columns {[*row]}", expected="a column Vertex")
        stations[name.strip()] = Station(_attributes(row, path), _number(row, "Transfer Time", path))
    return stations


def _read_tracks(path: Path) -> tuple[Track, ...]:
    tracks = []
    for row in read_table(path):
        ends = [part.strip() for part in str(row.get("Edge", "")).split("-")]
        if len(ends) != 2 or not all(ends):
            raise UserError(f"reading {path.name} failed", got=f"Edge={row.get('Edge')!r}", expected="two stations, -")
        tracks.append(Track(ends[0], ends[1], _lines(row.get("Line")), _attributes(row, path)))
    return tuple(tracks)


def read_graph(edge_path: Path, vertex_path: Path | None) -> RouteGraph:
    """The map of one pair of tables; without a vertex table stations have no attributes.

    Raises:
        UserError: a table is not in the layout, or an edge ends at no vertex.
    """
    tracks = _read_tracks(edge_path)
    if vertex_path is None:
        return RouteGraph({end: Station() for track in tracks for end in (track.station_1, track.station_2)}, tracks)
    try:
        return RouteGraph(_read_stations(vertex_path), tracks)
    except ValueError as error:
        raise UserError(f"reading {edge_path.name} with {vertex_path.name} failed", got=str(error)) from error


def station_on_map(stations: Iterable[str], name: str) -> str | None:
    """The map's spelling of a station; None when no station matches strictly."""
    wanted = normalise(name)
    return next((station for station in stations if normalise(station) == wanted), None)
