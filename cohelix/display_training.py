"""Draw what training measured on a terminal; takes the same JSON that ``--json`` prints."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from rich.table import Table

from cohelix.display import console

View = Mapping[str, Any]


def _number(name: str, digits: int = 3) -> Callable[[View], str]:
    return lambda metrics: f"{metrics[name]:.{digits}f}"


def _percent(name: str) -> Callable[[View], str]:
    return lambda metrics: f"{100 * metrics[name]:.1f}"


def _count(name: str) -> Callable[[View], str]:
    return lambda metrics: f"{metrics[name]:,.0f}"


def _losses(metrics: View) -> str:
    return " ".join(f"{loss:.4f}" for loss in metrics["losses"])


def _groups(metrics: View) -> str:
    return f"{metrics['trained_groups']}/{metrics['sampled_groups']}"


COLUMNS: tuple[tuple[str, str, Callable[[View], str]], ...] = (
    ("reward", "reward_mean", _number("reward_mean")),
    ("exact", "exact_mean", _number("exact_mean")),
    ("trained", "trained_groups", _groups),
    ("signal %", "signal_share", _percent("signal_share")),
    ("dropped tokens", "dropped_tokens", _count("dropped_tokens")),
    ("loss", "losses", _losses),
    ("loss", "loss", _number("loss", 4)),
    ("kl", "kl", _number("kl", 5)),
    ("entropy", "entropy", _number("entropy")),
    ("clip low %", "clip_low_share", _percent("clip_low_share")),
    ("high %", "clip_high_share", _percent("clip_high_share")),
    ("dual %", "dual_clip_share", _percent("dual_clip_share")),
    ("rate", "learning_rate", lambda metrics: f"{metrics['learning_rate']:.2e}"),
    ("rollout tok/s", "rollout_tokens_per_s", _count("rollout_tokens_per_s")),
    ("train tok/s", "training_tokens_per_s", _count("training_tokens_per_s")),
    ("tok/s", "tokens_per_s", _count("tokens_per_s")),
    ("padding %", "padding_share", _percent("padding_share")),
    ("MB", "peak_memory_mb", _count("peak_memory_mb")),
)
"""Heading, the field that must be there for the column to be shown, and the cell."""


def show_training(view: View) -> None:
    """One table per block, one row per step."""
    out, run = console(), view["run"]
    out.print(f"run {run['run_id']}: {run['condition']} on {run['suite']}, seed {run['seed']}: {run['status']}")
    if not view["blocks"]:
        out.print("no training step is finished yet")
    for number, block in enumerate(view["blocks"]):
        out.print(_block_table(f"block {number}: {block['block_key']}", block["steps"]))
        parts = block["steps"][-1]["metrics"].get("reward_parts", {})
        if parts:
            out.print("last step: " + ", ".join(f"{name} {value:.3f}" for name, value in parts.items()), markup=False)


def _block_table(title: str, steps: list[View]) -> Table:
    held = set.intersection(*(set(step["metrics"]) for step in steps))
    columns = [(heading, cell) for heading, field, cell in COLUMNS if field in held]
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    table.add_column("step", justify="right")
    for heading, _ in columns:
        table.add_column(heading, justify="right")
    for step in steps:
        table.add_row(str(step["step"]), *(cell(step["metrics"]) for _, cell in columns))
    return table
