"""Which play the rules proposer tries: a seeded draw from findings and history, blind to effects."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Collection, Sequence

from agents.records import PastProposal, RecurringError
from evals.suites.base import Play
from harness.records import Record


class DrawnPlay(Record):
    """A play and the fault that brought it up."""

    fault: str
    play: Play


def draw_play(
    playbook: Sequence[Play],
    errors: Sequence[RecurringError],
    history: Sequence[PastProposal],
    rng: random.Random,
    *,
    barred: Collection[str] = (),
) -> DrawnPlay | None:
    """Draw a fault by its share of the blame, then one of its plays uniformly.

    Accepted plays are in the harness already and never drawn. Untried plays come before tried ones;
    when every play of the present faults was tried, those with the fewest tries are open again.

    Args:
        playbook: the suite's plays.
        errors: recurring errors with their weights.
        history: earlier proposals.
        rng: the only source of chance.
        barred: play ids that this harness cannot take.

    Returns:
        None when no play is filed under a present fault and open.
    """
    tries = Counter(past.play_id for past in history if past.play_id)
    accepted = {past.play_id for past in history if past.outcome == "accept"}
    closed = accepted | set(barred)
    filed = {
        error.fault: [play for play in playbook if error.fault in play.faults and play.play_id not in closed]
        for error in errors
    }
    open_plays = [play for plays in filed.values() for play in plays]
    if not open_plays:
        return None
    fewest = min(tries[play.play_id] for play in open_plays)
    pool = {fault: [play for play in plays if tries[play.play_id] == fewest] for fault, plays in filed.items()}
    drawable = [error for error in errors if pool[error.fault]]
    fault = rng.choices([error.fault for error in drawable], weights=[error.weight for error in drawable])[0]
    return DrawnPlay(fault=fault, play=rng.choice(pool[fault]))
