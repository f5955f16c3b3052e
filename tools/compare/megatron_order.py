#!/usr/bin/env python3
"""Megatron's order of samples against Weft's, on random datasets.

Follows what megatron/core/datasets documents (gpt_dataset.py, helpers.cpp, blended_megatron_dataset_builder.py) in Python
and NumPy, whose generator and rounding are the ones that matter. Each case is written as datasets of one or several
files and a configuration with data.order = "megatron", of which `weft data samples` prints the tokens that every sample
reads.

  tools/compare/megatron_order.py [--program build/weft] [--cases 300] [--seed 1]

Exit code 1: a sample differs, or one of both refuses; the case is printed.
"""
import argparse
import json
import math
import pathlib
import random
import re
import struct
import subprocess
import sys
import tempfile

import numpy


def split_bounds(split, sequences):
    parts = [float(part) for part in re.findall(r"[.0-9]+", split)]
    parts += [0.0] * (3 - len(parts))
    parts = normalize(parts)
    bounds = [0]
    for part in parts:
        bounds.append(bounds[-1] + part)
    return [(int(round(a * float(sequences))), int(round(b * float(sequences)))) for a, b in zip(bounds, bounds[1:])]


def normalize(weights):
    weights = numpy.array(weights, dtype=numpy.float64)
    return (weights / numpy.sum(weights)).tolist()


def documents_of(ids, epochs, state, separate):
    if separate and epochs > 1:
        return numpy.concatenate((documents_of(ids, epochs - 1, state, False), documents_of(ids, 1, state, False)))
    documents = numpy.tile(ids, epochs).astype(numpy.int32)
    state.shuffle(documents)
    return documents


def starts_of(lengths, documents, length, samples):
    rows, position, offset = [(0, 0)], 0, 0
    while len(rows) <= samples:
        remaining = length + 1
        while remaining > 0:
            left = lengths[documents[position]] - offset
            remaining -= left
            if remaining <= 0:
                offset += remaining + left - 1
            elif position == len(documents) - 1:
                offset = lengths[documents[position]] - 1
                break
            else:
                position, offset = position + 1, 0
        rows.append((position, offset))
    return rows


def shuffle_of(first, total, state):
    head = numpy.arange(0, first, dtype=numpy.uint32)
    state.shuffle(head)
    if first == total:
        return head
    tail = numpy.arange(first, total, dtype=numpy.uint32)
    state.shuffle(tail)
    return numpy.concatenate((head, tail))


def pieces_of(lengths, documents, rows, row):
    (begin, begin_offset), (end, end_offset) = rows[row], rows[row + 1]
    for i in range(begin, end + 1):
        offset = begin_offset if i == begin else 0
        stop = end_offset + 1 if i == end else lengths[documents[i]]
        if stop > offset:  # Weft shows no empty piece
            yield int(sum(lengths[:documents[i]])) + offset, stop - offset


def order(lengths, split, length, samples, seed):
    """A function from a sample to its pieces, and whether the last epoch is shuffled apart. None: no sample."""
    begin, end = split_bounds(split, len(lengths))[0]
    ids = numpy.arange(begin, end, dtype=numpy.int32)
    tokens = int(sum(lengths[begin:end]))
    if tokens < 2:
        return None
    epochs = 1
    while epochs * tokens < samples * length + 1:
        epochs += 1
    total = (epochs * tokens - 1) // length
    if total == 0:
        return None
    separate, first = False, total
    if epochs > 1:
        without_last = ((epochs - 1) * tokens - 1) // length
        from_last, of_an_epoch = samples - without_last, (tokens - 1) // length
        assert 0 <= from_last <= of_an_epoch + 1
        separate = from_last < int(0.80 * of_an_epoch)
        first = without_last if separate else total
    state = numpy.random.RandomState(seed)
    documents = documents_of(ids, epochs, state, separate)
    rows = starts_of(lengths, documents, length, total)
    shuffle = shuffle_of(first, total, state)
    return lambda sample: list(pieces_of(lengths, documents, rows, shuffle[sample])), separate


def blend(samples, weights):
    """What is asked of each dataset, and the dataset and its sample for each sample."""
    parts = normalize(weights)
    shares = [math.ceil(samples * part) for part in parts]
    requests = [int(math.ceil(share * (1 + 0.005))) for share in shares]
    weights = normalize(parts)
    drawn, places = [0] * len(weights), []
    for k in range(samples):
        step = max(float(k), 1.0)
        errors = [weight * step - float(count) for weight, count in zip(weights, drawn)]
        furthest = max(range(len(errors)), key=errors.__getitem__)
        places.append((furthest, drawn[furthest]))
        drawn[furthest] += 1
    return requests, places


def expected_of(case):
    """The pieces (file, first, count) of each sample, and whether a last epoch is apart; None: refused."""
    datasets, weights, split, length, samples, seed = case
    requests, places = ([samples], [(0, k) for k in range(samples)]) if len(datasets) == 1 else blend(samples, weights)
    orders = [order(lengths, split, length, request, seed) for lengths, request in zip(datasets, requests)]
    if None in orders:
        return None
    pieces = [[(f"{file}.bin", *piece) for piece in orders[file][0](sample)] for file, sample in places]
    return pieces, any(separate for _, separate in orders)


def write_case(folder, case):
    datasets, weights, split, length, samples, seed = case
    for file, lengths in enumerate(datasets):
        offsets = numpy.concatenate(([0], numpy.cumsum(lengths)[:-1])) * 2
        index = b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, len(lengths), len(lengths) + 1)
        index += numpy.array(lengths, "<i4").tobytes() + offsets.astype("<i8").tobytes()
        index += numpy.arange(len(lengths) + 1, dtype="<i8").tobytes()
        (folder / f"{file}.idx").write_bytes(index)
        (folder / f"{file}.bin").write_bytes(bytes(2 * int(sum(lengths))))
    files = ", ".join(f'{{path = "{file}.bin", weight = {weight!r}}}' for file, weight in enumerate(weights))
    (folder / "run.toml").write_text(f"""
[run]
name = "order"
directory = "out"
steps = {samples}
seed = {seed}
[model]
layers = "d"
vocab_size = 256
hidden_size = 16
intermediate_size = 24
num_attention_heads = 4
num_key_value_heads = 2
head_dim = 4
[training]
sequence_length = {length}
global_batch_size = 1
[data]
train = [{files}]
tokenizer = "none"
order = "megatron"
split = "{split}"
""")


def found_of(program, folder, samples):
    command = [program, "data", "samples", "run.toml", "--count", str(samples), "--json"]
    result = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if result.returncode == 2:
        return None
    if result.returncode != 0:
        sys.exit(f"megatron_order.py: weft ended with {result.returncode}: {result.stderr}")
    return [[(piece["file"], piece["first"], piece["count"]) for piece in sample["pieces"]]
            for sample in json.loads(result.stdout)]


def random_lengths(chance, least):
    lengths = []
    while sum(lengths) < least or len(lengths) < 3:
        lengths.append(chance.choice((0, 1, 2, chance.randint(1, 40), chance.randint(1, 400))))
    return lengths


def random_case(chance):
    count = chance.choice((1, 1, 2, 3, 9))
    length = chance.choice((2, 3, 4, 8, 16, 64, chance.randint(1, 200)))
    datasets = [random_lengths(chance, length + 1) for _ in range(count)]
    split = chance.choice(("969,30,1", "1", "100", "1,1", "0.5,.25,0.25", "99,1,0", "949,50,1", "1,0,1"))
    samples = chance.choice((1, chance.randint(1, 40), chance.randint(1, 400)))
    kind = chance.choice((lambda: float(chance.randint(1, 9)), chance.random, lambda: round(chance.random(), 2) + 0.01))
    if chance.randint(0, 3) == 0:  # just above or below 80 % of the last epoch
        datasets, split, length = datasets[:1], "1", chance.choice((2, 3, 4, 8))
        tokens = sum(datasets[0])
        before = (chance.randint(1, 3) * tokens - 1) // length
        samples = max(1, before + int(0.80 * ((tokens - 1) // length)) + chance.randint(-2, 2))
    return datasets, [kind() for _ in datasets], split, length, samples, chance.randint(0, 2**32 - 1)


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--program", default="build/weft")
    parser.add_argument("--cases", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    chance, program = random.Random(arguments.seed), pathlib.Path(arguments.program).resolve()
    samples = separate = refused = blended = 0
    for _ in range(arguments.cases):
        case = random_case(chance)
        expected = expected_of(case)
        with tempfile.TemporaryDirectory() as folder:
            write_case(pathlib.Path(folder), case)
            found = found_of(program, folder, case[4])
        if expected is None or found is None:
            if (expected is None) != (found is None):
                sys.exit(f"megatron_order.py: {'Weft' if found is None else 'Megatron'} alone refuses {case}")
            refused += 1
            continue
        for sample, (theirs, ours) in enumerate(zip(expected[0], found, strict=True)):
            if theirs != ours:
                sys.exit(f"megatron_order.py: sample {sample} differs for {case}\nMegatron {theirs}\nWeft {ours}")
        samples += len(found)
        separate += expected[1]
        blended += len(case[0]) > 1
    print(f"{samples} samples of {arguments.cases - refused} orders agree with NumPy {numpy.__version__}, {blended} of them "
          f"blends, {separate} with a separate last epoch; {refused} requests without a sample are refused")


main()
