"""Metro maps as pictures: what is drawn, that it is drawn the same, and where it is kept."""

from __future__ import annotations

import hashlib
import io
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image
from pydantic import TypeAdapter, ValidationError

from evals.config import MetroConfig, SuiteConfig
from evals.suites.metro import MAP_IN_IMAGE, MetroSuite
from evals.suites.metro_image import COLOURS, MARGIN_PX, ROW_PX, draw_map, map_file
from evals.suites.metro_layout import false_stops, place_stations
from evals.suites.metro_network import LINE_NAMES, Network
from evals.suites.registry import build_suite

CROSS = Network({"Red": ("K01", "K02", "K03"), "Blue": ("K11", "K02", "K12")})
COUNTS = {"train": 3, "val": 2, "test": 2}


def pixels(network: Network) -> Image.Image:
    return Image.open(io.BytesIO(draw_map(network))).convert("RGB")


def test_stations_stand_on_their_line_and_lines_cross_where_they_meet():
    # Red runs to the right from (0, 0) in steps of two cells; Blue goes through K02 and takes the first direction
    # without a clash, downwards; then everything moves down until the smallest row is 0
    cells = place_stations(CROSS.lines)
    assert cells == {"K01": (0, 2), "K02": (2, 2), "K03": (4, 2), "K11": (2, 0), "K12": (2, 4)}


def test_a_line_through_a_stop_that_is_not_its_own_is_found():
    lines = {"Red": ("a", "b"), "Blue": ("c", "d")}
    cells = {"a": (0, 0), "b": (4, 0), "c": (2, 0), "d": (2, 2)}
    assert false_stops(lines, cells) == [("Red", "c")]
    # one column beside the stretch from (0, 0) to (4, 0) is farther than a third of a cell
    assert false_stops(lines, {**cells, "c": (2, 1)}) == []


@pytest.mark.parametrize("preset", ["pocket", "mini", "standard"])
def test_every_station_has_a_place_of_its_own_and_no_line_runs_through_a_foreign_one(preset):
    for split in ("train", "val", "test"):
        for problem in MetroSuite(preset, counts={"train": 18, "val": 9, "test": 9}).problems(split=split):
            cells = place_stations(problem.network.lines)
            assert set(cells) == set(problem.network.stations()) and len(set(cells.values())) == len(cells)
            assert false_stops(problem.network.lines, cells) == []


def test_lines_have_their_colours_and_interchanges_are_rings():
    image = pixels(CROSS)
    cells = place_stations(CROSS.lines)
    y = MARGIN_PX + 2 * ROW_PX
    assert [image.getpixel((x, y)) for x in range(image.width)].count(COLOURS["Red"]) > 40
    column = {x for x in range(image.width) if image.getpixel((x, MARGIN_PX + ROW_PX // 2)) == COLOURS["Blue"]}
    centre = (min(column) + max(column)) // 2
    # the ring of K02, where both lines stop: white inside, black around, the station of one line filled with its colour
    assert image.getpixel((centre, y)) == (255, 255, 255)
    assert image.getpixel((centre - 11, y)) == (0, 0, 0)
    assert image.getpixel((centre, MARGIN_PX + cells["K11"][1] * ROW_PX)) == COLOURS["Blue"]


def test_every_line_name_has_a_colour_and_attributes_are_not_drawn():
    assert set(COLOURS) == set(LINE_NAMES) and len(set(COLOURS.values())) == len(COLOURS)
    problem = MetroSuite("standard", counts={"train": 1, "val": 1, "test": 1}).problems(split="train")[0]
    assert draw_map(problem.network) == draw_map(Network(problem.network.lines))


def test_another_process_draws_the_same_bytes():
    program = (
        "import hashlib\nfrom evals.suites.metro_image import draw_map, Network\n"
        f"print(hashlib.sha256(draw_map(Network({CROSS.lines!r}))).hexdigest())"
    )
    root = Path(__file__).resolve().parents[2]
    found = subprocess.run([sys.executable, "-c", program], cwd=root, capture_output=True, text=True, check=True)
    assert found.stdout.strip() == hashlib.sha256(draw_map(CROSS)).hexdigest()


def test_a_picture_is_written_once_under_its_content_and_nothing_else(tmp_path):
    one = map_file(CROSS, tmp_path / "images")
    written = Path(one.path)
    assert [path.name for path in (tmp_path / "images").iterdir()] == [written.name] == [f"metro-{one.sha256[:32]}.png"]
    assert hashlib.sha256(written.read_bytes()).hexdigest() == one.sha256
    stamp = written.stat().st_mtime_ns
    assert map_file(CROSS, tmp_path / "images") == one and written.stat().st_mtime_ns == stamp
    assert map_file(CROSS, None).sha256 == one.sha256 and not Path(map_file(CROSS, None).path).exists()


def test_only_map_takes_the_text_out_and_map_and_text_keeps_it(tmp_path):
    plain = MetroSuite("mini", counts=COUNTS)
    for image in ("only_map", "map_and_text"):
        suite = build_suite(MetroConfig(preset="mini", train=3, val=2, test=2, image=image), image_folder=tmp_path)
        for before, task in zip(plain.tasks(split="train"), suite.tasks(split="train"), strict=True):
            shown = MAP_IN_IMAGE if image == "only_map" else before.inputs["map"]
            assert task.inputs == {**before.inputs, "map": shown} and task.gold == before.gold
            (file,) = task.images
            assert hashlib.sha256(Path(file.path).read_bytes()).hexdigest() == file.sha256
        assert suite.validate().is_valid


def test_a_suites_fingerprint_counts_the_pictures_content_wherever_they_are(tmp_path):
    def suite(image: str, folder: Path | None) -> MetroSuite:
        return MetroSuite("pocket", counts=COUNTS, image=image, image_folder=folder)

    here, there = suite("only_map", tmp_path / "here"), suite("only_map", tmp_path / "there")
    assert here.tasks(split="val") != there.tasks(split="val")
    assert here.fingerprint == there.fingerprint == suite("only_map", None).fingerprint
    assert len({suite(image, None).fingerprint for image in ("none", "only_map", "map_and_text")}) == 3


def test_questions_that_no_picture_can_ask_are_refused():
    parse = TypeAdapter(SuiteConfig).validate_python
    with pytest.raises(ValidationError, match="no picture shows attributes"):
        parse({"type": "metro", "preset": "standard", "image": "only_map"})
    assert parse({"type": "metro", "preset": "standard", "image": "map_and_text"}).image == "map_and_text"
