#pragma once
// A mesh program on MPI ranks: the devices are the first ranks of the job, and afterwards every
// rank has what all of them left, so that a MeshRun is the same on each. A job of one rank runs its
// devices on this computer's threads; so does a run that a device makes inside another.

#include "tinyscale/mesh/device_thread.hpp"
#include "tinyscale/mesh/mesh_axis.hpp"

namespace tinyscale {

// The number of this process in its MPI job; 0 without MPI. All processes run the whole program,
// and what only one shall print goes behind `if (process_rank() == 0)`.
int process_rank();

}  // namespace tinyscale

#if !defined(TINYSCALE_USE_MPI)

namespace tinyscale {
inline int process_rank() { return 0; }

namespace detail {
inline bool ranks_may_differ(const Machine&) { return false; }
inline const Machine& machine_of_all(const Machine& mine, const List<MeshAxis>&, Algorithm) {
  return mine;
}
inline bool has_other_ranks() { return false; }
inline void check_same_on_ranks(const char*, const std::string&) {}
}  // namespace detail
}  // namespace tinyscale

#else

#include <algorithm>  // max, min
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>  // move
#include <vector>

#include "tinyscale/mesh/mpi_bytes.hpp"
#include "tinyscale/mesh/mpi_fabric.hpp"
#include "tinyscale/mesh/mpi_machine.hpp"

namespace tinyscale {
namespace detail {

// This process's part in MPI, begun when first needed unless the program has.
struct MpiSession {
  MpiSession() {
    int begun = 0, given = 0;
    MPI_Initialized(&begun);
    if (begun == 0) {
      MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &given);
      owner = true;
    }
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Comm here = MPI_COMM_NULL;
    MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &here);
    MPI_Comm_size(here, &neighbours);
    MPI_Comm_free(&here);
    MPI_Comm_dup(MPI_COMM_WORLD, &all);
  }
  // A program that ends within a run leaves without a word: mpirun then ends the others. Else it
  // says goodbye to those that may come to a run yet.
  ~MpiSession() {
    int ended = 0;
    MPI_Finalized(&ended);
    if (ended != 0 || running) {
      return;
    }
    MPI_Request request = MPI_REQUEST_NULL;
    for (int other = 0; other < size; ++other) {
      if (other != rank) {
        MPI_Isend(&rank, 1, MPI_INT, other, 0, all, &request);
        MPI_Request_free(&request);
      }
    }
    if (owner) {
      MPI_Finalize();
    }
  }
  MpiSession(const MpiSession&) = delete;
  MpiSession& operator=(const MpiSession&) = delete;

  int rank = 0, size = 1;
  int neighbours = 1;  // processes on this computer, this one among them
  bool owner = false, running = false;
  MPI_Comm all = MPI_COMM_NULL;

  // Until all ranks have come to a run; one that has ended its program never will.
  void gather_ranks() {
    MPI_Request request = MPI_REQUEST_NULL;
    MPI_Ibarrier(all, &request);
    int here = 0, gone = 0;
    for (std::int64_t looks = 0; here == 0; ++looks) {
      MPI_Status status;
      MPI_Test(&request, &here, MPI_STATUS_IGNORE);
      MPI_Iprobe(MPI_ANY_SOURCE, 0, all, &gone, &status);
      if (here == 0 && gone != 0) {
        fail({"mesh.run: MPI rank ", status.MPI_SOURCE, " has ended its program and rank ", rank,
              " comes to a run; all ranks must make the same runs"});
      }
      if (here == 0) {
        let_others_run(looks);
      }
    }
  }
};

inline MpiSession& mpi_session() {
  static MpiSession session;
  return session;
}

// The text of one rank on all.
inline std::string told_by(int rank, const std::string& text) {
  std::uint64_t size = text.size();
  MPI_Bcast(&size, 1, MPI_UINT64_T, rank, MPI_COMM_WORLD);
  std::string all = mpi_session().rank == rank ? text : std::string(size, '\0');
  for (std::uint64_t at = 0; at < size;) {
    const std::uint64_t part = std::min(size - at, std::uint64_t{1} << 30U);
    MPI_Bcast(&all[at], static_cast<int>(part), MPI_CHAR, rank, MPI_COMM_WORLD);
    at += part;
  }
  return all;
}

// The machine of a run on all ranks, once all have come to it: rank 0's, whose chip may have been
// measured. Throws on all alike when one comes with another mesh than rank 0.
inline Machine machine_of_all(const Machine& mine, const List<MeshAxis>& axes,
                              Algorithm algorithm) {
  MpiSession& session = mpi_session();
  if (session.size == 1 || session.running) {
    return mine;
  }
  session.gather_ranks();
  const std::string mesh = text_of_mesh(mine, axes, algorithm);
  const std::string first = told_by(0, mesh);
  const int same = mesh == first ? session.size : session.rank;
  int other = 0;
  MPI_Allreduce(&same, &other, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
  if (other < session.size) {
    std::string theirs = told_by(other, mesh), ours = first;
    tell_apart(ours, theirs);
    fail({"mesh.run: MPI rank 0 comes with the mesh ", ours, "; rank ", other, " with ", theirs,
          "; all ranks must run the same mesh"});
  }
  Machine machine = mine;
  Bytes figures;
  each_figure(machine, PutFigures{figures});
  Bytes all(told_by(0, figures.text()));
  each_figure(machine, GetFigures{all});
  return machine;
}

// Whether devices are other processes, which have read files of their own.
inline bool has_other_ranks() { return mpi_session().size > 1 && !mpi_session().running; }

// Throws on all alike when one comes with another text than rank 0.
inline void check_same_on_ranks(const char* who, const std::string& text) {
  MpiSession& session = mpi_session();
  session.gather_ranks();
  const std::string first = told_by(0, text);
  const int same = text == first ? session.size : session.rank;
  int other = 0;
  MPI_Allreduce(&same, &other, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
  if (other < session.size) {
    fail({who, ": MPI rank 0 begins at ", first, "; rank ", other, " at ", told_by(other, text),
          "; all ranks must begin at the same"});
  }
}

inline bool ranks_may_differ(const Machine& mine) {
  return mine.chip.measured && mpi_session().size > 1 && !mpi_session().running;
}

// The calls of all devices' logs by their number in the run: one record each.
class CallRegistry {
 public:
  explicit CallRegistry(Fabric& fabric) : fabric_(fabric) {}

  CallRecord* find(std::uint64_t id) {
    const std::string name = name_of_id(id);
    return places_.has(name) ? records_[static_cast<std::size_t>(places_[name])] : nullptr;
  }
  void add(CallRecord* record) {
    places_[name_of_id(record->id)] = static_cast<int>(records_.size());
    records_.push_back(record);
  }

  void put_log(Bytes& to, const DeviceLog& log, int rank) {
    List<const CallShape*> shapes;
    List<const CallRecord*> calls;
    Bytes events;
    for (const DeviceLog::Event& event : log.events) {
      CallRecord* const call = record_of(event);
      if (call != nullptr && call->id == 0) {  // of a device alone in its group
        call->id = MpiRanks::call_id(MpiRanks::own_axes, rank, own_++);
      }
      events.put_enum(event.kind);
      events.put(static_cast<std::int64_t>(event.first));
      events.put(static_cast<std::int64_t>(event.last));
      events.put(static_cast<std::int64_t>(call == nullptr ? 0 : call->id));
      events.put(std::int64_t{event.task});
      if (call != nullptr && find(call->id) == nullptr) {
        add(call);
        calls.push_back(call);
        std::size_t at = 0;
        while (at < shapes.size() && shapes[at] != call->logged.shape.get()) {
          ++at;
        }
        if (at == shapes.size()) {
          shapes.push_back(call->logged.shape.get());
        }
      }
    }
    to.put(static_cast<std::int64_t>(shapes.size()));
    for (const CallShape* const shape : shapes) {
      put_shape_of(to, *shape);
    }
    to.put(static_cast<std::int64_t>(calls.size()));
    for (const CallRecord* const call : calls) {
      std::size_t at = 0;
      while (shapes[at] != call->logged.shape.get()) {
        ++at;
      }
      to.put(static_cast<std::int64_t>(call->id));
      to.put(static_cast<std::int64_t>(at));
      to.put_numbers(*call->logged.members);
      put_where(to, call->logged.where);
    }
    to.put(static_cast<std::int64_t>(log.events.size()));
    to.put(events.text().data(), events.text().size());
    to.put(static_cast<std::int64_t>(log.ops.size()));
    for (const OpCost& op : log.ops) {
      to.put(&op, sizeof op);
    }
    to.put(static_cast<std::int64_t>(log.samples.size()));
    for (const MemorySample& sample : log.samples) {
      to.put(&sample, sizeof sample);
    }
  }

  void get_log(Bytes& from, DeviceLog& log) {
    List<Shared<const CallShape>> shapes(static_cast<std::size_t>(from.number()));
    for (Shared<const CallShape>& shape : shapes) {
      shape = get_shape_of(from);
    }
    for (std::int64_t left = from.number(); left > 0; --left) {
      const Shared<CallRecord> record(new CallRecord);
      record->id = static_cast<std::uint64_t>(from.number());
      record->logged.shape = shapes[static_cast<std::size_t>(from.number())];
      std::vector<int>* const members = new std::vector<int>;
      record->logged.members = Shared<const std::vector<int>>(members);
      from.get_numbers(*members);
      record->logged.where = get_where(from);
      if (find(record->id) == nullptr) {
        add(record.get());
        log.shared.push_back(record);
      }
    }
    for (std::int64_t left = from.number(); left > 0; --left) {
      DeviceLog::Event& event = log.events.add();
      from.get_enum(event.kind);
      event.first = static_cast<std::size_t>(from.number());
      event.last = static_cast<std::size_t>(from.number());
      const std::uint64_t id = static_cast<std::uint64_t>(from.number());
      event.task = from.whole();
      if (id != 0) {
        event.call = find(id);
      }
    }
    log.ops = List<OpCost>(static_cast<std::size_t>(from.number()));
    for (OpCost& op : log.ops) {
      from.get(&op, sizeof op);
    }
    log.samples = List<MemorySample>(static_cast<std::size_t>(from.number()));
    for (MemorySample& sample : log.samples) {
      from.get(&sample, sizeof sample);
    }
  }

 private:
  static std::string name_of_id(std::uint64_t id) {
    return std::string(reinterpret_cast<const char*>(&id), sizeof id);
  }

  // A collective by its key, from which its plan follows; else a send.
  void put_shape_of(Bytes& to, const CallShape& shape) const {
    for (const Shared<const CallPlan>& plan : fabric_.plans()) {
      if (plan->shape.get() == &shape) {
        to.put(std::int64_t{1});
        put_where(to, shape.where);
        put_key(to, plan->key);
        return;
      }
    }
    to.put(std::int64_t{0});
    put_where(to, shape.where);
    to.put(shape.spec.elements);
  }
  Shared<const CallShape> get_shape_of(Bytes& from) {
    const bool collective = from.number() != 0;
    const SourceLine where = get_where(from);
    if (!collective) {
      return send_shape(from.number(), where);
    }
    const CallKey key = get_key(from);
    return fabric_.plan(key, where)->shape;
  }

  Fabric& fabric_;
  NameTable places_;
  List<CallRecord*> records_;
  std::int64_t own_ = 0;
};

template <class Visit>
void each_field(OpRecord& op, const Visit& visit) {
  visit("name", op.name);
  for (List<Operand>* const operands : {&op.reads, &op.writes}) {
    int count = static_cast<int>(operands->size());
    visit("operands", count);
    operands->resize(static_cast<std::size_t>(count));
    for (Operand& operand : *operands) {
      int format = static_cast<int>(operand.format);
      visit("elements", operand.elements);
      visit("element_bytes", operand.element_bytes);
      visit("format", format);
      operand.format = static_cast<DType>(format);
    }
  }
  for (double* const value :
       {&op.matmul_flops, &op.vector_flops, &op.bytes_read, &op.bytes_written, &op.seconds}) {
    visit("cost", *value);
  }
  visit("device", op.device);
  visit("shape", op.shape);
}

inline std::string what_it_left(DeviceThread& self, CallRegistry& calls) {
  Bytes to;
  to.put(&self.counters, sizeof self.counters);
  to.put(self.seconds);
  std::int64_t memory[MemoryMeter::values];
  self.context.memory->read(memory);
  to.put(memory, sizeof memory);
  to.put(static_cast<std::int64_t>(self.device.kept().size()));
  for (const KeptTensor& kept : self.device.kept()) {
    to.put(kept.name);
    put_shape(to, kept.value.shape());
    const Tensor numbers = contiguous(kept.value);
    to.put(numbers.data(), static_cast<std::size_t>(numbers.count()) * sizeof(float));
  }
  to.put(static_cast<std::int64_t>(self.records.size()));
  for (OpRecord& op : self.records) {
    each_field(op, PutFigures{to});
  }
  calls.put_log(to, self.device.endpoint().log(), self.device.rank());
  return to.text();
}

inline void take_what_it_left(Bytes& from, DeviceThread& other, CallRegistry& calls) {
  Context nobody;
  const ContextScope scope(nobody);
  from.get(&other.counters, sizeof other.counters);
  other.seconds = from.real();
  std::int64_t memory[MemoryMeter::values];
  from.get(memory, sizeof memory);
  other.context.memory->write(memory);
  for (std::int64_t left = from.number(); left > 0; --left) {
    const std::string name = from.string();
    Tensor value(get_shape(from));
    from.get(value.data(), static_cast<std::size_t>(value.count()) * sizeof(float));
    other.device.keep(name, value);
  }
  for (std::int64_t left = from.number(); left > 0; --left) {
    other.records.push_back(OpRecord());
    each_field(other.records.back(), GetFigures{from});
  }
  calls.get_log(from, other.device.endpoint().log());
}

// The device of this process, if it is one, until all have ended.
inline void run_own_device(const DeviceProgram& program, Fabric& fabric,
                           List<Shared<DeviceThread>>& devices) {
  const MpiSession& session = mpi_session();
  const bool member = static_cast<std::size_t>(session.rank) < devices.size();
  MPI_Comm comm = MPI_COMM_NULL;
  MPI_Comm_split(MPI_COMM_WORLD, member ? 0 : MPI_UNDEFINED, session.rank, &comm);
  if (member) {
    DeviceThread& own = *devices[static_cast<std::size_t>(session.rank)];
    own.neighbours = session.neighbours;
    MpiRanks ranks(fabric, comm);
    fabric.span(&ranks);
    run_device(program, fabric, own);
    fabric.span(nullptr);
    MPI_Comm_free(&comm);
  }
}

// All ranks have come: see machine_of_all. False where the devices are to run here, and nothing
// was done: one rank only, or a run inside a device's program, to which the others need not come.
inline bool run_on_ranks(const DeviceProgram& program, Fabric& fabric,
                         List<Shared<DeviceThread>>& devices) {
  MpiSession& session = mpi_session();
  const std::size_t ranks = static_cast<std::size_t>(session.size);
  if (ranks == 1 || session.running) {
    return false;
  }
  if (devices.size() > ranks) {
    fail({"mesh.run: ", devices.size(), " devices on ", ranks, " MPI ranks; right is mpirun -n ",
          devices.size(), ", or one rank, which runs all devices"});
  }
  session.running = true;
  run_own_device(program, fabric, devices);
  const std::string failure = told_by(0, session.rank == 0 ? fabric.failure() : "");
  fabric.end_run(failure);
  CallRegistry calls(fabric);
  const std::size_t me = static_cast<std::size_t>(session.rank);
  const std::string own =
      failure.empty() && me < devices.size() ? what_it_left(*devices[me], calls) : "";
  for (std::size_t rank = 0; rank < devices.size() && failure.empty(); ++rank) {
    Bytes left(told_by(static_cast<int>(rank), own));
    if (rank != me) {
      take_what_it_left(left, *devices[rank], calls);
    }
  }
  session.running = false;
  return true;
}

}  // namespace detail

inline int process_rank() { return detail::mpi_session().rank; }

}  // namespace tinyscale

#endif  // TINYSCALE_USE_MPI
