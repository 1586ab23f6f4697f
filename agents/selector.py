"""The selector: picks the pair with the best val score, and says why.

VACE defines the final pair by its val score, so a language model has judgement only among equals;
its name and its reason are checked against the data, and it can never pick what is not in the list.
Source: METHODS §1 ("Final" is the pair with the best val score).
"""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field

from agents.ask import RoleModel, ask_checked, backend_name
from agents.prompt import fill_prompt
from agents.records import Contender, Refusal, RoleRecord, Selection
from harness.records import Record, Usage

SCORE_TOLERANCE = 1e-9
"""Scores closer than this are equal."""
_QUOTE_TOLERANCE = 5e-4
"""How far the val score that a model quotes may be from the real one."""


class Choice(Record):
    """A model's pick."""

    pair_id: str
    val_score: float
    """The val score of the picked pair, as given in the list."""
    reason: str = Field(min_length=1)


class Selector:
    """Picks among measured pairs."""

    def __init__(self, *, model: RoleModel | None = None, max_tries: int = 3) -> None:
        """Choose the backend.

        Args:
            model: names a pair and a reason; None is the ``rules`` backend.
            max_tries: answers before the rule decides.
        """
        self._model = model
        self._max_tries = max_tries

    async def select(self, contenders: Sequence[Contender]) -> Selection:
        """Pick the pair with the best val score; among equals the earliest, unless a model has a reason.

        Raises:
            ValueError: there is no contender.
        """
        if not contenders:
            raise ValueError("selecting failed; got no pair; expected at least the first one")
        best = max(contender.val_score for contender in contenders)
        leaders = [item for item in contenders if best - item.val_score <= SCORE_TOLERANCE]
        picked, reason = leaders[0], _reason(leaders, len(contenders))
        refusals, usage = tuple[Refusal, ...](), Usage()
        if self._model is not None:

            async def check(choice: Choice) -> list[str]:
                return _faults_of(choice, contenders, leaders)

            answer = await ask_checked(
                self._model,
                fill_prompt("selector", pairs=_listing(contenders)),
                Choice,
                purpose="select",
                check=check,
                max_tries=self._max_tries,
            )
            refusals, usage = answer.refusals, answer.usage
            if answer.value is not None:
                picked = next(item for item in leaders if item.pair_id == answer.value.pair_id)
                reason = answer.value.reason
            else:
                reason += "; the model gave no valid choice, so the rule decided"
        return Selection(
            pair_id=picked.pair_id,
            index=list(contenders).index(picked),
            val_score=picked.val_score,
            reason=reason,
            record=RoleRecord(
                role="selector",
                backend=backend_name(self._model),
                saw={"pairs": [item.model_dump(mode="json") for item in contenders]},
                wrote={"pair_id": picked.pair_id, "val_score": picked.val_score, "reason": reason},
                said=f"{picked.pair_id} with val {picked.val_score:.4f}: {reason}",
                refusals=refusals,
                usage=usage,
            ),
        )


def _reason(leaders: Sequence[Contender], count: int) -> str:
    if len(leaders) == 1:
        return f"the best val score of {count} pairs"
    return f"the earliest of {len(leaders)} pairs with the best val score, of {count}"


def _listing(contenders: Sequence[Contender]) -> str:
    rows = [
        f"pair {item.pair_id}: val score {item.val_score:.4f}, round {item.round_number}, "
        f"harness {item.harness_id}, checkpoint {item.checkpoint_id}{f', {item.note}' if item.note else ''}"
        for item in contenders
    ]
    return "\n".join(rows)


def _faults_of(choice: Choice, contenders: Sequence[Contender], leaders: Sequence[Contender]) -> list[str]:
    known = {item.pair_id: item for item in contenders}
    picked = known.get(choice.pair_id)
    if picked is None:
        return [f"pair {choice.pair_id!r} is not in the list; name one of {sorted(known)}"]
    problems: list[str] = []
    if abs(choice.val_score - picked.val_score) > _QUOTE_TOLERANCE:
        problems.append(f"{choice.pair_id} has val score {picked.val_score:.4f}; got {choice.val_score:.4f}; quote it")
    if choice.pair_id not in {item.pair_id for item in leaders}:
        best = [item.pair_id for item in leaders]
        problems.append(
            f"{choice.pair_id} scores {picked.val_score:.4f}; the best is {leaders[0].val_score:.4f}; pick of {best}"
        )
    return problems
