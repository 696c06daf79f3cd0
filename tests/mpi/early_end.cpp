// One rank ends its program while the others come to another run: they must say so, not wait.
#include "tinyscale.hpp"

namespace ts = tinyscale;

int main() {
  const ts::Mesh mesh(ts::machine("tpu-v5e", {2}), {{"x", 2}});
  const auto program = [](ts::Device& d) { d.all_reduce(ts::full({4}, 1.0f), "x"); };
  mesh.run(program);
  if (ts::process_rank() == 1) {
    return 0;
  }
  try {
    mesh.run(program);
  } catch (const ts::Error& error) {
    std::printf("%s\n", error.what());
    return 0;
  }
  return 1;
}
