#!/usr/bin/env python3
"""Megatron's order of samples against Weft's, on random datasets.

Follows what megatron/core/datasets documents (gpt_dataset.py, helpers.cpp, blended_megatron_dataset_builder.py) in Python
and NumPy, whose generator and rounding are the ones that matter, and compares every table with those of DRIVER: a program
that reads one case a line and prints its tables.

  tools/compare/megatron_order.py DRIVER [--cases 1000] [--seed 1]

  order SPLIT PART SEQUENCE_LENGTH SAMPLES SEED DROP_LAST COUNT LENGTH...   SAMPLES is -1 for one epoch
      -> range, epochs, documents, starts, shuffle, pieces (sequence offset count ... -1 for each sample)
  blend SAMPLES COUNT WEIGHT...                                            -> weights, requests, dataset, sample
  interval SEED MOST COUNT                                                 -> interval
A request that is refused is answered by "refused WHY"; each answer ends with "end".

Exit code 1: a table differs; the case is printed.
"""
import argparse
import math
import random
import re
import subprocess
import sys

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


def pieces_of(lengths, documents, rows, shuffle):
    flat = []
    for row in shuffle:
        (begin, begin_offset), (end, end_offset) = rows[row], rows[row + 1]
        for i in range(begin, end + 1):
            offset = begin_offset if i == begin else 0
            stop = end_offset + 1 if i == end else lengths[documents[i]]
            flat += [documents[i], offset, stop - offset]
        flat.append(-1)
    return flat


def order(case):
    split, part, length, samples, seed, drop_last, lengths = case
    begin, end = split_bounds(split, len(lengths))[part]
    tables = {"range": [begin, end]}
    ids = numpy.arange(begin, end, dtype=numpy.int32)
    tokens = int(sum(lengths[begin:end]))
    if tokens < 2:
        return None
    epochs = 1
    if samples >= 0:
        while epochs * tokens < samples * length + 1:
            epochs += 1
    total = (epochs * tokens - 1) // length if drop_last else -(-(epochs * tokens - 1) // length)
    if total == 0:
        return None
    separate, first = False, total
    if epochs > 1:
        without_last = ((epochs - 1) * tokens - 1) // length
        from_last, of_an_epoch = samples - without_last, (tokens - 1) // length
        assert 0 <= from_last <= of_an_epoch + 1
        separate = from_last < int(0.80 * of_an_epoch)
        first = without_last if separate else total
    tables["epochs"] = [epochs, total, first, int(separate)]
    state = numpy.random.RandomState(seed)
    documents = documents_of(ids, epochs, state, separate)
    rows = starts_of(lengths, documents, length, total)
    shuffle = shuffle_of(first, total, state)
    tables["documents"] = documents
    tables["starts"] = [number for row in rows for number in row]
    tables["shuffle"] = shuffle
    tables["pieces"] = pieces_of(lengths, documents, rows, shuffle)
    return {name: [int(number) for number in numbers] for name, numbers in tables.items()}


def blend(samples, weights):
    parts = normalize(weights)
    shares = [math.ceil(samples * part) for part in parts]
    requests = [int(math.ceil(share * (1 + 0.005))) for share in shares]
    weights = normalize(parts)
    drawn, dataset, sample = [0] * len(weights), [], []
    for k in range(sum(shares)):
        step = max(float(k), 1.0)
        errors = [weight * step - float(count) for weight, count in zip(weights, drawn)]
        furthest = max(range(len(errors)), key=errors.__getitem__)
        dataset.append(furthest)
        sample.append(drawn[furthest])
        drawn[furthest] += 1
    return {"weights": weights, "requests": requests, "dataset": dataset, "sample": sample}


class Driver:
    def __init__(self, program):
        self.process = subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, *words):
        line = " ".join(str(word) for word in words)
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        tables = {}
        while (answer := self.process.stdout.readline().rstrip("\n")) != "end":
            if not answer:
                sys.exit(f"megatron_order.py: the driver ended at: {line}")
            name, _, text = answer.partition(" ")
            tables[name] = text if name == "refused" else [to_number(word) for word in text.split()]
        return line, tables


def to_number(word):
    return float.fromhex(word) if "0x" in word else int(word)


def compare(line, expected, found):
    if expected is None and "refused" in found:
        return
    if expected == found:
        return
    for name in {**(expected or {}), **found}:
        ours, theirs = found.get(name), (expected or {}).get(name)
        if ours == theirs:
            continue
        at = next((i for i, (a, b) in enumerate(zip(ours or [], theirs or [])) if a != b), 0)
        sys.exit(f"megatron_order.py: {name} differs for: {line}\n"
                 f"from element {at} on: Megatron {(theirs or [])[at:at + 8]}, Weft {(ours or [])[at:at + 8]}")


def random_order(chance):
    lengths = [chance.choice((0, 1, 2, chance.randint(1, 40), chance.randint(1, 400))) for _ in range(chance.randint(1, 60))]
    split = chance.choice(("969,30,1", "1", "100", "1,1", "0.5,.25,0.25", "99,1,0", "949,50,1", "1,0,1", "0,1,0"))
    length = chance.choice((2, 3, 4, 8, 16, 64, chance.randint(1, 200)))
    samples = chance.choice((-1, 0, chance.randint(1, 40), chance.randint(1, 400)))
    if chance.randint(0, 3) == 0:  # just above or below 80 % of the last epoch
        split, length, tokens = "1", chance.choice((2, 3, 4, 8)), sum(lengths)
        before = (chance.randint(1, 3) * tokens - 1) // length
        samples = max(0, before + int(0.80 * ((tokens - 1) // length)) + chance.randint(-2, 2))
    return split, chance.choice((0, 0, 0, 1, 2)), length, samples, chance.randint(0, 2**32 - 1), chance.randint(0, 1), lengths


def random_blend(chance):
    count = chance.choice((1, 2, 3, 7, 8, 9, 17, chance.randint(1, 140), chance.randint(129, 400)))
    kinds = (lambda: float(chance.randint(1, 9)), lambda: chance.random(), lambda: float(f"{chance.random():.2f}") + 0.01)
    kind = chance.choice(kinds)
    return chance.choice((1, 10, chance.randint(1, 500))), [kind() for _ in range(count)]


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("driver")
    parser.add_argument("--cases", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    chance, driver = random.Random(arguments.seed), Driver(arguments.driver)
    accepted = refused = separate = 0
    while accepted < arguments.cases:
        case = random_order(chance)
        *head, lengths = case
        expected = order(case)
        line, found = driver.ask("order", *head, len(lengths), *lengths)
        compare(line, expected, found)
        accepted += expected is not None
        refused += expected is None
        separate += expected is not None and expected["epochs"][3]
    for _ in range(arguments.cases):
        samples, weights = random_blend(chance)
        line, found = driver.ask("blend", samples, len(weights), *(repr(weight) for weight in weights))
        compare(line, blend(samples, weights), found)
    for most in (0, 1, 9, 2**20, 2**32 - 1, 2**32, 2**40 + 12345, 2**62):
        line, found = driver.ask("interval", 77, most, 50)
        # RandomState.randint rejects masked bits too. It draws none for an interval of one number, and 32 bits below 2^32.
        state, kind = numpy.random.RandomState(77), numpy.uint32 if most < 2**32 else numpy.uint64
        compare(line, {"interval": [int(state.randint(0, most + 1, dtype=kind)) for _ in range(50)]}, found)
    print(f"{accepted} orders, {separate} of them with a separate last epoch, and {arguments.cases} blends agree with NumPy "
          f"{numpy.__version__}; {refused} requests without a sample are refused")


main()
