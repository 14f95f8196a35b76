"""Call frame information of an ELF file: where `.eh_frame` or `.debug_frame` is, and its entries as numpy columns.

Formats: Linux Standard Base Core 5.0, chapter 10.6 (.eh_frame, pointer encodings), DWARF 5 section 6.4 (.debug_frame), gABI
4.1 chapter 4 (compressed sections). Everything in the file is a stranger's: lengths are checked before they are used, what
doesn't fit raises MalformedInput, and what is merely unusual leaves its function without rules.
"""

from __future__ import annotations

import struct
import zlib
from array import array
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from otelprof.errors import MalformedInput, TooLarge
from otelprof.symbols.elf import Elf

Bytes = npt.NDArray[np.uint8]
Integers = npt.NDArray[np.int64]

SECTION_LIMIT = 96 << 20
"""Bytes of a section; libtorch_cpu.so's has 18 MB."""
ENTRY_LIMIT = 3_000_000
"""Functions of a file; libtorch_cpu.so has 335,000."""
CIE_LIMIT = 65_536
_CIE_HEAD = 256  # bytes of a CIE in which its fields end
PADDING = 32
"""Zero bytes behind a section's, so that a field may be read at any position in it."""

_SEGMENT_EH_FRAME = 0x6474E550  # PT_GNU_EH_FRAME
_COMPRESSED = 0x800  # SHF_COMPRESSED
_ZLIB = 1  # ELFCOMPRESS_ZLIB
_POINTER_OMITTED = 0xFF
_PCREL = 0x10
_SIZES = {0x0: 8, 0x2: 2, 0x3: 4, 0x4: 8, 0x8: 8, 0xA: 2, 0xB: 4, 0xC: 8}  # DW_EH_PE_*: absptr, udata*, signed, sdata*
_HEAD = struct.Struct("<II")
_LONG = struct.Struct("<Q")
_LENGTH_ESCAPE = 0xFFFFFFFF


@dataclass(frozen=True)
class Section:
    """The bytes of the section (PADDING zeros behind them), how many are its own, and its address as linked."""

    data: Bytes
    size: int
    address: int
    is_eh: bool


@dataclass(frozen=True)
class Cie:
    """What functions share: factors, encoding of pointers, first instructions ([start, end) in the section)."""

    code_factor: int
    data_factor: int
    encoding: int
    augmented: bool
    signal: bool
    return_register: int
    start: int
    end: int


@dataclass(frozen=True)
class Functions:
    """FDEs in order of their first address.

    Columns of shape (functions,): addresses as linked, `cie` a row of `cies`, instructions in [start, end) of the section.
    """

    cies: tuple[Cie, ...]
    low: Integers
    high: Integers
    cie: Integers
    start: Integers
    end: Integers


def find_section(elf: Elf) -> Section | None:
    """The call frame information of a file, `.eh_frame` before `.debug_frame`; None when it has none."""
    for name in (".eh_frame", ".debug_frame", ".zdebug_frame"):
        number = elf.section_names.get(name)
        if number is not None:
            data = _section_bytes(elf, number, name)
            if len(data):
                return _padded(data, int(elf.sections[number]["addr"]), name == ".eh_frame")
    return _by_segment(elf)


def _section_bytes(elf: Elf, number: int, name: str) -> bytes:
    header = elf.sections[number]
    if int(header["size"]) > SECTION_LIMIT:
        raise TooLarge(f"{name} has {int(header['size'])} bytes, more than {SECTION_LIMIT}")
    data = elf.section_data(number, SECTION_LIMIT)
    if int(header["flags"]) & _COMPRESSED:
        kind, _, size = struct.unpack_from("<IIQ", data.ljust(24, b"\0"))
        return _inflated(data[24:], size, name) if kind == _ZLIB else b""
    if data.startswith(b"ZLIB"):
        return _inflated(data[12:], int.from_bytes(data[4:12], "big"), name)
    return data


def _inflated(data: bytes, size: int, name: str) -> bytes:
    if size > SECTION_LIMIT:
        raise TooLarge(f"{name} inflates to {size} bytes, more than {SECTION_LIMIT}")
    try:
        return zlib.decompressobj().decompress(data, max(size, 1))
    except zlib.error as error:
        raise MalformedInput(f"{name} can't be inflated: {error}") from None


def _by_segment(elf: Elf) -> Section | None:
    """Through PT_GNU_EH_FRAME, for files without section headers: version, three encodings, pointer to `.eh_frame`."""
    for segment in elf.segments[elf.segments["type"] == _SEGMENT_EH_FRAME]:
        at = int(segment["vaddr"])
        head = elf.read_address(at, 8)
        if len(head) == 8 and head[1] == _PCREL | 0xB:
            start = at + 4 + int.from_bytes(head[4:8], "little", signed=True)
            data = b"".join(_pieces(elf, start))
            if data:
                return _padded(data, start, True)
    return None


def _pieces(elf: Elf, start: int) -> Iterator[bytes]:
    """The bytes from a linked address to the end of its segment."""
    for _ in range(SECTION_LIMIT >> 20):
        piece = elf.read_address(start, 1 << 20)
        yield piece
        start += len(piece)
        if len(piece) < 1 << 20:
            return


def _padded(data: bytes, address: int, is_eh: bool) -> Section:
    padded = np.zeros(len(data) + PADDING, np.uint8)
    padded[: len(data)] = np.frombuffer(data, np.uint8)
    return Section(padded, len(data), address, is_eh)


# --- entries -----------------------------------------------------------------------------------------------------


def read_functions(section: Section, whole: bool = True) -> Functions:
    """All functions of the section; MalformedInput where lengths lead out of it.

    With `whole` False the section's end isn't known, and the first empty entry ends it.
    """
    positions, owners, ends = _walk(section, whole)
    cies, rows = _cies(section, owners)
    return _decode(section, cies, positions, rows, ends)


def _walk(section: Section, whole: bool) -> tuple[Integers, Integers, Integers]:
    """(position, position of its CIE, end) of each FDE."""
    data, size, is_eh = section.data.data, section.size, section.is_eh
    found = array("q")
    at, read = 0, _HEAD.unpack_from
    while at + 4 <= size:
        length, owner = read(data, at)
        if length == _LENGTH_ESCAPE:  # an entry beyond 4 GiB has nothing for us: no such section fits the limit
            at += 12 + _LONG.unpack_from(data, at + 4)[0]
            continue
        end = at + 4 + length
        if end > size:
            raise MalformedInput(f"call frame information leads out of its section at byte {at}")
        if not length and not whole:
            break
        if length > 4 and owner != (0 if is_eh else _LENGTH_ESCAPE):
            found.extend((at, at + 4 - owner if is_eh else owner, end))
        at = end
    if len(found) > 3 * ENTRY_LIMIT:
        raise TooLarge(f"call frame information of {len(found) // 3} functions, more than {ENTRY_LIMIT}")
    table = np.frombuffer(found, np.int64).reshape(-1, 3) if found else np.zeros((0, 3), np.int64)
    return table[:, 0], table[:, 1], table[:, 2]


def _cies(section: Section, owners: Integers) -> tuple[list[Cie | None], Integers]:
    places, rows = np.unique(owners, return_inverse=True)
    if len(places) > CIE_LIMIT:
        raise TooLarge(f"call frame information has {len(places)} CIEs, more than {CIE_LIMIT}")
    return [read_cie(section, at) for at in places.tolist()], rows.reshape(-1)


def read_cie(section: Section, at: int) -> Cie | None:
    """The CIE at a position; None when there is none that we understand."""
    if not 0 <= at <= section.size - 9:
        return None
    length, mark = _HEAD.unpack_from(section.data.data, at)
    end = at + 4 + length
    if length < 9 or end > section.size or mark != (0 if section.is_eh else _LENGTH_ESCAPE):
        return None
    head = section.data[at + 8 : min(end, at + 8 + _CIE_HEAD)].tobytes()
    text_end = head.find(b"\0", 1)
    if head[0] not in (1, 3, 4) or text_end < 0:
        return None
    return _Fields(head, text_end + 1).cie(head[0], head[1:text_end], (at + 8, end))


class _Fields:
    """Reads the fields of one CIE; what lies behind its first bytes reads as 0."""

    def __init__(self, data: bytes, at: int) -> None:
        self.data, self.at = data, at

    def cie(self, version: int, augmentation: bytes, place: tuple[int, int]) -> Cie | None:
        """The CIE behind its augmentation string; `place` is where `data` begins in the section and where the entry ends."""
        if version == 4:
            if self.data[self.at : self.at + 2] != b"\x08\0":  # address size, segment selector size
                return None
            self.at += 2
        code, factor = self._uleb(), self._sleb()
        register = self._byte() if version == 1 else self._uleb()
        augmented = augmentation[:1] == b"z"
        if augmentation and not augmented:
            return None
        behind = self._uleb() + self.at if augmented else self.at
        encoding = self._encoding(augmentation[1:])
        start = place[0] + behind
        if start > place[1] or not 0 < code < 1 << 16 or abs(factor) > 1 << 16:
            return None
        return Cie(code, factor, encoding, augmented, b"S" in augmentation, register, start, place[1])

    def _encoding(self, letters: bytes) -> int:
        """How the FDEs write addresses: the augmentation data, letter by letter, up to R."""
        for letter in letters:
            if letter == ord("R"):
                return self._byte()
            if letter == ord("P"):
                self.at += _SIZES.get(self._byte() & 15, 8)
            elif letter == ord("L"):
                self.at += 1
            elif letter != ord("S"):
                break
        return 0

    def _byte(self) -> int:
        self.at += 1
        return self.data[self.at - 1] if self.at <= len(self.data) else 0

    def _uleb(self) -> int:
        value = 0
        for shift in range(0, 63, 7):
            byte = self._byte()
            value |= (byte & 127) << shift
            if byte < 128:
                break
        return value

    def _sleb(self) -> int:
        start = self.at
        value = self._uleb()
        bits = 7 * (self.at - start)
        return value - (1 << bits) if value >> (bits - 1) & 1 else value


def _decode(section: Section, cies: list[Cie | None], at: Integers, rows: Integers, ends: Integers) -> Functions:
    """First address, length and instructions of all FDEs, encoding by encoding."""
    low, high, start = (np.zeros(len(at), np.int64) for _ in range(3))
    encodings = np.array([cie.encoding if cie else _POINTER_OMITTED for cie in cies], np.int64)
    augmented = np.array([cie is not None and cie.augmented for cie in cies], np.bool_)
    good = np.zeros(len(at), np.bool_)
    for encoding in np.unique(encodings):
        size = _SIZES.get(int(encoding) & 15)
        if size is None or encoding & 0x70 not in (0, _PCREL) or encoding & 0x80:
            continue
        of = np.flatnonzero(encodings[rows] == encoding)
        of = of[at[of] + 8 + 2 * size <= ends[of]]
        place = at[of] + 8
        base = place + section.address if encoding & _PCREL else 0
        low[of] = fixed(section.data, place, size, encoding & 8 != 0) + base
        high[of] = low[of] + fixed(section.data, place + size, size, False)
        start[of] = place + 2 * size
        good[of] = True
    skip = np.flatnonzero(good & augmented[rows])
    length, width = uleb(section.data, start[skip])
    start[skip] += length + width
    good &= (start <= ends) & (low >= 0) & (high > low) & (start > 0)
    order = np.flatnonzero(good)
    order = order[np.argsort(low[order], kind="stable")]
    kept = [cie or _NO_CIE for cie in cies]
    return Functions(tuple(kept), low[order], high[order], rows[order], start[order], ends[order])


_NO_CIE = Cie(1, -8, 0, False, False, 16, 0, 0)


# --- numbers at many positions at once ---------------------------------------------------------------------------


def fixed(data: Bytes, at: Integers, size: int, signed: bool) -> Integers:
    """Little-endian numbers of `size` bytes; positions are inside the section."""
    value = np.zeros(len(at), np.uint64)
    for byte in range(size):
        value |= data[at + byte].astype(np.uint64) << np.uint64(8 * byte)
    if signed and size < 8:
        top = np.uint64(1 << (8 * size - 1))
        return (value ^ top).astype(np.int64) - np.int64(top)
    return value.astype(np.int64)


_ULEB_BYTES = 5  # numbers beyond 35 bits say nothing about a stack frame


def uleb(data: Bytes, at: Integers) -> tuple[Integers, Integers]:
    """(value, bytes) of unsigned LEB128 numbers, at most five bytes of each."""
    byte = data[at].astype(np.int64)
    value, width = byte & 127, np.ones(len(at), np.int64)
    more = np.flatnonzero(byte > 127)
    for step in range(1, _ULEB_BYTES):
        if not len(more):
            break
        byte = data[at[more] + step].astype(np.int64)
        value[more] |= (byte & 127) << (7 * step)
        width[more] += 1
        more = more[byte > 127]
    return value, width


def sleb(data: Bytes, at: Integers) -> tuple[Integers, Integers]:
    """(value, bytes) of signed LEB128 numbers."""
    value, width = uleb(data, at)
    sign = np.int64(1) << (7 * width - 1)
    return (value ^ sign) - sign, width
