#pragma once
// The options of a benchmark, "--name=value" and "--name". A word that is not known, or a value
// that cannot be, ends the program: a run of some minutes with another meaning is worse than none.

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

namespace bench {

[[noreturn]] inline void refuse(const std::string& text) {
  std::fprintf(stderr, "bench: %s\n", text.c_str());
  std::exit(2);
}

// The names, each once, for an error: "data; data, ZeRO-1".
inline std::string listed(const std::vector<std::string>& names) {
  std::string out;
  for (auto name = names.begin(); name != names.end(); ++name) {
    if (std::find(names.begin(), name, *name) == name) {
      out += (out.empty() ? "" : "; ") + *name;
    }
  }
  return out;
}

struct Option {
  std::string name;  // "--rounds=" takes a value, "--long" takes none
  std::function<void(const std::string& value)> take;
};

inline void read_options(int count, char** words, const std::vector<Option>& options) {
  for (int i = 1; i < count; ++i) {
    const std::string word = words[i];
    std::vector<std::string> names;
    bool taken = false;
    for (const Option& option : options) {
      const bool valued = option.name.back() == '=';
      names.push_back(option.name);
      if (!taken &&
          (valued ? word.compare(0, option.name.size(), option.name) == 0 : word == option.name)) {
        option.take(word.substr(option.name.size()));
        taken = true;
      }
    }
    if (!taken) {
      refuse(word + " is not known; right is " + (names.empty() ? "no option" : listed(names)));
    }
  }
}

// A whole number from `least` on, for `*number`.
inline Option whole(const std::string& name, int least, int* number) {
  return {name, [name, least, number](const std::string& value) {
            char* end = nullptr;
            const long found = std::strtol(value.c_str(), &end, 10);
            if (value.empty() || *end != '\0' || found < least || found > 1000000) {
              refuse(name + value + ": a whole number from " + std::to_string(least) +
                     " to 1000000 is right");
            }
            *number = static_cast<int>(found);
          }};
}
inline Option text(const std::string& name, std::string* value) {
  return {name, [value](const std::string& found) { *value = found; }};
}
inline Option flag(const std::string& name, bool* on) {
  return {name, [on](const std::string&) { *on = true; }};
}

// The folder of a program, given as it was called.
inline std::string folder_of(const std::string& program) {
  const std::size_t slash = program.rfind('/');
  return slash == std::string::npos ? "." : program.substr(0, slash);
}

// bench/ with what is run from there: here, or where the program was built from.
inline std::string bench_folder(const std::string& programs) {
  for (const std::string& folder : {std::string("bench"), programs + "/../../bench"}) {
    if (std::FILE* const file = std::fopen((folder + "/torch_worker.py").c_str(), "r")) {
      std::fclose(file);
      return folder;
    }
  }
  refuse("bench/ is neither here nor two folders above " + programs +
         "; run it from the folder that has it");
}

// `part`, given by an option, must be in one of the names that it chooses from.
inline void must_choose(const std::string& option, const std::string& part,
                        const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    if (name.find(part) != std::string::npos) {
      return;
    }
  }
  refuse(option + part + " chooses nothing of " + listed(names));
}

}  // namespace bench
