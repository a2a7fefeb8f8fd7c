#!/bin/sh
# The whole record of one GPU: tests, demo, reference examples, memcheck, benchmarks, in that order.
#
#     benchmarks/gpu/record.sh [FOLDER] [STEP ...]
#
# Writes STEP-CARD-DATE.txt (and .jsonl) into FOLDER (default: record). STEPs are suite, bindings
# (the suite without PyCUDA), demo, reference, memcheck, algorithms, workloads; without any, all of
# them. Each has a time limit, in seconds, that LIMIT_suite=..., LIMIT_demo=... change; a step that
# fails or runs past its limit does not keep the next from running. At the end: one line for each step, and status 1 if one failed.
#
# PYTHON names the interpreter (default: .venv/bin/python, else python3). Where there is no git
# repository, SYMDNN_COMMIT names the commit. Benchmarks go on where an earlier run with the same
# FOLDER stopped.
set -u

cd "$(dirname "$0")/../.." || exit 2
folder=${1:-record}
[ $# -gt 0 ] && shift
steps=${*:-suite bindings demo reference memcheck algorithms workloads}
if [ -z "${PYTHON:-}" ]; then
    PYTHON=python3
    [ -x .venv/bin/python ] && PYTHON=$PWD/.venv/bin/python
fi
export PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
: "${SYMDNN_COMMIT:=$(git describe --always --dirty --abbrev=12 2>/dev/null || echo unknown)}"
export SYMDNN_COMMIT

card=$("$PYTHON" -c '
import re
from symdnn.gpu.binding.libcuda import driver
found = driver()
if found.problem or not found.devices:
    raise SystemExit(f"no GPU: {found.problem or found}")
name = re.sub(r"^nvidia |^geforce ", "", found.devices[0].name.lower())
print(re.sub(r"[^a-z0-9]+", "-", name).strip("-"))
') || exit 2
mkdir -p "$folder" || exit 2
folder=$(cd "$folder" && pwd)
date=$(date -u +%Y-%m-%d)
failed=0
summary=""

path() { # path NAME ENDING
    echo "$folder/$1-$card-$date.$2"
}

head_of() { # head_of COMMAND...: what a text file begins with
    echo "$(date -u '+%Y-%m-%d %H:%M UTC'), commit $SYMDNN_COMMIT, $card"
    echo "\$ $*"
}

limited() { # limited SECONDS COMMAND...: an interrupt first, so that programs say what they have
    seconds=$1
    shift
    timeout -s INT -k 30 "$seconds" "$@"
}

suite() {
    limited "${LIMIT_suite:-1800}" "$PYTHON" -m pytest -m gpu -q -rs -p no:cacheprovider --tb=short
}

examples() {
    status=0
    for name in "theano_gpuarray_dnn.py --device cuda" "theano_sandbox_dnn.py --device cuda" \
        cudnn_python_wrappers.py "pytorch_cudnn_lowlevel.py --device cuda"; do
        echo
        echo "\$ python examples/reference/$name"
        if [ "$name" = cudnn_python_wrappers.py ] && ! "$PYTHON" -c 'import pycuda'; then
            echo "left out: it is a program for PyCUDA"
            continue
        fi
        # shellcheck disable=SC2086  # the words of a name are arguments
        limited "${LIMIT_reference:-240}" "$PYTHON" examples/reference/$name || status=1
    done
    return $status
}

sample='not fork_threads and not functions_of_the_table and not many and not 32_bits and not demo'

run() { # run STEP: its output to its file
    case $1 in
    suite)
        head_of python -m pytest -m gpu -q -rs
        suite
        ;;
    bindings)
        head_of SYMDNN_FLAGS=gpu.runtime=cuda-bindings python -m pytest -m gpu -q -rs
        SYMDNN_FLAGS=${SYMDNN_FLAGS:+$SYMDNN_FLAGS,}gpu.runtime=cuda-bindings suite
        ;;
    demo)
        head_of SYMDNN_FLAGS=device=cuda python -m symdnn demo
        SYMDNN_FLAGS=device=cuda limited "${LIMIT_demo:-300}" "$PYTHON" -m symdnn demo \
            --out "$folder/demo"
        ;;
    reference)
        head_of examples/reference
        examples
        ;;
    memcheck)
        head_of compute-sanitizer --tool memcheck python -m pytest -m gpu tests/gpu -k "$sample"
        compute-sanitizer --version || return 1
        limited "${LIMIT_memcheck:-1800}" compute-sanitizer --tool memcheck \
            --report-api-errors no --print-limit 20 --error-exitcode 9 \
            "$PYTHON" -m pytest -q -m gpu tests/gpu -p no:cacheprovider --tb=short -k "$sample"
        ;;
    algorithms)
        head_of python -m benchmarks.gpu.conv_algorithms
        limited "${LIMIT_algorithms:-1200}" "$PYTHON" -m benchmarks.gpu.conv_algorithms \
            --out "$(path conv-algorithms jsonl)" --budget "${LIMIT_algorithms:-1200}"
        ;;
    workloads)
        head_of python -m benchmarks.gpu.run
        limited "${LIMIT_workloads:-7200}" "$PYTHON" -m benchmarks.gpu.run \
            --out "$folder/workloads" --budget "${LIMIT_workloads:-7200}"
        status=$?
        "$PYTHON" -m benchmarks.gpu.report "$folder"/workloads/*.jsonl || status=1
        return $status
        ;;
    *)
        echo "no such step: $1" >&2
        return 2
        ;;
    esac
}

for step in $steps; do
    case $step in
    suite | bindings | demo | reference) name=gpu-$step ;;
    *) name=$step ;;
    esac
    file=$(path "$name" txt)
    began=$(date +%s)
    run "$step" >"$file" 2>&1
    status=$?
    case $status in
    0) word=done ;;
    124 | 137) word="ran past its limit" ;;
    *) word="failed with status $status" ;;
    esac
    [ $status -eq 0 ] || failed=1
    line="$step: $word after $(($(date +%s) - began)) s: $file"
    echo "$line"
    summary="$summary$line
"
done
printf '%s' "$summary" >"$(path record txt)"
exit $failed
