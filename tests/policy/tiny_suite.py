"""A suite on which a tiny random policy can learn: write letters; every fourth task never pays."""

from __future__ import annotations

from harness.model import Harness
from harness.records import Diagnosis, FinishReason, Scored, Task, content_id

LETTERS = "abcdefgh"


def make_tasks(count: int = 12) -> tuple[Task, ...]:
    return tuple(
        Task(
            task_id=f"t{index}",
            suite="letters",
            split="train",
            inputs={"letter": LETTERS[index % len(LETTERS)], "number": str(index)},
            gold="never" if index % 4 == 3 else "pays",
        )
        for index in range(count)
    )


class LetterSuite:
    """Reward: the share of letters among the completion's characters; 0 for tasks that never pay."""

    name = "letters"
    family = "letters"
    fingerprint = content_id("letters-2", prefix="suite")

    def verify(self, task: Task, completion: str, *, finish_reason: FinishReason, token_count: int = 0) -> Scored:
        share = sum(character.isalpha() for character in completion) / max(len(completion), 1)
        reward = share if task.gold == "pays" else 0.0
        return Scored(parts={"exact": float(reward > 0.5)}, reward=reward, diagnoses=(Diagnosis(fault="none"),))


HARNESS = Harness(
    family="letters",
    instructions="Write the letter that is asked for.",
    input_template="Letter {letter} number {number}",
    output_contract="Only letters.",
)
