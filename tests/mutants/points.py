"""Where code can be mutated: every point of a file, and how a mutant finds its line again.

A mutant names its line by the function and the line's text, so edits elsewhere do not lose it.
"""

import ast
import itertools
import random
from collections import defaultdict
from dataclasses import dataclass, replace
from pathlib import Path

LINES_PER_MUTANT = 230
ROOT = "cowclip_merlin"
FOLDERS = (ROOT, "models", "workflows", "experiments")
# Only a GPU, or an emulation that compiles C++, runs these.
GPU_ONLY = ("kernels/cuda/", "kernels/cupy.py", "row_updates/gpu_", "compat/rapids.py")
# Keywords whose absence changes nothing that a test need see.
SILENT = {"encoding", "strict", "stacklevel", "name", "help", "metavar", "title", "label",
          "fontsize", "loc", "ncols", "color", "alpha", "linewidth", "bbox_to_anchor"}  # fmt: skip

COMPARISONS = {
    ast.Lt: ("<", "<="), ast.LtE: ("<=", "<"), ast.Gt: (">", ">="), ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="), ast.NotEq: ("!=", "=="), ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"), ast.Is: ("is", "is not"), ast.IsNot: ("is not", "is"),
}  # fmt: skip
ARITHMETIC = {
    ast.Add: ("+", "-"), ast.Sub: ("-", "+"), ast.Mult: ("*", "/"), ast.Div: ("/", "*"),
    ast.FloorDiv: ("//", "*"), ast.Mod: ("%", "*"), ast.BitAnd: ("&", "|"), ast.BitOr: ("|", "&"),
}  # fmt: skip
NAMES = {"min": "max", "max": "min", "any": "all", "all": "any", "minimum": "maximum",
         "maximum": "minimum"}  # fmt: skip
TEXTS_AND_LISTS = (ast.JoinedStr, ast.List, ast.Tuple, ast.Dict, ast.DictComp, ast.Set)


@dataclass(frozen=True)
class Mutant:
    """One changed line.

    Attributes:
        file: path in the repository.
        function: qualified name of the function or class with the line; "" outside of them.
        line: the line without its indentation.
        occurrence: how many equal lines the function has before this one.
        mutated: what replaces it.
    """

    file: str
    function: str
    line: str
    occurrence: int
    mutated: str

    def number(self, source: str) -> int | None:
        """Return the index of the line in this source; None if it is gone."""
        lines = source.splitlines()
        for name, first, last in _functions(ast.parse(source)):
            if name == self.function:
                last = last or len(lines)
                same = [n for n in range(first, last) if lines[n].strip() == self.line]
                return same[self.occurrence] if len(same) > self.occurrence else None
        return None

    def applied(self, source: str) -> str:
        """Return the source with the mutated line."""
        lines, number = source.splitlines(keepends=True), self.number(source)
        lines[number] = lines[number].replace(self.line, self.mutated)
        return "".join(lines)


def component(file: str) -> str:
    """Return the package of a file: `optimizer`, `models`, or a module's name such as `clip`."""
    folder, name, *_ = file.split("/")
    return name.removesuffix(".py") if folder == ROOT else folder


def _functions(tree):
    """Yield (qualified name, first, last line) of all functions and classes, and of the file."""
    yield "", 0, None
    waiting = [(tree, "")]
    while waiting:
        node, outer = waiting.pop(0)
        for child in ast.iter_child_nodes(node):
            if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                name = f"{outer}.{child.name}" if outer else child.name
                yield name, child.lineno - 1, child.end_lineno
                waiting.append((child, name))
            else:
                waiting.append((child, outer))


class _Points(ast.NodeVisitor):
    """Collects (kind, function, line index, mutated line) of one file."""

    def __init__(self, source: str):
        self.lines = source.splitlines()
        self.found = []
        self._names = []
        self.visit(ast.parse(source))

    def visit(self, node):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            self._names.append(node.name)
            for each in node.body:
                self.visit(each)
            self._names.pop()
        elif isinstance(node, ast.AnnAssign):
            if node.value is not None:
                self.visit(node.value)
        elif isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            pass
        # Errors' words are not mutated, and Python 3.11 does not know where parts of f-strings are.
        elif not isinstance(node, (ast.Raise, ast.JoinedStr, ast.Import, ast.ImportFrom)):
            self._mutate(node)
            self.generic_visit(node)

    def _add(self, kind, start, end, text):
        """Replace what is between two (line, byte) positions, if that is within one line."""
        if start[0] != end[0]:
            return
        line = self.lines[start[0] - 1].encode()
        new = (line[: start[1]] + text.encode() + line[end[1] :]).decode().strip()
        self.found.append((kind, ".".join(self._names), start[0] - 1, new))

    def _operator(self, kind, left, right, tokens):
        """Replace an operator between two operands."""
        start, end = (left.end_lineno, left.end_col_offset), (right.lineno, right.col_offset)
        if start[0] == end[0]:
            between = self.lines[start[0] - 1].encode()[start[1] : end[1]].decode()
            self._add(kind, start, end, between.replace(*tokens, 1))

    def _mutate(self, node):
        start = (getattr(node, "lineno", 0), getattr(node, "col_offset", 0))
        end = (getattr(node, "end_lineno", 0), getattr(node, "end_col_offset", 0))
        match node:
            case ast.Compare(left=left, ops=[op], comparators=[right]):
                self._operator("compare", left, right, COMPARISONS[type(op)])
            case ast.BinOp(left=left, op=op, right=right) if type(op) in ARITHMETIC:
                if not any(map(_is_text_or_list, (left, right))):
                    self._operator("arithmetic", left, right, ARITHMETIC[type(op)])
            case ast.BoolOp(op=op, values=[left, right, *_]):
                both = ("and", "or") if isinstance(op, ast.And) else ("or", "and")
                self._operator("boolean", left, right, both)
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                self._add("not", start, (operand.lineno, operand.col_offset), "")
            case ast.Constant(value=bool(value)):
                self._add("constant", start, end, str(not value))
            case ast.Constant(value=int(value)):
                self._add("constant", start, end, str(1 - value if value in (0, 1) else value + 1))
            case ast.Constant(value=float(value)):
                self._add("constant", start, end, repr(2 * value or 1.0))
            case ast.Name(id=name) if name in NAMES:
                self._add("name", start, end, NAMES[name])
            case ast.Attribute(value=value, attr=name) if name in NAMES:
                self._add("name", (value.end_lineno, value.end_col_offset), end, f".{NAMES[name]}")
            case ast.If(test=test) if not isinstance(test, (ast.Compare, ast.BoolOp, ast.UnaryOp)):
                here = (test.lineno, test.col_offset)
                if test.lineno == test.end_lineno:
                    self._add("condition", here, here, "not ")
            case ast.Expr(value=ast.Call()):
                self._add("statement", start, end, "pass")
            case ast.AugAssign(target=target, op=ast.Add() | ast.Sub(), value=value):
                tokens = ("+=", "-=") if isinstance(node.op, ast.Add) else ("-=", "+=")
                self._operator("arithmetic", target, value, tokens)
            case ast.Call(func=func, args=args, keywords=keywords):
                self._drop_keyword(func, args, keywords)

    def _drop_keyword(self, func, args, keywords):
        parts = [*args, *keywords]
        for before, each in zip([func, *parts], parts, strict=False):
            if isinstance(each, ast.keyword) and each.arg and each.arg not in SILENT:
                end = (each.end_lineno, each.end_col_offset)
                if before is not func:
                    self._add("keyword", (before.end_lineno, before.end_col_offset), end, "")
                elif len(parts) == 1:
                    self._add("keyword", (each.lineno, each.col_offset), end, "")


def _is_text_or_list(node):
    constant = isinstance(node, ast.Constant) and isinstance(node.value, (str, bytes))
    return constant or isinstance(node, TEXTS_AND_LISTS)


def points(file: str, source: str) -> dict[str, list[Mutant]]:
    """Return all mutants of a file by kind; not all of them compile."""
    found, lines = defaultdict(list), [each.strip() for each in source.splitlines()]
    spans = {name: span for name, *span in reversed([*_functions(ast.parse(source))])}
    for kind, function, number, mutated in _Points(source).found:
        first, last = spans[function]
        # Outside of functions, only numbers: other changes break the import.
        if (function or kind == "constant") and first <= number < (last or len(lines)):
            before = lines[first:number].count(lines[number])
            found[kind].append(Mutant(file, function, lines[number], before, mutated))
    return found


def _compiles(source):
    try:
        compile(source, "mutant", "exec")
    except SyntaxError:
        return False
    return True


def located(root: Path, mutant: Mutant) -> Mutant | None:
    """Return a mutant where its line is now: in its file, or in the only other one that has it.

    None: the line is gone.
    """
    others = [path for folder in FOLDERS for path in (root / folder).rglob("*.py")]
    for paths in ([root / mutant.file], others):
        found = []
        for path in paths:
            source = path.read_text(encoding="utf-8") if path.exists() else ""
            if mutant.line in source and mutant.number(source) is not None:
                found.append(replace(mutant, file=path.relative_to(root).as_posix()))
        if len(found) == 1:
            return found[0]
    return None


def choose(root: Path, kept: list[Mutant]) -> list[Mutant]:
    """Return new mutants, so that with the kept ones each package has its share.

    The choice is the same at each call. It takes kinds in turn, and a function once.
    """
    lines, kinds = defaultdict(int), defaultdict(lambda: defaultdict(list))
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*.py")):
            file = path.relative_to(root).as_posix()
            if path.is_symlink() or any(part in file for part in GPU_ONLY):
                continue
            source = path.read_text(encoding="utf-8")
            lines[component(file)] += source.count("\n")
            for kind, mutants in points(file, source).items():
                kinds[component(file)][kind] += mutants
    chosen = []
    for name, by_kind in kinds.items():
        rest = round(lines[name] / LINES_PER_MUTANT) - sum(component(m.file) == name for m in kept)
        used = {(m.file, m.function) for m in kept}
        for mutants in by_kind.values():
            random.Random(name).shuffle(mutants)
        in_turn = itertools.chain(*itertools.zip_longest(*(by_kind[k] for k in sorted(by_kind))))
        for mutant in in_turn:
            if rest <= 0:
                break
            new = mutant and (mutant.file, mutant.function) not in used
            source = (root / mutant.file).read_text(encoding="utf-8") if new else ""
            if new and _compiles(mutant.applied(source)):
                used.add((mutant.file, mutant.function))
                chosen.append(mutant)
                rest -= 1
    return chosen
