"""The shaped reward of route tasks: task reward plus overlong penalty."""

from __future__ import annotations

from harness.records import Record

FORMAT_WEIGHT = 0.05
PARTIAL_WEIGHT = 0.25
EXACT_WEIGHT = 0.70
LENGTH_PENALTY_SCALE = 0.1


class RouteReward(Record):
    """Reward of one attempt and its two terms; ``final = task + length_penalty``."""

    task: float
    length_penalty: float
    """0 up to ``max_length - buffer`` tokens, then falling; never positive."""
    final: float


def route_reward(
    format: float, partial: float, exact: float, length: int, max_length: int = 4096, buffer: int = 512
) -> RouteReward:
    """Combine the verifier's parts and the completion's length.

    Args:
        format: 1 when the output contract is met exactly, else 0.
        partial: prefix accuracy in [0, 1].
        exact: 1 when the answer is exact, else 0.
        length: completion length in tokens.
        max_length: longest allowed completion, tokens.
        buffer: tokens before ``max_length`` over which the penalty grows to -0.1.

    Raises:
        ValueError: a part lies outside [0, 1] or a length makes no sense.

    Source: METHODS §2, Reward; differs: nothing.
    """
    for name, value in (("format", format), ("partial", partial), ("exact", exact)):
        if not 0 <= value <= 1:
            raise ValueError(f"route_reward failed; got {name}={value}; expected a value in [0, 1]")
    if not 0 < buffer <= max_length or length < 0:
        raise ValueError(
            f"route_reward failed; got length={length}, max_length={max_length}, buffer={buffer}; "
            "expected length >= 0 and 0 < buffer <= max_length"
        )
    task = FORMAT_WEIGHT * format + PARTIAL_WEIGHT * partial + EXACT_WEIGHT * exact
    overlong = length - (max_length - buffer)
    penalty = min(-overlong / buffer * LENGTH_PENALTY_SCALE, 0.0)
    return RouteReward(task=task, length_penalty=penalty, final=task + penalty)
