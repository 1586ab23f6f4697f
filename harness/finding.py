"""What the deterministic gates say: one :class:`Finding` per exact fault."""

from __future__ import annotations

from typing import Literal

from harness.records import Record

FaultCode = Literal[
    "family_changed", "input_template_changed", "placeholder_changed", "instructions_changed",
    "output_contract_changed", "no_effective_edit", "blank_skill", "duplicate_skill", "skill_order_changed",
    "unknown_skill_number", "stale_skill_number", "stray_placeholder", "section_too_long", "too_many_skills",
    "too_many_demonstrations", "demonstration_lacks_input", "blank_demonstration", "duplicate_demonstration",
    "demonstration_not_from_train", "gold_leaked", "demonstration_count_changed", "demonstration_id_changed",
    "demonstration_facts_changed", "demonstration_numbers_changed", "demonstration_answer_changed",
    "demonstration_sections_changed", "marker_repeated", "selected_skill_not_used", "used_skill_not_selected",
]  # fmt: skip
"""Every fault the deterministic gates can name."""


class Finding(Record):
    """One exact fault of a candidate."""

    code: FaultCode
    where: str
    """Path of the part, for example ``bank.skills[2].action`` (numbers from 1)."""
    message: str
    """What was got, what was expected and what to do."""
