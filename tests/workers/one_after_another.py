"""A worker: runs the scripts of this folder one after another, since to start takes seconds.

    python one_after_another.py CALLS

CALLS is JSON: pairs of a script's name and its arguments. Exits with what the last one returns.
"""

import importlib
import json
import sys


def run_all(calls):
    for name, arguments in json.loads(calls):
        code = importlib.import_module(name).main(*arguments)
    sys.exit(code)


if __name__ == "__main__":
    run_all(sys.argv[1])
