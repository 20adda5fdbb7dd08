# SPDX-License-Identifier: Apache-2.0
"""The places of a source where one small change makes a mutant, and the changed code.

A place is not counted if a change there could not be a fault: texts, annotations, TypedDicts, messages of exceptions,
log calls, __repr__ and __str__.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from types import CodeType

COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
    ast.Div: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}
LOGGERS = {"log", "_log", "logger", "_logger", "logging", "warnings"}
DESCRIPTIONS = {"__repr__", "__str__"}


@dataclass(frozen=True, order=True)
class Site:
    """One mutant: the place in ast.walk() of its source, and the operator.

    Attributes:
        path: the path of the source.
        line: the line of the place, from 1.
        node_index: position of the node in ast.walk().
        operator: the change of the node.
    """

    path: str
    line: int
    node_index: int
    operator: str


def sites(path: str, source: str) -> list[Site]:
    """The sites of a source, always in the same order."""
    tree = ast.parse(source)
    ignored = {id(node) for root in _ignored(tree) for node in ast.walk(root)}
    return [
        Site(path, node.lineno, index, operator)
        for index, node in enumerate(ast.walk(tree))
        if id(node) not in ignored and isinstance(node, ast.expr | ast.stmt)
        for operator in _operators(node)
    ]


def mutant_code(source: str, site: Site) -> CodeType:
    """The compiled mutant. Its lines have the numbers of the source."""
    tree = ast.parse(source)
    node = next(node for index, node in enumerate(ast.walk(tree)) if index == site.node_index)
    change_node(node, site.operator)
    return compile(ast.fix_missing_locations(tree), site.path, "exec", dont_inherit=True)


def function_lines(source: str) -> set[int]:
    """The lines inside of functions. All others are executed by the import of the module."""
    functions = [
        node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    return {
        line
        for function in functions
        for line in range(function.body[0].lineno, (function.end_lineno or function.lineno) + 1)
    }


def _ignored(tree: ast.Module) -> Iterator[ast.AST]:
    """The roots of the parts in which no change is a fault."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from node.decorator_list
            yield node.args
            if node.returns is not None:
                yield node.returns
            if node.name in DESCRIPTIONS:
                yield node
        elif isinstance(node, ast.AnnAssign):
            yield node.annotation
        elif isinstance(node, ast.Raise) and node.exc is not None:
            yield node.exc
        elif isinstance(node, ast.JoinedStr) or _is_log_call(node) or _is_for_types(node):
            yield node


def _is_log_call(node: ast.AST) -> bool:
    if not isinstance(node, ast.Expr) or not isinstance(node.value, ast.Call):
        return False
    function = node.value.func
    return isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name) and function.value.id in LOGGERS


def _is_for_types(node: ast.AST) -> bool:
    match node:
        case ast.If(test=ast.Name(id="TYPE_CHECKING")) | ast.ClassDef(bases=[ast.Name(id="TypedDict")]):
            return True
    return False


def _operators(node: ast.AST) -> Iterator[str]:
    """The operators that have a meaning at a node."""
    match node:
        case ast.Compare():
            yield from (f"comparison {place} {type(one).__name__}" for place, one in enumerate(node.ops))
        case ast.BoolOp():
            yield "and -> or" if isinstance(node.op, ast.And) else "or -> and"
        case ast.BinOp(op=operator) | ast.AugAssign(op=operator) if type(operator) in ARITHMETIC:
            yield f"arithmetic {type(operator).__name__} -> {ARITHMETIC[type(operator)].__name__}"
        case ast.Constant(value=bool()):
            yield "other truth"
        case ast.Constant(value=int()):
            yield from ("constant + 1", "constant - 1")
        case ast.Expr(value=ast.Call() | ast.Await()):
            yield "call removed"
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
            yield "assignment removed"
        case ast.If() | ast.While() | ast.IfExp():
            yield "condition negated"
        case ast.Return(value=ast.expr()) if not isinstance(node.value, ast.Constant):
            yield "None returned"


def change_node(node: ast.AST, operator: str) -> None:
    """Changes a node in its tree."""
    match node:
        case ast.Compare():
            place = int(operator.split()[1])
            node.ops[place] = COMPARISONS[type(node.ops[place])]()
        case ast.BoolOp():
            node.op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        case ast.BinOp() | ast.AugAssign():
            node.op = ARITHMETIC[type(node.op)]()
        case ast.Constant(value=bool()):
            node.value = not node.value
        case ast.Constant(value=int() as number):
            node.value = number + (1 if operator.endswith("+ 1") else -1)
        case ast.Expr() | ast.Return():
            node.value = ast.Constant(None)
        case ast.Assign():
            node.targets = [ast.Name("_removed", ast.Store())]
        case ast.If() | ast.While() | ast.IfExp():
            node.test = ast.UnaryOp(ast.Not(), node.test)
