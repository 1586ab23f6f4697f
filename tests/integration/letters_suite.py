"""A suite from another distribution, about as small as one can be: a random tiny policy can learn it.

The task is to write letters; the score is whether most characters are letters. A trainer in a process of its own waits
in the middle of a block while ``LETTERS_PAUSE`` names a folder without a file ``go``.
"""

import os
import sys
import time
from pathlib import Path

from evals.suites.base import Play, ValidationReport
from harness.edit import SetExecution
from harness.model import Harness
from harness.records import Diagnosis, Scored, Task, content_id

LETTERS = "abcdefgh"
PAUSED_VERDICT = 20
"""Here a rollout step of the tests' configuration scores 16 attempts, so this one is in the second step of two."""
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

    verdicts = 0

    def pause(self):
        self.verdicts += 1
        folder = os.environ.get("LETTERS_PAUSE")
        if folder and self.verdicts == PAUSED_VERDICT and sys.argv[0].endswith("worker.py"):
            (Path(folder) / f"paused-{os.getpid()}").touch()
            while not (Path(folder) / "go").exists():
                time.sleep(0.02)

    def verify(self, task, completion, *, finish_reason, token_count=0):
        self.pause()
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
