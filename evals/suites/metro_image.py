"""Draw a metro network as a picture: coloured lines with labels, station names, interchanges as rings.

Pixels come from integer places (:mod:`evals.suites.metro_layout`), lines without anti-aliasing and Pillow's built-in
bitmap font, whatever fonts a machine has. So one network gives the same bytes under the same Pillow and zlib.
"""

from __future__ import annotations

import hashlib
import io
import itertools
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from evals.suites.metro_layout import Cell, place_stations
from evals.suites.metro_network import Network
from harness.errors import UserError
from harness.records import ImageFile

COLOURS = {
    "Red": (214, 38, 38), "Blue": (28, 84, 200), "Green": (24, 140, 60), "Yellow": (240, 208, 0),
    "Orange": (244, 130, 20), "Purple": (126, 52, 160), "Pink": (242, 130, 176), "Brown": (126, 78, 40),
    "Grey": (140, 146, 150), "Black": (24, 24, 24), "White": (255, 255, 255), "Gold": (180, 148, 60),
}  # fmt: skip
PAPER, INK, WHITE = 0, 1, 2
"""Palette entries; the lines' colours follow."""
PALETTE = [(250, 248, 240), (0, 0, 0), (255, 255, 255), *COLOURS.values()]
KEPT_MAPS = 2048
"""Pictures held in memory, some ten kilobytes each: a run identifies, counts and shows the same tasks."""
MARGIN_PX = 60
LINE_PX = 8
"""Width of a line; its dark edge is two pixels wider on either side."""
STOP_PX = 8
RING_PX = 12
"""Radius of an interchange, drawn as a black ring."""
NAME_SCALE, TAG_SCALE = 2, 1
ROW_PX = 40
"""Height of a cell; its width follows the longest station name."""

LEGEND_PX = 130
"""Width of a legend entry; six stand in a row."""

Box = tuple[int, int, int, int]


def draw_map(network: Network) -> bytes:
    """The PNG of a network; a station's ring means that lines meet there. A picture shows no attributes.

    Raises:
        UserError: Pillow is not installed.
    """
    return _png(tuple(network.lines.items()))


@lru_cache(maxsize=KEPT_MAPS)
def _png(lines: tuple[tuple[str, tuple[str, ...]], ...]) -> bytes:
    network = Network(dict(lines))
    sheet = _Sheet.of(network)
    for line in network.lines:
        sheet.draw_line(line)
    for station in network.stations():
        sheet.draw_stop(station)
    for line, stops in network.lines.items():
        sheet.draw_tag(line, stops)
    for station in network.stations():
        sheet.draw_name(station)
    sheet.draw_legend()
    stream = io.BytesIO()
    sheet.image.save(stream, format="PNG", compress_level=6)
    return stream.getvalue()


def map_file(network: Network, folder: Path | None) -> ImageFile:
    """The picture of a network as a task's image.

    Args:
        network: to draw.
        folder: where the file goes, named by its content; None writes nothing, so that the task can be identified and
            counted but not shown.
    """
    data = draw_map(network)
    digest = hashlib.sha256(data).hexdigest()
    name = f"metro-{digest[:32]}.png"
    if folder is None:
        return ImageFile(path=name, sha256=digest)
    path = folder.absolute() / name
    if not path.exists():
        _write(path, data)
    return ImageFile(path=str(path), sha256=digest)


def _write(path: Path, data: bytes) -> None:
    """Whole or not at all; two processes may write the same file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".metro-")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.replace(temporary, path)
    except OSError as error:
        Path(temporary).unlink(missing_ok=True)
        raise UserError(
            f"writing the map image {path} failed", got=str(error), do="free disk space or choose another home"
        ) from error


@dataclass
class _Sheet:
    """A picture in the making."""

    network: Network
    points: dict[str, Cell]
    """Pixel of every station."""
    image: Any
    pen: Any
    font: Any
    legend_top: int
    boxes: list[Box] = field(default_factory=list)
    """Taken by lines, stops, tags and names."""

    @classmethod
    def of(cls, network: Network) -> _Sheet:
        Image, ImageDraw, ImageFont = _pillow()
        font = ImageFont.load_default_imagefont()
        cells = place_stations(network.lines)
        widest = max(_text_size(font, _shown(name), NAME_SCALE)[0] for name in cells)
        column = max(ROW_PX, (widest + 24) // 2)
        left, top = MARGIN_PX + widest // 2, MARGIN_PX
        points = {name: (left + x * column, top + y * ROW_PX) for name, (x, y) in cells.items()}
        bottom = max(y for _, y in points.values()) + MARGIN_PX
        width = max(max(x for x, _ in points.values()) + left, 6 * LEGEND_PX)
        legend = 30 * ((len(network.lines) + 5) // 6)
        image = Image.new("P", (width, bottom + legend + 10), PAPER)
        image.putpalette([part for colour in PALETTE for part in colour])
        return cls(network, points, image, ImageDraw.Draw(image), font, bottom)

    def draw_line(self, line: str) -> None:
        """One line over its stops, with a dark edge so that light colours show."""
        path = [self.points[stop] for stop in self.network.lines[line]]
        for width, colour in ((LINE_PX + 4, INK), (LINE_PX, _colour(line))):
            self.pen.line(path, fill=colour, width=width, joint="curve")
        for (a, b), (c, d) in itertools.pairwise(path):
            for part in range(1, 12):
                x, y = a + (c - a) * part // 12, b + (d - b) * part // 12
                self.boxes.append((x - LINE_PX, y - LINE_PX, x + LINE_PX, y + LINE_PX))

    def draw_stop(self, station: str) -> None:
        """A dot, or a ring where lines meet."""
        x, y = self.points[station]
        lines = self.network.lines_of(station)
        radius = RING_PX if len(lines) > 1 else STOP_PX
        box = (x - radius, y - radius, x + radius, y + radius)
        if len(lines) > 1:
            self.pen.ellipse(box, fill=WHITE, outline=INK, width=4)
        else:
            self.pen.ellipse(box, fill=_colour(lines[0]), outline=INK, width=2)
        self.boxes.append(box)

    def draw_tag(self, line: str, stops: Sequence[str]) -> None:
        """The line's name on its first and last stretch."""
        width, height = _text_size(self.font, line, TAG_SCALE)
        for one, two in {(stops[0], stops[1]): 0, (stops[-1], stops[-2]): 0}:
            (a, b), (c, d) = self.points[one], self.points[two]
            left, top = (a + c - width) // 2, (b + d - height) // 2
            box = (left - 3, top - 2, left + width + 2, top + height + 1)
            self.pen.rectangle(box, fill=_colour(line), outline=INK)
            self._write(line, (left, top), TAG_SCALE, WHITE if sum(COLOURS[line]) < 384 else INK)
            self.boxes.append(box)

    def draw_name(self, station: str) -> None:
        """The station's name beside its stop, where it hides least."""
        text = _shown(station)
        width, height = _text_size(self.font, text, NAME_SCALE)
        x, y = self.points[station]
        gap = RING_PX + 3
        corners = [
            (x - width // 2, y + gap), (x - width // 2, y - gap - height), (x + gap, y - height // 2),
            (x - gap - width, y - height // 2), (x + gap // 2, y + gap), (x + gap // 2, y - gap - height),
            (x - gap // 2 - width, y + gap), (x - gap // 2 - width, y - gap - height),
        ]  # fmt: skip
        boxes = [(left, top, left + width, top + height) for left, top in corners]
        around = (x - gap - width, y - gap - height, x + gap + width, y + gap + height)
        near = [box for box in self.boxes if _overlap(around, box)]
        costs = [self._hidden(box, near) for box in boxes]
        best = costs.index(min(costs))
        self.pen.rectangle(boxes[best], fill=PAPER)
        self._write(text, corners[best], NAME_SCALE, INK)
        self.boxes.append(boxes[best])

    def draw_legend(self) -> None:
        """Colour and name of every line, six in a row."""
        for index, line in enumerate(self.network.lines):
            x, y = 20 + LEGEND_PX * (index % 6), self.legend_top + 30 * (index // 6)
            self.pen.rectangle((x, y + 4, x + 18, y + 18), fill=_colour(line), outline=INK)
            self._write(line, (x + 24, y), NAME_SCALE, INK)

    def _hidden(self, box: Box, taken: Sequence[Box]) -> int:
        """Pixels of a box that are taken or lie outside."""
        left, top, right, bottom = box
        outside: int = (
            max(0, -left) + max(0, right - self.image.width) + max(0, -top) + max(0, bottom - self.legend_top)
        )
        return sum(_overlap(box, other) for other in taken) + 1000 * outside

    def _write(self, text: str, corner: Cell, scale: int, colour: int) -> None:
        Image, ImageDraw, _ = _pillow()
        width, height = _text_size(self.font, text, 1)
        mask = Image.new("L", (width, height), 0)
        ImageDraw.Draw(mask).text((0, 0), text, fill=255, font=self.font)
        mask = mask.resize((width * scale, height * scale), Image.Resampling.NEAREST)
        self.image.paste(colour, (*corner, corner[0] + mask.width, corner[1] + mask.height), mask)


def _shown(station: str) -> str:
    """Names stand in the picture as answers write them; the font knows Latin letters alone."""
    return station.encode("latin-1", "replace").decode("latin-1")


def _text_size(font: Any, text: str, scale: int) -> Cell:
    left, top, right, bottom = font.getbbox(text)
    return (right - left) * scale, (bottom - top) * scale


def _overlap(one: Box, two: Box) -> int:
    width = min(one[2], two[2]) - max(one[0], two[0])
    height = min(one[3], two[3]) - max(one[1], two[1])
    return max(0, width) * max(0, height)


def _colour(line: str) -> int:
    return 3 + [*COLOURS].index(line)


def _pillow() -> tuple[Any, Any, Any]:
    try:
        from PIL import Image, ImageDraw, ImageFont
    except ImportError as error:
        raise UserError(
            "drawing a metro map failed", got="no Pillow", do="pip install 'cohelix[image]', or set suite.image to none"
        ) from error
    return Image, ImageDraw, ImageFont
