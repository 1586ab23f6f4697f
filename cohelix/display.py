"""Draw the views of :mod:`graphs.view` on a terminal; each takes the same JSON that ``--json`` prints."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from cohelix.console import PatientConsole

View = Mapping[str, Any]

VALUE_CHARACTERS = 160
"""Longest value shown on one line; ``--json`` shows all."""


PLAIN_WIDTH = 200
"""Columns where standard output is no terminal, so that tables in files keep their words whole."""


def console() -> Console:
    """Standard output, without colour guesses inside ids and paths."""
    return PatientConsole(highlight=False, soft_wrap=True, width=None if sys.stdout.isatty() else PLAIN_WIDTH)


def show_runs(runs: Sequence[View]) -> None:
    """One row per run."""
    table = Table(box=None, pad_edge=False)
    for heading in ("run", "status", "condition", "suite", "seed", "rounds", "base test", "final test", "started"):
        table.add_column(heading)
    for run in runs:
        table.add_row(
            run["run_id"],
            run["status"],
            str(run["condition"] or run["strategy"]),
            run["suite"],
            str(run["seed"]),
            str(run.get("rounds") or "-"),
            interval(run.get("base_test")),
            interval(run.get("final_test")),
            run["created_at"][:19],
        )
    console().print(table)


def show_report(view: View) -> None:
    """The closing table, decisions, artefacts and what to do next."""
    out, run, report = console(), view["run"], view["report"]
    out.print(f"run {run['run_id']}: {run['condition']} on {run['suite']}, seed {run['seed']}: {run['status']}")
    if view.get("error"):
        out.print(f"stopped by {view['error']}", markup=False)
    for change in view["amendments"]:
        out.print(f"{change['key']} changed from {change['before']} to {change['after']}", markup=False)
    if report:
        out.print(_accuracy_table(report))
        for name in ("first_pair", "final_pair"):
            out.print(_pair_line(name.replace("_", " "), report[name]), markup=False)
        counts = ", ".join(f"{count} {name}" for name, count in report["outcomes"].items()) or "none"
        out.print(f"rounds {report['rounds']}; gate decisions: {counts}; {report['stop_reason']}", markup=False)
    if view["decisions"]:
        out.print(_decision_table(view["decisions"]))
    for name, place in view["artefacts"].items():
        out.print(f"{name:12} {place}", markup=False)
    for command in view["next"]:
        out.print(f"next         {command}", markup=False)


def interval(score: View | None) -> str:
    """``61.2 [56.0, 66.1]`` in per cent, or a dash."""
    if not score:
        return "-"
    return f"{100 * score['mean']:.1f} [{100 * score['low']:.1f}, {100 * score['high']:.1f}]"


def _accuracy_table(report: View) -> Table:
    table = Table(title="accuracy in %, with 95 % intervals", title_justify="left", box=None, pad_edge=False)
    for heading in ("pair", "split", "accuracy", "replicates", "tasks", "unscored"):
        table.add_column(heading)
    for row in report["scores"]:
        means = " ".join(f"{100 * value:.1f}" for value in row["replicate_means"])
        spread = "" if row["replicate_std"] is None else f" (sd {100 * row['replicate_std']:.1f})"
        cells = (interval(row), means + spread, str(row["tasks"]), str(row["unscored"]))
        table.add_row(row["label"], row["split"], *cells)
    for row in report["gains"]:
        table.add_row("gain", row["split"], interval(row), "", str(row["tasks"]), "")
    return table


def _pair_line(name: str, pair: View) -> str:
    return f"{name:12} {pair['checkpoint_id']} with {pair['harness_id']}, val {_percent(pair['val_score'])}"


def _decision_table(decisions: Sequence[View]) -> Table:
    """``+`` and ``-`` count val tasks that got better and worse; p is that of the two-sided sign test."""
    title = "gate (+ improved, - regressed val tasks; p of the sign test)"
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for heading in ("round", "incumbent", "candidate", "decision", "+", "-", "p", "candidate harness", "reason"):
        table.add_column(heading)
    for decision in decisions:
        statistics = decision["statistics"]
        p_value = statistics.get("p_sign")
        table.add_row(
            str(decision["round_number"]),
            _percent(decision["incumbent_score"]),
            _percent(decision["candidate_score"]),
            decision["outcome"],
            str(len(statistics.get("improved", []))),
            str(len(statistics.get("regressed", []))),
            "-" if p_value is None else f"{p_value:.3f}",
            decision["candidate_id"],
            Text(decision["reason"]),
        )
    return table


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f}"


def show_trace(view: View) -> None:
    """Every node in order; a single step is shown with its values whole."""
    out, run = console(), view["run"]
    short = _whole if len(view["steps"]) == 1 else _short
    out.print(f"run {run['run_id']}: {run['condition']} on {run['suite']}, seed {run['seed']}: {run['status']}")
    for step in view["steps"]:
        cost = f"{step['tokens']} tokens, ${step['cost_usd']:.4f}, {step['seconds']:.1f} s"
        out.print(f"\n[bold]step {step['number']} {step['node']}[/bold]  {cost}")
        _lines(out, "read", step["read"], short)
        for call in step["calls"]:
            reused = " (found in the ledger)" if call.get("is_reused") else ""
            out.print(f"  called {call['role']}.{call['method']}{reused}", markup=False)
            if call.get("said"):
                out.print(f"    said {short(call['said'])}", markup=False)
            _lines(out, "  read", call["reads"], short)
            _lines(out, "  wrote", call["wrote"], short)
            for model_call in call.get("model_calls", []):
                out.print(f"    model {short(model_call)}", markup=False)
        _lines(out, "wrote", step["wrote"], short)
        if "harness_diff" in step:
            out.print("  harness diff", markup=False)
            out.print("\n".join("    " + line for line in step["harness_diff"]["text"].splitlines()), markup=False)


def _lines(out: Console, word: str, values: Mapping[str, Any], short: Callable[[Any], str]) -> None:
    for key, value in values.items():
        out.print(f"  {word} {key} = {short(value)}", markup=False)


def _whole(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, indent=2)


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    text = " ".join(text.split())
    return text if len(text) <= VALUE_CHARACTERS else text[: VALUE_CHARACTERS - 1] + "…"


def show_plan(value: View) -> None:
    """Resolved configuration and plan."""
    import yaml

    out, plan = console(), value["plan"]
    out.print(yaml.safe_dump(value["config"], sort_keys=False, allow_unicode=True), markup=False)
    out.print(
        f"plan: {plan['condition']}, {plan['rounds']} rounds, {plan['rl_blocks']} RL blocks of "
        f"{plan['rollout_steps']} rollout steps in all"
        + (f", at most {plan['proposals']} proposals" if plan["proposals"] else ""),
        markup=False,
    )
    table = Table(box=None, pad_edge=False)
    for heading in ("part", "train attempts", "val/test attempts", "updates", "model calls", "tokens", "seconds"):
        table.add_column(heading, justify="left" if heading == "part" else "right")
    for part in ("start", "first_round", "all_rounds", "report", "total"):
        cost = plan[part]
        numbers = [cost[name] for name in ("train_attempts", "evaluation_attempts", "updates", "model_calls", "tokens")]
        table.add_row(part.replace("_", " "), *(f"{number:,}" for number in numbers), f"{cost['seconds']:,.0f}")
    out.print(table)
    limits = ", ".join(f"{name} {'none' if limit is None else limit}" for name, limit in plan["limits"].items())
    out.print(f"limits: {limits}. Tokens and seconds are estimates.", markup=False)


def show_harness_log(versions: Sequence[View]) -> None:
    """One line per version."""
    for version in versions:
        parents = ", ".join(version["parents"]) or "-"
        line = f"{version['harness_id']}  from {parents}  {version['created_at'][:19]}  {version['note']}"
        console().print(line, markup=False)


def show_harness(harness: View) -> None:
    """A version as YAML."""
    import yaml

    console().print(yaml.safe_dump(dict(harness), sort_keys=False, allow_unicode=True, width=100), markup=False)


def show_harness_diff(diff: View) -> None:
    """The word diff."""
    console().print(diff["text"], markup=False)


def show_evaluation(view: View) -> None:
    """One evaluated pair."""
    out = console()
    out.print(f"{view['split']} accuracy of {view['checkpoint_id']} under {view['harness_id']}:", markup=False)
    out.print(f"{interval(view)} over {view['tasks']} tasks x {view['replicate_count']} replicates", markup=False)
    for name, value in view["parts"].items():
        out.print(f"  {name:10} {100 * value:.1f}", markup=False)
    out.print(f"  unscored   {view['unscored']}", markup=False)
