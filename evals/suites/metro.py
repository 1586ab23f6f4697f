"""The metro suite: synthetic networks, route questions with a proven unique optimum, strict verifier."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property

from evals.suites.base import Play, ValidationReport
from evals.suites.metro_network import route_graph
from evals.suites.metro_playbook import PLAYS
from evals.suites.metro_preset import PRESETS, MetroPreset, Problem, draw_problems
from evals.suites.metro_text import (
    CONTRACT,
    INPUT_TEMPLATE,
    INSTRUCTIONS,
    STYLES,
    completion_text,
    map_text,
    question_text,
    route_legs,
    route_text,
    working_text,
)
from evals.suites.route_diagnosis import Links, normalised_links
from evals.suites.route_solver import solve_route
from evals.suites.route_verdict import RewardConfig, RouteVerifier, corrupt_routes
from harness.model import Harness, Protocol, Skill, SkillBank
from harness.records import FinishReason, Scored, Split, Task, content_id

SPLITS: tuple[Split, ...] = ("train", "val", "test")


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
    ) -> None:
        """Choose a size; nothing is drawn until tasks are asked for.

        Args:
            preset: a key of :data:`evals.suites.metro_preset.PRESETS`.
            seed: decides every map and question.
            counts: tasks per split; missing splits keep the preset's number.
            reward: which reward ``verify`` gives; default the exact outcome.

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
        self._problems: dict[Split, tuple[Problem, ...]] = {}
        self._by_task: dict[str, Problem] = {}
        self._links: dict[str, Links] = {}

    @property
    def name(self) -> str:
        """Preset and seed."""
        return f"metro-{self.preset.name}-{self.seed}"

    @cached_property
    def fingerprint(self) -> str:
        """Content id of all tasks and of the reward."""
        tasks = [content_id(task, prefix="task") for split in SPLITS for task in self.tasks(split=split)]
        reward = self._verifier.reward.model_dump(mode="json")
        return content_id({"name": self.name, "tasks": [*tasks], "reward": reward}, prefix="suite")

    def problems(self, *, split: Split) -> tuple[Problem, ...]:
        """Maps, questions and proven optima of one split, in task order."""
        if split not in self._problems:
            drawn = draw_problems(self.preset, self.seed, split)
            self._problems[split] = tuple(itertools.islice(drawn, self.counts[split]))
        return self._problems[split]

    def map_fingerprints(self, *, split: Split) -> frozenset[str]:
        """Fingerprints of the maps of one split; training asserts that it shares none."""
        return frozenset(problem.network.fingerprint for problem in self.problems(split=split))

    def _task(self, split: Split, index: int, problem: Problem) -> Task:
        task_id = f"{self.name}-{split}-{index:04d}"
        self._by_task[task_id] = problem
        return Task(
            task_id=task_id,
            suite=self.name,
            split=split,
            inputs={"question": question_text(problem.start, problem.goal), "map": map_text(problem.network)},
            gold=[problem.route.text],
            strata={"map": problem.map_difficulty, "query": problem.query_difficulty},
        )

    def tasks(self, *, split: Split) -> tuple[Task, ...]:
        """The frozen tasks of one split, strata in a fixed cycle."""
        return tuple(self._task(split, index, problem) for index, problem in enumerate(self.problems(split=split)))

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
            graph = route_graph(problem.network)
            self._links[task.task_id] = normalised_links(graph.is_link, problem.network.stations())
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
            instructions=INSTRUCTIONS,
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
        solution = solve_route(route_graph(problem.network), problem.start, problem.goal, problem.costs)
        legs = route_legs(problem.network, solution.routes[0])
        return completion_text(working_text(problem.network, legs, known[style]), route_text(legs))

    def playbook(self) -> tuple[Play, ...]:
        """Plays for the rules proposer."""
        return PLAYS

    def validate(self) -> ValidationReport:
        """Verify all gold and corrupted gold, and solve every task again."""
        problems: list[str] = []
        accepted = refused = corruptions = confirmed = disagreed = 0
        tasks = [task for split in SPLITS for task in self.tasks(split=split)]
        for task in tasks:
            golds, problem = gold_routes(task), self.problem(task)
            is_accepted = all(self._exact(task, gold) for gold in golds)
            wrongs = corrupt_routes(golds[0], problem.network.stations())
            passed = [wrong for wrong in wrongs if self._exact(task, wrong)]
            accepted += is_accepted
            corruptions += len(wrongs)
            refused += len(wrongs) - len(passed)
            solution = solve_route(route_graph(problem.network), problem.start, problem.goal, problem.costs)
            is_confirmed = solution.is_unique and list(solution.texts) == golds
            confirmed += is_confirmed
            disagreed += not is_confirmed
            if not is_accepted or passed or not is_confirmed:
                problems.append(f"{task.task_id}: gold {golds}, solver {solution.texts}, wrongly accepted {passed}")
        return ValidationReport(
            suite=self.name,
            tasks=len(tasks),
            gold_accepted=accepted,
            corruptions=corruptions,
            corruptions_refused=refused,
            solver_confirmed=confirmed,
            solver_disagreed=disagreed,
            problems=tuple(problems),
        )

    def _exact(self, task: Task, answer: str) -> bool:
        verdict = self.verify(task, completion_text("Gold.", answer), finish_reason="stop")
        return verdict.parts["exact"] == 1.0


def gold_routes(task: Task) -> list[str]:
    """Gold routes of a route task.

    Raises:
        ValueError: the task's gold is no list of routes.
    """
    if not isinstance(task.gold, list) or not task.gold or not all(isinstance(gold, str) for gold in task.gold):
        raise ValueError(f"reading gold failed; got {task.gold!r} in {task.task_id!r}; expected a list of routes")
    return [str(gold) for gold in task.gold]


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
