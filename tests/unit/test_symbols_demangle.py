"""Names for people, and names made to harm who reads them."""

import os
import signal

import pytest

from otelprof.symbols import demangle
from otelprof.symbols.demangle import Demangler, readable_kernel

ELEMENTWISE = "_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_15CUDAFunctor_addIfEESt5arrayIPcLm3EEEEviT0_T1_"


def reference(number: int) -> str:
    """The mangled reference to the part `number` of a name."""
    digits, left = "", number - 1
    while left >= 0:
        digits = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"[left % 36] + digits
        left = left // 36 - 1
    return f"S{digits}_"


BOMB = "_Z1f1aIiiE" + "".join(f"S_I{reference(n)}{reference(n)}E" for n in range(1, 36))
"""A function of types that each hold the one before twice: 2 to the 36th words."""


@pytest.fixture
def demangler():
    """One of the test's own."""
    found = Demangler()
    if found.demangle("_Z1fv") == "_Z1fv":
        pytest.skip("needs a demangler: pycxxfilt or libstdc++.so.6")
    yield found
    found.close()


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        (ELEMENTWISE, "at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<…>, std::array<…>>"),
        ("_Z5scaleIfEvPT_S0_", "scale<float>"),
        ("cudnn_flash_attn_kernel", "cudnn_flash_attn_kernel"),
        ("_ZlsRSoRK3Foo", "operator<<"),
        ("_ZN1AltERKS_", "A::operator<"),
    ],
)
def test_a_kernels_name_has_the_arguments_of_its_own_template_only(name, shown, demangler) -> None:
    assert readable_kernel(name) == shown


def test_a_name_that_stands_for_terabytes_stays_as_it_is_and_the_next_one_is_read(demangler) -> None:
    assert demangler.demangle(BOMB) == BOMB
    assert demangler.demangle("_Z3addi") == "add(int)"


def test_after_a_few_such_names_none_is_read_for_a_while(demangler, monkeypatch) -> None:
    monkeypatch.setattr(demangle, "_FAILURES", 2)
    for _ in range(2):
        demangler.demangle(BOMB)
    assert demangler.demangle("_Z3addi") == "_Z3addi"


def test_a_child_that_was_killed_is_started_again(demangler) -> None:
    os.kill(demangler._child.pid, signal.SIGKILL)
    demangler._child.wait()
    assert demangler.demangle("_Z3addi") in ("_Z3addi", "add(int)"), "lost with the child, at most"
    assert demangler.demangle("_Z3subi") == "sub(int)"


@pytest.mark.parametrize("name", ["_Z1f\nv", "_Z\x00", "_Zé", "_Z" + "P" * 20_000])
def test_what_can_be_no_mangled_name_is_never_given_to_the_child(name, monkeypatch) -> None:
    monkeypatch.setattr(demangle, "_demangler", None)
    assert demangle.demangle(name) == name
