"""Compares encodings of Weft with the Python package `tokenizers`, over ten shapes of tokenizer.json and a text of many
languages, code and malformed bytes.

  python3 tools/compare/encodings.py --text FOLDER... [--weft build/weft] [--megabytes 50] [--out FOLDER]

The built program tokenizes the documents, each a file of its own (weft data tokenize --no-end). With --plain, which is
tried on every tenth document, special tokens are plain text. Files under FOLDER give sentences and code; words of other
scripts are drawn at random. Texts with marks younger than the package's tables are left out. Needs the packages tokenizers and numpy. Exit code 1 after a difference.
"""
import argparse
import os
import random
import re
import subprocess
import sys
import time
import unicodedata

import numpy
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
          r"|\s+(?!\S)|\s+")
QWEN = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
O200K = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
         r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
         r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
DEEPSEEK = [r"\p{N}{1,3}", r"[一-龥぀-ゟ゠-ヿ]+",
            r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*"
            r"|\s*[\r\n]+|\s+(?!\S)|\s+"]

# First and last code points of scripts, and of characters that tokenizers treat in their own way.
SCRIPTS = [(0x61, 0x7a), (0xc0, 0x24f), (0x300, 0x36f), (0x370, 0x3ff), (0x400, 0x4ff), (0x5d0, 0x5ea), (0x620, 0x6d3),
           (0x660, 0x669), (0x900, 0x97f), (0xe01, 0xe5b), (0x1100, 0x11ff), (0x1e00, 0x1eff), (0x2010, 0x206f),
           (0x2070, 0x218b), (0x2190, 0x22ff), (0x3040, 0x30ff), (0x4e00, 0x9fff), (0xac00, 0xd7a3), (0xfb00, 0xfb06),
           (0xfe00, 0xfe0f), (0xff01, 0xffef), (0x1d400, 0x1d7ff), (0x1f300, 0x1f64f), (0x20000, 0x2a6df)]
SPACES = [" "] * 40 + ["\n"] * 6 + ["  ", "\t", "\r\n", "\n\n", "   ", "\u00a0", "\u3000", "\u2028", "\u180e", "\x0b", "\x85",
                                    "\u200b", "\u200d", "\ufeff", " \n ", "        ", "\r"]
PIECES = ["'s", "'LL", "don't", "1234567", "3.14", "1,000", "\u0661\u0662\u0663", "\u00bd", "<|endoftext|>", "<|im_start|>",
          "<s>", "</s>", "<mask>", " <mask> ", "word<|endoftext|>", "\u017f", "'\u017f", "e\u0301", "\u1100\u1161\u11a8",
          "\ufb01", "\u00df", "\u0130", "\ud55c\uad6d", "->", "!=", "::", "__init__", "//", "{}", "\u2581", "A\u030a", "\u2126"]


def read_texts(folders, limit):
    texts, size = [], 0
    for folder in folders:
        for path, names, files in os.walk(folder):
            names.sort()
            for name in sorted(files):
                if not name.endswith((".py", ".md", ".txt", ".rst", ".h", ".cpp", ".c", ".pod", ".html", ".pm", ".po")):
                    continue
                with open(os.path.join(path, name), "rb") as file:
                    texts.append(file.read(200_000))
                size += len(texts[-1])
                if size > limit:
                    return texts
    return texts


def random_word(rng):
    first, last = rng.choice(SCRIPTS)
    letters = [chr(rng.randint(first, min(last, first + rng.choice((20, 200, 70000))))) for _ in range(rng.randint(1, 9))]
    word = "".join(letters)
    return word.upper() if rng.random() < 0.1 else word


def random_document(rng, texts, words):
    parts = []
    for _ in range(rng.randint(1, 12)):
        kind = rng.random()
        if kind < 0.55 and texts:
            text = rng.choice(texts)
            begin = rng.randrange(max(1, len(text)))
            parts.append(text[begin:begin + rng.randint(20, 4000)])
        elif kind < 0.97:
            sentence = rng.choice(words)
            for _ in range(rng.randint(1, 60)):
                sentence += rng.choice(SPACES) + (rng.choice(words) if rng.random() < 0.8 else rng.choice(PIECES))
            parts.append(sentence.encode())
        else:
            parts.append(bytes(rng.randrange(1, 256) for _ in range(rng.randint(1, 40))))
    return b"".join(parts)


def byte_level(pattern, normalizer=None, specials=("<|endoftext|>",), **model):
    tokenizer = Tokenizer(models.BPE(**model))
    splits = [pre_tokenizers.Split(Regex(one), "isolated") for one in ([pattern] if isinstance(pattern, str) else pattern)]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(splits + [pre_tokenizers.ByteLevel(False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    if normalizer:
        tokenizer.normalizer = normalizer
    return tokenizer, list(specials), pre_tokenizers.ByteLevel.alphabet()


def shapes():
    """Name, tokenizer, special tokens of the training, initial alphabet, and tokens added behind it."""
    gpt2 = Tokenizer(models.BPE())
    gpt2.pre_tokenizer = pre_tokenizers.ByteLevel(False)
    gpt2.decoder = decoders.ByteLevel()
    gpt2.post_processor = processors.ByteLevel(False)
    yield "gpt2", (gpt2, ["<|endoftext|>"], pre_tokenizers.ByteLevel.alphabet()), []
    yield "llama3", byte_level(LLAMA3, ignore_merges=True), [AddedToken("<|im_start|>", special=True)]
    yield "qwen", byte_level(QWEN, normalizers.NFC()), [AddedToken("<|im_start|>", special=True)]
    yield "o200k", byte_level(O200K), []
    yield "deepseek", byte_level(DEEPSEEK), []
    neox = byte_level(LLAMA3, normalizers.NFKC())
    yield "spaces", neox, [AddedToken(" " * n, normalized=True) for n in range(2, 9)] + [
        AddedToken("<mask>", lstrip=True, rstrip=True, special=True), AddedToken("don", single_word=True)]
    starcoder = Tokenizer(models.BPE())
    starcoder.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(True), pre_tokenizers.ByteLevel(True)])
    starcoder.decoder = decoders.ByteLevel()
    yield "digits", (starcoder, ["<|endoftext|>"], pre_tokenizers.ByteLevel.alphabet()), []
    llama2 = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    llama2.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    llama2.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(),
                                        decoders.Strip(" ", 1, 0)])
    # One word per text would train slowly: words are cut for the training only.
    llama2.pre_tokenizer = pre_tokenizers.Split("\u2581", "merged_with_next")
    yield "llama2", (llama2, ["<unk>", "<s>", "</s>"] + [f"<0x{b:02X}>" for b in range(256)], []), []
    meta = Tokenizer(models.BPE(unk_token="<unk>"))
    meta.normalizer = normalizers.Sequence([normalizers.NFKD(), normalizers.Lowercase(), normalizers.Strip()])
    meta.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Punctuation("merged_with_previous"),
                                                  pre_tokenizers.Metaspace(prepend_scheme="always")])
    meta.decoder = decoders.Metaspace()
    yield "metaspace", (meta, ["<unk>", "<s>", "</s>"], []), []
    white = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True))
    white.normalizer = normalizers.NFD()
    white.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Whitespace(),
                                                   pre_tokenizers.Digits(False),
                                                   pre_tokenizers.Split(Regex(r"[A-Z]"), "contiguous", invert=True)])
    yield "whitespace", (white, ["<unk>", "<|endoftext|>"], []), []


def younger_marks():
    """Combining marks that the package does not put in order: its tables are of Unicode 9, Weft's of 15."""
    order, marks = normalizers.NFD(), []
    for code in range(0x300, 0x20000):
        rank = unicodedata.combining(chr(code))
        if rank:
            text = "a" + ("\u0345" + chr(code) if rank < 240 else chr(code) + "\u0334")
            if order.normalize_str(text) != unicodedata.normalize("NFD", text):
                marks.append(chr(code))
    return re.compile("[" + "".join(marks) + "]") if marks else re.compile("(?!)")


def write_documents(folder, documents):
    """Each as a file; their names in the order of the documents."""
    os.makedirs(folder, exist_ok=True)
    for number, document in enumerate(documents):
        with open(os.path.join(folder, f"{number}.txt"), "wb") as file:
            file.write(document)
    return [f"{number}.txt" for number in range(len(documents))]


def tokenized(weft, tokenizer, folder, names, prefix, plain):
    """The ids of each document that has some."""
    for ending in (".bin", ".idx", ".json"):
        if os.path.exists(prefix + ending):
            os.remove(prefix + ending)
    command = [weft, "data", "tokenize", "--tokenizer", tokenizer, "--no-begin", "--no-end", "--output", prefix]
    command += (["--plain"] if plain else []) + names
    if subprocess.run(command, cwd=folder, stdout=subprocess.DEVNULL).returncode != 0:
        sys.exit("the documents were not tokenized")
    with open(prefix + ".idx", "rb") as file:
        index = file.read()
    # megatron/core/datasets/indexed_dataset.py: magic, version, code of the dtype, numbers of sequences and documents.
    dtype, sequences = {4: numpy.int32, 8: numpy.uint16}[index[17]], int.from_bytes(index[18:26], "little")
    lengths = numpy.frombuffer(index, dtype=numpy.int32, count=sequences, offset=34)
    ids = numpy.fromfile(prefix + ".bin", dtype=dtype)
    return numpy.split(ids, numpy.cumsum(lengths)[:-1])


def compare(name, tokenizer, path, folder, names, documents, arguments, plain):
    tokenizer.encode_special_tokens = plain
    prefix = os.path.join(arguments.out, name + ("-plain-ids" if plain else "-ids"))
    ours, at, wrong, total = tokenized(arguments.weft, path, folder, names, prefix, plain), 0, 0, 0
    begin = time.time()
    for first in range(0, len(documents), 500):
        texts = [document.decode("utf-8", "replace") for document in documents[first:first + 500]]
        for offset, encoding in enumerate(tokenizer.encode_batch_fast(texts, add_special_tokens=False)):
            theirs = numpy.array(encoding.ids, dtype=numpy.int32)
            if len(theirs) == 0:
                continue
            own = ours[at] if at < len(ours) else numpy.array([], dtype=numpy.int32)
            at, total = at + 1, total + len(own)
            if not numpy.array_equal(own, theirs):
                wrong += 1
                if wrong <= 3:
                    show_difference(tokenizer, texts[offset], own, theirs)
    wrong += abs(len(ours) - at)
    print(f"{name}{' plain' if plain else ''}: {len(documents)} documents, {total} ids, "
          f"{wrong} documents differ ({time.time() - begin:.0f} s)", flush=True)
    return wrong


def show_difference(tokenizer, text, ours, theirs):
    same = 0
    while same < min(len(ours), len(theirs)) and ours[same] == theirs[same]:
        same += 1
    names = [[tokenizer.id_to_token(int(i)) for i in ids[max(0, same - 3):same + 5]] for ids in (ours, theirs)]
    print(f"  differs at id {same}: {ascii(names[0])} instead of {ascii(names[1])}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weft", default="build/weft")
    parser.add_argument("--text", nargs="+", default=[])
    parser.add_argument("--megabytes", type=float, default=50)
    parser.add_argument("--vocab", type=int, default=20000)
    parser.add_argument("--out", default="/tmp/weft-tokenizers")
    parser.add_argument("--only", nargs="*")
    arguments = parser.parse_args()
    arguments.weft, arguments.out = os.path.abspath(arguments.weft), os.path.abspath(arguments.out)
    folder = os.path.join(arguments.out, "documents")
    rng = random.Random(7)
    texts = read_texts(arguments.text, 100e6)
    words = [random_word(rng) for _ in range(20000)]
    documents, size = [], 0
    while size < arguments.megabytes * 1e6:
        documents.append(random_document(rng, texts, words))
        size += len(documents[-1])
    younger = younger_marks()
    # An empty file is refused.
    documents = [document for document in documents if document and not younger.search(document.decode("utf-8", "replace"))]
    documents += [b" ", b"\xff", "\u00e9".encode()[:1], b"a" * 50_000, b" " * 50_000, "\u4e2d".encode() * 20_000]
    training = [document.decode("utf-8", "replace") for document in documents[:1500]]
    names = write_documents(folder, documents)
    wrong = 0
    for name, (tokenizer, specials, alphabet), added in shapes():
        if arguments.only and name not in arguments.only:
            continue
        path = os.path.join(arguments.out, name + ".json")
        if not os.path.exists(path):
            trainer = trainers.BpeTrainer(vocab_size=arguments.vocab, special_tokens=specials, initial_alphabet=alphabet,
                                          show_progress=False, limit_alphabet=5000)
            tokenizer.train_from_iterator(training, trainer)
            if name == "llama2":
                tokenizer.pre_tokenizer = None
            tokenizer.add_tokens(added)
            tokenizer.save(path)
        tokenizer = Tokenizer.from_file(path)
        wrong += compare(name, tokenizer, path, folder, names, documents, arguments, False)
        wrong += compare(name, tokenizer, path, folder, names[::10], documents[::10], arguments, True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
