"""Reading, writing, copying and prefetching at plain memory addresses, from inside compiled kernels."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic


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


def _storer(bits: int, value: Any) -> Any:
    @intrinsic
    def store(typing_context: Any, address: Any, number: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            pointer = builder.inttoptr(arguments[0], ir.IntType(bits).as_pointer())
            builder.store(arguments[1], pointer, align=1)
            return context.get_dummy_value()

        return types.void(types.int64, value), generate

    return store


store8 = _storer(8, types.uint8)
store16 = _storer(16, types.int16)
store32 = _storer(32, types.int32)
store64 = _storer(64, types.int64)


@intrinsic
def prefetch(typing_context: Any, address: Any) -> Any:
    """Ask for the line of memory at an address, to be read soon."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer, number = ir.IntType(8).as_pointer(), ir.IntType(32)
        shape = ir.FunctionType(ir.VoidType(), [pointer, number, number, number])
        function = builder.module.declare_intrinsic("llvm.prefetch", [pointer], shape)
        to_read, keep_near, of_data = ir.Constant(number, 0), ir.Constant(number, 3), ir.Constant(number, 1)
        builder.call(function, [builder.inttoptr(arguments[0], pointer), to_read, keep_near, of_data])
        return context.get_dummy_value()

    return types.void(types.int64), generate
