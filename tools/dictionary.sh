#!/usr/bin/env bash
# The longer example (docs/example.md), from a dictionary to a folder for transformers. It makes a tokenizer, a dataset
# of the entries, and a hybrid model of 11 million parameters, which then writes text. Eight CPU ranks train it in about
# 15 minutes on two cores. Repeating it does only what is not done yet.
set -euo pipefail
[[ $# -eq 0 ]] || { echo "usage: tools/dictionary.sh, without arguments" >&2; exit 2; }
cd "$(dirname "${BASH_SOURCE[0]}")/.."

tools/ready-for-cpu.sh

# An entry begins at the left margin behind an empty line; its text becomes an object of JSON lines. Bytes that are no
# UTF-8, some hundreds of letters with accents, are left out.
if [[ ! -s data/gcide.jsonl ]]; then
  iconv --from-code utf-8 --to-code utf-8 -c data/gcide.txt | tr -d '\000-\010\013-\037' |
    sed 's/\\/\\\\/g; s/"/\\"/g; s/\t/\\t/g' | awk '
      function flush() { if (entry !~ /^(\\n)*$/) print "{\"text\": \"" entry "\"}"; entry = "" }
      empty && /^[^ ]/ { flush() }
      { empty = $0 == ""; entry = entry $0 "\\n" }
      END { flush() }' >data/gcide.jsonl.partial
  mv data/gcide.jsonl.partial data/gcide.jsonl
fi
[[ -s data/gcide.json ]] || build/weft data train-tokenizer data/gcide.jsonl --vocab-size 4096 --output data/gcide.json
[[ -s data/gcide-tokens.idx ]] ||
  build/weft data tokenize data/gcide.jsonl --tokenizer data/gcide.json --output data/gcide-tokens

build/weft train configs/dictionary.toml
build/weft generate runs/dictionary --prompt "Weaver" --max-tokens 120 --temperature 0.7 --seed 1
[[ -s runs/dictionary-folder/config.json ]] || build/weft export runs/dictionary runs/dictionary-folder
build/weft report runs/dictionary --output runs/dictionary.html
