"""The MapTab loader and the solver over its gold, on two maps worked by hand."""

import hashlib
import itertools
import json
from pathlib import Path

import pytest
from maptab_files import METRO_BY_B, METRO_BY_C, TRAVEL_BY_Q, query, write_layout, write_queries

from evals.config import MapTabConfig
from evals.suites.maptab import STYLES, MapTabSuite
from evals.suites.maptab_check import validate_maptab
from evals.suites.maptab_layout import DOMAINS, VARIANTS, read_queries
from evals.suites.route import score_route, score_route_publicly
from harness.errors import UserError
from harness.render import render

REAL = Path(__file__).parents[3] / "shared/data/maptab-cleveland"


def only_row(root):
    (row,) = validate_maptab(root)
    return row


@pytest.mark.parametrize("as_csv", [False, True])
@pytest.mark.parametrize("folder", ["", "raw", "assets"])
def test_solver_agrees_with_hand_worked_gold_in_all_variants(tmp_path, as_csv, folder):
    write_layout(tmp_path / folder, as_csv=as_csv)
    rows = validate_maptab(tmp_path)
    assert [(row.domain, row.variant) for row in rows] == [(d, v) for d in DOMAINS for v in VARIANTS]
    assert [(row.queries, row.agrees) for row in rows] == [(1, 1)] * 24
    assert all(row.findings == () for row in rows)


def test_the_root_wins_over_raw_and_raw_over_assets(tmp_path):
    for folder, count in (("", 1), ("raw", 2), ("assets", 3)):
        write_queries(tmp_path / folder, "metro", "only_map", [query("metro", [METRO_BY_B])] * count)
    assert len(read_queries(tmp_path, "metro", "only_map", split="test")) == 1
    (tmp_path / "metromap/data/test_set/metromap_shortest_path_query_only_map_test_set.json").unlink()
    assert len(read_queries(tmp_path, "metro", "only_map", split="test")) == 2


def test_every_field_is_read(tmp_path):
    entry = query("metro", [METRO_BY_C], (1, 0, 0, 0)) | {"Total_Time": 9, "rank": 4}
    write_queries(tmp_path, "metro", "map_and_tab_with_constraint_1", [entry])
    (read,) = read_queries(tmp_path, "metro", "map_and_tab_with_constraint_1", split="test")
    assert (read.country, read.place, read.start, read.goal) == ("x_land", "tie", "東京", "End")
    assert (read.map_difficulty, read.query_difficulty, read.weights) == ("Easy", "Hard", (1, 0, 0, 0))
    assert (read.route_vertex_numbers, read.transfer_vertex_numbers) == ((4,), (1,))
    assert (read.totals, read.others) == ({"Total_Time": 9}, {"rank": 4})


def test_totals_of_the_gold_are_recomputed(tmp_path):
    write_layout(tmp_path, domains=("metro",))
    # by C: edges 1.5 + 1.5 + 3 and the transfer 3 = 9; prices 3 + 3 + 0; means without zeros (0.9+0.9+0.6)/3, 0.9
    right = {"Total_Time": 9, "Total_Price": 6, "Average_Comfort Level": 0.8, "Average_Reliability": 0.9}
    for totals, agree in ((right, 1), (right | {"Total_Time": 6}, 0)):
        entry = query("metro", [METRO_BY_C], (1, 0, 0, 0)) | totals
        write_queries(tmp_path, "metro", "map_and_tab_with_constraint_1", [entry])
        row = next(row for row in validate_maptab(tmp_path) if row.variant == "map_and_tab_with_constraint_1")
        assert (row.agrees, row.totals_checked, row.totals_agree) == (1, 1, agree)


@pytest.mark.parametrize(
    ("variant", "routes", "weights", "reason"),
    [
        ("map_and_tab_with_constraint_1", [METRO_BY_B], (1, 0, 0, 0), "costs"),
        ("only_map", [METRO_BY_B], None, "1 further optimal routes"),
        ("only_map", [METRO_BY_B, METRO_BY_C.replace("(transfer)", "")], None, "marked differently"),
        ("only_map", ["東京-Müller Platz-End"], None, "hops that are not on the map"),
        ("only_map", ["東京-B_North-Nowhere"], None, "stations that are not on the map"),
        ("only_map", ["東京-B_North-Müller Platz"], None, "gold runs from"),
    ],
)
def test_every_kind_of_wrong_gold_is_a_disagreement_with_its_reason(tmp_path, variant, routes, weights, reason):
    write_layout(tmp_path, domains=("metro",))
    write_queries(tmp_path, "metro", variant, [query("metro", routes, weights)])
    row = next(row for row in validate_maptab(tmp_path) if row.variant == variant)
    assert (row.agrees, row.disagrees, row.unverifiable) == (0, 1, 0)
    assert reason in row.findings[0].reason


def test_list_columns_that_contradict_the_routes_are_a_disagreement(tmp_path):
    write_layout(tmp_path, domains=("metro",))
    entry = query("metro", [METRO_BY_B, METRO_BY_C]) | {"transfer_vertex_numbers": [0, 1]}
    write_queries(tmp_path, "metro", "only_tab", [entry])
    row = next(row for row in validate_maptab(tmp_path) if row.variant == "only_tab")
    assert "transfer_vertex_numbers" in row.findings[0].reason


def test_an_absent_table_is_unverifiable_and_never_agreement(tmp_path):
    write_queries(tmp_path, "metro", "map_and_tab", [query("metro", [METRO_BY_B, METRO_BY_C])])
    row = only_row(tmp_path)
    assert (row.agrees, row.disagrees, row.unverifiable) == (0, 0, 1)
    assert "tie_edge.json" in row.findings[0].reason


def test_a_missing_vertex2_table_is_not_replaced_by_the_vertex_table(tmp_path):
    write_layout(tmp_path, domains=("metro",))
    (tmp_path / "metromap/tabulars/x_land/tie_vertex2.json").unlink()
    row = validate_maptab(tmp_path)[-1]
    assert (row.variant, row.unverifiable) == (VARIANTS[-1], 1)
    assert "tie_vertex2.json" in row.findings[0].reason


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"routes": [], "route_vertex_numbers": []}, "parallel lists"),
        ({"route_vertex_numbers": [4, 4]}, "parallel lists"),
        ({"weights": [1, 0, 0, 0]}, "weights in the weighted variants alone"),
    ],
)
def test_a_malformed_query_is_a_clear_error(tmp_path, change, message):
    write_queries(tmp_path, "metro", "only_map", [query("metro", [METRO_BY_B]) | change])
    with pytest.raises(UserError, match=message):
        validate_maptab(tmp_path)


def test_a_missing_field_is_named(tmp_path):
    entry = query("metro", [METRO_BY_B])
    del entry["station_2"]
    write_queries(tmp_path, "metro", "only_map", [entry])
    with pytest.raises(UserError, match="station_2"):
        validate_maptab(tmp_path)


def test_a_torn_file_and_an_empty_folder_are_clear_errors(tmp_path):
    with pytest.raises(UserError, match="no query file"):
        validate_maptab(tmp_path)
    write_queries(tmp_path, "metro", "only_map", [])
    path = tmp_path / "metromap/data/test_set/metromap_shortest_path_query_only_map_test_set.json"
    path.write_text(json.dumps([query("metro", [METRO_BY_B])])[:-5])
    with pytest.raises(UserError, match="a JSON list in UTF-8"):
        validate_maptab(tmp_path)


@pytest.mark.parametrize("domain", DOMAINS)
def test_the_suite_proves_its_verifier_and_solves_its_tasks(tmp_path, domain):
    write_layout(tmp_path)
    suite = MapTabSuite(MapTabConfig(root=str(tmp_path), domain=domain))
    report = suite.validate()
    assert report.is_valid and report.tasks == report.solver_confirmed == 12
    for task in suite.tasks(split="test"):
        for style in STYLES:
            verdict = suite.verify(task, suite.solve(task, style=style), finish_reason="stop")
            assert verdict.parts["exact"] == verdict.parts["format"] == 1.0


def test_a_student_sees_what_its_variant_allows(tmp_path):
    write_layout(tmp_path)
    suite = MapTabSuite(MapTabConfig(root=str(tmp_path)))
    shown = {task.strata["variant"]: task.inputs["map"] for task in suite.tasks(split="test")}
    facts = {"image": "tie.png", "edges": "B_North-Müller", "vertices": "Transfer Time"}
    seen = {variant: {name for name, text in facts.items() if text in shown[variant]} for variant in VARIANTS}
    assert seen["only_map"] == {"image"}
    assert seen["only_tab"] == {"edges"}
    assert seen["map_and_tab"] == {"image", "edges"}
    assert seen["map_and_tab_with_constraint_2_3_4"] == {"image", "edges", "vertices"}
    assert seen[VARIANTS[-1]] == {"image", "vertices"}


def test_weights_reach_the_prompt_and_gold_does_not(tmp_path):
    write_layout(tmp_path)
    suite = MapTabSuite(MapTabConfig(root=str(tmp_path), variants=("map_and_tab_with_constraint_1_2_4",)))
    (task,) = suite.tasks(split="test")
    text = "\n".join(message.content for message in render(suite.seed_harness(), task.inputs))
    assert "time 0.2, price 0.6, comfort 0, reliability 0.2" in text
    assert METRO_BY_B not in text


def test_faults_on_a_real_map_name_the_missing_edge(tmp_path):
    write_layout(tmp_path)
    suite = MapTabSuite(MapTabConfig(root=str(tmp_path), domain="travel", variants=("only_tab",)))
    (task,) = suite.tasks(split="test")
    verdict = suite.verify(task, "<reasoning>r</reasoning><response>P-S</response>", finish_reason="stop")
    assert verdict.diagnoses[0].fault == "missing_edge"
    assert task.gold[0] == TRAVEL_BY_Q


def test_a_split_without_files_is_named(tmp_path):
    write_layout(tmp_path)
    with pytest.raises(UserError, match="val split"):
        MapTabSuite(MapTabConfig(root=str(tmp_path))).tasks(split="val")


def test_travel_plays_speak_of_no_lines(tmp_path):
    write_layout(tmp_path)
    plays = MapTabSuite(MapTabConfig(root=str(tmp_path), domain="travel")).playbook()
    assert plays and not any("transfer" in str(play.edits) for play in plays)


@pytest.mark.skipif(not REAL.is_dir(), reason="the real sample is not beside this checkout")
def test_the_real_sample_agrees_where_its_tables_are_there():
    rows = validate_maptab(REAL)
    assert [row.agrees for row in rows] == [1] * 11 + [0]
    assert (rows[-1].variant, rows[-1].unverifiable) == (VARIANTS[-1], 1)
    assert sum(row.totals_agree for row in rows) == sum(row.totals_checked for row in rows) == 8


@pytest.mark.skipif(not REAL.is_dir(), reason="the real sample is not beside this checkout")
def test_the_public_scorer_confuses_stations_of_the_real_map_and_the_strict_one_none():
    table = REAL / "metromap/tabulars/america/cleveland_vertex.json"
    pairs = list(itertools.combinations([row["Vertex"] for row in json.loads(table.read_text())], 2))
    # METHODS §5: 18 of the 153 pairs of different stations
    assert len(pairs) == 153
    assert sum(score_route_publicly(*pair).exact for pair in pairs) == 18
    assert sum(score_route(*pair).exact for pair in pairs) == 0


def test_a_figure_is_shown_where_its_file_is_there_and_the_variant_shows_maps(tmp_path):
    write_layout(tmp_path, domains=("metro",))
    without = MapTabSuite(MapTabConfig(root=str(tmp_path)))
    assert all(task.images == () for task in without.tasks(split="test"))
    before = without.fingerprint
    figure = tmp_path / "raw" / query("metro", [METRO_BY_B])["figure"]
    figure.parent.mkdir(parents=True)
    figure.write_bytes(b"the bytes of a picture")
    shown = MapTabSuite(MapTabConfig(root=str(tmp_path)))
    for task in shown.tasks(split="test"):
        if task.strata["variant"] == "only_tab":
            assert task.images == ()
        else:
            (image,) = task.images
            assert Path(image.path) == figure and image.sha256 == hashlib.sha256(b"the bytes of a picture").hexdigest()
    assert shown.fingerprint != before
    other = tmp_path.with_name("moved")
    tmp_path.rename(other)
    assert MapTabSuite(MapTabConfig(root=str(other))).fingerprint == shown.fingerprint
