"""Flags that several commands share, handlers that are imported when called, and parsers with a default command."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, TypeAlias

Handler = Callable[[argparse.Namespace], int]
Subparsers: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"
DEFAULT_SERVER = Path(__file__).parent.parent / "serve" / "default.yaml"
"""The config of `rewrite-serve` without CONFIG: the bundled sample."""
DEFAULT_INDEX = Path(__file__).parent.parent / "index" / "default.yaml"
"""The config of `rewrite-index build` without CONFIG: the bundled sample, in the default retrievers."""
EXITS = "exit codes: 0 done, 1 the work failed, 2 the request was wrong, 130 stopped by Ctrl-C"
SERVER_EXITS = "exit codes: 0 stopped by Ctrl-C or SIGTERM, 1 the work failed, 2 the request was wrong"


class DefaultCommandParser(argparse.ArgumentParser):
    """A parser with sub-parsers whose command may be left out: `rewrite-eval CONFIG` means `rewrite-eval run CONFIG`.

    The default command is inserted where the first argument names none, so that `--help` is the default's help, which
    lists the other commands. One command may be written as a flag: `rewrite-eval --check` means `rewrite-eval check`.
    """

    def __init__(self, prog: str, default: str, flag_command: str = "") -> None:
        super().__init__(prog)
        self._default, self._flag_command = default, flag_command
        self._commands = self.add_subparsers(metavar="COMMAND", parser_class=argparse.ArgumentParser)
        self._forms: list[str] = []

    def add_command(self, name: str, handler: Handler, help: str, form: str = "", **options: Any) -> Any:
        """Add a command's parser. `form` is how the default's help writes it; the default must be added last."""
        if name == self._default:
            epilog = "\n".join(["other commands, each with its own --help:", *self._forms, "", options.pop("epilog")])
            self.description = options["description"]
            options |= {"prog": self.prog, "epilog": epilog, "formatter_class": argparse.RawDescriptionHelpFormatter}
        else:
            self._forms.append(f"  {form:30} {help}")
        parser = add_command(self._commands, name, handler, help, **options)
        if name == self._default:
            version_argument(parser)
        return parser

    def parse_known_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:  # type: ignore[override]
        """Parse after the default command's name was filled in."""
        words = list(sys.argv[1:] if args is None else args)
        if self._flag_command and f"--{self._flag_command}" in words:
            words.remove(f"--{self._flag_command}")
            words.insert(0, self._flag_command)
        elif not words or words[0] not in self._commands.choices:
            words.insert(0, self._default)
        return super().parse_known_args(words, namespace)


def add_command(
    commands: Subparsers, name: str, handler: Handler, help: str, epilog: str = EXITS, **options: Any
) -> argparse.ArgumentParser:
    """Add a command with its handler."""
    parser = commands.add_parser(name, help=help, epilog=epilog, **options)
    parser.set_defaults(handler=handler)
    return parser


class VersionAction(argparse.Action):
    """Prints the version and exits; it is looked up only then."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        """Print the version."""
        from pipelines.shipped import version

        print(f"{parser.prog} {version()}")
        parser.exit()


def version_argument(parser: argparse.ArgumentParser) -> None:
    """Add `--version`."""
    parser.add_argument("--version", action=VersionAction, nargs=0, help="print the version and stop")


def lazy(module: str, name: str) -> Handler:
    """A handler in `pipelines.cli` that is imported when it is called, so that `--help` is instant."""

    def handler(arguments: argparse.Namespace) -> int:
        function: Handler = getattr(import_module(f"pipelines.cli.{module}"), name)
        return function(arguments)

    return handler


def config_arguments(
    parser: argparse.ArgumentParser,
    examples: str,
    flag: str | None = None,
    default: Path | None = None,
    metavar: str = "CONFIG",
) -> None:
    """Add CONFIG (optional if there is a default, a flag if one is named), `--set` and `--dry-run`."""
    help = f"YAML file; {examples} has examples"
    if default:
        shown = "the bundled sample" if default in (DEFAULT_SERVER, DEFAULT_INDEX) else str(default)
        parser.add_argument(
            "config", type=Path, metavar=metavar, nargs="?", default=default, help=f"{help} (default: {shown})"
        )
    elif flag:
        parser.add_argument(flag, type=Path, metavar="CONFIG", required=True, help=help)
    else:
        parser.add_argument("config", type=Path, metavar="CONFIG", help=help)
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="set one key of CONFIG; a.b=4 sets the key b under a; may be repeated",
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="print the config with every default and --set filled in, and stop"
    )


def device_argument(*parsers: argparse.ArgumentParser) -> None:
    """Add `--device`."""
    for parser in parsers:
        parser.add_argument(
            "--device", help="device of the models: cpu, cuda, mps (default: cuda if there is one, else cpu)"
        )


def index_argument(*parsers: argparse.ArgumentParser) -> None:
    """Add INDEX."""
    for parser in parsers:
        parser.add_argument("index", type=Path, metavar="INDEX", help="folder of an index")


def json_argument(*parsers: argparse.ArgumentParser) -> None:
    """Add `--json`."""
    for parser in parsers:
        parser.add_argument("--json", action="store_true", help="print JSON")
