"""A function that travels: its source, as a file that another Python can run, and why it could not.

The source of the one function goes, and nothing around it. What it would miss there is told when the DAG file is
parsed, and not by a `NameError` on a rank: names of the DAG file, variables of an enclosing function.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import symtable
from dataclasses import dataclass
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any, Final

from airflow_provider_gangjobs.exceptions import InvalidGangSpec, Problem

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

GANG: Final = "gang"
"""The parameter that the runner fills in."""
HEADER: Final = "from __future__ import annotations\n"
"""Annotations name what the DAG file imports, so no rank may evaluate them."""
INDENTED: Final = "if True:\n"
"""Keeps a function inside another one as it is written. To move it left would change texts of several lines in it."""
_Definition = ast.FunctionDef | ast.AsyncFunctionDef
_PROVIDED: Final = frozenset({*dir(builtins), "Gang", "__file__", "__name__", "__doc__", "__spec__", "__builtins__"})


@dataclass(frozen=True)
class Travelling:
    """A function as it is shipped."""

    name: str
    text: str
    """A module with nothing but the function."""
    file: str
    line: int
    """Which line of the DAG file is the first one of the text."""
    takes_gang: bool


def travelling(function: Callable[..., Any]) -> Travelling:
    """The function's source, without its decorators.

    Raises:
        InvalidGangSpec: it would not be the same function elsewhere.
    """
    if problem := _no_plain_function(function):
        raise InvalidGangSpec((problem,))
    assert isinstance(function, FunctionType), "anything else is a problem"
    try:
        lines, first_line = inspect.getsourcelines(function)
    except OSError as error:
        remedy = "Write it in a file: its source is what travels"
        raise InvalidGangSpec((Problem(function.__name__, f"has no source: {error}", remedy),)) from error
    head = INDENTED if lines[0][:1].isspace() else ""
    node = _definition(head + "".join(lines))
    skipped = node.lineno - 1 - len(head.splitlines())
    problems = (*_problems_with_gang(node), *_foreign_names(node, function))
    if problems:
        raise InvalidGangSpec(problems)
    header = HEADER + head
    return Travelling(
        name=node.name,
        text=header + "".join(lines[skipped:]),
        file=function.__code__.co_filename,
        line=first_line + skipped - len(header.splitlines()),
        takes_gang=any(argument.arg == GANG for argument in _arguments(node)),
    )


def without_gang(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function with the signature that a DAG's author calls: without the parameter that the runner fills in."""
    if not isinstance(function, FunctionType):
        return function
    signature = inspect.signature(function)
    left = [parameter for name, parameter in signature.parameters.items() if name != GANG]
    # Its own attributes, so that the signature is not that of the author's function where that is used elsewhere.
    twin = FunctionType(
        function.__code__, function.__globals__, function.__name__, function.__defaults__, function.__closure__
    )
    twin.__kwdefaults__, twin.__annotations__ = function.__kwdefaults__, function.__annotations__
    twin.__doc__, twin.__module__, twin.__qualname__ = function.__doc__, function.__module__, function.__qualname__
    twin.__dict__.update(function.__dict__, __signature__=signature.replace(parameters=left))
    return twin


def _no_plain_function(function: Any) -> Problem | None:
    name = getattr(function, "__name__", None) or type(function).__name__
    if not isinstance(function, FunctionType):
        return Problem(name, f"is a {type(function).__qualname__}", "Decorate a function that is written with def")
    if name == "<lambda>":
        return Problem(name, "has no name by which a rank could call it", "Write it with def")
    if hasattr(function, "__wrapped__"):
        remedy = "Use it inside the function, or put @task.gang_job directly above def"
        return Problem(name, "is wrapped by another decorator, which does not travel", remedy)
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        return Problem(name, "yields, and a rank has one result", "Return a value")
    return None


def _definition(text: str) -> _Definition:
    found = next(
        node for node in ast.walk(ast.parse(text)) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    )
    assert isinstance(found, (ast.FunctionDef, ast.AsyncFunctionDef))
    return found


def _arguments(node: _Definition) -> list[ast.arg]:
    return [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]


def _problems_with_gang(node: _Definition) -> Iterator[Problem]:
    """It is given by name, so it must not stand before what is given by position."""
    positional = [argument.arg for argument in (*node.args.posonlyargs, *node.args.args)]
    is_last = positional[-1:] == [GANG] and node.args.vararg is None and GANG not in _names(node.args.posonlyargs)
    if GANG in positional and not is_last:
        yield Problem(node.name, "has parameters after `gang`", "Write it last, after a star: `*, gang: Gang`")


def _names(arguments: list[ast.arg]) -> list[str]:
    return [argument.arg for argument in arguments]


def _foreign_names(node: ast.FunctionDef | ast.AsyncFunctionDef, function: FunctionType) -> Iterator[Problem]:
    """Names that are not the function's own, with what to do about each."""
    enclosing = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    for name in sorted(_used(node) - _PROVIDED - {node.name}):
        if name in enclosing:
            value = next(iter(_content(enclosing[name])), None)
            yield _foreign(node.name, name, value, "the function around it")
        else:
            yield _foreign(node.name, name, function.__globals__.get(name), "the DAG file")


def _content(cell: Any) -> Iterator[Any]:
    try:
        yield cell.cell_contents
    except ValueError:  # not assigned yet
        return


def _foreign(function: str, name: str, value: Any, place: str) -> Problem:
    if isinstance(value, ModuleType):
        remedy = f"Import {value.__name__} inside the function"
    elif callable(value):
        remedy = "Define or import it inside the function, or put it into a module that you name in `files`"
    else:
        remedy = "Pass it as an argument"
    return Problem(function, f"uses {name!r} of {place}, which does not travel with it", remedy)


def _used(node: _Definition) -> set[str]:
    """Names that the function looks up outside of itself, with those of its parameters' defaults.

    Takes decorators and annotations off the node: they do not travel, and nobody evaluates them.
    """
    node.decorator_list = []
    module = symtable.symtable(ast.unparse(_WithoutAnnotations().visit(node)), "<function>", "exec")
    tables = list(_all(module))
    own = {symbol.get_name() for symbol in module.get_symbols() if symbol.is_assigned() or symbol.is_imported()}
    own |= {s.get_name() for table in tables for s in table.get_symbols() if s.is_declared_global() and s.is_assigned()}
    looked_up = {s.get_name() for table in tables for s in table.get_symbols() if s.is_global() and s.is_referenced()}
    return looked_up - own


def _all(table: symtable.SymbolTable) -> Iterator[symtable.SymbolTable]:
    yield table
    for child in table.get_children():
        yield from _all(child)


class _WithoutAnnotations(ast.NodeTransformer):
    """Takes them off parameters, results and variables."""

    def visit_arg(self, node: ast.arg) -> ast.arg:
        node.annotation = None
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.returns = None
        return self.generic_visit(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AST:
        node.returns = None
        return self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        node.annotation = ast.Constant(value=None)
        return self.generic_visit(node)
