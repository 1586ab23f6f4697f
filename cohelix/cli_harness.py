"""``cohelix harness``: the lineage of Φ."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cohelix.options import Home, Json, emit

app = typer.Typer(help="Harness versions: log, show, diff.", no_args_is_help=True, rich_markup_mode=None)

HarnessId = Annotated[str, typer.Argument(metavar="HARNESS", help="Harness id, or its first letters.")]


@app.command()
def log(
    run: Annotated[str | None, typer.Option(help="Only versions that this run met.")] = None,
    home: Home = Path(".cohelix"),
    json_: Json = False,
) -> None:
    """List versions with their parents."""
    from cohelix.display import show_harness_log
    from graphs.view import harness_log

    emit(harness_log(home, run), json_, show_harness_log)


@app.command()
def show(harness: HarnessId, home: Home = Path(".cohelix"), json_: Json = False) -> None:
    """Show one version in full."""
    from cohelix.display import show_harness
    from graphs.view import harness_show

    emit(harness_show(home, harness), json_, show_harness)


@app.command()
def diff(
    before: HarnessId,
    after: HarnessId,
    home: Home = Path(".cohelix"),
    json_: Json = False,
) -> None:
    """Show what changed between two versions, word by word."""
    from cohelix.display import show_harness_diff
    from graphs.view import harness_diff

    emit(harness_diff(home, before, after), json_, show_harness_diff)
