"""The list of refusals, in the YAML files beside this one: one case for each line.

A group has a command line `run`, and in `refused` for each case what the error must say: of the
words that are its name and come after `run`, or of an object with these keys:

    more, run: words after those of the group, or the whole command line
    given, files, state: what is made before, see `Refusal`; `files` changes those of the group
    marks: marks of pytest, such as runs
    leaves: new names in the folder, where a command makes an empty log or folder before it refuses
    says: a regular expression

In `wrong`, a group has for each thing to say a content of its `file`.
"""

import importlib
import json
import shlex
import shutil
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import states
import yaml

from cowclip_merlin.cli import main

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
GROUP = {"run", "given", "files", "state", "marks", "refused", "file", "wrong"}
CASE = {"given", "run", "more", "files", "state", "marks", "leaves", "says"}


@dataclass(frozen=True)
class Refusal:
    """A command line that ends in one line with these words.

    Args:
        run: the command line, of `cowclip` or of a script: `python benchmarks/days.py --days 2`.
        says: a regular expression that is found in the line.
        given: names of prepared folders and runs that are copied to where the command runs.
        files: path -> text or bytes to write, columns of a parquet file, changes of a JSON file, or
            None to delete the path. In a JSON file, None deletes a key. A path that ends in / is a
            new folder.
        state: the function of `states` that does what `files` cannot say, and its arguments.
    """

    run: str
    says: str
    given: tuple[str, ...] = ()
    files: dict = field(default_factory=dict)
    state: tuple = ()
    leaves: tuple[str, ...] = ()

    def make(self, folder, copy):
        """Make the folder in which the command runs."""
        for name in self.given:
            copy(name, folder)
        for name, content in self.files.items():
            if name.endswith("/"):
                (folder / name).mkdir()
            else:
                _write(folder / name, content)
        if self.state:
            name, *arguments = self.state
            getattr(states, name)(folder, *arguments)

    def program(self, monkeypatch):
        """What runs the command, its words, and a pattern of how its error begins."""
        first, *words = shlex.split(self.run)
        if first != "python":
            return main, [first, *words], "cowclip"
        script = ROOT / words[0]
        monkeypatch.syspath_prepend(str(script.parent))
        module = importlib.import_module(script.stem)
        if script.parent.name == "examples":
            return module.main, words[1:], f"{script.stem}: error: "
        found = vars(module)
        monkeypatch.setattr("sys.argv", [script.name])  # argparse names the program
        begins = r"([\w.]+( \w+)?: )?error: "
        return (found.get("SUITE") or found["BENCHMARK"]).main, words[1:], begins


def listed():
    """All refusals as parameters of a test, named by file, group and case."""
    return [
        pytest.param(refusal, id=f"{file.stem}: {group}: {name}", marks=marks)
        for file in sorted(HERE.glob("*.yaml"))
        for group, given in yaml.safe_load(file.read_text(encoding="utf-8")).items()
        for name, refusal, marks in _cases(given)
    ]


def _cases(group):
    assert group.keys() <= GROUP, group.keys() - GROUP
    contents = {
        says: {"files": {group["file"]: content}, "says": says}
        for says, content in group.get("wrong", {}).items()
    }
    for name, case in (group.get("refused", {}) | contents).items():
        case = {"more": name, "says": case} if isinstance(case, str) else case
        assert case.keys() <= CASE, case.keys() - CASE
        run = case.get("run") or f"{group['run']} {case.get('more', '')}"
        yield (
            str(name),
            Refusal(
                run=run,
                says=case["says"],
                given=tuple(case.get("given", group.get("given", ()))),
                files=_both(group.get("files", {}), case.get("files", {})),
                leaves=tuple(case.get("leaves", ())),
                state=tuple(case.get("state", group.get("state", ()))),
            ),
            [getattr(pytest.mark, x) for x in case.get("marks", group.get("marks", ()))],
        )


def _both(files, more):
    """The files of a group with those of a case, whose objects change the group's."""
    changed = {
        name: _changed(files[name], content)
        for name, content in more.items()
        if isinstance(content, dict) and isinstance(files.get(name), dict)
    }
    return files | more | changed


def _write(path, content):
    if content is None:
        (shutil.rmtree if path.is_dir() else Path.unlink)(path)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif isinstance(content, str):
        path.write_text(content, encoding="utf-8")
    elif path.suffix == ".parquet":
        pq.write_table(pa.table(content), path)
    elif path.suffix == ".yaml":
        path.write_text(yaml.safe_dump(content), encoding="utf-8")
    else:
        before = json.loads(path.read_text()) if path.exists() else {}
        path.write_text(json.dumps(_changed(before, content)))


def _changed(value, changes):
    """A JSON object with changes: None deletes a key, an object with keys changes the one there."""
    value = dict(value)
    for name, change in changes.items():
        if change is None:
            value.pop(name, None)
        elif change and isinstance(change, dict) and isinstance(value.get(name), dict):
            value[name] = _changed(value[name], change)
        else:
            value[name] = change
    return value
