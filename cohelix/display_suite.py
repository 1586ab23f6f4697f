"""Draw the views of :mod:`graphs.suite_view` on a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table

from cohelix.display import console

View = Mapping[str, Any]


def show_suites(suites: Sequence[View]) -> None:
    """One line per suite."""
    for suite in suites:
        console().print(f"{suite['name']:12} {suite['description']}", markup=False)


def show_suite(view: View) -> None:
    """Sizes, plays and one rendered task."""
    out = console()
    out.print(f"{view['name']} ({view['family']}), {view['fingerprint']}", markup=False)
    for split, sizes in view["splits"].items():
        strata = ", ".join(f"{count} {name}" for name, count in sizes["strata"].items())
        out.print(f"  {split:6} {sizes['tasks']} tasks: {strata}", markup=False)
    out.print(f"seed harness {view['seed_harness']['harness_id']}; {len(view['plays'])} plays:", markup=False)
    for play in view["plays"]:
        out.print(f"  {play['play_id']:16} {play['summary']} ({', '.join(play['faults'])})", markup=False)
    out.print(f"\ntask {view['task']['task_id']} as the policy sees it:", markup=False)
    for message in view["prompt"]:
        out.print(f"[{message['role']}]\n{message['content']}", markup=False)
    out.print(f"gold: {view['task']['gold']}", markup=False)


def show_validation(found: View) -> None:
    """What verifier and solver found, every disagreement with its reason."""
    out = console()
    if "variants" in found:
        _show_variants(found["variants"])
    else:
        out.print(
            f"{found['suite']}: gold accepted {found['gold_accepted']}/{found['tasks']}, corruptions refused "
            f"{found['corruptions_refused']}/{found['corruptions']}, solver confirmed {found['solver_confirmed']}, "
            f"disagreed {found['solver_disagreed']}, unverifiable {found['unverifiable']}",
            markup=False,
        )
        for problem in found["problems"]:
            out.print(f"  {problem}", markup=False)
    out.print("valid" if found["is_valid"] else "NOT valid", markup=False)


def _show_variants(rows: Sequence[View]) -> None:
    out, table = console(), Table(box=None, pad_edge=False)
    for heading in ("domain", "variant", "split", "queries", "agrees", "disagrees", "unverifiable", "totals agree"):
        table.add_column(heading)
    for row in rows:
        counts = [str(row[name]) for name in ("queries", "agrees", "disagrees", "unverifiable")]
        totals = f"{row['totals_agree']}/{row['totals_checked']}"
        table.add_row(row["domain"], row["variant"], row["split"], *counts, totals)
    out.print(table)
    for row in rows:
        for finding in row["findings"]:
            out.print(f"  {finding['agreement']} {finding['query_id']}: {finding['reason']}", markup=False)
