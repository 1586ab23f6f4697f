"""A suite of sums and an engine that adds: small, real, deterministic, with failures on order."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from harness.model import Harness
from harness.protocols import Prompt
from harness.records import Diagnosis, FinishReason, Generation, Sampling, Scored, Split, Task, Usage


def tasks(count: int = 6, split: Split = "val") -> tuple[Task, ...]:
    """Task k asks for k + 1; even tasks are easy."""
    return tuple(
        Task(task_id=f"sum-{k}", suite="sums", split=split, inputs={"question": f"{k}+1"}, gold=k + 1,
             strata={"level": "hard" if k % 2 else "easy"})
        for k in range(count)
    )  # fmt: skip


def harness(**changes: str) -> Harness:
    return Harness(family="sums", input_template="{question}", output_contract="A number.", **changes)  # type: ignore[arg-type]


class Sums:
    """exact: the right number; format: any number."""

    name = "sums"
    fingerprint = "sums-1"

    def verify(self, task: Task, completion: str, *, finish_reason: FinishReason, token_count: int = 0) -> Scored:
        if completion == "crash the verifier":
            raise RuntimeError("no such answer")
        is_number, is_right = completion.lstrip("-").isdigit(), completion == str(task.gold)
        fault = "none" if is_right else "wrong_sum" if is_number else "format"
        return Scored(
            parts={"exact": float(is_right), "format": float(is_number)},
            reward=0.2 * is_number + 0.8 * is_right,
            diagnoses=(Diagnosis(fault=fault),),
        )


class Adder:
    """Adds; is off by one with a given chance, drawn from the prompt's and the sampling's seed alone."""

    identity = "adder"

    def __init__(self, policy_id: str = "adder", slip: float = 0.0, fails: Callable[[str, int], bool] | None = None):
        self.policy_id = policy_id
        self.slip = slip
        self.fails = fails or (lambda question, attempt: False)
        self.calls: list[int] = []
        """Prompts per call."""
        self.seen: dict[str, int] = {}
        """Tries per question."""
        self.seeds: list[int] = []
        self.answers: dict[str, str] = {}
        """Fixed answers by question, in place of the sum."""

    def generate(
        self, prompts: Sequence[Prompt], sampling: Sampling, *, progress: Callable[[int], None] | None = None
    ) -> list[Generation]:
        self.calls.append(len(prompts))
        made = [self._answer(prompt, sampling) for prompt in prompts]
        if progress is not None:
            progress(len(prompts))
        return made

    def _answer(self, prompt: Prompt, sampling: Sampling) -> Generation:
        question = prompt.messages[-1].content
        self.seeds.append(prompt.seed)
        self.seen[question] = self.seen.get(question, 0) + 1
        usage = Usage(prompt_tokens=10, completion_tokens=2, cost_usd=0.5)
        if self.fails(question, self.seen[question]):
            return Generation(text="", finish_reason="error", error="connection lost", usage=usage)
        left, right = question.split("+")
        is_off = random.Random(f"{prompt.seed} {sampling.seed}").random() < self.slip
        text = self.answers.get(question, str(int(left) + int(right) + is_off))
        return Generation(text=text, finish_reason="stop", token_ids=(1, 2), usage=usage)
