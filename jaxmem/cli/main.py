"""The `jaxmem` command: finds the subcommand, sets JAX up, turns bad input into one line.

Subcommands are imported when they are called, so that help stays instant.
"""

import importlib
import os
import sys
from pathlib import Path

import click

from jaxmem.core.errors import JaxmemError, nearest, one_line

COMMANDS = {
    "demo": "explore both systems for a model and a traffic",
    "evaluate": "one design point, with a breakdown of its time and energy",
    "sweep": "a design space, streamed to disk",
    "optimize": "a search with constraints",
    "replay": "a request trace through the prefix cache",
    "layout": "where a block of the KV cache lies, as a table or a picture",
    "time": "PIM instruction streams to cycles, counts and energy",
    "calibrate": "efficiency curves and engines fitted to measurements",
    "validate": "the error against each body of reference data",
    "reproduce": "every published number beside the model's",
    "bench": "points a second, gradient cost, start-up time",
    "models": "models in the zoo, with sources",
    "devices": "devices in the catalog, with sources",
    "policies": "PIM runtimes, with sources",
}


class _Lazy(click.Group):
    """A group whose commands live in modules of their own name."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        return importlib.import_module(f"jaxmem.cli.{cmd_name}").command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def resolve_command(self, ctx: click.Context, args: list[str]):
        if args and args[0] not in COMMANDS:
            hint = nearest(args[0], COMMANDS)
            raise click.UsageError(
                f"command: expected one of {', '.join(COMMANDS)}, got {args[0]!r}"
                + (f"; did you mean {hint!r}?" if hint else "")
            )
        return super().resolve_command(ctx, args)


@click.group(cls=_Lazy, invoke_without_command=True)
@click.version_option(package_name="jaxmem", prog_name="jaxmem")
@click.pass_context
def group(ctx: click.Context) -> None:
    """Memory-centric hardware for LLM inference: evaluate, sweep, search."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


def main() -> None:
    """Run the command line; exit 0, or 2 with one line on stderr for bad input."""
    try:
        _set_jax_up()
        group.main(prog_name="jaxmem", standalone_mode=False)
    except click.exceptions.Exit as stop:
        sys.exit(stop.exit_code)
    except click.ClickException as error:
        _fail(error.format_message())
    except JaxmemError as error:
        _fail(str(error))
    except (click.Abort, KeyboardInterrupt):
        click.echo("stopped", err=True)
        sys.exit(130)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:
        _fail(f"{error.filename or 'file'}: {error.strerror or error}")


def _fail(message: str) -> None:
    click.echo(f"error: {one_line(message)}", err=True)
    sys.exit(2)


def _set_jax_up() -> None:
    """Keep compiled programs between runs; JAX reads these when it is imported."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "jaxmem" / "xla"
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(cache))
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")
