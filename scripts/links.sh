#!/usr/bin/env bash
# Makes .dev/blockswarm: links that show the type checker the tree as it is installed (the folders stand at the top level).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
rm -rf .dev
mkdir -p .dev/blockswarm
for file in blockswarm/*; do
    case $file in *__pycache__) ;; *) ln -s "../../$file" ".dev/$file" ;; esac
done
for package in model dht swarm peer lab cli; do
    ln -s "../../$package" ".dev/blockswarm/$package"
done
