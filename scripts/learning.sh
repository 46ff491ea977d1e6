#!/usr/bin/env bash
# The figures of docs/simulator.md: every regime with the paper's payload and speeds, elastic steps beside fixed ones.
# Goes on where it stopped. DATA: as --data takes it. OUTPUT: folder of the figures. JOBS: processes at work.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
DATA=${DATA:-docs} OUTPUT=${OUTPUT:-docs/results/learning} JOBS=${JOBS:-1} SEEDS=${SEEDS:-0}

simulate() { blockswarm simulate learning --data "$DATA" --output "$OUTPUT" --jobs "$JOBS" --seeds "$SEEDS" "$@"; }

simulate --policy fixed-4 --policy fixed-8 --policy fixed-16 --policy elastic --policy elastic+int4 > /dev/null
# Beside them: more steps where a round has time for them, late work carried, and eight bits.
simulate --regime wan-loose --regime edge-mid --regime bad-edge-loose --policy fixed-32 > /dev/null
simulate --policy fixed-8+carry > /dev/null
simulate --regime wan-tight --regime wan-mid --regime edge-mid --policy elastic+carry --policy elastic+int8
