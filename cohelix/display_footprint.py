"""Draw a dry run's memory and hours on a terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.table import Table

from cohelix.display import console, show_plan

View = Mapping[str, Any]
GIB = 1 << 30
PARTS = ("weights", "adapters", "gradients", "optimizer", "activations", "logits", "engine")


def show_dry_run(value: View) -> None:
    """Resolved configuration, plan and, for a model of a user's choice, what it takes."""
    show_plan(value)
    if "footprint" in value:
        show_footprint(value["footprint"], value["config"]["policy"]["model"])


def show_footprint(footprint: View | None, model: str) -> None:
    """Parameter counts, memory of a GPU by stage, operations and hours, and what they assume."""
    out = console()
    if footprint is None:
        out.print(
            f"model: {model} is not on this machine and plan.architecture names none: no memory, no hours",
            markup=False,
        )
        return
    size = footprint["size"]
    out.print(
        f"model: {footprint['source']} ({size['model_type']}), {size['parameters']:,} parameters: "
        f"{size['language']:,} language, {size['vision']:,} vision; {size['trainable']:,} trained "
        f"({100 * size['trainable_share']:.2f} %)",
        markup=False,
    )
    out.print(_memory_table(footprint))
    out.print(_work_table(footprint))
    for line in footprint["assumptions"]:
        out.print(f"assumed: {line}", markup=False)
    for line in footprint["warnings"]:
        out.print(f"warning: {line}", markup=False)


def _memory_table(footprint: View) -> Table:
    title = f"GiB on each of {footprint['gpus']} GPUs that train, of {footprint['gpu_memory_gib']:g}"
    if not footprint["is_on_gpu"]:
        title = f"GiB in each of {footprint['gpus']} processes that train"
    if footprint["rollout_gpus"]:
        title += f"; and on each of {footprint['rollout_gpus']} that only sample"
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for heading in ("stage", *PARTS, "total", "sampler"):
        table.add_column(heading, justify="left" if heading == "stage" else "right")
    for stage in footprint["stages"]:
        training = stage["training"]
        parts = [f"{training[part] / GIB:.2f}" for part in PARTS]
        sampler = f"{stage['rollout_gib']:.1f}" if stage["rollout_gib"] else "-"
        table.add_row(stage["name"], *parts, f"{training['total'] / GIB:.1f}", sampler)
    return table


def _work_table(footprint: View) -> Table:
    table = Table(title="work", title_justify="left", box=None, pad_edge=False)
    for heading in ("stage", "steps", "samples", "tokens", "longest", "PFLOP a step", "rollout h", "training h", "h"):
        table.add_column(heading, justify="left" if heading == "stage" else "right")
    for stage in footprint["stages"]:
        table.add_row(
            stage["name"],
            f"{stage['steps']:,}",
            f"{stage['samples']:,}",
            f"{stage['tokens']:,}",
            f"{stage['longest_tokens']:,}",
            f"{stage['flops'] / 1e15:,.3g}",
            f"{stage['rollout_hours']:.2f}",
            f"{stage['training_hours']:.2f}",
            f"{stage['hours']:.2f}",
        )
    return table
