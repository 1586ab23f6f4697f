"""Two small maps in the MapTab layout, with ties, transfers and all twelve variants; golds by hand.

Metro ("Tie Town"), every hop usable both ways:

    A --r-- B --r-- D --g-- E        r edges: Time 3,   Price 1.5, Comfort 0.5, Reliability 0.5
    A --b-- C --b-- D                b edges: Time 1.5, Price 3,   Comfort 0.9, Reliability 0.9
                                     g edge:  Time 3,   Price 0,   Comfort 0.6, Reliability 0
    D: Transfer Time 3; all other vertex attributes 0.

A to E, unweighted: both ways have four stations and one change at D, so both are gold.
phi(r) = w1 + w2 + 0.5 w3 + 0.5 w4 and phi(b) = 0.5 w1 + 2 w2 + 0.1 w3 + 0.1 w4, twice each; the rest is
common to both ways. So b wins iff 0.5 w1 - w2 + 0.4 w3 + 0.4 w4 > 0.

Travel ("Lake Park"): P - Q - S and P - R - S, edges all 0.
    Q: Time 180, Price 100, Comfort 4, Reliability 0.5     phi(Q) = w1 + 0.5 w2 + 0.2 w3 + 0.5 w4
    R: Time 90,  Price 200, Comfort 2, Reliability 0.95    phi(R) = 0.5 w1 + w2 + 0.6 w3 + 0.05 w4
    P and S: Time 0, Price 40: P is only passed (free), S is the goal and pays on both ways.
"""

import csv
import json

METRO_BY_B = "東京-B_North-Müller Platz(transfer)-End"
METRO_BY_C = "東京-C-Müller Platz(transfer)-End"
TRAVEL_BY_Q = "P-Q-S"
TRAVEL_BY_R = "P-R-S"

# variant suffix -> (weights, metro gold, travel gold); the inequality of the docstring decides
WEIGHTED = {
    "constraint_1": ((1, 0, 0, 0), METRO_BY_C, TRAVEL_BY_R),
    "constraint_2": ((0, 1, 0, 0), METRO_BY_B, TRAVEL_BY_Q),
    "constraint_3": ((0, 0, 1, 0), METRO_BY_C, TRAVEL_BY_Q),
    "constraint_4": ((0, 0, 0, 1), METRO_BY_C, TRAVEL_BY_R),
    # metro 0.125 - 0.25 + 0.1 + 0.1 = 0.075 > 0; travel Q 0.55 against R 0.5375
    "constraint_1_2_3_4": ((0.25, 0.25, 0.25, 0.25), METRO_BY_C, TRAVEL_BY_R),
    # metro 0.1 - 0.6 + 0.08 < 0; travel Q 0.6 against R 0.71
    "constraint_1_2_4": ((0.2, 0.6, 0, 0.2), METRO_BY_B, TRAVEL_BY_Q),
    # no price: b wins; travel Q 0.2 + 0.12 + 0.1 = 0.42 against R 0.1 + 0.36 + 0.01 = 0.47
    "constraint_1_3_4": ((0.2, 0, 0.6, 0.2), METRO_BY_C, TRAVEL_BY_Q),
    # metro -0.2 + 0.08 + 0.24 > 0; travel Q 0.1 + 0.04 + 0.3 = 0.44 against R 0.2 + 0.12 + 0.03 = 0.35
    "constraint_2_3_4": ((0, 0.2, 0.2, 0.6), METRO_BY_C, TRAVEL_BY_R),
    # metro, vertex2 table: by B T = 3/3 + 3/3 = 2, Pr = 1, means (0.4+0.5+0.5)/3: (2 + 1 + 2 * 0.5333) / 4 = 1.0167
    #   by C T = 1.5/3 + 1 = 1.5, Pr = 2, means (0.4+0.9+0.5)/3 = 0.6: (1.5 + 2 + 2 * 0.4) / 4 = 1.075
    # travel, vertex2 table = vertex table, means over P, Q, S with P and S at 0: Q comfort 0.8/3, reliability 0.5/3
    #   by Q (1 + 0.5 + 0.7333 + 0.8333) / 4, by R (0.5 + 1 + 0.8667 + 0.6833) / 4: R is lower
    "constraint_1_2_3_4_only_vertex2": ((0.25, 0.25, 0.25, 0.25), METRO_BY_B, TRAVEL_BY_R),
}
COLUMNS = ("Time", "Price", "Comfort Level", "Reliability")
METRO_EDGES = [
    ("東京-B_North", ["r"], 3, 1.5, 0.5, 0.5),
    ("B_North-Müller Platz", ["r"], 3, 1.5, 0.5, 0.5),
    ("東京-C", ["b"], 1.5, 3, 0.9, 0.9),
    ("C-Müller Platz", ["b"], 1.5, 3, 0.9, 0.9),
    ("Müller Platz-End", ["g", "h"], 3, 0, 0.6, 0),
]
METRO_VERTICES = [
    (name, lines, 0, 0, 0, 0, 3 if name == "Müller Platz" else 0)
    for name, lines in (("東京", ["r", "b"]), ("B_North", ["r"]), ("C", ["b"]), ("Müller Platz", ["r", "b", "g", "h"]),
                        ("End", ["g", "h"]))
]  # fmt: skip
METRO_VERTICES_2 = [
    ("東京", ["r", "b"], 0, 0, 0.4, 0.4, 0),
    ("B_North", ["r"], 3, 1.5, 0.5, 0.5, 0),
    ("C", ["b"], 1.5, 3, 0.9, 0.9, 0),
    ("Müller Platz", ["r", "b", "g", "h"], 0, 0, 0.5, 0.5, 3),
    ("End", ["g", "h"], 9, 9, 0.9, 0.9, 0),
]
TRAVEL_EDGES = [(edge, 0, 0, 0, 0) for edge in ("P-Q", "Q-S", "P-R", "R-S")]
TRAVEL_VERTICES = [("P", 0, 40, 0, 0), ("Q", 180, 100, 4, 0.5), ("R", 90, 200, 2, 0.95), ("S", 0, 40, 0, 0)]


def write_table(path, columns, rows, *, as_csv=False):
    """One table as a JSON list, or as CSV with a UTF-8 BOM."""
    path.parent.mkdir(parents=True, exist_ok=True)
    entries = [dict(zip(columns, row, strict=True)) for row in rows]
    if not as_csv:
        path.write_text(json.dumps(entries, ensure_ascii=False), encoding="utf-8")
        return
    flat = [{k: ", ".join(v) if isinstance(v, list) else v for k, v in entry.items()} for entry in entries]
    with path.open("w", encoding="utf-8-sig", newline="") as handle:
        writer = csv.DictWriter(handle, columns)
        writer.writeheader()
        writer.writerows(flat)


def write_queries(root, domain, variant, entries, split="test"):
    """One query file."""
    path = root / f"{domain}map/data/{split}_set/{domain}map_shortest_path_query_{variant}_{split}_set.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(entries, ensure_ascii=False), encoding="utf-8")


def query(domain, routes, weights=None, *, vertex_only=False):
    """One query entry."""
    place = "x_land/tie" if domain == "metro" else "x_land/lake"
    ends = ("station_1", "station_2") if domain == "metro" else ("spot_1", "spot_2")
    start, goal = ("東京", "End") if domain == "metro" else ("P", "S")
    entry = {
        "country": "x_land", ("city" if domain == "metro" else "scenic_spot"): place.split("/")[1],
        "figure": f"{domain}map/images/{place}.png",
        "edge_tab": f"{domain}map/tabulars/{place}_edge.json",
        "vertex_tab": f"{domain}map/tabulars/{place}_vertex{'2' if vertex_only else ''}.json",
        ends[0]: start, ends[1]: goal, "Map_Difficulty": "Easy", "Query_Difficulty": "Hard",
        "question": f"From {start} to {goal}?", "routes": routes,
        "route_vertex_numbers": [len(route.split("-")) for route in routes],
    }  # fmt: skip
    if domain == "metro":
        entry["transfer_vertex_numbers"] = [route.count("(transfer)") for route in routes]
    if vertex_only:
        del entry["edge_tab"]
    if weights is not None:
        entry["weights"] = list(weights)
    return entry


def write_layout(root, *, as_csv=False, domains=("metro", "travel")):
    """Both maps with all twelve variants each."""
    line, transfer = ("Line",), ("Transfer Time",)
    suffix = ".csv" if as_csv else ".json"
    if "metro" in domains:
        base = root / "metromap/tabulars/x_land"
        write_table(base / f"tie_edge{suffix}", ("Edge", *line, *COLUMNS), METRO_EDGES, as_csv=as_csv)
        for name, rows in (("vertex", METRO_VERTICES), ("vertex2", METRO_VERTICES_2)):
            write_table(base / f"tie_{name}{suffix}", ("Vertex", *line, *COLUMNS, *transfer), rows, as_csv=as_csv)
    if "travel" in domains:
        base = root / "travelmap/tabulars/x_land"
        write_table(base / f"lake_edge{suffix}", ("Edge", *COLUMNS), TRAVEL_EDGES, as_csv=as_csv)
        for name in ("vertex", "vertex2"):
            write_table(base / f"lake_{name}{suffix}", ("Vertex", *COLUMNS), TRAVEL_VERTICES, as_csv=as_csv)
    for number, domain in enumerate(("metro", "travel")):
        if domain not in domains:
            continue
        ties = [[METRO_BY_B, METRO_BY_C], [TRAVEL_BY_Q, TRAVEL_BY_R]][number]
        for variant in ("only_map", "only_tab", "map_and_tab"):
            write_queries(root, domain, variant, [query(domain, ties)])
        for name, (weights, *golds) in WEIGHTED.items():
            entry = query(domain, [golds[number]], weights, vertex_only="vertex2" in name)
            write_queries(root, domain, f"map_and_tab_with_{name}", [entry])
