"""The imports of every file, held against the table of rooms in CONTRIBUTING.md."""

import ast
import re
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = "cowclip_merlin"
FOLDERS = (PACKAGE, "models", "workflows", "experiments")
# `cc.training` has `train` and `settings_for`, which need more: it imports them lazily.
EXCEPTIONS = {("training", "train"), ("training", "recipe")}


PAGE = (ROOT / "CONTRIBUTING.md").read_text()
ROWS = re.findall(r"^\| (\w+) \| ((?:`\w+`(?:, )?)+) \|[^|]*\|([^|]*)\|$", PAGE, re.M)
ROOM_OF = {name: room for room, names, _ in ROWS for name in re.findall(r"`(\w+)`", names)}
"""Component -> its room, in the order of the page."""
ALLOWED = {room: set(re.findall(r"\w+", imports)) for room, _, imports in ROWS}
"""Room -> rooms that it may import."""


@cache
def modules():
    """Dotted name -> file, of the whole package."""
    found = {}
    for folder in FOLDERS:
        for file in (ROOT / folder).rglob("*.py"):
            name = ".".join(file.relative_to(ROOT).with_suffix("").parts)
            name = name if folder == PACKAGE else f"{PACKAGE}.{name}"
            found[name.removesuffix(".__init__")] = file
    return found


@cache
def nodes(file):
    """The imports, names of attributes and arguments in a file, which is parsed once."""
    kinds = (ast.Import, ast.ImportFrom, ast.Attribute, ast.keyword)
    return [node for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, kinds)]


@cache
def imported(file):
    """Modules of the package that a file imports, also inside functions."""
    found = set()
    for node in nodes(file):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names if alias.name.startswith(PACKAGE)}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith(PACKAGE):
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                found.add(full if full in modules() else node.module)
    return found


def component_of(module):
    return module.split(".")[1] if "." in module else ""


@cache
def uses():
    """(component, imported component) -> one file that does it."""
    names, found = modules(), {}
    for module, file in names.items():
        for other in imported(file):
            pair = component_of(module), component_of(other)
            inside = pair[0] in ("__main__", pair[1]) or "" in pair
            if not inside and pair not in EXCEPTIONS:
                found.setdefault(pair, file.relative_to(ROOT).as_posix())
    return found


def test_every_component_is_in_a_room():
    components = {component_of(module) for module in modules()} - {"", "__main__"}
    assert components == set(ROOM_OF) and len(ALLOWED) <= 20


def test_the_picture_shows_every_room():
    (picture,) = re.findall("^```text\n(.*?)^```", PAGE, re.M | re.S)
    shown = re.findall(
        r"\w+", re.sub(r":.*?(?=  |$)|-{3,}.*?-{3,}|<-+[^<>]*-{3}", "", picture, flags=re.M)
    )
    assert sorted(shown) == sorted(ALLOWED)


def test_a_room_imports_only_those_before_it():
    """So no room above `contrib` imports it, not even in a function or for its types."""
    order = list(ALLOWED)
    for room, others in ALLOWED.items():
        below = [other for other in others if order.index(other) >= order.index(room)]
        assert not below, f"{room} is listed before {below}"


def test_every_import_is_allowed():
    order, wrong = list(ROOM_OF), []
    for (component, other), file in uses().items():
        first, second = ROOM_OF[component], ROOM_OF[other]
        down = order.index(other) < order.index(component)
        if not (second in ALLOWED[first] or (first == second and down)):
            wrong.append(f"{file}: {component} imports {other}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("room", ALLOWED)
def test_every_allowed_import_is_used(room):
    used = {ROOM_OF[other] for first, other in uses() if ROOM_OF[first] == room}
    assert ALLOWED[room] <= used


def test_the_walks_have_ten_steps_and_name_functions_that_are_there():
    walks = [part for part in PAGE.split("\n## ") if part.startswith("The walk of a")]
    steps = [len(re.findall(r"^\| [A-Z]|^\d+\. ", walk, re.M)) for walk in walks]
    places = re.findall(r"`([\w/]+\.py)`: `(\w+)`", "".join(walks))
    assert len(steps) == 3 and max(steps) <= 10 and len(places) >= 20
    for file, name in places:
        assert re.search(rf"(def|class) {name}\b", (ROOT / file).read_text()), f"{file}: {name}"


def public_modules():
    """The modules of which docs/reference.md names something, and that of the program."""
    page = (ROOT / "docs/reference.md").read_text()
    names = re.findall(r"`cc\.(\w+)\.\w+`", page) + re.findall(rf"`{PACKAGE}\.(\w+)\.", page)
    return {PACKAGE, f"{PACKAGE}.cli", *(f"{PACKAGE}.{name}" for name in names)}


MOST_INTERNAL = 185  # lower it with the number; the aim is 60


def test_tests_import_few_modules_that_are_not_public():
    """Each of them is one that cannot be moved or merged without a change of tests."""
    names = modules()
    files = (ROOT / "tests").rglob("*.py")
    internal = {other for file in files for other in imported(file)} - public_modules()
    assert len(public_modules() & set(names)) == len(public_modules()) >= 10
    assert len(internal) <= MOST_INTERNAL, f"{len(internal)} internal modules"


def test_reading_raw_logs_stands_below_prepared_folders():
    names = modules()
    for module, file in names.items():
        if module.startswith(f"{PACKAGE}.workflows.raw"):
            for other in imported(file):
                assert not other.startswith(f"{PACKAGE}.workflows.prepared"), file


@pytest.mark.parametrize("folder", FOLDERS[1:])
def test_a_folder_with_two_import_names_compiles_no_loops(folder):
    """Numba's cache on disk names the module: under the other name it cannot be read."""
    for file in (ROOT / folder).rglob("*.py"):
        assert f"{PACKAGE}.kernels.compiled" not in imported(file), file


# Each folder or module of the component may import those before it.
ORDERS = {
    "online": ("logs", "events", "producing", "joining", "sync", "training", "replaying"),
    # The report reads results folders; nothing imports it.
    "experiments": (
        "definitions", "files", "results", "sizing", "tables", "figures", "settings", "runs",
        "on_data", "on_logs", "tuning", "report",
    ),
}  # fmt: skip
TYPES = {("sync", "training")}  # the publisher names the trainer as a type


@pytest.mark.parametrize("component", ORDERS)
def test_within_a_component_imports_go_down(component):
    names, order = modules(), ORDERS[component]

    def room_of(module):
        (*_, room) = re.findall(rf"^{PACKAGE}\.{component}\.(\w+)", module) or [""]
        return room

    rooms = {room_of(module) for module in names} - {""}
    assert set(order) <= rooms and (component == "online" or set(order) == rooms)
    for module, file in names.items():
        for other in imported(file):
            pair = room_of(module), room_of(other)
            if set(pair) <= set(order) and pair not in TYPES:
                assert order.index(pair[1]) <= order.index(pair[0]), f"{file} imports {other}"


def test_no_folder_holds_more_than_about_a_dozen_files():
    files = [file for folder in FOLDERS for file in (ROOT / folder).rglob("*.*")]
    suffixes = (".py", ".yaml", ".html", ".css")
    counts = Counter(file.parent for file in files if file.suffix in suffixes)
    crowded = {str(folder.relative_to(ROOT)): count for folder, count in counts.items()}
    assert {folder: count for folder, count in crowded.items() if count > 14} == {}


UNPICKLING = {"pickle", "cloudpickle", "dill", "joblib", "shelve", "marshal"}


def unpickles(among):
    """What of nodes of code can run a file that it reads: such imports, and NVTabular's loader."""
    for node in among:
        if isinstance(node, ast.Import):
            yield from (a.name for a in node.names if a.name.split(".")[0] in UNPICKLING)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in UNPICKLING:
            yield node.module
        elif isinstance(node, ast.Attribute) and ast.unparse(node).endswith("Workflow.load"):
            yield ast.unparse(node)
        elif isinstance(node, ast.keyword) and node.arg == "allow_pickle":
            yield "allow_pickle"


def test_nothing_unpickles():
    """A prepared folder, a run or a repository from somebody else is safe to open."""
    found = {file: list(unpickles(nodes(file))) for file in modules().values()}
    assert not any(found.values()), {name: each for name, each in found.items() if each}
    code = "import pickle\nfrom joblib import load\nnvt.Workflow.load(x)\nf(allow_pickle=True)"
    assert len([*unpickles(ast.walk(ast.parse(code)))]) == 4


def test_examples_load_no_workflow_but_their_own():
    loading = [p for p in (ROOT / "examples").rglob("*.py") if [*unpickles(nodes(p))]]
    assert [p.name for p in loading] == ["merlin_models.py"]
    assert 'Workflow.load(str(out / "workflow"))' in loading[0].read_text()
    pages = [ROOT / "README.md", *ROOT.glob("docs/*.md"), ROOT / "containers/README.md"]
    blocks = [
        b for p in pages for b in re.findall("^```python\n(.*?)^```", p.read_text(), re.M | re.S)
    ]
    assert blocks and not [b for b in blocks if [*unpickles(ast.walk(ast.parse(b)))]]
