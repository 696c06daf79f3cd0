// What does a training step cost on 71,680 chips? A layer of a transformer with its batch over
// pods and cubes: predict() runs the program of one device and takes each collective from its
// closed form, so eight TPU v5p pods cost no more than one chip. You see the same program run on
// a few chips, with every message, beside its prediction; then what start_ and wait hide.
//   g++ -std=c++17 -O2 -pthread -I. examples/18_many_chips.cpp -o 18_many && ./18_many
#include "tinyscale.hpp"
namespace ts = tinyscale;

int main() {
}
