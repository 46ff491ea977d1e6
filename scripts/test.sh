#!/usr/bin/env bash
# Lint, types and tests. Every stage runs, whatever the one before said. The last lines say how each ended and name the
# first tests that failed: whoever sees only the end of a long output knows what to look for.
# `test.sh lint` stops before the tests. Expects the tools on PATH (the Makefile puts .venv/bin there).
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

summary=()
status=0
printed=$(mktemp)
trap 'rm -f "$printed"' EXIT
stage() {
    local name=$1 began=$SECONDS code=0
    shift
    printf '\n== %s: %s\n' "$name" "$*"
    "$@" 2>&1 | tee "$printed" || code=$?
    if [ "$code" = 0 ]; then
        summary+=("passed  $name ($((SECONDS - began)) s)")
    else
        summary+=("FAILED  $name ($((SECONDS - began)) s, exit code $code)")
        while IFS= read -r line; do summary+=("        $line"); done < <(
            grep -E '^(FAILED|ERROR) ' "$printed" | cut -c 1-200 | head -n 4
        )
        status=1
    fi
}

types() { bash scripts/links.sh && MYPYPATH=.dev mypy -p blockswarm -p benchmarks.hosts -p benchmarks.serving; }

stage lint ruff check .
stage format ruff format --check .
stage types types
if [ "${1:-}" != lint ]; then
    # A file stays in one process: its tests share hosts and swarms. torch takes one core in each.
    stage unit env OMP_NUM_THREADS=1 python -m pytest -q -n 2 --dist loadfile --ignore=tests/integration tests
    stage integration python -m pytest -q tests/integration
fi

printf '\n'
printf '%s\n' "${summary[@]}"
exit "$status"
