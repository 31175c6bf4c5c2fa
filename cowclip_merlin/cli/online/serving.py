"""`cowclip serve` and `cowclip online serve`: answer requests by HTTP."""

from __future__ import annotations

import argparse
import logging
import os
from pathlib import Path
from typing import Any

from cowclip_merlin.addresses import is_address
from cowclip_merlin.cli.command import Command, CommandParser, print_served_epoch
from cowclip_merlin.errors import InputError
from cowclip_merlin.online.logs.open_log import LOG_FORMS
from cowclip_merlin.online.report import MonitoringSettings
from cowclip_merlin.serving.live.settings import Listening, ServingLimits
from cowclip_merlin.settings import add_options, settings_from
from cowclip_merlin.system import records
from cowclip_merlin.system.console import is_quiet

TOKEN_VARIABLE = "COWCLIP_TOKEN"


def add_server_options(parser: CommandParser) -> None:
    """Add the options of a server: where it listens, its token, its limits and its lines."""
    where = parser.add_argument_group("where it listens, and to whom")
    add_options(where, Listening, "host", "allowed_hosts", "port")
    text = f"file with the token that requests must send (default: variable {TOKEN_VARIABLE})"
    where.add_argument("--token-file", metavar="FILE", help=text)
    add_options(where, Listening, "tls_cert", "tls_key")
    add_options(parser.add_argument_group("limits"), ServingLimits)
    lines = parser.add_argument_group("lines")
    lines.add_argument("--access-log", action="store_true", help="print a line for each request")
    add_options(lines, MonitoringSettings, "log_format")


def _server_settings(args: argparse.Namespace) -> dict[str, Any]:
    """Return what `serve` and `serve_run` take of these options."""
    return {
        "limits": settings_from(args, ServingLimits),
        "listening": settings_from(args, Listening),
        "token": read_token(args.token_file),
        "access_log": args.access_log,
    }


def _log_to_stderr(log_format: str) -> None:
    lines = logging.StreamHandler()
    lines.setFormatter(records.formatter(log_format, "%(asctime)s %(message)s"))
    level = logging.ERROR if is_quiet() else logging.INFO
    logging.basicConfig(level=level, handlers=[lines])
    for name in ("uvicorn.error", "tensorflow"):
        logging.getLogger(name).setLevel(logging.WARNING)


def read_token(file: str | None) -> str | None:
    """Read the token of a file, or of the environment; None where neither is given.

    Raises:
        InputError: the file cannot be read, or the token is empty or not printable ASCII.
    """
    if file is None:
        token, source = os.environ.get(TOKEN_VARIABLE), TOKEN_VARIABLE
    else:
        try:
            token, source = Path(file).read_text(encoding="utf-8").strip(), file
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(
                f"{file}: cannot be read ({error!s:.60}); check --token-file"
            ) from None
    if token is None:
        return None
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        raise InputError(f"{source}: the token is empty, or has spaces or characters beyond ASCII")
    return token


def add_serve_run_options(parser: CommandParser) -> None:
    """Add the options of `cowclip serve`."""
    add = parser.add_argument_group("what to serve").add_argument
    add("run_folder", metavar="RUN", help="folder that cowclip train wrote")
    text = "folder that RUN was trained on (default: where it was then)"
    add("--data", metavar="DATA", help=text)
    add_server_options(parser)


def run_serve_run(args: argparse.Namespace) -> None:
    """Serve a run until a signal comes."""
    given = _server_settings(args)
    print_served_epoch(args.run_folder)
    _log_to_stderr(args.log_format)
    from cowclip_merlin.serving.live.process import serve_run

    serve_run(args.run_folder, data=args.data, **given)


SERVE_RUN = Command(
    help="answer requests by HTTP with the model of a run: raw values in, probabilities out",
    settings=add_serve_run_options,
    run=run_serve_run,
    examples="""examples:
  cowclip serve RUN --port 8000
  curl -d '{"events": [{"user": 7, "item": "i12", ...}]}' \\
      -H 'Content-Type: application/json' http://127.0.0.1:8000/v1/predict

http://127.0.0.1:8000/docs shows the interface and tries it, / the requests. An event has a value
of each column, as in the log; null is a missing one.""",
)


def add_serve_options(parser: CommandParser) -> None:
    """Add the options of `cowclip online serve`."""
    add = parser.add_argument_group("what to serve").add_argument
    text = f"log of the trainer: {LOG_FORMS}"
    add("--from", dest="log", required=True, metavar="LOG", help=text)
    text = "the trainer's run folder as this machine sees it (default: as the trainer names it)"
    add("--run", dest="run_folder", metavar="RUN", help=text)
    add_server_options(parser)


def run_serve(args: argparse.Namespace) -> None:
    """Serve the model of a stream until a signal comes."""
    given = _server_settings(args)
    here = args.run_folder is not None and not is_address(args.run_folder)
    if here and not Path(args.run_folder).is_dir():
        raise InputError(f"{args.run_folder}: no such folder; check --run")
    _log_to_stderr(args.log_format)
    from cowclip_merlin.serving.live.process import serve

    serve(args.log, run=args.run_folder, **given)


SERVE = Command(
    help="answer requests by HTTP with a model that is being trained",
    settings=add_serve_options,
    run=run_serve,
    examples="""examples:
  cowclip online serve --from SYNC --port 8000
  curl -d '{"events": [{"user": 7, "item": "i12", ...}]}' \\
      -H 'Content-Type: application/json' http://127.0.0.1:8000/v1/predict

http://127.0.0.1:8000/ shows the age of the model and its requests, /docs the interface.
Start as many servers as you like; each follows the log by itself. SIGTERM ends a server when its
running requests have their answers.""",
)
