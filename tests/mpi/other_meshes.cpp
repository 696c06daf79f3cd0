// Ranks that come to a run with different meshes: all of them say so, and go on.
#include "tinyscale.hpp"

namespace ts = tinyscale;

namespace {

ts::Mesh mesh(const char* machine, const char* axis, int devices) {
  return ts::Mesh(ts::machine(machine, {devices}), {{axis, devices}});
}

int wrong = 0;

// Rank 1 comes with `other`, the rest with "x" of 2.
void expect(const ts::Mesh& other, const std::string& told) {
  const ts::Mesh first = mesh("tpu-v5e", "x", 2);
  std::string text;
  try {
    (ts::process_rank() == 1 ? other : first).run([](ts::Device& d) { d.barrier(); });
  } catch (const ts::Error& error) {
    text = error.what();
  }
  if (text != "mesh.run: MPI rank 0 comes with the mesh tpu-v5e 2, x of 2; rank 1 with " + told +
                  "; all ranks must run the same mesh") {
    std::printf("rank %d: %s\n", ts::process_rank(), text.c_str());
    ++wrong;
  }
}

}  // namespace

int main() {
  expect(mesh("tpu-v5e", "x", 1), "tpu-v5e 1, x of 1");
  expect(mesh("tpu-v5e", "x", 3), "tpu-v5e 3, x of 3");
  expect(mesh("tpu-v5e", "x", 8), "tpu-v5e 8, x of 8");  // more than there are ranks
  expect(mesh("tpu-v5p", "x", 2), "tpu-v5p 2, x of 2");
  expect(mesh("tpu-v5e", "y", 2), "tpu-v5e 2, y of 2");
  mesh("tpu-v5e", "x", 2).run([](ts::Device& d) { d.barrier(); });
  return wrong;
}
