#!/usr/bin/env python3
"""Checks notebooks without Jupyter: every code cell compiles and runs in reading order.

  tools/nbcheck.py [--modes native,tsan,repl0,repl2] notebooks/*.ipynb

native  the whole notebook as one program (clang++-19, top-level statements), warnings shown
tsan    the same under the thread sanitizer
repl0   cell by cell in clang-repl-19 at -O0 (the default of C++ notebook kernels)
repl2   the same at -O2

Cell tags: no-ci (left out), raises (an error is expected; interpreter modes only).
Standard library only. A mode whose tool is missing is skipped with one line.
"""
import argparse
import concurrent.futures
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile

CLANG = shutil.which("clang++-19")
REPL = shutil.which("clang-repl-19")
BROKEN = re.compile(r"error: |JIT session error|LLVM ERROR|terminate called|Failed to materialize")
TOOL_OF = {"native": CLANG, "tsan": CLANG, "repl0": REPL, "repl2": REPL}


def code_cells(path):
    """The code cells of a notebook: (number, source, tags)."""
    with open(path, encoding="utf-8") as file:
        notebook = json.load(file)
    cells = []
    for number, cell in enumerate(notebook["cells"]):
        tags = set(cell.get("metadata", {}).get("tags", []))
        source = "".join(cell["source"])
        if cell["cell_type"] == "code" and "no-ci" not in tags and source.strip():
            cells.append((number, source, tags))
    return cells


def run(command, folder, limit, text=None):
    """Runs a command; returns (exit code or None after the time limit, stdout, stderr)."""
    try:
        done = subprocess.run(command, input=text, cwd=folder, timeout=limit,
                              capture_output=True, text=True, errors="replace")
        return done.returncode, done.stdout, done.stderr
    except subprocess.TimeoutExpired as late:
        said = [part.decode(errors="replace") if isinstance(part, bytes) else part or ""
                for part in (late.stdout, late.stderr)]
        return None, said[0], said[1] + f"\nno end after {limit} s"


def without_address_randomisation(command):
    """The thread sanitizer of some releases needs a fixed memory layout."""
    setarch = shutil.which("setarch")
    probe = [setarch, "-R", "true"] if setarch else ["false"]
    works = subprocess.run(probe, capture_output=True).returncode == 0
    return [setarch, "-R", *command] if works else command


def check_program(cells, scratch, folder, mode, flags, limit):
    """The notebook as one native program; returns (ok, what it said)."""
    source, program = f"{scratch}/all.cpp", f"{scratch}/{mode}"
    with open(source, "w", encoding="utf-8") as file:
        for number, text, tags in cells:
            if "raises" not in tags:
                file.write(f'#line 1 "cell {number}"\n{text}\n')
        file.write("int main() {}\n")
    extra = ["-O1", "-g1", "-fsanitize=thread"] if mode == "tsan" else ["-O2"]
    code, _, said = run([CLANG, *flags, *extra, "-Xclang", "-fincremental-extensions", source,
                         "-o", program, "-pthread"], folder, limit)
    if code != 0:
        return False, said
    command = without_address_randomisation([program]) if mode == "tsan" else [program]
    code, out, said = run(command, folder, limit)
    return code == 0, out[-500:] + said + f"\nexit code {code}"


def check_interpreter(cells, scratch, folder, mode, flags, limit):
    """Cell by cell in clang-repl; each cell ends with a mark on both outputs."""
    optimise = "-O2" if mode == "repl2" else "-O0"
    session = "#include <cstdio>\n#include <iostream>\n"
    for number, text, _ in cells:
        with open(f"{scratch}/cell{number}.cpp", "w", encoding="utf-8") as file:
            file.write(text + "\n")
        mark = f'"\\x02" "END {number}\\x03\\n"'  # two literals, or \x02E would be one escape
        session += (f'#include "{scratch}/cell{number}.cpp"\n'
                    f"std::cout << std::flush; std::fputs({mark}, stdout); std::fflush(stdout); "
                    f"std::fputs({mark}, stderr);\n")
    code, out, said = run([REPL, *["-Xcc=" + flag for flag in [*flags, optimise, "-w"]]], folder, limit,
                          session + "%quit\n")
    for number, _, tags in cells:
        mark = f"\x02END {number}\x03\n"
        own = said.split(mark)[0].rsplit("\x03\n", 1)[-1]
        if mark not in out or bool(BROKEN.search(own)) != ("raises" in tags):
            return False, f"cell {number}:\n{own[-3000:]}\nexit code {code}"
    if code != 0:
        return False, f"all cells ran, then exit code {code}\n{said[-1500:]}"
    return True, ""


def check(path, mode, limit):
    """One notebook in one mode; returns (ok, a report of one line, or of a failure's end)."""
    folder = os.path.dirname(os.path.abspath(path))
    flags = ["-std=c++17", "-I" + folder, "-I" + os.path.dirname(folder)]
    try:
        cells = code_cells(path)
    except (OSError, ValueError, KeyError) as error:
        return False, f"FAIL {path}: not a notebook: {error}"
    run_cells = check_interpreter if mode.startswith("repl") else check_program
    with tempfile.TemporaryDirectory() as scratch:
        ok, said = run_cells(cells, scratch, folder, mode, flags, limit)
    return ok, f"{'ok  ' if ok else 'FAIL'} {path} {mode}" + ("" if ok else "\n" + said[-3000:])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("notebooks", nargs="+")
    parser.add_argument("--modes", default="native,tsan,repl0,repl2")
    parser.add_argument("--limit", type=int, default=300, help="seconds for one run")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="runs at a time")
    options = parser.parse_args()
    passed = failed = skipped = 0
    modes = []
    for mode in options.modes.split(","):
        if mode not in TOOL_OF:
            parser.error(f"mode {mode!r} is none of {', '.join(TOOL_OF)}")
        if TOOL_OF[mode]:
            modes.append(mode)
        else:
            skipped += 1
            print(f"skipped {mode}: clang-19 and clang-tools-19 are not installed")
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        for ok, report in pool.map(lambda work: check(*work, options.limit),
                                   [(path, mode) for path in options.notebooks for mode in modes]):
            print(report, flush=True)
            passed, failed = passed + ok, failed + (not ok)
    print(f"{passed} passed, {failed} failed" + (f", {skipped} skipped" if skipped else ""))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
