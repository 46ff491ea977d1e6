#!/usr/bin/env bash
# Every experiment of docs/results.md, in order; what is there already is not made again. Hours on two cores.
# DATA names the text: the committed figures were made on WikiText-2 (train.txt, valid.txt, test.txt in one folder).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
data=${DATA:-docs}
jobs=${JOBS:-$(nproc)}

run() { # folder, experiment, flags
    local folder=docs/results/$1 name=$2
    shift 2
    printf '\n== %s: %s %s\n' "$folder" "$name" "$*"
    blockswarm experiment "$name" --data "$data" --output "$folder" --resume --jobs "$jobs" "$@" >/dev/null
}

# The bar: every byte of the held-out text, three seeds, at the prototype's budget and at twice that.
run 400 readouts --steps 400
run 800 readouts --steps 800
# The rest: the first 128 KiB of the held-out text.
run 400 leakage --eval-bytes 131072
run 400 relay --eval-bytes 131072
run 400 sigma-range --eval-bytes 131072
run 400 levers --eval-bytes 131072 --seeds 0
run 400 depth --eval-bytes 131072 --seeds 0
run 400 progression --eval-bytes 131072 --seeds 0
run 400 shared --eval-bytes 131072 --seeds 0
run 400 compression --eval-bytes 131072 --seeds 0
run 400 replicas --eval-bytes 131072 --seeds 0
run 400 budget --eval-bytes 131072 --seeds 0
run 400 long --eval-bytes 131072 --seeds 0
blockswarm experiment report --output docs/results
