"""Arguments and options that several commands share, and how a result is printed."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

Home = Annotated[
    Path, typer.Option("--home", envvar="COHELIX_HOME", help="Folder that holds all state.", show_default=True)
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON value on standard output.")]
Set = Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a dotted key; repeatable.")]
ConfigFile = Annotated[Path, typer.Argument(metavar="CONFIG", help="YAML file, for example configs/quickstart.yaml.")]
RunId = Annotated[str, typer.Argument(metavar="RUN", help="Run id, as `cohelix runs` lists it.")]


def emit(value: Any, is_json: bool, show: Callable[[Any], None]) -> None:
    """Print a JSON ``value`` as it is, or let ``show`` draw it for a person."""
    if is_json:
        json.dump(value, sys.stdout, ensure_ascii=False, indent=2)
        print()
    else:
        show(value)
