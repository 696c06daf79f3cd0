// oneDNN, through its C interface: compiled when its header is here, its library opened when found.
#include "peers.hpp"

#if defined(__has_include)
#if __has_include(<oneapi/dnnl/dnnl.h>)
#include <dlfcn.h>
#include <oneapi/dnnl/dnnl.h>
#define BENCH_ONEDNN 1
#endif
#endif

namespace bench {

#if defined(BENCH_ONEDNN)
namespace {

#define BENCH_NAME(major) "libdnnl.so." #major
#define BENCH_LIBRARY(major) BENCH_NAME(major)

struct OneDnn {
  void* library = dlopen(BENCH_LIBRARY(DNNL_VERSION_MAJOR), RTLD_NOW | RTLD_LOCAL);
  void (*set_threads)(int) = nullptr;
  dnnl_engine_t engine = nullptr;
  dnnl_stream_t stream = nullptr;
  bool ready = false;
};

#define BENCH_CALL(function) \
  (reinterpret_cast<decltype(&function)>(dlsym(dnn().library, #function)))

OneDnn& dnn() {
  static OneDnn one;
  return one;
}

void start(Bench& bench) {
  static bool done = false;
  OneDnn& d = dnn();
  if (done) {
    return;
  }
  done = true;
  if (d.library == nullptr) {
    bench.skip("oneDNN", std::string(BENCH_LIBRARY(DNNL_VERSION_MAJOR)) + " was not found");
    return;
  }
  d.set_threads = reinterpret_cast<void (*)(int)>(dlsym(d.library, "omp_set_num_threads"));
  d.ready = BENCH_CALL(dnnl_engine_create)(&d.engine, dnnl_cpu, 0) == dnnl_success &&
            BENCH_CALL(dnnl_stream_create)(&d.stream, d.engine, dnnl_stream_default_flags) ==
                dnnl_success;
  const dnnl_version_t* const v = BENCH_CALL(dnnl_version)();
  bench.peer("oneDNN " + std::to_string(v->major) + "." + std::to_string(v->minor) + "." +
             std::to_string(v->patch));
}

dnnl_data_type_t source_type(Format format) {
  return format == Format::f32 ? dnnl_f32 : format == Format::bf16 ? dnnl_bf16 : dnnl_u8;
}
dnnl_data_type_t weight_type(Format format) {
  return format == Format::int8 ? dnnl_s8 : source_type(format);
}
dnnl_data_type_t result_type(Format format) { return format == Format::int8 ? dnnl_s32 : dnnl_f32; }

// Memory and primitives of one product; they live as long as the process.
struct Product {
  dnnl_primitive_t primitive = nullptr;
  std::vector<dnnl_exec_arg_t> arguments;
  void* result = nullptr;
};

#if DNNL_VERSION_MAJOR >= 3
using Description = dnnl_memory_desc_t;
Description describe(dnnl_dim_t rows, dnnl_dim_t cols, dnnl_data_type_t type,
                     dnnl_format_tag_t tag) {
  const dnnl_dims_t dims = {rows, cols};
  Description d = nullptr;
  BENCH_CALL(dnnl_memory_desc_create_with_tag)(&d, 2, dims, type, tag);
  return d;
}
const_dnnl_memory_desc_t at(const Description& d) { return d; }
dnnl_status_t plan_matmul(dnnl_primitive_desc_t* plan, const Description& src,
                          const Description& weights, const Description& dst) {
  return BENCH_CALL(dnnl_matmul_primitive_desc_create)(plan, dnn().engine, src, weights, nullptr,
                                                       dst, nullptr);
}
#else
using Description = dnnl_memory_desc_t;
Description describe(dnnl_dim_t rows, dnnl_dim_t cols, dnnl_data_type_t type,
                     dnnl_format_tag_t tag) {
  const dnnl_dims_t dims = {rows, cols};
  Description d;
  BENCH_CALL(dnnl_memory_desc_init_by_tag)(&d, 2, dims, type, tag);
  return d;
}
const dnnl_memory_desc_t* at(const Description& d) { return &d; }
dnnl_status_t plan_matmul(dnnl_primitive_desc_t* plan, const Description& src,
                          const Description& weights, const Description& dst) {
  dnnl_matmul_desc_t matmul;
  const dnnl_status_t status =
      BENCH_CALL(dnnl_matmul_desc_init)(&matmul, &src, &weights, nullptr, &dst);
  if (status != dnnl_success) {
    return status;
  }
  return BENCH_CALL(dnnl_primitive_desc_create)(plan, &matmul, nullptr, dnn().engine, nullptr);
}
#endif

template <class Desc>
dnnl_memory_t memory(const Desc& description) {
  dnnl_memory_t made = nullptr;
  BENCH_CALL(dnnl_memory_create)(&made, description, dnn().engine, DNNL_MEMORY_ALLOCATE);
  return made;
}

void fill(dnnl_memory_t memory, std::size_t count, dnnl_data_type_t type, std::uint64_t seed) {
  void* data = nullptr;
  BENCH_CALL(dnnl_memory_get_data_handle)(memory, &data);
  const Numbers values = numbers(static_cast<std::int64_t>(count), seed);
  for (std::size_t i = 0; i < count; ++i) {
    if (type == dnnl_f32) {
      static_cast<float*>(data)[i] = values[i];
    } else if (type == dnnl_bf16) {
      std::uint32_t bits = 0;
      __builtin_memcpy(&bits, &values[i], 4);
      static_cast<std::uint16_t*>(data)[i] = static_cast<std::uint16_t>(bits >> 16);
    } else {
      static_cast<std::int8_t*>(data)[i] = static_cast<std::int8_t>(values[i] * 100.0f);
    }
  }
}

// The weights go into the layout that the primitive asked for.
bool plan_product(Product& product, int m, int n, int k, Format format) {
  const Description src = describe(m, k, source_type(format), dnnl_ab);
  const Description any = describe(k, n, weight_type(format), dnnl_format_tag_any);
  const Description plain = describe(k, n, weight_type(format), dnnl_ab);
  const Description dst = describe(m, n, result_type(format), dnnl_ab);
  dnnl_primitive_desc_t plan = nullptr;
  if (plan_matmul(&plan, src, any, dst) != dnnl_success ||
      BENCH_CALL(dnnl_primitive_create)(&product.primitive, plan) != dnnl_success) {
    return false;
  }
  const auto wanted = BENCH_CALL(dnnl_primitive_desc_query_md)(plan, dnnl_query_weights_md, 0);
  const dnnl_memory_t a = memory(at(src)), b = memory(at(plain)), c = memory(at(dst));
  const dnnl_memory_t packed = memory(wanted);
  const std::size_t rows = static_cast<std::size_t>(m), depth = static_cast<std::size_t>(k);
  fill(a, rows * depth, source_type(format), 1);
  fill(b, depth * static_cast<std::size_t>(n), weight_type(format), 2);
  dnnl_primitive_desc_t turn = nullptr;
  dnnl_primitive_t reorder = nullptr;
  const dnnl_engine_t engine = dnn().engine;
  if (BENCH_CALL(dnnl_reorder_primitive_desc_create)(&turn, at(plain), engine, wanted, engine,
                                                     nullptr) != dnnl_success ||
      BENCH_CALL(dnnl_primitive_create)(&reorder, turn) != dnnl_success) {
    return false;
  }
  const dnnl_exec_arg_t from_to[2] = {{DNNL_ARG_FROM, b}, {DNNL_ARG_TO, packed}};
  BENCH_CALL(dnnl_primitive_execute)(reorder, dnn().stream, 2, from_to);
  BENCH_CALL(dnnl_stream_wait)(dnn().stream);
  BENCH_CALL(dnnl_memory_destroy)(b);
  product.arguments = {{DNNL_ARG_SRC, a}, {DNNL_ARG_WEIGHTS, packed}, {DNNL_ARG_DST, c}};
  BENCH_CALL(dnnl_memory_get_data_handle)(c, &product.result);
  return true;
}

}  // namespace

bool onednn_found(Bench& bench) {
  start(bench);
  return dnn().ready;
}

Way onednn_sgemm(Bench& bench, int threads, int m, int n, int k, const float* a, const float* b,
                 float* c) {
  Way way;
  way.name = "oneDNN";
  if (!onednn_found(bench)) {
    return way;
  }
  const auto call = BENCH_CALL(dnnl_sgemm);
  way = timed(
      way.name, clock_for(threads), [=] { call('N', 'N', m, n, k, 1.0f, a, k, b, n, 0.0f, c, n); },
      [threads] {
        if (dnn().set_threads != nullptr) {
          dnn().set_threads(threads);
        }
      });
  return writing(way, c, std::int64_t{m} * n);
}

Way onednn_packed(Bench& bench, int threads, int m, int n, int k, Format format) {
  Way way;
  way.name = format == Format::f32    ? "oneDNN packed"
             : format == Format::bf16 ? "oneDNN bf16"
                                      : "oneDNN u8s8s32";
  if (!onednn_found(bench)) {
    return way;
  }
  if (dnn().set_threads != nullptr) {
    dnn().set_threads(threads);  // its choice of kernel looks at it
  }
  Product product;
  if (!plan_product(product, m, n, k, format)) {
    bench.skip(way.name, "this oneDNN has no such product on this processor");
    return way;
  }
  const auto execute = BENCH_CALL(dnnl_primitive_execute);
  const auto wait = BENCH_CALL(dnnl_stream_wait);
  way = timed(
      way.name, clock_for(threads),
      [=] {
        execute(product.primitive, dnn().stream, static_cast<int>(product.arguments.size()),
                product.arguments.data());
        wait(dnn().stream);
      },
      [threads] {
        if (dnn().set_threads != nullptr) {
          dnn().set_threads(threads);
        }
      });
  // Of int8 the sums are int32, and A is not negative there: other numbers.
  return format == Format::int8
             ? way
             : writing(way, static_cast<float*>(product.result), std::int64_t{m} * n);
}

#else

bool onednn_found(Bench& bench) {
  bench.skip("oneDNN", "oneapi/dnnl/dnnl.h was not found");
  return false;
}
Way onednn_sgemm(Bench& bench, int, int, int, int, const float*, const float*, float*) {
  onednn_found(bench);
  return Way{"oneDNN", {}, 1, true};
}
Way onednn_packed(Bench& bench, int, int, int, int, Format) {
  onednn_found(bench);
  return Way{"oneDNN packed", {}, 1, true};
}

#endif

}  // namespace bench
