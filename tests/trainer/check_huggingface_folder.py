"""Holds a folder of Hugging Face against the safetensors format and its index, with the standard library alone.

    python3 check_huggingface_folder.py FOLDER

Prints every rule that is broken, and exits with 1 then. The rules are those of huggingface/safetensors (README and
src/tensor.rs) and of what transformers and torchtitan look for; nothing is taken from Weft.
"""

import json
import math
import os
import re
import struct
import sys

BITS = {"F32": 32, "BF16": 16, "F16": 16}
ORDER = ["F16", "BF16", "F32"]  # by the reference's enumeration, widest last


def no_duplicates(pairs):
    keys = [key for key, _ in pairs]
    if len(keys) != len(set(keys)):
        raise ValueError("a key stands twice")
    return dict(pairs)


def check_file(path, fault):
    """The tensors of one file: name -> bytes."""
    with open(path, "rb") as file:
        content = file.read()
    name = os.path.basename(path)
    if len(content) < 8:
        fault(f"{name}: too short")
        return {}
    (length,) = struct.unpack("<Q", content[:8])
    if length > 100_000_000 or 8 + length > len(content):
        fault(f"{name}: a header of {length} bytes")
        return {}
    text = content[8 : 8 + length]
    if length % 8:
        fault(f"{name}: the header's length {length} is no multiple of 8")
    if text[:1] != b"{" or text.rstrip(b" ")[-1:] != b"}":
        fault(f"{name}: the header is not JSON padded with blanks")
    header = json.loads(text.decode("utf-8"), object_pairs_hook=no_duplicates)
    if next(iter(header)) != "__metadata__" or header["__metadata__"] != {"format": "pt"}:
        fault(f"{name}: __metadata__ is not first, or not the format pt")
    entries = [(key, value) for key, value in header.items() if key != "__metadata__"]
    end = 0
    for key, value in sorted(entries, key=lambda entry: entry[1]["data_offsets"]):
        begin, stop = value["data_offsets"]
        if begin != end:
            fault(f"{name}: {key} begins at {begin}, not at {end}")
        if value["dtype"] not in BITS or stop - begin != math.prod(value["shape"]) * BITS[value["dtype"]] // 8:
            fault(f"{name}: {key} has {stop - begin} bytes, {value['dtype']} {value['shape']}")
        if (8 + length + begin) % (BITS[value["dtype"]] // 8):
            fault(f"{name}: {key} is not aligned")
        end = stop
    if 8 + length + end != len(content):
        fault(f"{name}: {len(content) - 8 - length - end} bytes behind the last tensor")
    keys = [(-ORDER.index(value["dtype"]), key) for key, value in entries]
    if keys != sorted(keys):
        fault(f"{name}: tensors are not by dtype, then by name")
    return {key: value["data_offsets"][1] - value["data_offsets"][0] for key, value in entries}


def main(folder):
    faults = []
    fault = faults.append
    with open(os.path.join(folder, "model.safetensors.index.json")) as file:
        index = json.load(file, object_pairs_hook=no_duplicates)
    files = sorted(name for name in os.listdir(folder) if name.endswith(".safetensors"))
    places, total = {}, 0
    for number, name in enumerate(files, 1):
        if not re.fullmatch(rf"model-{number:05}-of-{len(files):05}\.safetensors", name):
            fault(f"{name} is not file {number} of {len(files)}")
        for tensor, size in check_file(os.path.join(folder, name), fault).items():
            if tensor in places:
                fault(f"{tensor} stands in two files")
            places[tensor] = name
            total += size
    if places != index["weight_map"]:
        fault("weight_map is not what stands in the files")
    if index["metadata"]["total_size"] != total:
        fault(f"total_size is {index['metadata']['total_size']}, the tensors have {total}")
    with open(os.path.join(folder, "config.json")) as file:
        config = json.load(file, object_pairs_hook=no_duplicates)
    if config["rope_parameters"]["rope_theta"] != config["rope_theta"] or config["dtype"] != config["torch_dtype"]:
        fault("config.json contradicts itself")
    if config["tie_word_embeddings"] == ("lm_head.weight" in places):
        fault("lm_head.weight is there and tied, or neither")
    if sorted(os.listdir(folder)) != sorted([*files, "model.safetensors.index.json", "config.json", "generation_config.json"]):
        fault("other files than those of a folder")
    print("\n".join(faults) or f"{len(places)} tensors in {len(files)} files")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
