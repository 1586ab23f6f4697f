"""MapTab as a suite: real maps and queries from a folder, the strict verifier, the exact solver."""

from __future__ import annotations

import hashlib
from functools import cached_property, lru_cache
from pathlib import Path

from evals.config import MapTabConfig
from evals.suites.base import Play, ValidationReport, unplaced
from evals.suites.maptab_check import MissingTable, check_query, query_graph, solve_query
from evals.suites.maptab_layout import (
    SPLITS,
    VARIANTS,
    VERTEX_ONLY,
    MapTabQuery,
    find_table,
    query_file,
    read_queries,
    resolve,
)
from evals.suites.metro_playbook import PLAYS
from evals.suites.metro_text import CONTRACT, INPUT_TEMPLATE
from evals.suites.route import TRANSFER_MARK
from evals.suites.route_diagnosis import Links, normalised_links
from evals.suites.route_graph import Route
from evals.suites.route_solver import SearchLimit
from evals.suites.route_validation import ValidationTally, gold_routes
from evals.suites.route_verdict import RouteVerifier
from harness.errors import UserError
from harness.model import Harness, Protocol, Skill, SkillBank
from harness.records import FinishReason, ImageFile, Scored, Split, Task, content_id

STYLES = ("direct", "plan", "hops")
IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg")
_INSTRUCTIONS = "Find the best route between two places on the map. Write names as the map does, _ for a hyphen."
_TRAVEL_CONTRACT = (
    "Answer as <reasoning>working</reasoning><response>route</response>. The route joins the places with -."
)


class MapTabSuite:
    """Route queries of one domain, read from files in the MapTab layout."""

    def __init__(self, config: MapTabConfig) -> None:
        """Read the query files.

        Raises:
            UserError: no query file is there, or one is not in the layout.
        """
        self._config = config
        self._root = Path(config.root)
        self._verifier = RouteVerifier(config.reward)
        variants = config.variants or VARIANTS
        self._queries: dict[Split, tuple[MapTabQuery, ...]] = {
            split: tuple(
                query for variant in variants for query in read_queries(self._root, config.domain, variant, split=split)
            )
            for split in SPLITS
        }
        if not any(self._queries.values()):
            raise UserError(
                "reading MapTab failed",
                got=f"no query file below {self._root}",
                expected=f"for example {query_file(config.domain, variants[0], split='test')}",
                do="point root at the folder that holds metromap/ or travelmap/",
            )
        self._links_by_id: dict[str, Links | None] = {}
        self._by_id = {query.query_id: query for queries in self._queries.values() for query in queries}

    @property
    def name(self) -> str:
        """Domain of the benchmark."""
        return f"maptab-{self._config.domain}"

    @property
    def family(self) -> str:
        """Metro harnesses fit metro queries; travel maps have no lines."""
        return "metro" if self._config.domain == "metro" else "travel"

    @cached_property
    def fingerprint(self) -> str:
        """Content id of all tasks and of the reward; pictures count by their content, wherever they are kept."""
        tasks = [
            content_id(unplaced(task), prefix="task")
            for split in SPLITS
            if self._queries[split]
            for task in self.tasks(split=split)
        ]
        reward = self._config.reward.model_dump(mode="json")
        return content_id({"name": self.name, "tasks": [*tasks], "reward": reward}, prefix="suite")

    def tasks(self, *, split: Split) -> tuple[Task, ...]:
        """The queries of one split, in file order.

        Raises:
            UserError: the folder has no query file of this split.
        """
        if not self._queries[split]:
            there = [name for name in SPLITS if self._queries[name]]
            raise UserError(
                f"reading the {split} split of {self.name} failed",
                got=f"files of {there} alone",
                expected=f"query files in data/{split}_set",
                do="use a split that is there",
            )
        return tuple(self._task(query) for query in self._queries[split])

    def _task(self, query: MapTabQuery) -> Task:
        return Task(
            task_id=query.query_id,
            suite=self.name,
            split=query.split,
            inputs={"question": self._question(query), "map": self._map(query), "figure": query.figure},
            gold=[*query.routes],
            images=self._images(query),
            strata={"map": query.map_difficulty, "query": query.query_difficulty, "variant": query.variant},
        )

    def _images(self, query: MapTabQuery) -> tuple[ImageFile, ...]:
        """The query's figure where the variant shows it and its file is there; many copies come without."""
        if query.variant == "only_tab" or Path(query.figure).suffix.lower() not in IMAGE_SUFFIXES:
            return ()
        path = resolve(self._root, query.figure)
        return () if path is None else (_image_file(path.absolute()),)

    def _question(self, query: MapTabQuery) -> str:
        if query.weights is None:
            return query.question
        names = ("time", "price", "comfort", "reliability")
        pairs = zip(names, query.weights, strict=True)
        return f"{query.question} Weights: {', '.join(f'{name} {weight:g}' for name, weight in pairs)}."

    def _map(self, query: MapTabQuery) -> str:
        """What the variant lets a student see: the image's path, and the tables as they stand in the files."""
        parts = [] if query.variant == "only_tab" else [f"Map image: {query.figure}"]
        shown = []
        if query.variant not in ("only_map", VERTEX_ONLY):
            shown.append(("Edge table", query.edge_tab))
        if query.weights is not None:
            shown.append(("Vertex table", query.vertex_tab))
        for title, relative in shown:
            path = find_table(self._root, relative)
            text = _table_text(path) if path else f"(absent: {relative})"
            parts.append(f"{title}:\n{text}")
        return "\n".join(parts)

    def query(self, task: Task) -> MapTabQuery:
        """The query behind a task.

        Raises:
            ValueError: the task is not of this suite.
        """
        if task.task_id not in self._by_id:
            raise ValueError(f"finding a task failed; got {task.task_id!r}; expected a task of {self.name!r}")
        return self._by_id[task.task_id]

    def _links(self, query: MapTabQuery) -> Links | None:
        """Adjacency of the query's map; None where there is no edge table to take it from."""
        if query.query_id not in self._links_by_id:
            try:
                graph = query_graph(self._root, query)
                self._links_by_id[query.query_id] = normalised_links(graph.is_link, [*graph.stations])
            except (MissingTable, ValueError, UserError):
                self._links_by_id[query.query_id] = None
        return self._links_by_id[query.query_id]

    def verify(self, task: Task, completion: str, *, finish_reason: FinishReason, token_count: int = 0) -> Scored:
        """Score one completion against the query's gold routes."""
        return self._verifier.verify(
            completion,
            gold_routes(task),
            finish_reason=finish_reason,
            token_count=token_count,
            is_link=self._links(self.query(task)),
        )

    def seed_harness(self) -> Harness:
        """A short, vague start."""
        action = "Read the question and look at the map and the tables."
        skill = Skill(skill_id="read-the-map", title="Map use", trigger="Every task.", action=action)
        return Harness(
            family=self.family,
            input_template=INPUT_TEMPLATE,
            instructions=_INSTRUCTIONS,
            bank=SkillBank(skills=(skill,)),
            protocol=Protocol(execution="Work out the route and answer."),
            output_contract=CONTRACT if self.family == "metro" else _TRAVEL_CONTRACT,
        )

    def solve(self, task: Task, *, style: str) -> str:
        """A worked completion, solved from the tables.

        Raises:
            ValueError: unknown style, or a table is absent.
        """
        if style not in STYLES:
            raise ValueError(f"solving a MapTab task failed; got style {style!r}; expected one of {STYLES}")
        query = self.query(task)
        try:
            solution = solve_query(query_graph(self._root, query), query)
        except (MissingTable, SearchLimit) as error:
            raise ValueError(f"solving {task.task_id} failed; got {error}; expected both tables") from error
        if not solution.routes:
            raise ValueError(f"solving {task.task_id} failed; got no route; expected the goal to be reachable")
        route = solution.routes[0]
        return f"<reasoning>{_working(route, style)}</reasoning><response>{route.text}</response>"

    def playbook(self) -> tuple[Play, ...]:
        """The metro plays that this suite can carry out; for travel, those that speak of no lines."""
        plays = [play for play in PLAYS if play.demonstration_style in ("", *STYLES)]
        if self.family == "travel":
            plays = [play for play in plays if TRANSFER_MARK not in str(play) and " line" not in str(play)]
        return tuple(plays)

    def validate(self) -> ValidationReport:
        """Verify all gold and corrupted gold, and solve every query whose tables are there."""
        tally = ValidationTally(self)
        for split in SPLITS:
            for query in self._queries[split]:
                check = check_query(self._root, query)
                tally.add(self._task(query), [], check.agreement, check.reason)
        return tally.report()


@lru_cache(maxsize=1024)
def _image_file(path: Path) -> ImageFile:
    return ImageFile(path=str(path), sha256=hashlib.sha256(path.read_bytes()).hexdigest())


@lru_cache(maxsize=64)
def _table_text(path: Path) -> str:
    return path.read_text(encoding="utf-8-sig").strip()


def _working(route: Route, style: str) -> str:
    hops = [*zip(route.stations, route.stations[1:], route.lines, strict=False)]
    if style == "hops":
        return (
            "Hops: " + "; ".join(" ".join(part for part in (one, line, two) if part) for one, two, line in hops) + "."
        )
    if style == "plan":
        cuts = [0, *route.changes, len(route.lines)]
        legs = [
            " ".join(part for part in (route.lines[a], route.stations[a], ">", route.stations[b]) if part)
            for a, b in zip(cuts, cuts[1:], strict=False)
        ]
        return "Plan: " + "; ".join(legs) + "."
    return "Direct."
