"""Arguments and options that several commands share, and how a result is printed."""

from __future__ import annotations

import json
import os
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
    """Print a JSON ``value`` as it is, or let ``show`` draw it for a person.

    A reader that leaves early (``| head``) has what it wanted: the command goes on and ends as it would have.
    """
    try:
        if is_json:
            is_plain = (sys.stdout.encoding or "").lower().replace("-", "") != "utf8"
            print(json.dumps(value, ensure_ascii=is_plain, indent=2))
        else:
            show(value)
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
