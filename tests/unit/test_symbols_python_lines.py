"""Line tables are decoded as each interpreter itself decodes them, for any code, and nothing in a table can break a decoder."""

import json
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from otelprof.symbols.python_lines import NO_LINE, decode
from tests.unit.python_programs import Interpreter, running, said, supported

# Compiles the source of each line and tells, for every code object in it, first line, table and the line of each instruction.
SERVER = """
import dis, json, sys, types
def lines_of(code):
    size = len(code.co_code)
    if hasattr(code, "co_lines"):
        found = [None] * size
        for start, end, line in code.co_lines():
            for at in range(start, min(end, size)):
                found[at] = line
        return found[::2]
    found, line, starts = [], code.co_firstlineno, dict(dis.findlinestarts(code))
    for at in range(0, size, 2):
        line = starts.get(at, line)
        found.append(line)
    return found
def walk(code):
    table = code.co_linetable if hasattr(code, "co_linetable") else code.co_lnotab
    yield [code.co_firstlineno, table.hex(), lines_of(code)]
    for const in code.co_consts:
        if isinstance(const, types.CodeType):
            yield from walk(const)
for request in sys.stdin:
    print(json.dumps(list(walk(compile(json.loads(request), "generated.py", "exec")))), flush=True)
"""

names = st.sampled_from(["a", "b", "c", "long_name"])
atoms = names | st.integers(0, 10**6).map(str)
gaps = st.sampled_from(["", "\n", "\n\n\n", "\n" * 40, "\n" * 200, "# words\n"])


def expressions(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """Calls, sums and displays that may go over many lines."""
    gap = st.sampled_from(["", "\n", "\n\n", "\n" * 130])
    pair = st.tuples(inner, gap, inner)
    return st.one_of(
        pair.map(lambda p: f"({p[0]}{p[1]} + {p[2]})"),
        pair.map(lambda p: f"f({p[0]},{p[1]} {p[2]})"),
        pair.map(lambda p: f"[{p[0]},{p[1]} *{p[2]}]"),
        pair.map(lambda p: f"(lambda x:{p[1]} {p[0]} or {p[2]})"),
        pair.map(lambda p: f"[x for x in{p[1]} {p[0]} if {p[2]}]"),
    )


expression = st.recursive(atoms, expressions, max_leaves=5)
simple = st.one_of(
    st.tuples(names, expression).map(lambda p: f"{p[0]} = ({p[1]})\n"),
    expression.map(lambda e: f"({e})\n"),
    expression.map(lambda e: f"assert ({e}), ({e})\n"),
)


def indented(body: str) -> str:
    return "".join(f" {line}\n" for line in body.splitlines())


def compounds(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """Blocks, with blank lines and comments between them."""
    block = st.lists(st.tuples(inner, gaps).map("".join), min_size=1, max_size=3).map("".join).map(indented)
    two = st.tuples(expression, block, block)
    return st.one_of(
        two.map(lambda p: f"if ({p[0]}):\n{p[1]}else:\n{p[2]}"),
        two.map(lambda p: f"while ({p[0]}):\n{p[1]} break\n"),
        two.map(lambda p: f"try:\n{p[1]}except ValueError:\n{p[2]}finally:\n ({p[0]})\n"),
        two.map(lambda p: f"with ({p[0]}) as a:\n{p[1]}"),
        two.map(lambda p: f"for a in ({p[0]}):\n{p[1]} continue\n"),
        two.map(lambda p: f"def g(x=({p[0]})):\n{p[1]} yield x\n"),
        two.map(lambda p: f"class C:\n{p[1]}"),
    )


sources = st.lists(st.tuples(gaps, st.recursive(simple, compounds, max_leaves=4)).map("".join), min_size=1, max_size=4).map(
    "".join
)


@pytest.fixture(scope="module", params=supported(), ids=str)
def compiler(request) -> Iterator[tuple[Interpreter, object]]:
    """An interpreter that compiles and tells."""
    with running(request.param, SERVER) as child:

        def ask(source: str) -> list[list[object]]:
            print(json.dumps(source), file=child.stdin, flush=True)
            return said(child)

        yield request.param, ask


@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(source=sources)
def test_the_line_of_every_instruction_is_the_interpreters_own(compiler, source):
    interpreter, ask = compiler
    minor, codes = interpreter.version[1], ask(source)
    tables = decode(minor, [bytes.fromhex(table) for _, table, _ in codes], [first for first, _, _ in codes])

    for (_, _, expected), table in zip(codes, tables, strict=True):
        unit = 1 if minor >= 11 else 2
        seen = table.at([unit * number for number in range(len(expected))])
        assert [None if line == NO_LINE else line for line in seen] == expected


@pytest.mark.parametrize("minor", [8, 9, 10, 11, 13, 15])
@given(tables=st.lists(st.binary(max_size=200), max_size=4), first=st.integers(0, 2**31 - 1), at=st.integers(-2, 2**31 - 1))
def test_no_table_breaks_a_decoder(minor, tables, first, at):
    for table, data in zip(decode(minor, tables, [first] * len(tables)), tables, strict=True):
        assert len(table.starts) == len(table.lines) <= len(data) + 1
        assert (table.starts[1:] >= table.starts[:-1]).all()
        assert table.at([at])[0] >= NO_LINE


@pytest.mark.parametrize("minor", [8, 10, 11])
def test_a_table_is_decoded_the_same_alone_and_among_others(minor):
    tables = [bytes([0x80, 1, 0xD0, 3, 0xF0, 7, 1, 1, 1, 0xD9, 2, 5]), b"", bytes(range(0, 250, 10)), bytes([0x81, 9])]
    firsts = [1, 7, 100, 3]
    together = decode(minor, tables, firsts)
    alone = [decode(minor, [table], [first])[0] for table, first in zip(tables, firsts, strict=True)]
    assert [t.starts.tolist() for t in together] == [t.starts.tolist() for t in alone]
    assert [t.lines.tolist() for t in together] == [t.lines.tolist() for t in alone]
