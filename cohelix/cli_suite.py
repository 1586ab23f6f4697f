"""``cohelix suite``: tasks and verifiers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cohelix.options import Json, Set, emit

app = typer.Typer(help="Task suites: list, show, validate.", no_args_is_help=True, rich_markup_mode=None)

SuiteName = Annotated[str, typer.Argument(metavar="SUITE", help="Suite name, as `cohelix suite list` shows it.")]
Root = Annotated[Path | None, typer.Option(help="Folder of the data, for suites that read files.")]


@app.command("list")
def list_(json_: Json = False) -> None:
    """List the suites that can be built here."""
    from cohelix.display_suite import show_suites
    from graphs.suite_view import list_suites

    emit(list_suites(), json_, show_suites)


@app.command()
def show(
    suite: SuiteName,
    split: Annotated[str, typer.Option(help="Split of the shown task.")] = "train",
    task: Annotated[int, typer.Option(min=0, help="Number of the shown task in its split, from 0.")] = 0,
    root: Root = None,
    set_: Set = None,
    json_: Json = False,
) -> None:
    """Show a suite's sizes, its seed harness and one task as the policy sees it."""
    from cohelix.display_suite import show_suite
    from graphs.suite_view import suite_view

    emit(suite_view(suite, _overrides(set_, root), split=split, index=task), json_, show_suite)


@app.command()
def validate(suite: SuiteName, root: Root = None, set_: Set = None, json_: Json = False) -> None:
    """Prove that the verifier accepts its own gold and refuses corrupted gold; exit 1 when it does not."""
    from cohelix.display_suite import show_validation
    from graphs.suite_view import validate_suite

    found = validate_suite(suite, _overrides(set_, root))
    emit(found, json_, show_validation)
    if not found["is_valid"]:
        raise typer.Exit(1)


def _overrides(set_: list[str] | None, root: Path | None) -> list[str]:
    return [*(set_ or []), *([f"root={root}"] if root else [])]
