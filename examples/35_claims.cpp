// Is it true? Well-known claims of chips, number formats, software and models, worked out beside
// their figures: where they hold, when, and what nothing public says. You see every verdict, then
// four in full: v5e against v4 for a dollar, a beam of 32 on one chip, kernels launched one by one
// or as a graph, the traffic of tiles; with the formulas of some of their figures and the numbers
// put in.
//   g++ -std=c++17 -O2 -pthread -I. examples/35_claims.cpp -o 35_claims && ./35_claims
#include "claims/claims.hpp"
namespace ts = tinyscale;

int main() {
  std::cout << ts::claim_table() << "\n";
  const ts::ClaimReport dollar = ts::claim("A1"), beam = ts::claim("A4"), tiles = ts::claim("C6");
  std::cout << dollar << "\n" << dollar.quantity("share of math for 2.5").explain() << "\n";
  std::cout << beam << "\n" << beam.quantity("memory, shared").explain() << "\n";
  std::cout << ts::claim("C2") << "\n" << tiles;
}
