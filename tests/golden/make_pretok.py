#!/usr/bin/env python3
"""make_pretok.py FOLDER: write FOLDER/pretok.jsonl, where the published pre-tokenizers cut texts.

The texts are short rows of FOLDER/tokenize.jsonl and a few of its own. gpt-2, llama-bpe and qwen2 are cut by
Hugging Face's `tokenizers` with the patterns of the models' tokenizer.json, `default` by the `regex` module
with llama.cpp's patterns. Needs: tokenizers, regex. Rows: {"n", "pre", "text", "ends"}, ends in bytes of UTF-8.
"""
import json
import pathlib
import sys
import unicodedata

import regex
from tokenizers import Regex
from tokenizers.pre_tokenizers import Split

WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
PUBLISHED = {"gpt-2": GPT2, "llama-bpe": WORDS % r"\p{N}{1,3}", "glm4": WORDS % r"\p{N}{1,3}", "qwen2": WORDS % r"\p{N}"}
DEFAULT = [r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", r"[0-9][0-9][0-9]"]
OWN = ["1234567 12 1", "I'LL we'Re it'S 'llama", "a\r\n\r\nb", "  \n  x", "x  \n\n y", "!!\n\n", "a\u180eb", "½Ⅷ٣12",
       "$100,000.50 <a|b>", "\u00a0\u00a0x", "x\u3000\n", " \t\r\n\t", "123 456 7890123"]


def cut(pre, text):
    if pre != "default":
        return [p for p, _ in Split(Regex(PUBLISHED[pre]), "isolated").pre_tokenize_str(text)]
    pieces = [text]
    for pattern in DEFAULT:
        out = []
        for piece in pieces:
            at = 0
            for m in regex.finditer(pattern, piece, regex.V1):
                out += [piece[at : m.start()], m[0]]
                at = m.end()
            out.append(piece[at:])
        pieces = [p for p in out if p]
    return pieces


def is_old(text):
    """Only code points whose class is the same in all these programs: those of Unicode 14, which Python 3.11 has."""
    return not any(unicodedata.category(c) == "Cn" for c in text)


def main():
    folder = pathlib.Path(sys.argv[1])
    rows = [json.loads(line) for line in open(folder / "tokenize.jsonl")]
    texts = [r["text"] for r in rows if 3 < len(r["text"]) < 60 and is_old(r["text"])][::5] + OWN
    with open(folder / "pretok.jsonl", "w") as out:
        for n, (pre, text) in enumerate((p, t) for p in (*PUBLISHED, "default") for t in texts):
            ends, at = [], 0
            for piece in cut(pre, text):
                at += len(piece.encode())
                ends.append(at)
            assert at == len(text.encode())
            out.write(json.dumps({"n": n, "pre": pre, "text": text, "ends": ends}) + "\n")


main()
