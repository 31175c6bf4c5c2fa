"""`cowclip online serve`: answer requests with a model that is being trained."""

from __future__ import annotations

import argparse
import logging
import os
from pathlib import Path

from cowclip_merlin.addresses import is_address
from cowclip_merlin.errors import InputError, missing_online_package
from cowclip_merlin.online.logs.open_log import LOG_FORMS
from cowclip_merlin.online.report import MonitoringSettings
from cowclip_merlin.serving.live.settings import Listening, ServingLimits
from cowclip_merlin.settings import add_options, settings_from
from cowclip_merlin.system import records

HELP = "answer requests by HTTP with a model that is being trained"
EXAMPLES = """examples:
  cowclip online serve --from SYNC --port 8000
  curl --json '{"events": [{"user": 7, "item": "i12", ...}]}' http://127.0.0.1:8000/v1/predict

http://127.0.0.1:8000/ shows the age of the model and its requests, /docs the interface.
Start as many servers as you like; each follows the log by itself. SIGTERM ends a server when its
running requests have their answers."""

TOKEN_VARIABLE = "COWCLIP_TOKEN"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `cowclip online serve`."""
    add = parser.add_argument
    add(
        "--from",
        dest="log",
        required=True,
        metavar="LOG",
        help=f"log of the trainer: {LOG_FORMS}",
    )
    text = "the trainer's run folder as this machine sees it (default: as the trainer names it)"
    add("--run", dest="run_folder", metavar="RUN", help=text)
    add_options(parser, Listening, "host", "allowed_hosts", "port")
    text = f"file with the token that requests must send (default: variable {TOKEN_VARIABLE})"
    add("--token-file", metavar="FILE", help=text)
    add_options(parser, Listening, "tls_cert", "tls_key")
    add_options(parser, ServingLimits)
    add("--access-log", action="store_true", help="print a line for each request")
    add_options(parser, MonitoringSettings, "log_format")


def run(args: argparse.Namespace) -> int:
    """Serve until a signal comes."""
    limits, listening = settings_from(args, ServingLimits), settings_from(args, Listening)
    token = read_token(args.token_file)
    here = args.run_folder is not None and not is_address(args.run_folder)
    if here and not Path(args.run_folder).is_dir():
        raise InputError(f"{args.run_folder}: no such folder; check --run")
    lines = logging.StreamHandler()
    lines.setFormatter(records.formatter(args.log_format, "%(asctime)s %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[lines])
    for name in ("uvicorn.error", "tensorflow"):
        logging.getLogger(name).setLevel(logging.WARNING)
    try:
        from cowclip_merlin.serving.live.process import serve
    except ModuleNotFoundError as error:
        raise missing_online_package(error) from None
    serve(
        args.log,
        run=args.run_folder,
        listening=listening,
        token=token,
        limits=limits,
        access_log=args.access_log,
    )
    return 0


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
