# Declarations only: what a program includes that links the compiled library (make lib).
#   awk -f tools/extern.awk tinyscale.hpp > tinyscale_extern.hpp
#   awk -v library=1 -f tools/extern.awk tinyscale.hpp > library.cpp       what is compiled to that library:
#                                     every function that the declarations leave out is emitted, used or not
#   -v from=compute/gemm -v to=model/ the same of some parts, for several compilers at a time: from the first
#                                     whose name starts so, to before the first that starts with the other
#
#   inline T f(...) { ... }           at the margin: T f(...);
#   inline T Class::f(...) { ... }    dropped, the class declares it
#   T f(...) { ... }                  in a class, on more than seven lines: T f(...);
#   templates, types, constants, macros, short members, constructors in a class: kept
#
# So all state (statics in functions) is in the library alone; a kept body that has state is an error. It
# reads the house format: a function ends with the first } that stands where the function began.
# Plain POSIX awk; the same input gives the same bytes.

function fail(message) {
  print "extern.awk: line " at ": " message > "/dev/stderr"
  failed = 1
  exit 1
}

# The parameter list of a function head: sets open and close_, the places of its parentheses. False when
# there is none. <, > count as brackets before it, so that std::function<void()> does not open it.
function parameters(head,    i, c, angle, depth) {
  i = 1
  angle = 0
  if (match(head, /operator *(\(\)|[^ (a-z]+)\(/)) {
    open = RSTART + RLENGTH - 1
  } else {
    for (open = 0; i <= length(head); i++) {
      c = substr(head, i, 1)
      if (c == "<") angle++
      else if (c == ">") angle--
      else if (c == "(" && angle == 0) { open = i; break }
      else if (c == "{" || c == "=") break
    }
    if (!open) return 0
  }
  depth = 0
  for (i = open; i <= length(head); i++) {
    c = substr(head, i, 1)
    if (c == "(") depth++
    else if (c == ")" && --depth == 0) { close_ = i; return 1 }
  }
  return 0
}

# A head "T f(int x) : a_(x) {" as a declaration "T f(int x);".
function declared(head,    tail) {
  tail = substr(head, close_ + 1)
  sub(/\n? *: .*/, "", tail)
  sub(/ *\{.*/, "", tail)
  sub(/ +$/, "", tail)
  head = substr(head, 1, close_) tail ";"
  sub(/TINYSCALE_INLINE /, "", head)            # a body elsewhere cannot be inlined
  return head
}

# A constant may stand in two places, a variable may not.
function stateful(text) {
  return text ~ /(^|[ {])(static|thread_local) [^(;]*[;={]/ && text !~ /static (constexpr|const) /
}

function has_state(first, final,    i) {
  for (i = first; i <= final; i++) if (stateful(line[i])) return 1
  return 0
}

# What the notebook included before this header is known where the program is compiled only: what shows
# something is compiled there, and what shows by it.
function asks_notebook(first, final,    i) {
  for (i = first; i <= final; i++) if (line[i] ~ /ShowOptions& options/) return 1
  return 0
}

# The last line of the body that opens in line `from` and ends with a } behind `margin`.
function end_of(from, margin,    i) {
  for (i = from + 1; i <= count; i++)
    if (substr(line[i], 1, length(margin) + 1) == margin "}") return i
  fail("no end of " line[from])
}

# Collects the head that starts at line `at`: up to the first { or ; at its end; sets last.
function head_from(    head, text) {
  head = ""
  for (last = at; last <= count; last++) {
    text = line[last]
    sub(/[ ]*\/\/ .*$/, "", text)
    head = head (head == "" ? "" : "\n") text
    if (text ~ /[;{}]$/) return head
    if (text ~ /^ ?(public|private|protected):$/) return head
  }
  fail("no end of " line[at])
}

# A function that the library must hold, used there or not.
function emit(first, final) {
  sub(/^ *(\[\[[a-z:, ]+\]\] )?/, "&__attribute__((used)) ", line[first])
  copy(first, final)
}

function copy(first, final,    i) { for (i = first; i <= final; i++) print line[i] }

# One declaration at the margin.
function outer(    head, name, final) {
  if (line[at] ~ /^(struct|class|union|enum) .*\{$/) { members(); return }
  head = head_from()
  if (head ~ /^template/ || head !~ /^(inline|__attribute__.* inline) / || !parameters_of_function(head)) {
    final = head ~ /\{$/ ? end_of(last, "") : last
    if (head ~ /^template/ && head !~ /;$/) check(at, final)
    copy(at, final)
    at = final + 1
    return
  }
  final = head ~ /\{$/ ? end_of(last, "") : last
  if (asks_notebook(at, final)) {
    copy(at, final)
    at = final + 1
    return
  }
  name = substr(head, 1, open - 1)
  if (bodies) {
    if (constructs(name)) {
      sub(/^inline /, "", line[at])
      copy(at, final)
    } else {
      emit(at, final)
    }
    at = final + 1
    return
  }
  if (name !~ /[A-Za-z_0-9>]::(~?[A-Za-z_0-9]+|operator[^ ]*( [a-z].*)?)$/) {
    if (head ~ /;$/) head = substr(head, 1, length(head) - 1)
    head = declared(head)
    sub(/(^|\n)inline /, "", head)
    sub(/\) inline /, ") ", head)
    print head
  }
  at = final + 1
}

# "inline Mesh::Mesh" or "~Mesh": clang emits but one of a used inline constructor's two symbols.
function constructs(name,    part, n) {
  sub(/^inline /, "", name)
  n = split(name, part, /::~?/)
  return n == 2 && part[1] == part[2]
}

# `open` behind an attribute in front of the function.
function parameters_of_function(head,    skipped, rest, found) {
  skipped = 0
  if (match(head, /^__attribute__\(\(.*\)\) inline /)) skipped = RLENGTH
  rest = substr(head, skipped + 1)
  found = parameters(rest)
  open += skipped
  close_ += skipped
  return found
}

function check(first, final) {
  if (has_state(first, final)) fail("a body that is kept has state: " line[first])
}

# A class at the margin.
function members(    final, head, end) {
  final = end_of(at, "")
  print line[at++]
  while (at < final) {
    if (line[at] !~ /^  [^ \/#]/ ) { print line[at++]; continue }
    head = head_from()
    if (head ~ /\{$/) {
      end = end_of(last, "  ")
      if (line[end] == "  }" && head !~ /^  (template|struct|class|enum|union|constexpr|auto|(explicit )?~?[A-Z][A-Za-z0-9]*\()/ && parameters(head) &&
          (end - at > 6 || has_state(at, end))) {
        if (bodies) {
          emit(at, end)
        } else {
          print declared(head)
        }
      } else {
        check(at, end)
        copy(at, end)
      }
      at = end + 1
    } else {
      if (head ~ /\}$/) check(at, last)
      copy(at, last)
      at = last + 1
    }
  }
  print line[at++]
}

{ line[++count] = $0 }

END {
  if (failed) exit 1
  print "// SPDX-License-Identifier: MIT"
  print "// Generated from tinyscale.hpp by `make lib`."
  if (!library) {
    print "// Declarations for programs that link the library: define TINYSCALE_EXTERN, include \"tinyscale.hpp\"."
    print "#pragma once"
  }
  bodies = 0                                      # of the parts from here on
  ended = to == ""
  mark = "// >> tinyscale/"
  at = 1
  while (at <= count && line[at] != "#else  // the whole library") at++
  if (at > count) fail("not the joined header")
  for (at++; at <= count && line[at] !~ /^#endif  \/\/ TINYSCALE_EXTERN/;) {
    if (!ended && index(line[at], mark to) == 1) { ended = 1; break }
    if (library && line[at] ~ /^#(if|endif ) .*TINYSCALE_ONLY/) { at++; continue }  # it has all topics
    if (library && index(line[at], mark from) == 1) bodies = 1
    if (line[at] ~ /^#.*\\$/) {                     # a macro
      while (line[at] ~ /\\$/) print line[at++]
      print line[at++]
    } else if (line[at] ~ /^(#|\/\/|\}|namespace |$)/ || line[at] ~ /^ *\/\//) {
      print line[at++]
    } else {
      outer()
    }
  }
  if (!ended || bodies != (library != "")) fail("no part begins with \"" (ended ? from : to) "\"")
}
