"""Lets Postgres programs run under a user ID that has no entry in the passwd file.

`initdb` and a single-user session look up the name of their user and give up without one (Postgres,
`src/common/username.c`), as under `docker run --user 54321`. A server needs none. `LD_PRELOAD` of a
library that answers `getpwuid` is the usual remedy (nss_wrapper). This one is so small that it is
written here as an ELF file, in memory: there is nothing to install or to compile.

Source: "System V Application Binary Interface", chapters 4 and 5; glibc, `pwd/pwd.h`.
"""

import contextlib
import os
import platform
import struct
from collections.abc import Iterator, Mapping
from typing import Final

from store.embedded.account import has_name

_NAME: Final = b"storenode\0"
_HOME: Final = b"/\0"

_PAGE: Final = 0x10000
"""The largest page of either architecture: the data begin on one of their own."""

_UID_OFFSET: Final = 16
"""Of `pw_uid` in `struct passwd`, in bytes."""

_PASSWD_BYTES: Final = 48

_CODE: Final[Mapping[str, tuple[int, int]]] = {"x86_64": (62, 8), "aarch64": (183, 1027)}
"""By architecture: the machine of an ELF file, and the type of its relative relocations."""


def _code(architecture: str, at: int, passwd_at: int) -> bytes:
    """Return the machine code of `getpwuid`: store the ID in the entry, and return its address."""
    if architecture == "x86_64":
        # lea rax, [rip + entry]; mov [rax + 16], edi; ret
        return b"\x48\x8d\x05" + struct.pack("<i", passwd_at - at - 7) + b"\x89\x78\x10\xc3"
    # adr x1, entry; str w0, [x1, #16]; mov x0, x1; ret
    distance = passwd_at - at
    adr = 0x10000001 | (distance & 3) << 29 | (distance >> 2) << 5
    return struct.pack("<4I", adr, 0xB9001020, 0xAA0103E0, 0xD65F03C0)


def passwd_library(architecture: str) -> bytes:
    """Return a shared library whose `getpwuid` knows every user ID."""
    machine, relative = _CODE[architecture]
    names = b"\0getpwuid\0"
    headers = 64 + 4 * 56
    symbols_at = headers
    names_at = symbols_at + 2 * 24
    hash_at = names_at + 16
    relocations_at = hash_at + 24
    pointers = (0, 8, 24, 32, 40)  # pw_name, pw_passwd, pw_gecos, pw_dir, pw_shell
    code_at = relocations_at + 24 * len(pointers)
    passwd_at = _PAGE
    strings_at = passwd_at + _PASSWD_BYTES
    dynamic_at = strings_at + 16
    code = _code(architecture, code_at, passwd_at)
    home_at = strings_at + len(_NAME)
    targets = (strings_at, home_at + 1, home_at + 1, home_at, home_at)
    dynamic = (
        *((4, hash_at), (5, names_at), (6, symbols_at), (10, len(names)), (11, 24)),
        *((7, relocations_at), (8, 24 * len(pointers)), (9, 24), (0, 0)),
    )
    end = dynamic_at + 16 * len(dynamic)
    text = b"".join(
        (
            struct.pack("<16sHHIQQQI", b"\x7fELF\2\1\1", 3, machine, 1, 0, 64, 0, 0),
            struct.pack("<6H", 64, 56, 4, 64, 0, 0),
            _segment(1, 5, 0, code_at + len(code), _PAGE),
            _segment(1, 6, passwd_at, end - passwd_at, _PAGE),
            _segment(2, 6, dynamic_at, end - dynamic_at, 8),
            _segment(0x6474E551, 6, 0, 0, 16),  # the stack need not be executable
            bytes(24),
            struct.pack("<IBBHQQ", 1, 0x12, 0, 1, code_at, len(code)),
            names.ljust(16, b"\0"),
            struct.pack("<6I", 1, 2, 1, 0, 0, 0),  # one chain, of the one symbol
            *(
                struct.pack("<QQq", passwd_at + at, relative, target)
                for at, target in zip(pointers, targets, strict=True)
            ),
            code,
        )
    )
    data = b"".join(
        (
            bytes(_PASSWD_BYTES),
            (_NAME + _HOME).ljust(16, b"\0"),
            *(struct.pack("<QQ", *entry) for entry in dynamic),
        )
    )
    return text.ljust(_PAGE, b"\0") + data


def _segment(kind: int, flags: int, at: int, size: int, align: int) -> bytes:
    return struct.pack("<IIQQQQQQ", kind, flags, at, at, at, size, size, align)


@contextlib.contextmanager
def named_user(uid: int) -> Iterator[tuple[Mapping[str, str], tuple[int, ...]]]:
    """Give a user ID a name, if the system knows none and a library can be made here.

    Yields what a program needs for it: environment variables, and descriptors to keep open.
    """
    architecture = platform.machine()
    if has_name(uid) or architecture not in _CODE or not hasattr(os, "memfd_create"):
        yield {}, ()
        return
    fd = os.memfd_create("storenode-passwd")
    try:
        with os.fdopen(os.dup(fd), "wb") as file:
            file.write(passwd_library(architecture))
        preload = [f"/proc/self/fd/{fd}", *filter(None, [os.environ.get("LD_PRELOAD")])]
        yield {"LD_PRELOAD": ":".join(preload)}, (fd,)
    finally:
        os.close(fd)
