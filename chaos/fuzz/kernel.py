"""Run the unit tests of `reconcile` on a kernel that has the sanitizers of the C compiler.

``make fuzz-kernel`` builds `reconcile/native` with those for addresses and undefined behaviour in a
directory that it removes, and runs the tests, which damage payloads and frames and compare the
kernel with Python, in a process that has them preloaded; with more and other examples than usual.
Arguments are those of pytest. A finding ends it with the sanitizer's report. Needs gcc or clang.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tempfile
from importlib.machinery import ExtensionFileLoader
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
SOURCES: Final = ROOT / "reconcile/native"
TESTS: Final = ROOT / "tests/unit/reconcile"

MODULE: Final = "reconcile._kernel"
FLAGS: Final = (
    *("-std=c11", "-O1", "-g", "-shared", "-fPIC", "-fno-omit-frame-pointer"),
    *("-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"),
    "-DPy_LIMITED_API=0x030B0000",
)
IN_CHILD: Final = "STORENODE_SANITIZED_KERNEL"
"""The environment variable with the built file, in the process that has the sanitizers."""


def main() -> int:
    """Build, and run this program again on what was built."""
    built = os.environ.get(IN_CHILD)
    if built is not None:
        return _run_tests(Path(built), sys.argv[1:])
    compiler = os.environ.get("CC", "cc")
    with tempfile.TemporaryDirectory(prefix="storenode-kernel-") as directory:
        file = Path(directory, "_kernel.abi3.so")
        sources = sorted(map(str, SOURCES.glob("*.c")))
        include = f"-I{sysconfig.get_paths()['include']}"
        subprocess.run([compiler, *FLAGS, include, *sources, "-o", str(file)], check=True)
        runtime = subprocess.run(
            [compiler, "-print-file-name=libasan.so"], check=True, capture_output=True, text=True
        ).stdout.strip()
        again = [sys.executable, "-m", "chaos.fuzz.kernel", *sys.argv[1:]]
        environment = os.environ | {
            IN_CHILD: str(file),
            "LD_PRELOAD": runtime,
            # Python keeps memory to its end on purpose.
            "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=0:exitcode=1",
            "UBSAN_OPTIONS": "print_stacktrace=1",
            "PYTHONMALLOC": "malloc",
            "HYPOTHESIS_PROFILE": "search",
        }
        return subprocess.run(again, env=environment, cwd=ROOT, check=False).returncode


def _run_tests(file: Path, arguments: list[str]) -> int:
    """Let `reconcile` find this kernel in place of its own, and run the tests."""
    spec = spec_from_file_location(MODULE, file, loader=ExtensionFileLoader(MODULE, str(file)))
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    import reconcile  # noqa: PLC0415 - the kernel comes first

    sys.modules[MODULE] = module
    reconcile._kernel = module  # type: ignore[attr-defined]
    from reconcile import kernel  # noqa: PLC0415

    assert kernel.compiled is module, "the kernel is of another version than the package"
    import pytest  # noqa: PLC0415 - needed in this process alone

    return int(pytest.main(["-q", "-p", "no:cacheprovider", *(arguments or [str(TESTS)])]))


if __name__ == "__main__":
    raise SystemExit(main())
