#!/usr/bin/env python3
"""Compares conversations as weft tokenizes them with transformers' apply_chat_template: the ids, and what is learned
where the template has {% generation %}.

    weft data tokenize chat.jsonl --chat tokenizer --tokenizer FOLDER --no-end --output chat
    tools/compare/chat_formats.py chat.jsonl FOLDER chat        # FOLDER: a tokenizer with its chat template

Needs transformers. Exit code 1 where ids or losses differ, with the first difference of each conversation.
"""
import json
import struct
import sys

from transformers import AutoTokenizer


def documents(prefix):
    """The ids of each document of a dataset of Megatron's format, and whether their losses count."""
    index = open(prefix + ".idx", "rb").read()
    code, sequences = index[17], struct.unpack_from("<q", index, 18)[0]
    kind = {4: "i", 8: "H"}[code]
    lengths = struct.unpack_from(f"<{sequences}i", index, 34)
    data, losses = open(prefix + ".bin", "rb"), open(prefix + ".loss", "rb")
    for length in lengths:
        yield list(struct.unpack(f"<{length}{kind}", data.read(length * struct.calcsize(kind)))), list(losses.read(length))


def main(texts, folder, prefix):
    tokenizer = AutoTokenizer.from_pretrained(folder)
    marked = "endgeneration" in tokenizer.chat_template
    differing = 0
    lines = [line for line in open(texts, encoding="utf-8") if line.strip()]
    for number, (line, found) in enumerate(zip(lines, documents(prefix), strict=True)):
        made = tokenizer.apply_chat_template(json.loads(line)["messages"], tokenize=True, return_dict=True,
                                             return_assistant_tokens_mask=marked)
        expected = made["input_ids"], made["assistant_masks"] if marked else found[1]
        if found == expected:
            continue
        differing += 1
        pairs = [list(zip(*each)) for each in (found, expected)]
        place = next((i for i, (a, b) in enumerate(zip(*pairs)) if a != b), min(map(len, pairs)))
        print(f"conversation {number}, token {place}: weft {pairs[0][place:place + 4]}, "
              f"transformers {pairs[1][place:place + 4]}")
    print(f"{len(lines)} conversations, {differing} differ")
    return 1 if differing else 0


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    sys.exit(main(*sys.argv[1:]))
