"""The arguments of kernels in memory: each where the driver reads it, and those of a thread its own."""

import ctypes
import threading

from relibra.kernels.launch import Addresses, Arguments


def read(addresses: Addresses, *kinds: type[ctypes.c_int32] | type[ctypes.c_void_p]) -> list[int | None]:
    return [kind.from_address(address).value for kind, address in zip(kinds, addresses, strict=True)]


def test_every_argument_lies_at_its_address_and_the_next_launch_packs_it_anew() -> None:
    arguments = Arguments("P", "i", "i", "P")
    kinds = ctypes.c_void_p, ctypes.c_int32, ctypes.c_int32, ctypes.c_void_p
    for values in ([1 << 60, -3, 7, 1 << 40], [5, 6, -7, 8]):
        assert read(arguments.pack(*values), *kinds) == values


def test_a_structure_has_the_layout_that_a_compiler_gives_it() -> None:
    class Fields(ctypes.Structure):
        _fields_ = (("first", ctypes.c_void_p), ("one", ctypes.c_int32), ("other", ctypes.c_int32))

    addresses = Arguments("Pii", "i").pack(1 << 50, -1, 2, 3)
    fields = Fields.from_address(addresses[0])
    assert (fields.first, fields.one, fields.other) == (1 << 50, -1, 2)
    assert ctypes.c_int32.from_address(addresses[1]).value == 3, "the addresses keep the arguments alive"


def test_a_thread_never_packs_into_the_arguments_of_another() -> None:
    arguments = Arguments("i")
    mine = arguments.pack(1)
    other = threading.Thread(target=arguments.pack, args=(2,))
    other.start()
    other.join()
    assert read(mine, ctypes.c_int32) == [1]
