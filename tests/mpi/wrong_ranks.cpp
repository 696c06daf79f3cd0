// Ranks that do not do the same. `meshes`: they come to a run with different ones; all of them say
// so, and go on. `early`: one ends its program while the others come to another run; they say so,
// not wait.
#include "tinyscale.hpp"

namespace ts = tinyscale;

namespace {

ts::Mesh mesh(const char* machine, const char* axis, int devices) {
  return ts::Mesh(ts::machine(machine, {devices}), {{axis, devices}});
}

// Rank 1 comes with `other`, the rest with "x" of 2; gives how many were told something else.
int told_wrong(const ts::Mesh& other, const std::string& told) {
  const ts::Mesh first = mesh("tpu-v5e", "x", 2);
  std::string text;
  try {
    (ts::process_rank() == 1 ? other : first).run([](ts::Device& d) { d.barrier(); });
  } catch (const ts::Error& error) {
    text = error.what();
  }
  if (text == "mesh.run: MPI rank 0 comes with the mesh tpu-v5e 2, x of 2; rank 1 with " + told +
                  "; all ranks must run the same mesh") {
    return 0;
  }
  std::printf("rank %d: %s\n", ts::process_rank(), text.c_str());
  return 1;
}

int meshes() {
  int wrong =
      told_wrong(mesh("tpu-v5e", "x", 1), "tpu-v5e 1, x of 1") +
      told_wrong(mesh("tpu-v5e", "x", 3), "tpu-v5e 3, x of 3") +
      told_wrong(mesh("tpu-v5e", "x", 8), "tpu-v5e 8, x of 8");  // more than there are ranks
  wrong += told_wrong(mesh("tpu-v5p", "x", 2), "tpu-v5p 2, x of 2") +
           told_wrong(mesh("tpu-v5e", "y", 2), "tpu-v5e 2, y of 2");
  mesh("tpu-v5e", "x", 2).run([](ts::Device& d) { d.barrier(); });
  return wrong;
}

int early() {
  const ts::Mesh both = mesh("tpu-v5e", "x", 2);
  const auto program = [](ts::Device& d) { d.all_reduce(ts::full({4}, 1.0f), "x"); };
  both.run(program);
  if (ts::process_rank() == 1) {
    return 0;
  }
  try {
    both.run(program);
  } catch (const ts::Error& error) {
    std::printf("%s\n", error.what());
    return 0;
  }
  return 1;
}

}  // namespace

int main(int count, char** words) {
  return count == 2 && std::string(words[1]) == "early" ? early() : meshes();
}
