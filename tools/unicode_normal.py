#!/usr/bin/env python3
"""Prints the tables of src/tinyscale/model/unicode_normal.hpp from Python's unicodedata.

  tools/unicode_normal.py | diff - <(sed -n '/_digits() {/,/^}/p' src/tinyscale/model/unicode_normal.hpp)

Numbers in digits of 5 bits, the lowest first, as in unicode_classes.hpp.
"""
import sys
import unicodedata

END = 0x110000


def digits(number):
    text = ""
    while True:
        digit = number % 32
        number //= 32
        c = chr(ord("0") + digit + (32 if number else 0))
        text += {"\\": "p", "?": "q"}.get(c, c)
        if not number:
            return text


def signed(number):
    return digits(2 * number if number >= 0 else -2 * number - 1)


def decompositions():
    text, last, before = "", 0, {1: [0], 2: [0, 0]}
    for code in range(END):
        fields = unicodedata.decomposition(chr(code)).split()
        if not fields or fields[0].startswith("<"):
            continue
        parts = [int(field, 16) for field in fields]
        stays = unicodedata.normalize("NFC", chr(code)) == chr(code)
        kind = 1 if len(parts) == 1 else 0 if stays else 2
        text += digits(3 * (code - last) + kind)
        text += "".join(signed(a - b) for a, b in zip(parts, before[len(parts)]))
        last, before[len(parts)] = code, parts
    return text


def classes():
    text, begin, end = "", 0, 0  # runs of one class: characters before, length, class
    for code in range(END):
        this = unicodedata.combining(chr(code))
        if this and unicodedata.combining(chr(code - 1)) != this:
            begin = code
        if this and (code + 1 == END or unicodedata.combining(chr(code + 1)) != this):
            text += digits(begin - end) + digits(code + 1 - begin) + digits(this)
            end = code + 1
    return text


def show(name, text):
    print("inline const char* %s_digits() {" % name)
    for at in range(0, len(text), 88):
        print('  return "' if at == 0 else '         "', end="")
        print(text[at:at + 88], end='"' + (";\n" if at + 88 >= len(text) else "\n"))
    print("}")


print("// Unicode %s" % unicodedata.unidata_version, file=sys.stderr)
show("decomposition", decompositions())
show("combining_class", classes())
