#!/bin/sh
# Run the unit tests of `reconcile`, which damage payloads and frames and compare the kernel with Python, on a kernel
# that has the compiler's sanitizers for addresses and undefined behaviour, with more and other examples than usual.
#
#     tools/fuzz_kernel.sh PYTHON ARGUMENT_OF_PYTEST...
#
# A finding ends it with the sanitizer's report. Needs gcc or clang.
set -eu
python=$1
shift
copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
cp -r reconcile "$copy"
include=$("$python" -c 'import sysconfig; print(sysconfig.get_paths()["include"])')
${CC:-cc} -std=c11 -O1 -g -shared -fPIC -fno-omit-frame-pointer -DPy_LIMITED_API=0x030B0000 \
    -fsanitize=address,undefined -fno-sanitize-recover=undefined -I"$include" \
    reconcile/native/*.c -o "$copy/reconcile/_kernel.abi3.so"
runtime=$(${CC:-cc} -print-file-name=libasan.so)
sanitized() {
    # Python keeps memory to its end on purpose.
    env LD_PRELOAD="$runtime" ASAN_OPTIONS=detect_leaks=0:abort_on_error=0:exitcode=1 PYTHONMALLOC=malloc \
        UBSAN_OPTIONS=print_stacktrace=1 HYPOTHESIS_PROFILE=search PYTHONPATH="$copy" "$python" -P "$@"
}
sanitized -c "import reconcile, reconcile.kernel as kernel
assert kernel.compiled and reconcile.__file__.startswith('$copy'), 'the tests would not run on this kernel'"
sanitized -m pytest -q -p no:cacheprovider -o pythonpath="$copy ." "$@"
