"""Builds the one compiled module, where there is a C compiler; the rest is in pyproject.toml.

Without a compiler, or without the headers of Python, the installation continues: the package then
does the same in Python. The module keeps to Python's stable interface, so that one file serves
every version from 3.11 on.
"""

from pathlib import Path

from setuptools import Extension, setup

SOURCES = Path("reconcile/native")
STABLE_SINCE = "0x030B0000"  # Python 3.11

setup(
    ext_modules=[
        Extension(
            "reconcile._kernel",
            sorted(str(path) for path in SOURCES.glob("*.c")),
            depends=sorted(str(path) for path in SOURCES.glob("*.h")),
            define_macros=[("Py_LIMITED_API", STABLE_SINCE)],
            extra_compile_args=["-std=c11", "-O3"],
            py_limited_api=True,
            optional=True,
        )
    ],
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
