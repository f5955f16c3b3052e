#!/usr/bin/env python3
"""Compares a folder that weft exported, as transformers runs it, with the checkpoint that it came from.

    weft export CHECKPOINT FOLDER
    tools/compare/exported_model.py CHECKPOINT FOLDER --text FILE --window N [--weft build/weft] [--prompt TEXT]

The loss of a text, in the windows of weft eval, and the greedy continuation of a prompt. The ids of a folder without a
tokenizer are bytes. Needs torch and transformers.
Exit code 1 where losses differ by more than 1e-4 or a text differs. A greedy text may differ where two tokens are equally
probable to within rounding.
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer


def output(command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def loss_in_windows(model, ids, window):
    """Every token but the first once, from those before it in its window; windows share one token."""
    total, count = 0.0, 0
    for begin in range(0, len(ids) - 1, window):
        piece = torch.tensor(ids[begin:begin + window + 1])
        logits = model(piece[None, :-1]).logits[0].double()
        total += torch.nn.functional.cross_entropy(logits, piece[1:], reduction="sum").item()
        count += len(piece) - 1
    return total / count, count


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint")
    parser.add_argument("folder")
    parser.add_argument("--text", required=True)
    parser.add_argument("--weft", default="build/weft")
    parser.add_argument("--prompt", default="The ")
    parser.add_argument("--window", type=int, required=True, help="training.sequence_length of the checkpoint")
    arguments = parser.parse_args()
    has_tokenizer = any(os.path.exists(os.path.join(arguments.folder, name)) for name in ("tokenizer.json", "tokenizer.model"))
    tokenizer = AutoTokenizer.from_pretrained(arguments.folder) if has_tokenizer else None
    encode = lambda text: tokenizer(text, add_special_tokens=False)["input_ids"] if tokenizer else list(text.encode())
    model = AutoModelForCausalLM.from_pretrained(arguments.folder, dtype=torch.float32).eval()
    with open(arguments.text, encoding="utf-8") as file:
        text = file.read()
    data = arguments.text
    if tokenizer:
        prefix = os.path.join(tempfile.mkdtemp(), "text")
        output([arguments.weft, "data", "tokenize", data, "--tokenizer", arguments.folder, "--no-begin", "--no-end", "--output", prefix])
        data = prefix + ".bin"
    evaluated = json.loads(output([arguments.weft, "eval", arguments.checkpoint, "--data", data, "--json"]))
    ids = encode(text)
    with torch.no_grad():
        loss, count = loss_in_windows(model, ids, arguments.window)
        print(f"loss of {count} tokens: weft {evaluated['loss']:.7f} of {evaluated['tokens']}, transformers {loss:.7f}")
        prompt = torch.tensor([encode(arguments.prompt)])
        made = model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=40, do_sample=False)[0, prompt.shape[1]:]
    theirs = tokenizer.decode(made, skip_special_tokens=True) if tokenizer else bytes(made.tolist()).decode(errors="replace")
    ours = json.loads(output([arguments.weft, "generate", arguments.checkpoint, "--prompt", arguments.prompt, "--max-tokens", "40",
                              "--temperature", "0", "--json"]))["samples"][0]["text"]
    same = ours.strip() == theirs.strip()
    print(f"weft:         {arguments.prompt!r} + {ours!r}\ntransformers: {arguments.prompt!r} + {theirs!r}")
    return 0 if same and abs(loss - evaluated["loss"]) < 1e-4 and count == evaluated["tokens"] else 1


if __name__ == "__main__":
    sys.exit(main())
