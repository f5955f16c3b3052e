"""Prints tokenizer_golden.h: encodings of the Python package `tokenizers` 0.23.3.

  python3 tests/trainer/tokenizer_golden.py > tests/trainer/tokenizer_golden.h

Ids of the sample tokenizer are those of the 256 characters of the byte alphabet in their order, then of the merges in
theirs. A case replaces parts of its file.
"""
import json

from tokenizers import Tokenizer, models, pre_tokenizers, trainers

TEXT = ("the quick brown fox jumps over the lazy dog and the hen; it's the dog's 1234 days. Hello world, hello there! "
        "int main() { return 0; }  na\u00efve caf\u00e9s, \u65e5\u672c\u8a9e \u65e5\u672c, the end of the text  ") * 3

TEXTS = ["Hello the world's  dog\n\n\tit'LL 12345x  ", " na\u00efve e\u0301 \ufb01 \u212b \u65e5\u672c\u8a9e \ud55c \u0130",
         "the<|end|> <mask>  <unk>the<|end|>dog don don't donut dogs", "\u00a0\u3000\u180ea\u2028 b\u00bd\u0661", "", "\u2581the \u2581", "A\U0001f600 \u017f's \u200dx"]

LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
          r"|\s+(?!\S)|\s+")
BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}


def split(pattern, behavior, invert=False, kind="Regex"):
    return {"type": "Split", "pattern": {kind: pattern}, "behavior": behavior, "invert": invert}


def sequence(*steps):
    return {"type": "Sequence", "pretokenizers": list(steps)}


def added(first, *tokens):
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": False}
    return [dict(flags, id=first + i, content=content, **{flag: True for flag in set_flags})
            for i, (content, set_flags) in enumerate(tokens)]


def letters(**more):
    tokens = ["<unk>", "\u2581", "t", "h", "e", "d", "o", "g", "'", "s", "\u2581t", "he", "\u2581the", "do", "dog", "'s", "dogs"]
    return dict({"type": "BPE", "unk_token": "<unk>", "vocab": {token: i for i, token in enumerate(tokens)},
                 "merges": [["\u2581", "t"], ["h", "e"], ["\u2581t", "he"], ["d", "o"], ["do", "g"], ["'", "s"]]}, **more)


def fallback():
    model = letters(byte_fallback=True, fuse_unk=True)
    for byte in range(256):
        model["vocab"][f"<0x{byte:02X}>"] = len(model["vocab"])
    return model


METASPACE = {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "first", "split": False}


def cases(count):
    yield "gpt2", {"pre_tokenizer": dict(BYTES, use_regex=True)}
    yield "prefix", {"pre_tokenizer": dict(BYTES, add_prefix_space=True, use_regex=True)}
    yield "llama3", {"pre_tokenizer": sequence(split(LLAMA3, "Isolated"), BYTES)}
    for behavior in ("Removed", "MergedWithPrevious", "MergedWithNext", "Contiguous"):
        yield behavior, {"pre_tokenizer": sequence(split(r"[e ]", behavior), BYTES)}
    yield "inverted", {"pre_tokenizer": sequence(split(r"[a-z]+", "Removed", True), BYTES)}
    yield "literal", {"pre_tokenizer": sequence(split("the", "Isolated", kind="String"), BYTES)}
    yield "digits", {"pre_tokenizer": sequence({"type": "Digits", "individual_digits": True}, dict(BYTES, use_regex=True))}
    yield "words", {"pre_tokenizer": sequence({"type": "Whitespace"}, {"type": "Punctuation", "behavior": "Isolated"}, BYTES)}
    yield "mapped twice", {"pre_tokenizer": sequence(BYTES, {"type": "WhitespaceSplit"}, {"type": "Digits", "individual_digits": False})}
    yield "none", {"pre_tokenizer": BYTES}
    for form in ("NFC", "NFD", "NFKC", "NFKD", "Lowercase"):
        yield form, {"normalizer": {"type": form}}
    yield "normalizers", {"normalizer": {"type": "Sequence", "normalizers": [
        {"type": "Strip", "strip_left": True, "strip_right": True}, {"type": "Prepend", "prepend": "the "},
        {"type": "Replace", "pattern": {"Regex": r"\s+"}, "content": " "}]}}
    yield "added", {"added_tokens": added(count, ("<|end|>", ["special"]), ("<mask>", ["lstrip", "rstrip", "special"]),
                                          ("don", ["single_word"]), ("orld", ["normalized"]), ("  ", ["normalized"]))}
    yield "letters", {"model": letters(), "pre_tokenizer": dict(METASPACE, prepend_scheme="always", split=True),
                      "decoder": METASPACE}
    yield "fallback", {"model": fallback(), "pre_tokenizer": METASPACE, "added_tokens": added(0, ("<unk>", ["special"])),
                       "decoder": {"type": "Sequence", "decoders": [
                           {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "}, {"type": "ByteFallback"},
                           {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]}}
    yield "fused", {"model": letters(fuse_unk=True, ignore_merges=True), "pre_tokenizer": {"type": "WhitespaceSplit"},
                    "decoder": None}


def c_string(text):
    return '"' + "".join(chr(b) if 32 <= b < 127 and chr(b) not in '"\\?' else f"\\{b:03o}" for b in text.encode()) + '"'


def main():
    learner = Tokenizer(models.BPE())
    learner.pre_tokenizer = pre_tokenizers.ByteLevel(False)
    learner.train_from_iterator([TEXT], trainers.BpeTrainer(vocab_size=256 + 60, show_progress=False,
                                                            initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    base = json.loads(learner.to_str())
    base["model"]["unk_token"] = None
    base["decoder"] = BYTES
    merges = base["model"]["merges"]
    print("// Encodings of the Python package `tokenizers` 0.23.3. Printed by tokenizer_golden.py.\n#pragma once\n")
    print("#include <array>\n#include <string_view>\n\nnamespace weft::tokenizer_golden {\n\n// clang-format off")
    print("inline constexpr std::string_view merges[] = {")
    for pair in merges:
        print(f"    {c_string(' '.join(pair))},")
    print("};\n\ninline constexpr std::array texts = {")
    for text in TEXTS:
        print(f"    std::string_view({c_string(text)}),")
    print("};\n\nstruct Case {\n  std::string_view name, parts;\n  std::array<std::string_view, texts.size()> ids, decoded;\n};\n")
    print("// `decoded` is empty where it is the text.\ninline constexpr Case cases[] = {")
    for name, parts in cases(256 + len(merges)):
        tokenizer = Tokenizer.from_str(json.dumps(dict(base, **parts)))
        ids = [tokenizer.encode(text, add_special_tokens=False).ids for text in TEXTS]
        decoded = [tokenizer.decode(each, skip_special_tokens=False) for each in ids]
        print(f"    {{{c_string(name)}, {c_string(json.dumps(parts))},\n     {{", end="")
        print(",\n      ".join(c_string(" ".join(map(str, each))) for each in ids), end="},\n     {")
        print(", ".join(c_string("" if one == text else one) for one, text in zip(decoded, TEXTS)), end="}},\n")
    print("};\n// clang-format on\n\n}  // namespace weft::tokenizer_golden")


if __name__ == "__main__":
    main()
