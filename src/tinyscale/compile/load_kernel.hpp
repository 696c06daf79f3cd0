#pragma once
// Vector programs printed as C++, built by the compiler of this machine and loaded: what a compiler
// of graphs does on a CPU. Only with TINYSCALE_LOAD_KERNELS, and only where it is asked for; else
// nothing here starts a process.

#include <algorithm>  // max, min
#include <cerrno>     // errno
#include <cstddef>    // size_t
#include <cstdint>    // int64_t
#include <cstdio>     // popen, fread
#include <cstdlib>    // atoi, mkdtemp
#include <cstring>    // strerror
#include <string>     // source, paths

#include "tinyscale/base/config.hpp"
#include "tinyscale/base/error.hpp"
#include "tinyscale/base/list.hpp"
#include "tinyscale/base/shared.hpp"
#include "tinyscale/base/threads.hpp"
#include "tinyscale/compile/print_cpp.hpp"
#include "tinyscale/compute/vector_program.hpp"
#include "tinyscale/compute/vector_run.hpp"

// clang-format off
#if defined(TINYSCALE_LOAD_KERNELS) && (defined(__unix__) || defined(__APPLE__))
#define TINYSCALE_CAN_LOAD 1
#  include <dlfcn.h>   // dlopen
#  include <unistd.h>  // access, mkdtemp, unlink
#else
#define TINYSCALE_CAN_LOAD 0
#endif
// clang-format on

namespace tinyscale {

// Which compiler, with which words. An empty compiler is CXX in the environment, or the first of
// c++, g++ and clang++ that this machine has.
struct KernelBuild {
  std::string compiler;
  std::string flags = "-O3 -march=native";
};

namespace detail {

// A shared object in memory.
struct KernelLibrary {
  void* handle = nullptr;

  KernelLibrary() = default;
  KernelLibrary(const KernelLibrary&) = delete;
  KernelLibrary& operator=(const KernelLibrary&) = delete;
  ~KernelLibrary() {
#if TINYSCALE_CAN_LOAD
    if (handle != nullptr) {
      dlclose(handle);
    }
#endif
  }
};

#if TINYSCALE_CAN_LOAD

// One word of a shell's command, whatever is in it.
inline std::string shell_word(const std::string& text) {
  std::string out = "'";
  for (const char c : text) {
    out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  }
  return out + "'";
}

// The words between the spaces of a text, each quoted.
inline std::string shell_words(const std::string& text) {
  std::string out, word;
  for (std::size_t i = 0; i <= text.size(); ++i) {
    if (i < text.size() && text[i] != ' ' && text[i] != '\t' && text[i] != '\n') {
      word += text[i];
    } else if (!word.empty()) {
      out += (out.empty() ? "" : " ") + shell_word(word);
      word.clear();
    }
  }
  return out;
}

struct CommandResult {
  int status = -1;  // of the program; -1: it is not known
  std::string output;
};

// The status comes as the last word: a program that ignores its children's ends gets none to wait
// for.
inline CommandResult run_command(const std::string& command) {
  CommandResult result;
  std::FILE* const pipe = popen((command + " 2>&1; echo \" $?\"").c_str(), "r");
  if (pipe == nullptr) {
    fail({"load_kernel: no process could be started: ", std::strerror(errno)});
  }
  char buffer[4096];
  for (std::size_t n = 0; (n = std::fread(buffer, 1, sizeof buffer, pipe)) > 0;) {
    result.output.append(buffer, n);
  }
  pclose(pipe);
  const std::size_t word = result.output.rfind(' ');
  if (word != std::string::npos) {
    result.status = std::atoi(result.output.c_str() + word);
    result.output.resize(word);
  }
  return result;
}

// A folder of one's own for as long as it is built, which nobody else may enter.
class BuildFolder {
 public:
  BuildFolder() {
    const std::string given = environment("TMPDIR");
    const std::string parent = given.empty() ? "/tmp" : given;
    path_ = parent + "/tinyscale-" + std::string(6, 'X');
    if (mkdtemp(&path_[0]) == nullptr) {
      const std::string why = std::strerror(errno);
      fail({"load_kernel: no folder can be made in ", parent, ": ", why,
            "; TMPDIR names one that can be written"});
    }
  }
  BuildFolder(const BuildFolder&) = delete;
  BuildFolder& operator=(const BuildFolder&) = delete;
  ~BuildFolder() {
    unlink(source().c_str());
    unlink(library().c_str());
    rmdir(path_.c_str());
  }
  std::string source() const { return path_ + "/kernels.cpp"; }
  std::string library() const { return path_ + "/kernels.so"; }

  void write_source(const std::string& text) const {
    std::FILE* const file = std::fopen(source().c_str(), "wb");
    bool written = file != nullptr;
    if (written) {
      written = std::fwrite(text.data(), 1, text.size(), file) == text.size();
      written = std::fclose(file) == 0 && written;
    }
    if (!written) {
      fail({"load_kernel: ", source(), " could not be written: ", std::strerror(errno)});
    }
  }

 private:
  std::string path_;
};

// The command of a compiler: a file that can be run, else words as in CXX='ccache g++'.
inline std::string compiler_command(const std::string& name) {
  return access(name.c_str(), X_OK) == 0 ? shell_word(name) : shell_words(name);
}

inline bool runs(const std::string& command) {
  return run_command(command + " --version").status == 0;
}

// Empty: there is none.
inline std::string find_compiler(const KernelBuild& build) {
  const std::string named = build.compiler.empty() ? environment("CXX") : build.compiler;
  if (!named.empty()) {
    const std::string command = compiler_command(named);
    return !command.empty() && runs(command) ? command : std::string();
  }
  for (const char* const name : {"c++", "g++", "clang++"}) {
    if (runs(name)) {
      return name;
    }
  }
  return "";
}

// glibc has exp, log, tanh and erf of many numbers at once; g++ has to be told.
inline const char* vector_math_text() {
  return "#include <cmath>\n"
         "#if defined(__x86_64__) && defined(__GLIBC__) && defined(__GNUC__) && "
         "!defined(__clang__)\n"
         "#if __GLIBC_PREREQ(2, 35)\n"
         "#define VECTOR_MATH(F) extern \"C\" __attribute__((simd(\"notinbranch\"))) float "
         "F(float) noexcept;\n"
         "VECTOR_MATH(expf) VECTOR_MATH(logf) VECTOR_MATH(tanhf) VECTOR_MATH(erff)\n"
         "#endif\n"
         "#endif\n";
}

inline std::string first_lines(const std::string& text, int lines) {
  std::size_t end = 0;
  for (int i = 0; i < lines && end < text.size(); ++i) {
    end = std::min(text.find('\n', end), text.size() - 1) + 1;
  }
  std::string out = text.substr(0, end);
  while (!out.empty() && out.back() == '\n') {
    out.pop_back();
  }
  return out;
}

inline Shared<KernelLibrary> open_library(const std::string& path) {
  Shared<KernelLibrary> library(new KernelLibrary);
  library->handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library->handle == nullptr) {
    const char* const why = dlerror();
    fail({"load_kernel: what was built cannot be loaded: ",
          why == nullptr ? "no reason is given" : why});
  }
  return library;
}

typedef void (*KernelFunction)(const float* const* in, float* const* out, std::int64_t first,
                               std::int64_t last);

inline KernelFunction find_kernel(const KernelLibrary& library, const std::string& name) {
  void* const found = dlsym(library.handle, name.c_str());
  if (found == nullptr) {
    fail({"load_kernel: there is no ", name, " in what was built"});
  }
  KernelFunction function = nullptr;
  static_assert(sizeof function == sizeof found, "as POSIX has it");
  std::memcpy(&function, &found, sizeof function);
  return function;
}

inline Shared<KernelLibrary> build_library(const std::string& source, const KernelBuild& build) {
  const std::string compiler = find_compiler(build);
  if (compiler.empty()) {
    const bool given = !build.compiler.empty();
    const std::string named = given ? build.compiler : environment("CXX");
    if (named.empty()) {
      fail({"load_kernel: none of the compilers c++, g++ and clang++ runs here; set CXX"});
    }
    fail({"load_kernel: ", given ? "the compiler of KernelBuild" : "CXX", " is \"", named,
          "\", which does not run; c++ and /folder/g++ are compilers"});
  }
  CommandResult built;
  {  // gone before an Error that nobody catches ends the program
    const BuildFolder folder;
    folder.write_source(vector_math_text() + source);
    built = run_command(
        cat({compiler, " -std=c++17 ", shell_words(build.flags),
             " -shared -fPIC -fno-math-errno -fno-trapping-math -fopenmp-simd -DKERNEL_SIMD -o ",
             shell_word(folder.library()), " ", shell_word(folder.source())}));
    if (built.status == 0) {
      return open_library(folder.library());
    }
  }
  fail({"load_kernel: ", compiler, " ended with status ", built.status, ":\n",
        first_lines(built.output, 8)});
}

#endif

}  // namespace detail

// A built program; copies share it.
class LoadedKernel {
 public:
  LoadedKernel() = default;

  // inputs[i] and outputs[i] as the program numbers them. Sums over rows run on the calling thread,
  // all else on the threads of other loops.
  void operator()(const float* const* inputs, float* const* outputs) const {
    if (run_ == nullptr) {
      detail::fail({"LoadedKernel: there is none; load_kernel makes one"});
    }
    detail::check_pointers("input", inputs_, inputs);
    detail::check_pointers("output", outputs_, outputs);
    if (parts_ == 0) {
      run_(inputs, outputs, 0, 0);
      return;
    }
    parallel_for(parts_, grain_, [&](std::int64_t first, std::int64_t last) {
      run_(inputs, outputs, first * part_size_, std::min(last * part_size_, end_));
    });
  }
  explicit operator bool() const { return run_ != nullptr; }
  // The file that it was built from, which other kernels may share.
  const std::string& source() const { return *source_; }

 private:
  friend List<LoadedKernel> load_kernels(const List<kernels::VectorProgram>&, const KernelBuild&);

  void (*run_)(const float* const* in, float* const* out, std::int64_t first,
               std::int64_t last) = nullptr;
  std::int64_t parts_ = 0, grain_ = 1, part_size_ = 1,
               end_ = 0;  // what threads share out; 0: one does all
  std::size_t inputs_ = 0, outputs_ = 0;
  Shared<std::string> source_;
  Shared<detail::KernelLibrary> library_;
};

// All programs in one file, for one call of the compiler: about half a second and 10 ms a program.
inline List<LoadedKernel> load_kernels(const List<kernels::VectorProgram>& programs,
                                       const KernelBuild& build = KernelBuild()) {
  List<LoadedKernel> out;
#if TINYSCALE_CAN_LOAD
  if (programs.empty()) {
    return out;
  }
  detail::CppNeeds needs;
  std::string bodies;
  for (std::size_t i = 0; i < programs.size(); ++i) {
    const std::string name = detail::cat({"kernel_", i});
    detail::CppKernel kernel(programs[i], name, detail::CppNotes(), needs, detail::CppForm::parts);
    bodies += (i > 0 ? "\n" : "") + kernel.text();
    LoadedKernel made;
    made.inputs_ = programs[i].inputs().size();
    made.outputs_ = programs[i].outputs().size();
    made.parts_ = kernel.parts();
    made.part_size_ = kernel.part_size();
    made.end_ = kernel.part_end();
    made.grain_ =
        std::max<std::int64_t>(1, 16384 / std::max<std::int64_t>(1, kernel.part_floats()));
    out.push_back(made);
  }
  const Shared<std::string> source(new std::string(detail::cpp_head(needs) + bodies));
  const Shared<detail::KernelLibrary> library = detail::build_library(*source, build);
  for (std::size_t i = 0; i < programs.size(); ++i) {
    out[i].library_ = library;
    out[i].source_ = source;
    out[i].run_ = detail::find_kernel(*library, detail::cat({"kernel_", i}));
  }
  return out;
#else
  static_cast<void>(programs);
  static_cast<void>(build);
#if defined(TINYSCALE_LOAD_KERNELS)
  detail::fail(
      {"load_kernel: this system has no dlopen; kernels are built and loaded on POSIX "
       "systems, such as Linux and macOS"});
#else
  detail::fail(
      {"load_kernel: this program was compiled without TINYSCALE_LOAD_KERNELS; define it "
       "before tinyscale.hpp is included"});
#endif
#endif
}

inline LoadedKernel load_kernel(const kernels::VectorProgram& program,
                                const KernelBuild& build = KernelBuild()) {
  return load_kernels({program}, build)[0];
}

}  // namespace tinyscale
