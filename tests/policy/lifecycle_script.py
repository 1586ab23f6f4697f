"""A policy's life in blocks, and the second part of it in a process of its own.

``python lifecycle_script.py HOME STEPS BOUNDARY PARENTS`` trains, for every kind in the JSON object PARENTS, the block
from rollout step BOUNDARY to STEPS from that kind's checkpoint, and prints what came out as JSON.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import block_script
from scripted_engine import DictLedger
from tiny_suite import HARNESS

from harness.model import Harness, Skill, SkillBank
from policy.config import RlConfig

SWAPPED = HARNESS.model_copy(
    update={
        "bank": SkillBank(
            how_to_use="Use one skill.",
            skills=(Skill(skill_id="s1", title="Spell", trigger="always", action="spell it"),),
        )
    }
)
"""The harness that takes over at a boundary."""


SMALL = {"prompts_per_step": 2, "group_size": 3, "micro_batch_size": 0, "max_tokens": 4, "learning_rate": 1e-4}
"""A rollout step that takes a tenth of a second, for long lives."""


def config(steps: int) -> RlConfig:
    """Two updates a step, replaced groups, and a warmup of 4/5 of the whole life.

    For 6 steps that is ceil(0.8 * 12) = 10 updates, and for 600 steps 960: both end in the block after the boundary.
    """
    changes = {"warmup_updates": 0, "warmup_ratio": 0.8, "lifecycle_rollout_steps": steps, "checkpoint_every": 50}
    return RlConfig(**{**block_script.CONFIG.model_dump(), **changes, **(SMALL if steps > 100 else {})})


def train(home: Path, kind: str, *, life: int, first: int, last: int, parent: Path | None, harness: Harness = HARNESS):
    """The block from rollout step ``first`` to ``last`` of a life of ``life`` steps."""
    return block_script.train(home, kind, first, last - first, parent, DictLedger(), config(life), harness=harness)


def summary(result) -> dict:
    return {
        "checkpoint_id": result.checkpoint_id,
        "policy_id": result.policy_id,
        "traces": [trace.trace_id for trace in result.traces],
        "rates": [step.learning_rate for step in result.steps],
    }


def main() -> None:
    home, steps, boundary, parents = sys.argv[1:]
    life = int(steps)
    done = {
        kind: summary(train(Path(home), kind, life=life, first=int(boundary), last=life, parent=Path(parent)))
        for kind, parent in json.loads(parents).items()
    }
    print(json.dumps(done))


if __name__ == "__main__":
    main()
