#!/usr/bin/env python3
"""Checks safetensors files against the rules of the format, with Python's standard library alone.

    check_safetensors.py FILE...

Prints a line for each file, "FILE: OK (n tensors, b bytes)" or "FILE: what is wrong", and leaves with 1 where any is
wrong. Shares nothing with Weft's own reader, so that the two can judge each other."""
import json
import struct
import sys

LARGEST_HEADER = 100_000_000
LARGEST_SIZE = 2**63 - 1
BITS = {
    "BOOL": 8, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8,
    "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8, "I16": 16, "U16": 16, "F16": 16, "BF16": 16, "I32": 32, "U32": 32, "F32": 32,
    "C64": 64, "F64": 64, "I64": 64, "U64": 64,
}


class Wrong(Exception):
    pass


def once(pairs):
    """An object whose keys stand once."""
    result = dict(pairs)
    if len(result) != len(pairs):
        raise Wrong("a key stands twice")
    for key in result:
        text(key, "a key")
    return result


def text(value, what):
    if not isinstance(value, str):
        raise Wrong(f"{what} is no text")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise Wrong(f"{what} is no Unicode") from None
    return value


def unsigned(digits):
    if digits.startswith("-"):
        raise Wrong(f"{digits} is no size")
    return int(digits)


def no_constant(word):
    raise Wrong(f"{word} is no JSON")


def size(value, what):
    if type(value) is not int or value > LARGEST_SIZE:
        raise Wrong(f"{what} is no size")
    return value


def tensor_span(name, entry):
    """First byte of the data and the one behind it, once all that is said of the tensor has been looked at."""
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise Wrong(f"{name} has not just dtype, shape and data_offsets")
    if text(entry["dtype"], f"{name}: dtype") not in BITS:
        raise Wrong(f"{name}: there is no dtype {entry['dtype']}")
    if not isinstance(entry["shape"], list) or not isinstance(entry["data_offsets"], list):
        raise Wrong(f"{name}: shape or data_offsets is no list")
    elements = 1
    for extent in entry["shape"]:
        elements *= size(extent, f"{name}: an extent")
        if elements > LARGEST_SIZE:
            raise Wrong(f"{name}: its size overflows")
    bits = elements * BITS[entry["dtype"]]
    if bits > LARGEST_SIZE:
        raise Wrong(f"{name}: its size overflows")
    if bits % 8:
        raise Wrong(f"{name} ends within a byte")
    if len(entry["data_offsets"]) != 2:
        raise Wrong(f"{name} has not two data_offsets")
    begin, end = (size(offset, f"{name}: an offset") for offset in entry["data_offsets"])
    if end - begin != bits // 8:
        raise Wrong(f"{name}: [{begin}, {end}] do not hold {bits // 8} bytes")
    return begin, end


def check(path):
    with open(path, "rb") as file:
        data = file.read()
    if len(data) < 8:
        raise Wrong("too short for the length of a header")
    (length,) = struct.unpack("<Q", data[:8])
    if length > LARGEST_HEADER:
        raise Wrong(f"a header of {length} bytes is too large")
    if 8 + length > len(data):
        raise Wrong("the header goes beyond the end")
    raw = data[8:8 + length]
    if not raw.startswith(b"{"):
        raise Wrong("the header does not begin with {")
    try:
        header = json.loads(raw.decode("utf-8"), object_pairs_hook=once, parse_int=unsigned, parse_constant=no_constant)
    except (ValueError, RecursionError) as error:
        raise Wrong(f"the header is no JSON: {error}") from None
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict):
        raise Wrong("__metadata__ is no object")
    for key, value in metadata.items():
        text(value, f"__metadata__.{key}")
    at = 0
    for begin, end in sorted(tensor_span(name, entry) for name, entry in header.items()):
        if begin != at:
            raise Wrong(f"a tensor begins at {begin} where the one before ends at {at}")
        at = end
    if 8 + length + at != len(data):
        raise Wrong(f"the tensors take {at} bytes of {len(data) - 8 - length}")
    return len(header), len(data)


def main(paths):
    wrong = False
    for path in paths:
        try:
            tensors, size_of_file = check(path)
            print(f"{path}: OK ({tensors} tensors, {size_of_file} bytes)")
        except (Wrong, OSError) as error:
            wrong = True
            print(f"{path}: {str(error).encode('ascii', 'backslashreplace').decode()}".replace("\n", " "))
    return 1 if wrong else 0


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    sys.exit(main(sys.argv[1:]))
