# Several files of tests as one translation unit, each in a namespace of its own:
#   awk -v root=DIR -f tools/unit.awk tests/a_test.cpp tests/b_test.cpp > unit.cpp
# What they include is included before, outside the namespaces; headers guard themselves.
/^ *# *include *[<"]/ && !/\.cpp"/ {
  what = $0
  sub(/^ *# *include */, "", what)
  sub(/[>"][^>"]*$/, substr(what, 1, 1) == "<" ? ">" : "\"", what)
  if (!(what in seen)) { seen[what] = 1; printf "#if __has_include(%s)\n#include %s\n#endif\n", what, what }
}
END {
  for (i = 1; i < ARGC; i++) {
    if (ARGV[i] ~ /=/) continue
    name = ARGV[i]
    sub(/.*\//, "", name); gsub(/[^A-Za-z0-9]/, "_", name)
    printf "namespace %s {\n#include \"%s/%s\"\n}\n", name, root, ARGV[i]
  }
}
