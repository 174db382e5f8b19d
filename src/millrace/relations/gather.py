"""Compiled kernels that find and copy rows straight from pages, wherever the pages lie in memory.

A page is an Arrow IPC message. Its column buffers are found by two arrays: the address of each page of a run, and the offsets
of its buffers inside the page (from the table's index), so no page is ever decoded to use a few of its rows.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from millrace.core.compiled import kernel


def _loader(bits: int, result: Any) -> Any:
    @intrinsic
    def load(typing_context: Any, address: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            pointer = builder.inttoptr(arguments[0], ir.IntType(bits).as_pointer())
            return builder.load(pointer, align=1)

        return result(types.int64), generate

    return load


load8 = _loader(8, types.uint8)
load16 = _loader(16, types.int16)
load32 = _loader(32, types.int32)
load64 = _loader(64, types.int64)


@intrinsic
def copy_bytes(typing_context: Any, target: Any, source: Any, count: Any) -> Any:
    """Copy `count` bytes from one address to another."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = ir.IntType(8).as_pointer()
        to = builder.inttoptr(arguments[0], pointer)
        origin = builder.inttoptr(arguments[1], pointer)
        cgutils.raw_memcpy(builder, to, origin, arguments[2], 1)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), generate


@kernel
def find_codes(
    codes: Any, at: Any, addresses: Any, numbers: Any, sizes: Any, bases: Any, offsets: Any, first: Any, count: Any
) -> None:
    """For each wanted code on run page `at[i]`: the first row with it, and how many rows of the page have it."""
    for i in range(len(codes)):
        page = at[i]
        start = addresses[page] + offsets[numbers[page]]
        code = codes[i]
        low = np.int64(0)
        size = np.int64(sizes[page])
        while size > 1:  # no branch on the comparison: it could not be predicted
            half = size >> 1
            low += half * np.int64(load64(start + 8 * (low + half - 1)) < code)
            size -= half
        low += np.int64(load64(start + 8 * low) < code)
        end = low
        while end < sizes[page] and load64(start + 8 * end) == code:
            end += 1
        first[i] = bases[page] + low
        count[i] = end - low


@kernel
def resolve_rows(rows: Any, guess: Any, stride: Any, bases: Any, at: Any, inside: Any) -> None:
    """Run page and row inside it of each row number."""
    for i in range(len(rows)):
        row = rows[i]
        page = guess[row // stride]
        while bases[page + 1] <= row:
            page += 1
        at[i] = page
        inside[i] = row - bases[page]


@kernel
def gather1(at: Any, inside: Any, addresses: Any, numbers: Any, offsets: Any, out: Any) -> None:
    for i in range(len(at)):
        out[i] = load8(addresses[at[i]] + offsets[numbers[at[i]]] + np.int64(inside[i]))


@kernel
def gather2(at: Any, inside: Any, addresses: Any, numbers: Any, offsets: Any, out: Any) -> None:
    for i in range(len(at)):
        out[i] = load16(addresses[at[i]] + offsets[numbers[at[i]]] + 2 * np.int64(inside[i]))


@kernel
def gather4(at: Any, inside: Any, addresses: Any, numbers: Any, offsets: Any, out: Any) -> None:
    for i in range(len(at)):
        out[i] = load32(addresses[at[i]] + offsets[numbers[at[i]]] + 4 * np.int64(inside[i]))


@kernel
def gather8(at: Any, inside: Any, addresses: Any, numbers: Any, offsets: Any, out: Any) -> None:
    for i in range(len(at)):
        out[i] = load64(addresses[at[i]] + offsets[numbers[at[i]]] + 8 * np.int64(inside[i]))


@kernel
def gather16(at: Any, inside: Any, addresses: Any, numbers: Any, offsets: Any, out: Any) -> None:
    for i in range(len(at)):
        start = addresses[at[i]] + offsets[numbers[at[i]]] + 16 * np.int64(inside[i])
        out[2 * i] = load64(start)
        out[2 * i + 1] = load64(start + 8)


GATHER = {
    1: (gather1, np.uint8), 2: (gather2, np.int16), 4: (gather4, np.int32), 8: (gather8, np.int64), 16: (gather16, np.int64),
}  # fmt: skip


@kernel
def gather_bits(at: Any, inside: Any, addresses: Any, numbers: Any, offsets: Any, out: Any) -> Any:
    """Bits of a bitmap into a bitmap; a page without one (offset below zero) counts as all ones. Returns the zeros."""
    zeros = 0
    for i in range(len(at)):
        offset = offsets[numbers[at[i]]]
        bit = np.uint8(1)
        if offset >= 0:
            row = np.int64(inside[i])
            bit = (load8(addresses[at[i]] + offset + (row >> 3)) >> np.uint8(row & 7)) & np.uint8(1)
        if bit:
            out[i >> 3] |= np.uint8(1) << np.uint8(i & 7)
        else:
            zeros += 1
    return zeros


@kernel
def measure_bytes(at: Any, inside: Any, addresses: Any, numbers: Any, offsets: Any, starts: Any, ends: Any) -> None:
    """Offsets of the copied values in `ends` (one more than rows), and the position of each value in its page in `starts`."""
    total = np.int64(0)
    ends[0] = 0
    for i in range(len(at)):
        place = addresses[at[i]] + offsets[numbers[at[i]]] + 4 * np.int64(inside[i])
        begin = np.int64(load32(place))
        starts[i] = begin
        total += np.int64(load32(place + 4)) - begin
        ends[i + 1] = total


@kernel
def gather_bytes(at: Any, addresses: Any, numbers: Any, offsets: Any, starts: Any, ends: Any, target: Any) -> None:
    for i in range(len(at)):
        source = addresses[at[i]] + offsets[numbers[at[i]]] + starts[i]
        copy_bytes(target + ends[i], source, ends[i + 1] - ends[i])


@kernel
def copy_codes(addresses: Any, numbers: Any, sizes: Any, bases: Any, offsets: Any, target: Any) -> None:
    """The codes of every row of the run, one after the other."""
    for page in range(len(addresses)):
        source = addresses[page] + offsets[numbers[page]]
        copy_bytes(target + 8 * bases[page], source, 8 * np.int64(sizes[page]))


@kernel
def locate_pages(codes: Any, firsts: Any, lasts: Any, first: Any, last: Any) -> None:
    """Pages whose codes enclose each code: from the first that ends at or behind it to the last that starts by it."""
    pages = len(firsts)
    for i in range(len(codes)):
        code = codes[i]
        low = 0
        size = pages
        while size > 1:
            half = size >> 1
            low += half * np.int64(lasts[low + half - 1] < code)
            size -= half
        if pages:
            low += np.int64(lasts[low] < code)
        first[i] = low
        last[i] = low - 1
        if low < pages and firsts[low] <= code:
            last[i] = low
            if low + 1 < pages and firsts[low + 1] <= code:
                high = pages
                while low < high:
                    middle = (low + high) >> 1
                    if firsts[middle] <= code:
                        low = middle + 1
                    else:
                        high = middle
                last[i] = low - 1
