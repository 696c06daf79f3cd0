# Joins the spine and its parts into one header:  awk -v root=src -f tools/join.awk > tinyscale.hpp
#
#   #include "part"      replaced by the part, once, before the part that includes it
#   #include <header>    gathered, sorted, written once at the top
#   #  include <header>  stands inside an #if: left where it is
#   namespace tinyscale  opens the inline namespace TINYSCALE_ABI as well, and its end closes both
#   #if (TINYSCALE_ONLY) & T  in the spine: the parts of a topic, which with what they include stand inside
#                        an #if that lets them through for each of their topics
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

# A line of the spine about topics; true when it was one.
function of_topics(line,    words) {
  if (choosing || line ~ /^#define TINYSCALE_|^#ifndef TINYSCALE_ONLY|^#if .TINYSCALE_ONLY. == 0|^#if __cplusplus/) {
    if (line ~ /^#define TINYSCALE_[A-Z]+ [0-9]/) { split(line, words, " "); topic[++topics] = words[2] }
    choice[++choices] = line
    choosing = line ~ /^#if/ || (choosing && line !~ /^#endif/)
  } else if (line ~ /^#if .TINYSCALE_ONLY. & /) {
    split(line, words, " ")
    now = words[4]
  } else if (line ~ /^#endif/) {
    now = ""
  } else if (line !~ /^#if .TINYSCALE_ONLY. == -1/) {
    return 0
  }
  return 1
}

# A part and all that it includes are of the topic.
function mark(name, which,    i) {
  if (index(of[name], which " ")) return
  of[name] = of[name] which " "
  for (i = 1; i <= uses[name]; i++) mark(used[name, i], which)
}

# The #if in front of a part: none where it is of every topic.
function guard(name,    i, names, count_) {
  for (i = 1; i <= topics; i++)
    if (index(of[name], topic[i] " ")) { names = names (names == "" ? "" : " | ") topic[i]; count_++ }
  if (count_ == topics) return ""
  if (count_ == 0) return "#if (TINYSCALE_ONLY) == -1"
  return "#if (TINYSCALE_ONLY) & " (count_ > 1 ? "(" names ")" : names)
}

function read_part(name,    path, line, other, status) {
  path = root "/" name
  state[name] = "open"
  while ((status = (getline line < path)) > 0) {
    sub(/[ \t\r]+$/, "", line)
    if (name == spine && of_topics(line)) continue
    if (line ~ /^#include "/) {
      other = quoted(line, "\"", "\"")
      if (name == spine && now != "") { root_topic[++roots] = now; root_part[roots] = other; continue }
      used[name, ++uses[name]] = other
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
  put("// Whoever needs a part of it alone compiles faster with")
  put("//   #define TINYSCALE_ONLY TINYSCALE_TENSORS | TINYSCALE_MESH        before the include")
  for (i = 1; i <= choices; i++) put(choice[i])
  put("")
  put("#ifdef TINYSCALE_EXTERN  // declarations only, for a program that links the library of `make lib`")
  put("#  include \"tinyscale_extern.hpp\"")
  put("#else  // the whole library")
  put("")
  for (i = 1; i <= headers; i++) put("#include <" header[i] ">")
  for (i = 1; i <= roots; i++) mark(root_part[i], root_topic[i])
  last = ""
  for (p = 1; p <= parts + 1; p++) {
    here = p <= parts ? guard(part[p]) : ""
    if (here != last) {
      if (last != "") { put(""); put("#endif  // TINYSCALE_ONLY") }
      if (here != "") { put(""); put(here) }
    }
    last = here
    if (p > parts) break
    put("")
    put("// >> " part[p])
    for (i = 1; i <= length_of[part[p]]; i++) put(text[part[p], i])
  }
  put("")
  put("#endif  // TINYSCALE_EXTERN")
  put("#endif  // TINYSCALE_HPP")
  for (i = 1; i <= count; i++) print lines[i]
}
