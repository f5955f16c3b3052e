#!/usr/bin/env python3
"""Compares conversations as weft tokenizes them with transformers' apply_chat_template.

    weft data tokenize chat.jsonl --chat chatml --tokenizer FOLDER --no-end --output chat
    tools/compare/chat_formats.py chat.jsonl FOLDER chat        # FOLDER: a tokenizer with its chat template

Needs transformers. Exit code 1 where ids differ, with the first difference of each conversation.
"""
import json
import struct
import sys

from transformers import AutoTokenizer


def documents(prefix):
    """The ids of each document of a dataset of Megatron's format."""
    index = open(prefix + ".idx", "rb").read()
    code, sequences = index[17], struct.unpack_from("<q", index, 18)[0]
    kind = {4: "i", 8: "H"}[code]
    lengths = struct.unpack_from(f"<{sequences}i", index, 34)
    data = open(prefix + ".bin", "rb")
    for length in lengths:
        yield list(struct.unpack(f"<{length}{kind}", data.read(length * struct.calcsize(kind))))


def main(texts, folder, prefix):
    tokenizer = AutoTokenizer.from_pretrained(folder)
    differing = 0
    lines = [line for line in open(texts, encoding="utf-8") if line.strip()]
    for number, (line, ids) in enumerate(zip(lines, documents(prefix), strict=True)):
        expected = tokenizer.apply_chat_template(json.loads(line)["messages"], tokenize=True, return_dict=False)
        if ids == expected:
            continue
        differing += 1
        place = next((i for i, (a, b) in enumerate(zip(ids, expected)) if a != b), min(len(ids), len(expected)))
        print(f"conversation {number}, token {place}: weft {ids[place:place + 4]}, transformers {expected[place:place + 4]}")
    print(f"{len(lines)} conversations, {differing} differ")
    return 1 if differing else 0


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    sys.exit(main(*sys.argv[1:]))
