# Joins the spine and its parts into one header:  awk -v root=src -f tools/join.awk > tinyscale.hpp
#
#   #include "part"      replaced by the part, once, before the part that includes it
#   #include <header>    gathered, sorted, written once at the top
#   #  include <header>  stands inside an #if: left where it is
#   namespace tinyscale  opens the inline namespace TINYSCALE_ABI as well, and its end closes both
#
# Plain POSIX awk; the same input gives the same bytes.

function fail(message) {
  print "join.awk: " message > "/dev/stderr"
  exit 1
}

function put(line) {                              # no two blank lines in a row
  if (line == "" && lines[count] == "") return
  lines[++count] = line
}

function quoted(line, open, close_,    rest) {    # the text between the two delimiters
  rest = substr(line, index(line, open) + 1)
  return substr(rest, 1, index(rest, close_) - 1)
}

function phrase(line) {                           # the first phrase, whole words, at most 52 columns
  sub(/[:.;]( .*)?$/, "", line)
  while (length(line) > 52 && line ~ /,/) sub(/,[^,]*$/, "", line)
  while (length(line) > 52) sub(/ +[^ ]*$/, "", line)
  return line
}

function read_part(name,    path, line, other, status) {
  path = root "/" name
  state[name] = "open"
  while ((status = (getline line < path)) > 0) {
    sub(/[ \t\r]+$/, "", line)
    if (line ~ /^#include "/) {
      other = quoted(line, "\"", "\"")
      if (state[other] == "open") fail(path ": includes " other ", which includes it")
      if (state[other] == "") read_part(other)
    } else if (line ~ /^#include </) {
      other = quoted(line, "<", ">")
      if (!(other in known)) { known[other] = 1; header[++headers] = other }
    } else if (line !~ /^#pragma once/) {
      if (line == "namespace tinyscale {") line = line " inline namespace TINYSCALE_ABI {"
      else if (line == "}  // namespace tinyscale") line = "}}  // namespace tinyscale"
      else if (line ~ /^(inline )?namespace tinyscale/) fail(path ": write `namespace tinyscale {`")
      text[name, ++length_of[name]] = line
      if (idea[name] == "" && line ~ /^\/\/ /) idea[name] = phrase(substr(line, 4))
    }
  }
  if (status < 0) fail(path ": no such part")
  close(path)
  state[name] = "done"
  part[++parts] = name
}

function sort_headers(    i, j, key) {
  for (i = 2; i <= headers; i++) {
    key = header[i]
    for (j = i - 1; j >= 1 && header[j] > key; j--) header[j + 1] = header[j]
    header[j + 1] = key
  }
}

BEGIN {
  if (root == "") root = "src"
  spine = "tinyscale.hpp"
  read_part(spine)
  sort_headers()
  parts--                                         # the spine is the last one read
  put("// SPDX-License-Identifier: MIT")
  put("// Generated from src/ by `make header`: edit the parts, not this file.")
  put("//")
  for (i = 1; text[spine, i] ~ /^\/\//; i++) put(text[spine, i])
  for (; i <= length_of[spine]; i++)
    if (text[spine, i] !~ /^(\/\/.*)?$/) fail("the spine holds more than comments and includes: " text[spine, i])
  put("//")
  put("// Contents: search for >> and a name to jump to that part.")
  for (p = 1; p <= parts; p++) put(sprintf("//   %-40s %s", part[p], idea[part[p]]))
  put("")
  put("#pragma once")
  put("#ifndef TINYSCALE_HPP")
  put("#define TINYSCALE_HPP")
  put("")
  put("#ifdef TINYSCALE_EXTERN  // declarations only, for a program that links the library of `make lib`")
  put("#  include \"tinyscale_extern.hpp\"")
  put("#else  // the whole library")
  put("")
  for (i = 1; i <= headers; i++) put("#include <" header[i] ">")
  for (p = 1; p <= parts; p++) {
    put("")
    put("// >> " part[p])
    for (i = 1; i <= length_of[part[p]]; i++) put(text[part[p], i])
  }
  put("")
  put("#endif  // TINYSCALE_EXTERN")
  put("#endif  // TINYSCALE_HPP")
  for (i = 1; i <= count; i++) print lines[i]
}
