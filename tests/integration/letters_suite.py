"""A suite from another distribution, about as small as one can be: a random tiny policy can learn it.

The task is to write letters; the score is whether most characters are letters.
"""

from evals.suites.base import Play, ValidationReport
from harness.edit import SetExecution
from harness.model import Harness
from harness.records import Diagnosis, Scored, Task, content_id

LETTERS = "abcdefgh"
WORDINGS = ("Letters only.", "abc", "Write a word.", "No digits; no signs!", "yes yes yes", "Find K01 K02 K03")


class LettersSuite:
    name = "letters"
    family = "letters"
    fingerprint = content_id("letters-integration-1", prefix="suite")

    def tasks(self, *, split):
        offset = {"train": 0, "val": 100, "test": 200}[split]
        return tuple(
            Task(
                task_id=f"letters-{split}-{index}",
                suite=self.name,
                split=split,
                inputs={"letter": LETTERS[index % 8], "number": str(offset + index)},
                gold=f"any letters for {offset + index}",
            )
            for index in range(24)
        )

    def verify(self, task, completion, *, finish_reason, token_count=0):
        share = sum(character.isalpha() for character in completion) / max(len(completion), 1)
        faults = () if share > 0.5 else (Diagnosis(fault="few_letters", detail={"share": share}),)
        return Scored(parts={"exact": float(share > 0.5)}, reward=share, diagnoses=faults)

    def seed_harness(self):
        return Harness(
            family=self.family,
            instructions="Write the letter that is asked for.",
            input_template="Letter {letter} number {number}",
            output_contract="One line.",
        )

    def solve(self, task, *, style):
        return "abcdefgh"

    def playbook(self):
        return tuple(
            Play(play_id=f"wording-{number}", faults=("few_letters",), summary=text, edits=(SetExecution(text=text),))
            for number, text in enumerate(WORDINGS)
        )

    def validate(self):
        return ValidationReport(
            suite=self.name, tasks=72, gold_accepted=72, corruptions=1, corruptions_refused=1, solver_confirmed=72
        )
