"""The metro suite: synthetic networks, route questions with a proven unique optimum, strict verifier."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Literal

from evals.suites.base import Play, ValidationReport, unplaced
from evals.suites.metro_image import map_file
from evals.suites.metro_playbook import PLAYS
from evals.suites.metro_preset import PRESETS, MetroPreset, Problem, draw_problems
from evals.suites.metro_table import INSTRUCTIONS_BY_RENDERING, STATION_GAP, problem_inputs
from evals.suites.metro_text import (
    CONTRACT,
    INPUT_TEMPLATE,
    STYLES,
    completion_text,
    route_legs,
    route_text,
    working_text,
)
from evals.suites.route_diagnosis import Links, normalised_links
from evals.suites.route_solver import solve_route
from evals.suites.route_validation import ValidationTally, gold_routes
from evals.suites.route_verdict import RewardConfig, RouteVerifier
from harness.model import Harness, Protocol, Skill, SkillBank
from harness.records import FinishReason, ImageFile, Scored, Split, Task, content_id

SPLITS: tuple[Split, ...] = ("train", "val", "test")
MAP_IN_IMAGE = "The map is in the image."
"""Stands in the prompt where the text of the map would."""


class MetroSuite:
    """Metro route tasks of one preset, frozen by seed."""

    family = "metro"

    def __init__(
        self,
        preset: str = "pocket",
        seed: int = 0,
        *,
        counts: Mapping[Split, int] | None = None,
        reward: RewardConfig | None = None,
        image: Literal["none", "only_map", "map_and_text"] = "none",
        image_folder: Path | None = None,
    ) -> None:
        """Choose a size; nothing is drawn until tasks are asked for.

        Args:
            preset: a key of :data:`evals.suites.metro_preset.PRESETS`.
            seed: decides every map and question.
            counts: tasks per split; missing splits keep the preset's number.
            reward: which reward ``verify`` gives; default the exact outcome.
            image: whether tasks show the map as a picture, and whether its text stands beside it.
            image_folder: where pictures are written; None writes none, the tasks are the same but cannot be shown.

        Raises:
            ValueError: unknown preset, or a count below 1.
        """
        if preset not in PRESETS:
            raise ValueError(f"building the metro suite failed; got preset {preset!r}; expected one of {[*PRESETS]}")
        self.preset: MetroPreset = PRESETS[preset]
        self.seed = seed
        self.counts: dict[Split, int] = {**self.preset.counts, **(counts or {})}
        if min(self.counts.values()) < 1:
            raise ValueError(f"building the metro suite failed; got counts {self.counts}; expected at least 1 each")
        self._verifier = RouteVerifier(reward or RewardConfig())
        self.image = image
        self._image_folder = image_folder
        self._files: dict[str, ImageFile] = {}
        self._problems: dict[Split, tuple[Problem, ...]] = {}
        self._by_task: dict[str, Problem] = {}
        self._links: dict[str, Links] = {}

    @property
    def name(self) -> str:
        """Preset, seed and how the map is shown."""
        shown = "" if self.image == "none" else f"-{self.image}"
        return f"metro-{self.preset.name}-{self.seed}{shown}"

    @cached_property
    def fingerprint(self) -> str:
        """Content id of all tasks and of the reward; pictures count by their content, wherever they are kept."""
        tasks = [content_id(unplaced(task), prefix="task") for split in SPLITS for task in self.tasks(split=split)]
        reward = self._verifier.reward.model_dump(mode="json")
        return content_id({"name": self.name, "tasks": [*tasks], "reward": reward}, prefix="suite")

    def problems(self, *, split: Split) -> tuple[Problem, ...]:
        """Maps, questions and proven optima of one split, in task order."""
        if split not in self._problems:
            drawn = draw_problems(self.preset, self.seed, split=split)
            self._problems[split] = tuple(itertools.islice(drawn, self.counts[split]))
        return self._problems[split]

    def map_fingerprints(self, *, split: Split) -> frozenset[str]:
        """Fingerprints of the maps of one split; training asserts that it shares none."""
        return frozenset(problem.network.fingerprint for problem in self.problems(split=split))

    def _task(self, index: int, problem: Problem, *, split: Split) -> Task:
        task_id = f"{self.name}-{split}-{index:04d}"
        self._by_task[task_id] = problem
        return Task(
            task_id=task_id,
            suite=self.name,
            split=split,
            inputs=self._inputs(problem),
            gold=[problem.route.text],
            images=self._images(problem),
            strata={"map": problem.map_difficulty, "query": problem.query_difficulty},
        )

    def _inputs(self, problem: Problem) -> dict[str, str]:
        inputs = problem_inputs(problem, self.preset.rendering)
        return {**inputs, "map": MAP_IN_IMAGE} if self.image == "only_map" else inputs

    def _images(self, problem: Problem) -> tuple[ImageFile, ...]:
        if self.image == "none":
            return ()
        fingerprint = problem.network.fingerprint
        if fingerprint not in self._files:
            self._files[fingerprint] = map_file(problem.network, self._image_folder)
        return (self._files[fingerprint],)

    def tasks(self, *, split: Split) -> tuple[Task, ...]:
        """The frozen tasks of one split, strata in a fixed cycle."""
        return tuple(
            self._task(index, problem, split=split) for index, problem in enumerate(self.problems(split=split))
        )

    def problem(self, task: Task) -> Problem:
        """The map and question behind a task of this suite.

        Raises:
            ValueError: the task is not of this suite.
        """
        if task.suite != self.name:
            raise ValueError(f"finding a task failed; got {task.task_id!r} of {task.suite!r}; expected {self.name!r}")
        if task.task_id not in self._by_task:
            self.tasks(split=task.split)
        if task.task_id not in self._by_task:
            raise ValueError(f"finding a task failed; got {task.task_id!r}, not among {self.counts[task.split]} tasks")
        return self._by_task[task.task_id]

    def verify(self, task: Task, completion: str, *, finish_reason: FinishReason, token_count: int = 0) -> Scored:
        """Score one completion against the task's gold; see :class:`RouteVerifier`."""
        problem = self.problem(task)
        if task.task_id not in self._links:
            self._links[task.task_id] = normalised_links(problem.graph.is_link, problem.network.stations())
        return self._verifier.verify(
            completion,
            gold_routes(task),
            finish_reason=finish_reason,
            token_count=token_count,
            is_link=self._links[task.task_id],
        )

    def seed_harness(self) -> Harness:
        """Short and vague: one skill that says little, a protocol that leaves the working open."""
        skill = Skill(
            skill_id="read-the-map",
            title="Map use",
            trigger="Every task.",
            action="Read the question and look at the map.",
        )
        return Harness(
            family=self.family,
            input_template=INPUT_TEMPLATE,
            instructions=INSTRUCTIONS_BY_RENDERING[self.preset.rendering],
            bank=SkillBank(skills=(skill,)),
            protocol=Protocol(execution="Work out the route and answer."),
            output_contract=CONTRACT,
        )

    def solve(self, task: Task, *, style: str) -> str:
        """A worked completion in one of :data:`evals.suites.metro_text.STYLES`, solved from the map."""
        known = {name: name for name in STYLES}
        if style not in known:
            raise ValueError(f"solving a metro task failed; got style {style!r}; expected one of {[*known]}")
        problem = self.problem(task)
        solution = solve_route(problem.graph, problem.start, problem.goal, problem.costs)
        legs = route_legs(problem.network, solution.routes[0])
        gap = " " if self.preset.rendering == "codes" else STATION_GAP
        return completion_text(working_text(problem.network, legs, known[style], gap=gap), route_text(legs))

    def playbook(self) -> tuple[Play, ...]:
        """Plays for the rules proposer."""
        return PLAYS

    def validate(self) -> ValidationReport:
        """Verify all gold and corrupted gold, and solve every task again."""
        tally = ValidationTally(self)
        for split in SPLITS:
            for task in self.tasks(split=split):
                problem = self.problem(task)
                solution = solve_route(problem.graph, problem.start, problem.goal, problem.costs)
                is_confirmed = solution.is_unique and list(solution.texts) == gold_routes(task)
                reason = "" if is_confirmed else f"the solver finds {solution.texts}"
                tally.add(task, problem.network.stations(), "agrees" if is_confirmed else "disagrees", reason)
        return tally.report()


def suite_fingerprints(
    preset: str, seeds: Iterable[int], *, splits: Sequence[Split] = SPLITS, counts: Mapping[Split, int] | None = None
) -> frozenset[str]:
    """Fingerprints of all maps of a preset's suites, for a training job to keep away from.

    Args:
        preset: a preset's name.
        seeds: suite seeds.
        splits: which splits.
        counts: tasks per split, as for :class:`MetroSuite`.
    """
    suites = [MetroSuite(preset, seed, counts=counts) for seed in seeds]
    return frozenset(
        fingerprint for suite in suites for split in splits for fingerprint in suite.map_fingerprints(split=split)
    )
