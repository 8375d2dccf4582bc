"""The `dflash` command: a table of contents that loads a chapter only when it is opened.

Each command lives in the `cli` module of the package that does the work. `--help` and
`--version` load none of them, and a command that needs no model loads no torch.
"""

from __future__ import annotations

import codecs
import importlib
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from io import TextIOWrapper
from pathlib import Path
from typing import Any, NamedTuple, TextIO

import click

from engine import huge_pages

OUR_PACKAGES = frozenset({"engine", "metering", "billing", "dashboards", "api", "dflash"})


class Entry(NamedTuple):
    """Where a command lives, and what the table of contents says of it."""

    module: str
    summary: str
    lasts: bool = False  # serves, or computes for long: worth a second start of some milliseconds


COMMANDS: dict[str, Entry] = {
    "quickstart": Entry(
        "api.quickstart.cli", "Fetch a model, serve it, and show one signed receipt."
    ),
    "serve": Entry("api.cli", "Run the gateway and its engine.", lasts=True),
    "doctor": Entry("api.doctor.cli", "Check what otherwise fails silently, and say what to do."),
    "migrate": Entry("api.cli", "Bring the database to this release's schema."),
    "pull": Entry("engine.cli", "Fetch a known model and convert it to .dfm."),
    "convert": Entry("engine.cli", "Convert a GGUF file to .dfm."),
    "models": Entry("engine.cli", "List the known models and the files at hand."),
    "generate": Entry(
        "engine.generation_cli", "Generate from prompts, without a gateway.", lasts=True
    ),
    "bench": Entry(
        "engine.bench_cli", "Measure decoding beside variants, peers, the machine.", lasts=True
    ),
    "eval": Entry(
        "engine.evaluation_cli", "Measure what a model file is worth: perplexity.", lasts=True
    ),
    "experts": Entry(
        "engine.experts_cli", "Count which experts of a mixture are chosen.", lasts=True
    ),
    "train-head": Entry(
        "engine.training_cli", "Train a draft head on the model's own answers.", lasts=True
    ),
    "calibrate": Entry("api.calibrate_cli", "Fit what figures rest on to what was measured."),
    "meter": Entry(
        "api.meter_cli", "Show what can be metered; record it; what metering takes.", lasts=True
    ),
    "units": Entry("metering.cli", "Show the semantic units of a text."),
    "usage": Entry(
        "metering.usage_cli", "Show usage rollups, rebuild them, measure intake.", lasts=True
    ),
    "tenant": Entry("api.cli", "Create and list tenants."),
    "key": Entry("api.cli", "Create, list, rotate and revoke keys."),
    "admin": Entry("api.cli", "Bootstrap the first operator's key."),
    "credit": Entry("billing.cli", "Grant credit and show balances."),
    "grant": Entry("api.cli", "Issue, list and reverse grants of credit."),
    "terms": Entry("api.cli", "Let a tenant owe up to a limit; warn of a low balance."),
    "budget": Entry("api.cli", "Define, list and close budgets."),
    "limit": Entry("api.cli", "Limit requests, tokens, joules and concurrency."),
    "project": Entry("api.cli", "Divide a tenant's spending by projects."),
    "refund": Entry("api.cli", "Correct a charge, with a signed adjustment."),
    "retention": Entry("api.cli", "Say how long content is kept, and erase it."),
    "tariff": Entry("billing.cli", "Publish, assign and show tariffs."),
    "review": Entry("billing.review_cli", "Show the review queue, cap its cost, pay reviewers."),
    "receipt": Entry(
        "api.receipt_cli", "Show a receipt, verify it offline, or audit it by replay."
    ),
    "invoice": Entry("billing.invoices.cli", "Close periods, and list and settle invoices."),
    "export": Entry("api.exports.cli", "Write charges as FOCUS data, and usage and receipts."),
    "payments": Entry("billing.payments.cli", "Push to the payment provider, and see what waits."),
    "economics": Entry("billing.economics.cli", "Estimate what serving costs; compare fleets."),
    "measure": Entry("api.measurement.cli", "Measure how fast the books are kept.", lasts=True),
    "reconcile": Entry(
        "billing.reconciliation_cli", "Compare all books, from the engine to Stripe."
    ),
}


class Contents(click.Group):
    """A group whose commands are named in `COMMANDS` and imported on use.

    An error of ours, or of the machine's, becomes one line on stderr and exit status 1.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Every command's name, in the order of the table."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import one command; null for a name that isn't in the table."""
        return load(cmd_name) if cmd_name in COMMANDS else None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the table of contents without opening any chapter."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.summary) for name, entry in COMMANDS.items()])

    def invoke(self, ctx: click.Context) -> object:
        """Run the command line, turning exceptions into messages."""
        escape_what_cannot_be_written(sys.stdout, sys.stderr)
        with reported(debug=bool(ctx.params.get("debug"))):
            return super().invoke(ctx)


def load(name: str) -> click.Command:
    """Import the module of one command and find the command in it by its name."""
    module = importlib.import_module(COMMANDS[name].module)
    for value in vars(module).values():
        if isinstance(value, click.Command) and value.name == name:
            return value
    raise click.ClickException(f"{COMMANDS[name].module} defines no command {name}")


@contextmanager
def reported(*, debug: bool) -> Iterator[None]:
    """Raise what a command raised as a ClickException of one line; with `debug`, trace it too."""
    try:
        yield
    except (click.ClickException, click.exceptions.Exit, click.Abort, BrokenPipeError):
        raise
    except Exception as error:
        if debug:
            traceback.print_exc()
        said = describe_all(error) if isinstance(error, ExceptionGroup) else describe(error)
        raise click.ClickException(said) from error


def escape_what_cannot_be_written(*streams: TextIO) -> None:
    """Have these write as an escape what their encoding lacks, instead of failing half-way.

    The escapes are those of JSON, so that what is JSON stays it.
    """
    codecs.register_error("dflash.escaped", _escaped)
    for stream in streams:
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="dflash.escaped")


def _escaped(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    units = error.object[error.start : error.end].encode("utf-16-be", "surrogatepass")
    pairs = (units[at : at + 2].hex() for at in range(0, len(units), 2))
    return "".join(f"\\u{pair}" for pair in pairs), error.end


def describe_all(errors: ExceptionGroup[Exception]) -> str:
    """Say in one line what went wrong for which of many, who each had their turn."""
    each = (", ".join((*getattr(one, "__notes__", ()), describe(one))) for one in errors.exceptions)
    return f"{errors.message}: {'; '.join(each)}"


def describe(error: Exception) -> str:
    """Say in one line what went wrong and, where it is known, what to do about it."""
    text = " ".join(str(error).split()) or type(error).__name__
    package = type(error).__module__.partition(".")[0]
    if package in OUR_PACKAGES:
        return text
    if isinstance(error, ModuleNotFoundError):
        return f"{text}: is this installation complete?"
    if isinstance(error, OSError):
        named = f"{error.filename}: " if error.filename else ""
        return f"{named}{error.strerror or text}"
    if package == "sqlalchemy":
        return _refused(text)
    return f"{type(error).__name__}: {text} (a defect of ours; `dflash --debug ...` shows where)"


def _refused(text: str) -> str:
    """What a database says, and what to do about it."""
    if "no such table" in text or "UndefinedTable" in text:
        return "the database has no schema of ours yet: run `dflash migrate`"
    if "no such column" in text or "UndefinedColumn" in text:
        return "the database's schema is not this release's: run `dflash migrate`"
    if "unable to open database file" in text:
        return (
            "the database file can't be opened: is this the right home, and may this user write"
            " there? `dflash migrate` makes a new one"
        )
    said = text.partition(" [SQL:")[0].partition(" (Background on this error")[0]
    return f"the database refused: {said}"


def _version(ctx: click.Context, _parameter: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        click.echo(f"dflash {metadata.version('dflash-gateway')}")
        ctx.exit()


@click.group(
    name="dflash",
    cls=Contents,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.option(
    "--home",
    type=click.Path(file_okay=False, path_type=Path),
    help="Where models, keys and the embedded database are kept.  [default: $DFLASH_HOME, ./var]",
)
@click.option(
    "--database-url",
    help="SQLAlchemy URL.  [default: $DFLASH_DATABASE_URL, SQLite under the home]",
)
@click.option("--list-models", is_flag=True, help="The same as `dflash models`.")
@click.option("--debug", is_flag=True, help="Show where an error came from.")
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_version,
    help="Show the version and exit.",
)
@click.pass_context
def cli(
    ctx: click.Context,
    home: Path | None,
    database_url: str | None,
    list_models: bool,
    debug: bool,
) -> None:
    """Serve a language model, and bill for what it said.

    Every setting may also come from the environment; see docs/parameters.md.
    """
    if ctx.invoked_subcommand is None and not list_models:
        click.echo(ctx.get_help())
        return
    ctx.obj = _context(home, database_url)
    if list_models:
        ctx.invoke(load("models"))
        ctx.exit()


def main() -> None:
    """The `dflash` console command."""
    if any(COMMANDS[word].lasts for word in sys.argv[1:] if word in COMMANDS):
        huge_pages.restart()
    cli.main(prog_name="dflash")


def convert_main() -> None:
    """The `dfm_convert` console command: `dflash convert` under its older name."""
    _alone("convert", "dfm_convert")


def bench_main() -> None:
    """The `dflash-bench` console command: `dflash bench` under its older name."""
    huge_pages.restart()
    _alone("bench", "dflash-bench")


def _context(home: Path | None, database_url: str | None) -> object:
    # Imported here, because --help and --version need no settings.
    import structlog
    from pydantic import ValidationError

    from api.settings import Settings
    from metering.cli_context import CliContext

    # Standard output is for results, which others parse; `dflash serve` has a format of its own.
    structlog.configure(logger_factory=lambda *_names: structlog.PrintLogger(sys.stderr))
    try:
        settings = Settings.read(home=home, database_url=database_url)
    except ValidationError as error:
        faults = "; ".join(
            f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in error.errors()
        )
        raise click.UsageError(f"settings: {faults}") from error
    from api.payments.opening import open_provider

    return CliContext(
        settings.home,
        settings.resolved_database_url,
        record=_record,
        open_provider=lambda: open_provider(settings),
    )


def _record(connection: Any, **entry: Any) -> None:
    from api import audit

    audit.write(connection, actor=audit.CLI, **entry)


def _alone(name: str, program: str) -> None:
    try:
        with reported(debug=False):
            status = load(name).main(
                prog_name=program, obj=_context(None, None), standalone_mode=False
            )
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except click.Abort:
        click.echo("Aborted!", err=True)
        sys.exit(1)
    sys.exit(status if isinstance(status, int) else 0)
