#pragma once
// A graph plan as one C++ file: a function a fused group, and one that runs the steps in their
// order. Products and kernels of the library stay calls: who runs the file says what they do.

#include <cstddef>  // size_t
#include <string>   // source

#include "tinyscale/compile/graph_plan.hpp"
#include "tinyscale/compile/print_cpp.hpp"

namespace tinyscale {
namespace detail {

// "%5 gelu(%4) [8, 16]"
inline std::string node_note(const Graph& graph, int number) {
  const GraphNode& node = graph[number];
  std::string of;
  for (const int input : node.inputs) {
    of += cat({of.empty() ? "" : ", ", "%", input});
  }
  return cat({"%", number, " ", name_of(node.op), of.empty() ? "" : "(", of, of.empty() ? "" : ")",
              " ", node.shape});
}

inline std::string step_name(const GraphPlan& plan, std::size_t number) {
  const Step& step = plan.steps()[number];
  return cat({"step_", number, "_", name_of(plan.graph()[step.nodes.back()].op)});
}

inline CppNotes step_notes(const GraphPlan& plan, std::size_t number) {
  const Step& step = plan.steps()[number];
  const Graph& graph = plan.graph();
  CppNotes notes;
  notes.title = cat({"Step ", number, ": ", step.name(graph)});
  notes.values = List<std::string>(step.program.values().size());
  for (std::size_t i = 0; i < step.nodes.size(); ++i) {
    std::string& note = notes.values[static_cast<std::size_t>(step.values[i])];
    note = note.empty() ? node_note(graph, step.nodes[i]) : note;
  }
  for (const int input : step.inputs) {
    notes.inputs.push_back(node_note(graph, input));
  }
  for (const int output : step.outputs) {
    notes.outputs.push_back(node_note(graph, output));
  }
  return notes;
}

inline std::string step_text(const GraphPlan& plan, std::size_t number, CppNeeds& needs) {
  const CppNotes notes = step_notes(plan, number);
  return CppKernel(plan.steps()[number].program, step_name(plan, number), notes, needs).text();
}

inline std::string pointer_list(const char* type, const char* name, const List<int>& nodes) {
  std::string all;
  for (const int node : nodes) {
    all += cat({all.empty() ? "" : ", ", "value[", node, "]"});
  }
  return cat({"    ", type, " const ", name, "[] = {", all, "};\n"});
}

// The call of a step in the function that runs all.
inline std::string step_call(const GraphPlan& plan, std::size_t number) {
  const Step& step = plan.steps()[number];
  const Graph& graph = plan.graph();
  if (step.kind == StepKind::vectors) {
    const bool reads = !step.inputs.empty();
    return cat({"  {\n", reads ? pointer_list("const float*", "in", step.inputs) : std::string(),
                pointer_list("float*", "out", step.outputs), "    ", step_name(plan, number), "(",
                reads ? "in" : "nullptr", ", out);\n  }\n"});
  }
  std::string out;
  for (const int node : step.nodes) {
    out += "  // " + node_note(graph, node) + "\n";
  }
  return cat({out, "  library(", number, ", value);\n"});
}

}  // namespace detail

// One step of a plan, a group of nodes, with the graph's nodes beside its lines.
inline std::string print_cpp(const GraphPlan& plan, std::size_t step) {
  if (step >= plan.steps().size()) {
    detail::fail({"print_cpp: step ", step, " of a plan of ", plan.steps().size(), " steps"});
  }
  if (plan.steps()[step].kind != StepKind::vectors) {
    detail::fail({"print_cpp: step ", step, ", ", plan.steps()[step].name(plan.graph()), ", is a ",
                  name_of(plan.steps()[step].kind),
                  " of the library; groups of vectors are printed, or the whole plan"});
  }
  detail::CppNeeds needs;
  const std::string body = detail::step_text(plan, step, needs);
  return detail::cpp_head(needs) + body;
}

// The whole plan: value[n] is where the numbers of node %n begin, library(s, value) computes step
// s.
inline std::string print_cpp(const GraphPlan& plan) {
  detail::CppNeeds needs;
  std::string groups, calls;
  bool library = false;
  for (std::size_t s = 0; s < plan.steps().size(); ++s) {
    const bool group = plan.steps()[s].kind == StepKind::vectors;
    groups += group ? detail::step_text(plan, s, needs) + "\n" : std::string();
    library = library || !group;
    calls += detail::step_call(plan, s);
  }
  std::string table = plan.graph().text();
  std::string out = "// ";
  for (const char c : table) {
    out += c == '\n' ? std::string("\n// ") : std::string(1, c);
  }
  while (!out.empty() && (out.back() == ' ' || out.back() == '/' || out.back() == '\n')) {
    out.pop_back();
  }
  return detail::cat(
      {out, "\n\n", detail::cpp_head(needs), groups,
       "// value[n]: where the numbers of node %n begin; library(s, value): step s.\n"
       "extern \"C\" void run_plan(float* const* ",
       plan.steps().empty() ? "/*value*/" : "value", ", void (*", library ? "library" : "",
       ")(int step, float* const* value)) {\n", calls, "}\n"});
}

}  // namespace tinyscale
