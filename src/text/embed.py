#!/usr/bin/env python3
"""embed.py IN OUT NAME: write the ASCII file IN as a C header that defines `static const char NAME[]`."""
import pathlib
import sys

source, out, name = sys.argv[1:]
data = pathlib.Path(source).read_text(encoding="ascii").encode()
lines = [", ".join(str(b) for b in data[i : i + 24]) for i in range(0, len(data), 24)]
pathlib.Path(out).write_text(f"static const char {name}[] = {{\n" + ",\n".join(lines) + ",\n0};\n")
