#pragma once
// A peer that is a program: it answers each line with seconds, or with "no" and a reason, so that
// it takes turns with ours.

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

namespace bench {

// A forked process goes on as a program.
[[noreturn]] inline void become(const std::vector<std::string>& command) {
  std::vector<char*> words;
  for (const std::string& word : command) {
    words.push_back(strdup(word.c_str()));
  }
  words.push_back(nullptr);
  execvp(words[0], words.data());
  _exit(127);
}

class Worker {
 public:
  explicit Worker(const std::vector<std::string>& command,
                  const std::vector<std::string>& environment = {}) {
    int to[2], from[2];
    if (pipe(to) != 0 || pipe(from) != 0) {
      return;
    }
    for (const int end : {to[0], to[1], from[0], from[1]}) {
      fcntl(end, F_SETFD, FD_CLOEXEC);
    }
    signal(SIGPIPE, SIG_IGN);
    std::fflush(stdout);
    pid_ = fork();
    if (pid_ == 0) {
      dup2(to[0], 0);
      dup2(from[1], 1);
      std::FILE* const quiet = std::freopen("/dev/null", "w", stderr);
      static_cast<void>(quiet);
      for (const std::string& variable : environment) {
        putenv(strdup(variable.c_str()));
      }
      become(command);
    }
    close(to[0]);
    close(from[1]);
    in_ = to[1];
    out_ = from[0];
    first_line_ = read_line();
  }
  ~Worker() {
    close(in_);  // the end of its input ends it
    close(out_);
    if (pid_ > 0) {
      int status = 0;
      kill(pid_, SIGTERM);  // it has nothing to save
      waitpid(pid_, &status, 0);
    }
  }
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  double ask(const std::string& line) {  // seconds; negative: it cannot
    const std::string text = line + "\n";
    if (first_line_.empty() || write(in_, text.data(), text.size()) < 0) {
      return -1;
    }
    const std::string answer = read_line();
    char* end = nullptr;
    const double seconds = std::strtod(answer.c_str(), &end);
    if (answer.empty() || end == answer.c_str()) {
      reason_ = answer.empty() ? "it ended" : answer;
      return -1;
    }
    return seconds;
  }
  const std::string& first_line() const { return first_line_; }  // empty: it did not start
  const std::string& reason() const { return reason_; }

 private:
  std::string read_line() {
    for (;;) {
      const std::size_t end = buffer_.find('\n');
      if (end != std::string::npos) {
        const std::string line = buffer_.substr(0, end);
        buffer_.erase(0, end + 1);
        return line;
      }
      char part[256];
      const ssize_t count = read(out_, part, sizeof part);
      if (count <= 0) {
        return "";
      }
      buffer_.append(part, static_cast<std::size_t>(count));
    }
  }

  int pid_ = -1, in_ = -1, out_ = -1;
  std::string buffer_, first_line_, reason_;
};

}  // namespace bench
