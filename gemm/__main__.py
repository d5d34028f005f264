"""`python -m gemm`: the main job, and the commands multiply, warm and cache."""

from __future__ import annotations

import argparse
import sys
from importlib import import_module

COMMANDS = ("report", "multiply", "warm", "cache")


def parser() -> argparse.ArgumentParser:
    """The command line; each command's module adds its own options and runs it."""
    top = argparse.ArgumentParser(prog="python -m gemm", description=__doc__)
    commands = top.add_subparsers(dest="command", metavar="|".join(COMMANDS))
    for name in COMMANDS:
        module = import_module(f"gemm.commands.{name}")
        summary = (module.__doc__ or "").splitlines()[0]
        one = commands.add_parser(name, help=summary, description=module.__doc__)
        module.add_options(one)
    return top


def main(arguments: list[str] | None = None) -> int:
    """Runs a command; the exit code is 0, 1 (a result was wrong), 2 (bad input) or 130 (Ctrl-C)."""
    given = sys.argv[1:] if arguments is None else arguments
    if not given or given[0].startswith("-") and given[0] not in ("-h", "--help"):
        given = ["report", *given]
    options = parser().parse_args(given)
    try:
        return import_module(f"gemm.commands.{options.command}").run(options)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
