// The same mesh programs on threads and on MPI ranks: numbers, logs, counters, simulated times and
// errors as text, which must be equal, on every rank.
//   same_program DEVICES FILE [RUNNABLE]     the text goes to FILE.RANK; of a job of several ranks,
//                                            all write
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>

#include "tinyscale.hpp"

namespace ts = tinyscale;

namespace {

std::string bits_of(const ts::Tensor& t) {
  std::uint64_t hash = 1469598103934665603ULL;
  for (const float value : t.values()) {
    std::uint32_t bits = 0;
    std::memcpy(&bits, &value, sizeof bits);
    hash = (hash ^ bits) * 1099511628211ULL;
  }
  return ts::detail::cat({t.shape(), " ", hash});
}

ts::Tensor numbers(int rank, const ts::Shape& shape) {
  ts::Tensor out(shape);
  for (std::int64_t i = 0; i < out.count(); ++i) {
    out.data()[i] =
        ts::normal01(static_cast<std::uint64_t>(rank) + 1, static_cast<std::uint64_t>(i));
  }
  return out;
}

class Text {
 public:
  explicit Text(const std::string& file) : out_(file) { out_.precision(17); }

  void add(const std::string& title, const ts::Mesh& mesh, const ts::DeviceProgram& program,
           const std::vector<std::string>& kept) {
    out_ << "== " << title << "\n";
    try {
      const ts::Profile profile;
      const ts::MeshRun run = mesh.run(program);
      for (int rank = 0; rank < run.devices(); ++rank) {
        for (const std::string& name : kept) {
          out_ << rank << " " << name << " " << bits_of(run.kept(rank, name)) << "\n";
        }
        const ts::Counters ops = run.counters(rank);
        const ts::MemoryMeter& memory = run.memory(rank);
        out_ << rank << " " << ops.ops << " ops, " << ops.flops() << " FLOPs, " << ops.bytes()
             << " bytes, sent " << run.bytes_sent(rank) << ", ends "
             << run.timeline.devices[static_cast<std::size_t>(rank)].end << ", peak "
             << memory.peak_total() << "\n";
        for (const ts::MemorySample& sample : run.memory_samples(rank)) {
          out_ << rank << " task " << sample.task << " ends " << sample.seconds << ", peak "
               << sample.peak_total;
          for (const double level : sample.levels) {
            out_ << " " << level;
          }
          out_ << "\n";
        }
      }
      out_ << (run.memory_samples(0).empty() ? "" : ts::time_table(run).text());
      for (const std::string& line : run.log().lines) {
        out_ << line << "\n";
      }
      for (const ts::CollectiveRow& row : run.collectives()) {
        out_ << row.name << " " << row.algorithm << " " << row.reason << " line " << row.where.line
             << " " << row.where.file << " " << row.seconds << "\n";
      }
      out_ << run.table().text() << run.device_table().text() << run.seconds << " s, "
           << run.on(mesh.machine(), ts::Faults().slow_device(0, 3)).seconds << " s\n";
      for (const ts::OpRecord& op : profile.records()) {
        out_ << op.device << " " << op.name << " " << op.shape << " " << op.flops();
        for (const ts::List<ts::Operand>* const operands : {&op.reads, &op.writes}) {
          for (const ts::Operand& operand : *operands) {
            out_ << ", " << ts::name_of(operand.format) << " " << operand.bytes();
          }
        }
        out_ << "\n";
      }
      measured_ = measured_ && run.measured_seconds() > 0;
    } catch (const ts::Error& error) {
      out_ << error.what() << "\n";
    }
  }
  void say(const std::string& text) { out_ << text << "\n"; }
  bool measured() const { return measured_; }

 private:
  std::ofstream out_;
  bool measured_ = true;
};

int runnable = 0;  // of all meshes here

ts::Mesh row(int n, ts::Algorithm algorithm = ts::Algorithm::automatic) {
  ts::Mesh mesh(ts::machine("tpu-v5e", {n}), {{"x", n}});
  mesh.algorithm = algorithm;
  mesh.runnable = runnable;
  return mesh;
}
ts::Mesh two_rows(int n) {
  ts::Mesh mesh(ts::machine("tpu-v5e", {2, n / 2}), {{"x", 2}, {"y", n / 2}});
  mesh.runnable = runnable;
  return mesh;
}

void add_collectives(Text& text, int n) {
  const ts::Algorithm all[] = {
      ts::Algorithm::automatic, ts::Algorithm::ring,   ts::Algorithm::ring_both_ways,
      ts::Algorithm::line,      ts::Algorithm::direct, ts::Algorithm::halving_doubling,
      ts::Algorithm::tree};
  for (const ts::Algorithm algorithm : all) {
    for (const ts::DType format : {ts::DType::f32, ts::DType::bf16}) {
      ts::CollectiveOptions options;
      options.format = format;
      const auto program = [&](ts::Device& d) {
        const ts::Tensor t = numbers(d.rank(), {3, 2 * n, 5});
        d.keep("a", d.all_gather(t, "x", 1, options));
        d.keep("b", d.reduce_scatter(t, "x", 1, ts::Reduce::mean, options));
        d.keep("c", d.all_reduce(t, "x", ts::Reduce::sum, options));
        d.keep("d", d.all_to_all(t, "x", 1, 2, options));
        d.keep("e", d.broadcast(t, "x", n - 1, options));
        d.keep("f", d.reduce(t, "x", n / 2, ts::Reduce::max, options));
        d.keep("g", d.gather(t, "x", 0, 2, options));
        d.keep("h", d.scatter(t, "x", n - 1, 1, options));
        d.keep("i", d.permute(t, "x", 1, options));
        d.barrier();
      };
      text.add(ts::name_of(algorithm), row(n, algorithm), program,
               {"a", "b", "c", "d", "e", "f", "g", "h", "i"});
    }
  }
}

void add_programs(Text& text, int n) {
  text.add("large", row(n),
           [](ts::Device& d) {
             const ts::Tensor t = numbers(d.rank(), {1000003});
             d.keep("a", d.all_reduce(t, "x"));
             d.keep("b", d.all_gather(t, "x"));
           },
           {"a", "b"});
  text.add("a part of the ranks", row(2),
           [](ts::Device& d) { d.keep("a", d.all_reduce(numbers(d.rank(), {7}), "x")); }, {"a"});
  const ts::Mesh grid = two_rows(n);
  text.add("two axes", grid,
           [n](ts::Device& d) {
             const ts::Tensor t = numbers(d.rank(), {n, 4 * n});
             d.keep("a", d.all_reduce(t, {"y", "x"}));
             d.keep("b", d.all_gather(d.reduce_scatter(t, "y", 1), {"x"}));
             ts::Tensor sum = ts::zeros({n, n});
             for (int i = 0; i < 20; ++i) {  // more than may be under way at once
               ts::Pending first = d.start_all_gather(t, "y", 1);
               ts::Pending second = d.start_all_reduce(t, "x", ts::Reduce::min);
               sum = sum + ts::matmul(t, ts::transpose(t, 0, 1));
               ts::Tensor got = second.wait();
               sum = sum + ts::matmul(got, ts::transpose(got, 0, 1));
               first.wait();
             }
             d.keep("c", sum);
             std::vector<std::int64_t> rows;
             for (int i = 0; i < d.size("y"); ++i) {
               rows.push_back((d.rank() + i) % 3);
             }
             std::int64_t all = 0;
             for (const std::int64_t count : rows) {
               all += count;
             }
             d.keep("d", d.all_to_all(numbers(d.rank(), {all, 3}), "y", rows));
           },
           {"a", "b", "c", "d"});
  text.add("many started", row(n),
           [](ts::Device& d) {
             ts::List<ts::Pending> all;
             for (int i = 0; i < 40; ++i) {
               all.push_back(d.start_all_reduce(numbers(d.rank() + i, {33}), "x"));
             }
             ts::Tensor sum = all[39].wait();
             for (std::size_t i = 0; i < 39; ++i) {
               sum = sum + all[i].wait();
             }
             d.keep("a", sum);
             d.start_all_gather(sum, "x");  // nobody waits for it
           },
           {"a"});
  text.add("sends", row(n),
           [n](ts::Device& d) {
             const int next = (d.rank() + 1) % n, before = (d.rank() + n - 1) % n;
             ts::Tensor t = numbers(d.rank(), {d.rank() + 1, 2});
             for (int i = 0; i < 3; ++i) {
               d.send(t, next);
               t = d.recv(before) * 2.0f;
             }
             d.keep("a", t);
             if (d.rank() == 0) {
               d.send(numbers(0, {1 << 18}), n - 1);
             } else if (d.rank() == n - 1) {
               d.keep("a", d.recv(0));
             }
           },
           {"a"});
  text.add("tasks", two_rows(n),
           [](ts::Device& d) {
             ts::Tensor t = numbers(d.rank(), {8, 8});
             for (int i = 0; i < 3; ++i) {
               d.task(i);
               t = ts::matmul(t, d.all_reduce(t, i == 0 ? "x" : "y"));
               if (d.index("x") == 0) {
                 d.send(t, d.rank() + d.size("y"));
               } else {
                 d.recv(d.rank() - d.size("y"));
               }
             }
             d.task(-1);
             d.keep("a", ts::matmul(t, t));
           },
           {"a"});
  text.add("weights in blocks", row(n),
           [](ts::Device& d) {
             const ts::Tensor w = numbers(d.rank(), {8, 64});
             const auto stored =
                 ts::kernels::store_matrix(8, 64, w.data(), {ts::BlockFormat::q4_0});
             d.keep("a", ts::matmul_stored(w, stored, ts::Activations::f32));
           },
           {"a"});
  text.add("gradients", row(n),
           [](ts::Device& d) {
             const ts::Tensor t = ts::parameter(numbers(d.rank(), {6, 4}));
             const ts::Tensor y = d.all_gather(d.all_reduce(t * t, "x"), "x");
             ts::sum(y * y).backward();
             d.keep("a", t.grad());
           },
           {"a"});
  const auto inner = [](ts::Device& d) {  // a run of its own, in each device that makes it
    const ts::MeshRun run = row(3).run([&](ts::Device& e) {
      e.keep("a", e.all_reduce(numbers(d.rank() + e.rank(), {5}), "x"));
      if (d.rank() == 1) {
        e.recv((e.rank() + 1) % 3);
      }
    });
    return run.kept(2, "a");
  };
  text.add("a run inside one device", row(n),
           [&](ts::Device& d) {
             d.keep("a", d.all_reduce(d.rank() == 0 ? inner(d) : ts::ones({5}), "x"));
           },
           {"a"});
  text.add("a run inside all devices, of which one fails", row(n),
           [&](ts::Device& d) {
             ts::Tensor t = ts::ones({5});
             try {
               t = inner(d);
             } catch (const ts::Error& error) {
               t = ts::full({5}, static_cast<float>(std::strlen(error.what())));
             }
             d.keep("a", d.all_reduce(t, "x"));
           },
           {"a"});
  text.add("a run inside that fails", row(n),
           [&](ts::Device& d) { d.all_reduce(d.rank() == 1 ? inner(d) : ts::ones({5}), "x"); }, {});
}

void add_schedule(Text& text, int n) {
  ts::CollectiveSchedule chain;
  chain.name = "chain";
  chain.what = ts::Collective::broadcast;
  chain.devices = n;
  chain.chunks = 2;
  for (int i = 0; i + 1 < n; ++i) {
    for (int c = 0; c < 2; ++c) {
      ts::Transfer t;
      t.step = i + c;
      t.from = i;
      t.to = i + 1;
      t.chunk = c;
      chain.transfers.push_back(t);
    }
  }
  ts::CollectiveOptions options;
  options.schedule = &chain;
  text.add(
      "own schedule", row(n),
      [&](ts::Device& d) { d.keep("a", d.broadcast(numbers(d.rank(), {5}), "x", 0, options)); },
      {"a"});
}

void add_errors(Text& text, int n) {
  const ts::Tensor t = ts::full({4}, 1.0f);
  const auto fails = [&](const char* title, const ts::DeviceProgram& program) {
    text.add(title, row(n), program, {});
  };
  fails("other calls", [&](ts::Device& d) {
    d.barrier();
    d.rank() == 0 ? d.all_gather(t, "x") : d.all_reduce(t, "x");
  });
  fails("other shapes", [&](ts::Device& d) { d.all_gather(ts::zeros({d.rank() / 2 + 1}), "x"); });
  fails("throws", [&](ts::Device& d) {
    if (d.rank() == 1) {
      throw ts::Error("a fault");
    }
    d.all_reduce(t, "x");
  });
  fails("returns", [&](ts::Device& d) {
    if (d.rank() != n - 1) {
      d.all_reduce(t, "x");
    }
  });
  fails("waits for one another", [&](ts::Device& d) { d.recv((d.rank() + 1) % n); });
  fails("nobody receives", [&](ts::Device& d) {
    if (d.rank() == 0) {
      d.send(t, 1);
      d.send(ts::zeros({1 << 20}), n - 1);
    }
  });
  fails("started by some", [&](ts::Device& d) {
    if (d.rank() < n - 1) {
      d.start_all_reduce(t, "x");
    }
  });
  fails("other calls that nobody waits for", [&](ts::Device& d) {
    d.barrier();
    d.rank() == n - 1 ? d.start_all_gather(t, "x") : d.start_all_reduce(t, "x");
    for (int i = 0; i < 20; ++i) {  // more than may be under way at once
      d.barrier();
    }
    d.rank() == 0 ? d.start_permute(t, "x", 1) : d.start_reduce(t, "x");
  });
  fails("sends from several lines", [&](ts::Device& d) {
    d.send(t, (d.rank() + 1) % n);
    for (int i = 0; i < 2 && d.rank() == 1; ++i) {
      d.send(t, 0);
    }
    d.recv((d.rank() + n - 1) % n);
    d.send(t, (d.rank() + n - 1) % n);
    d.rank() == 0 ? d.recv(1) : t;
  });
  fails("groups across", [&](ts::Device& d) {
    ts::Pending pending = d.start_all_reduce(t, "x");
    if (d.rank() == 0) {
      d.recv(1);
    }
    pending.wait();
  });
  fails("no axis", [&](ts::Device& d) { d.all_reduce(t, "z"); });
  const ts::Mesh grid = two_rows(n);
  text.add("a group that rank 0 is not in", grid,
           [&](ts::Device& d) {
             d.all_reduce(t, {"x", "y"});
             for (int i = 0; i < 3; ++i) {
               d.all_reduce(t, "x");
             }
             if (d.rank() == n - 1) {
               d.all_gather(t, "x");
             } else {
               d.all_reduce(t, "x");
             }
           },
           {});
  ts::CollectiveSchedule wrong;  // each exchange by it fails
  wrong.name = "wrong";
  wrong.what = ts::Collective::all_gather;
  wrong.devices = wrong.chunks = 1;
  ts::CollectiveOptions own;
  own.schedule = &wrong;
  fails("an exchange fails of which nobody hears",
        [&](ts::Device& d) { d.start_all_gather(t, "x", 0, own); });
  text.add("one of a group that rank 0 is not in", grid,
           [&](ts::Device& d) {
             d.rank() == n - 1 || d.rank() == n - 2
                 ? d.start_all_gather(t, "y", 0, own)
                 : d.start_all_gather(ts::zeros({d.rank() / 2 + 1}), "y");
           },
           {});
  fails("one of which only the last one hears", [&](ts::Device& d) {
    ts::Pending pending = d.start_all_gather(t, "x", 0, own);
    try {
      d.rank() == n - 1 ? pending.wait() : t;
    } catch (const ts::Error&) {  // and goes on
    }
  });
  text.add("one of which all hear and go on", row(n),
           [&](ts::Device& d) {
             try {
               d.all_gather(t, "x", 0, own);
             } catch (const ts::Error& error) {
               d.keep("a", ts::full({1}, static_cast<float>(std::strlen(error.what()))));
             }
           },
           {"a"});
  text.add("good after failures", row(n), [&](ts::Device& d) { d.keep("a", d.all_reduce(t, "x")); },
           {"a"});
}

// Random programs, each with a fault of one device.
void add_faults(Text& text, int n) {
  const ts::Tensor start = ts::full({2 * n}, 1.0f);
  const ts::Mesh mesh = two_rows(n);
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    const int culprit = static_cast<int>(ts::random_below(seed, 0, static_cast<std::uint64_t>(n)));
    const std::uint64_t when = ts::random_below(seed, 1, 5), how = ts::random_below(seed, 2, 9);
    const auto program = [&](ts::Device& d) {
      ts::Tensor t = start;
      for (std::uint64_t i = 0; i < 5; ++i) {
        if (i == when && d.rank() == culprit) {
          switch (how) {
            case 0: throw ts::Error("a fault");
            case 1: return;
            case 2: d.all_reduce(t, "y", ts::Reduce::max); break;
            case 3: d.recv((culprit + 1) % n); break;
            case 4: d.barrier(); break;
            case 5: d.start_broadcast(t, "x", 1); break;
            case 6: t = ts::full({n}, 1.0f); break;
            case 7: d.all_gather(t, {"y", "x"}); break;
            default: d.send(t, (culprit + 1) % n); break;
          }
        }
        switch (ts::random_below(seed, 10 + i, 6)) {
          case 0: t = d.all_reduce(t, {"x", "y"}); break;
          case 1: d.all_gather(t, "y"); break;
          case 2: d.broadcast(t, "x", 1); break;
          case 3: d.permute(t, "y", 1); break;
          case 4: d.start_all_gather(t, "x"); break;
          default: d.reduce_scatter(ts::zeros({2 * n}), "x"); break;
        }
      }
      d.all_reduce(t, {"x", "y"});
    };
    text.add(ts::detail::cat({"fault ", seed}), mesh, program, {});
  }
}

// Each device's part of the model is on its own rank; the report is the same on all.
void add_trainings(Text& text, int n) {
  std::string words;
  for (int i = 0; i < 40; ++i) {
    words += "the quick brown fox jumps over the lazy dog. ";
  }
  const ts::Text data = ts::make_text("fox", words);
  ts::ModelConfig c;
  c.layers = 2;
  c.width = 8;
  c.heads = c.kv_heads = 2;
  c.head_size = 4;
  c.hidden = 12;
  c.context = 8;
  c.vocabulary = data.tokenizer.vocabulary();
  for (const ts::Zero zero : {ts::Zero::none, ts::Zero::parameters}) {
    ts::TrainOptions options;
    options.out = nullptr;
    options.steps = 3;
    options.batch = 2 * n;
    options.layout.zero = zero;
    options.layout.pipeline = zero == ts::Zero::none ? 2 : 1;
    options.layout.data = n / options.layout.pipeline;
    options.machine = ts::machine("tpu-v5e", {n});
    options.faults.slow_device(n - 1, 3);
    ts::Transformer model(c, 1);
    const ts::TrainReport report = ts::train(model, data, options);
    text.say("== training " + report.layout + "\n" + report.loss_table().text() +
             report.step.table().text() + ts::detail::exact_number(report.last_step->seconds) +
             "\n");
    for (const ts::Parameter& p : model.parameters) {
      text.say(p.name + " " + bits_of(p.value));
    }
  }
}

}  // namespace

int main(int count, char** words) {
  const int n = count > 2 ? std::atoi(words[1]) : 0;
  if (n < 2 || n % 2 != 0) {
    return 2;
  }
  runnable = count > 3 ? std::atoi(words[3]) : 0;
  Text text(ts::detail::cat({words[2], ".", ts::process_rank()}));
  add_collectives(text, n);
  add_programs(text, n);
  add_schedule(text, n);
  add_errors(text, n);
  add_faults(text, n);
  add_trainings(text, n);
  text.say(text.measured() ? "measured" : "not measured");
  return 0;
}
