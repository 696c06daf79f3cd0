// A planner on the command line: what does it cost to train or serve a model, is a published speed
// true, what is a collective? `plan` alone answers three questions, one screen each; `plan help`
// lists what else it can. Every number is a formula's, and `plan explain` writes it out with the
// numbers put in. Options are read in plan_options.hpp, answers written in plan_train.hpp,
// plan_facts.hpp.
//   g++ -std=c++17 -O2 -pthread -I. examples/plan.cpp -o plan && ./plan help
#include <iostream>

#include "plan_program.hpp"

int main(int count, char** words) {
  const plan_program::Strings args(words + (count > 0 ? 1 : 0), words + count);
  return plan_program::program(args, std::cout, std::cerr);
}
