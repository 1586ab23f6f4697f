"""The command line: parse, call one function of a lower package, show the result.

Heavy packages are imported inside the commands that need them, so that help, validation and the
read-only views stay fast.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cohelix import cli_harness, cli_suite
from cohelix.options import ConfigFile, Home, Json, RunId, Set, emit

if TYPE_CHECKING:
    from graphs.config import RunConfig
    from graphs.runner import RunResult

EXIT_USER = 2

app = typer.Typer(
    help="Improve a policy's weights and its harness together, and prove every step.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.add_typer(cli_harness.app, name="harness")
app.add_typer(cli_suite.app, name="suite")


@app.command()
def run(
    config: ConfigFile,
    set_: Set = None,
    home: Home = Path(".cohelix"),
    name: Annotated[str, typer.Option(help="Run id; must not exist yet. Default: time and config name.")] = "",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show resolved config and plan; run nothing.")] = False,
    json_: Json = False,
) -> None:
    """Start a run from a configuration file."""
    from evals.suites.registry import build_suite
    from graphs.loading import load_config
    from graphs.plan import make_plan, refuse_too_small

    resolved = load_config(config, set_ or [])
    suite = build_suite(resolved.suite)
    plan = make_plan(resolved, suite)
    if dry_run:
        from cohelix.display_footprint import show_dry_run
        from graphs.plan_memory import dry_run_view

        emit(dry_run_view(resolved, plan, suite), json_, show_dry_run)
        refuse_too_small(plan)
        return
    refuse_too_small(plan)
    _start(resolved, home=home, run_id=name, label=config.stem, is_json=json_)


@app.command()
def resume(
    run: RunId,
    config: Annotated[Path | None, typer.Option(help="Refuse unless this file gives the run's own config.")] = None,
    set_: Set = None,
    home: Home = Path(".cohelix"),
    json_: Json = False,
) -> None:
    """Go on with an interrupted run; finished work is never repeated. --set takes the budget's four limits alone."""
    from cohelix.progress import Watch
    from graphs.loading import load_config
    from graphs.runner import resume as resume_run

    wanted = load_config(config, set_ or []) if config else None
    with Watch(home) as watch:
        result = resume_run(run, home=home, listener=watch, expected=wanted, overrides=set_ or [])
    _close(result, home, json_)


@app.command()
def runs(home: Home = Path(".cohelix"), json_: Json = False) -> None:
    """List the runs of a home."""
    from cohelix.display import show_runs
    from graphs.view import list_runs

    emit(list_runs(home), json_, show_runs)


@app.command()
def trace(
    run: RunId,
    step: Annotated[int | None, typer.Option(help="Show one step in full.")] = None,
    training: Annotated[bool, typer.Option("--training", help="Show what every training step measured.")] = False,
    home: Home = Path(".cohelix"),
    json_: Json = False,
) -> None:
    """Every node in order: what it read, wrote and called, what it cost, gate numbers, harness diffs."""
    from cohelix.display import show_trace
    from cohelix.display_training import show_training
    from graphs.view import trace_run, training_run

    if training:
        if step is not None:
            raise typer.BadParameter("--training shows all steps of training; leave --step out")
        emit(training_run(home, run), json_, show_training)
        return
    emit(trace_run(home, run, step=step), json_, show_trace)


@app.command()
def report(run: RunId, home: Home = Path(".cohelix"), json_: Json = False) -> None:
    """Accuracy before and after with 95 % intervals, gate decisions and artefacts."""
    from cohelix.display import show_report
    from graphs.view import report_run

    emit(report_run(home, run), json_, show_report)


@app.command("eval")
def eval_(
    config: ConfigFile,
    split: Annotated[str, typer.Option(help="train, val or test; test is for reports alone.")],
    checkpoint: Annotated[str, typer.Option(help="Checkpoint id, or base.")] = "base",
    harness: Annotated[str, typer.Option(help="Harness id, or seed.")] = "seed",
    replicates: Annotated[int, typer.Option(min=1, help="Attempts per task.")] = 1,
    set_: Set = None,
    home: Home = Path(".cohelix"),
    json_: Json = False,
) -> None:
    """Evaluate one pair of checkpoint and harness on one split."""
    from cohelix.display import show_evaluation
    from graphs.loading import load_config
    from graphs.single import PairChoice, evaluate_pair

    resolved = load_config(config, set_ or [])
    choice = PairChoice(split=split, checkpoint=checkpoint, harness=harness, replicates=replicates)
    emit(evaluate_pair(resolved, choice, home=home), json_, show_evaluation)


def _start(config: RunConfig, *, home: Path, run_id: str, label: str, is_json: bool) -> None:
    from cohelix.progress import Watch
    from graphs.runner import start

    with Watch(home) as watch:
        result = start(config, home=home, run_id=run_id, label=label, listener=watch)
    _close(result, home, is_json)


def _close(result: RunResult, home: Path, is_json: bool) -> None:
    from cohelix.display import show_report
    from graphs.view import report_run

    emit(report_run(home, result.run_id), is_json, show_report)


def main() -> None:
    """Entry point: errors a person can mend end with exit 2 and no traceback."""
    from cohelix.startup import prepare_streams, shadow_message, shadowed

    prepare_streams()
    wrong = shadowed()
    if wrong:
        _fail(shadow_message(wrong), EXIT_USER)
    from cohelix.failures import explain

    try:
        app()
    except Exception as error:
        told = explain(error)
        if told is None:
            raise
        _fail(told.message, told.exit_code)


def _fail(message: str, exit_code: int) -> None:
    from memory.redaction import redact

    print(f"cohelix: {redact(message)}", file=sys.stderr)
    sys.exit(exit_code)
