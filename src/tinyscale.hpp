// tinyscale: a laptop laboratory for machine-learning systems, in one C++17 header.
//
//   #include "tinyscale.hpp"          g++ -std=c++17 -O2 -pthread program.cpp
//
// This is the spine: it lists the parts in reading order, one floor after another, and a part
// includes only its own floor and floors below. With -Isrc a program compiles the parts, with -I.
// the joined file ../tinyscale.hpp, which `make header` writes from this list; both are the same.
//
// Letters used throughout: B batch, T time (positions), D model width, F hidden width, H heads,
// K head size (in a product: the inner size), L layers, V vocabulary, M K N sizes of a matmul.
#pragma once

// base: what everything stands on
#include "tinyscale/base/config.hpp"
#include "tinyscale/base/error.hpp"
#include "tinyscale/base/cpu.hpp"
#include "tinyscale/base/format.hpp"
#include "tinyscale/base/pool.hpp"
#include "tinyscale/base/list.hpp"
#include "tinyscale/base/order.hpp"
#include "tinyscale/base/thread_scope.hpp"
#include "tinyscale/base/threads.hpp"
#include "tinyscale/base/random.hpp"
#include "tinyscale/base/save_file.hpp"
#include "tinyscale/base/shared.hpp"
#include "tinyscale/base/shape.hpp"
#include "tinyscale/base/text.hpp"

// measure: counting, before anything is counted
#include "tinyscale/measure/compare.hpp"
#include "tinyscale/measure/memory.hpp"
#include "tinyscale/measure/context.hpp"
#include "tinyscale/measure/counters.hpp"
#include "tinyscale/measure/hardware_counters.hpp"
#include "tinyscale/measure/profile.hpp"
#include "tinyscale/measure/quantity.hpp"

// hardware: chips, networks, the roofline, this laptop
#include "tinyscale/hardware/chip.hpp"
#include "tinyscale/hardware/chip_table.hpp"
#include "tinyscale/hardware/laptop_loops.hpp"
#include "tinyscale/hardware/laptop.hpp"
#include "tinyscale/hardware/presets.hpp"
#include "tinyscale/hardware/network.hpp"
#include "tinyscale/hardware/roofline.hpp"

// compute: the host kernels
#include "tinyscale/compute/lanes.hpp"
#include "tinyscale/compute/transpose.hpp"
#include "tinyscale/compute/lane_math.hpp"
#include "tinyscale/compute/elementwise.hpp"
#include "tinyscale/compute/sums.hpp"
#include "tinyscale/compute/adamw.hpp"
#include "tinyscale/compute/scratch.hpp"
#include "tinyscale/compute/gemm_tile.hpp"
#include "tinyscale/compute/gemm_check.hpp"
#include "tinyscale/compute/gemm_short.hpp"
#include "tinyscale/compute/gemm.hpp"
#include "tinyscale/compute/x86_units.hpp"
#include "tinyscale/compute/word_pack.hpp"
#include "tinyscale/compute/gemm_words.hpp"
#include "tinyscale/compute/amx_tiles.hpp"
#include "tinyscale/compute/gemm_bf16.hpp"
#include "tinyscale/compute/gemm_int8.hpp"
#include "tinyscale/compute/gemv_quantized.hpp"
#include "tinyscale/compute/gemm_fused.hpp"
#include "tinyscale/compute/softmax.hpp"
#include "tinyscale/compute/attention_product.hpp"
#include "tinyscale/compute/attention.hpp"
#include "tinyscale/compute/attention_backward.hpp"
#include "tinyscale/compute/linear_cross_entropy.hpp"
#include "tinyscale/compute/norm.hpp"
#include "tinyscale/compute/rope.hpp"

// tensor: tensors, ops, gradients
#include "tinyscale/tensor/storage.hpp"
#include "tinyscale/tensor/graph.hpp"
#include "tinyscale/tensor/strides.hpp"
#include "tinyscale/tensor/tensor.hpp"
#include "tinyscale/tensor/backward.hpp"
#include "tinyscale/tensor/op_record.hpp"
#include "tinyscale/tensor/arithmetic.hpp"
#include "tinyscale/tensor/activations.hpp"
#include "tinyscale/tensor/create.hpp"
#include "tinyscale/tensor/views.hpp"
#include "tinyscale/tensor/reduce.hpp"
#include "tinyscale/tensor/matmul.hpp"
#include "tinyscale/tensor/attend.hpp"
#include "tinyscale/tensor/normalize.hpp"
#include "tinyscale/tensor/tokens.hpp"
#include "tinyscale/tensor/choose.hpp"
#include "tinyscale/tensor/einsum.hpp"

// systolic: the array, PE by PE
#include "tinyscale/systolic/array_report.hpp"
#include "tinyscale/systolic/array_schedule.hpp"
#include "tinyscale/systolic/array_timing.hpp"
#include "tinyscale/systolic/array_operands.hpp"
#include "tinyscale/systolic/pe_step.hpp"
#include "tinyscale/systolic/array_registers.hpp"
#include "tinyscale/systolic/array_stepper.hpp"
#include "tinyscale/systolic/systolic_array.hpp"
#include "tinyscale/systolic/sram_trace.hpp"
#include "tinyscale/systolic/wavefront.hpp"
#include "tinyscale/systolic/chip_schedule.hpp"
#include "tinyscale/systolic/chip_timing.hpp"
#include "tinyscale/systolic/chip_matmul.hpp"
#include "tinyscale/systolic/on_chip.hpp"

// mesh: devices, links, collectives
#include "tinyscale/mesh/fabric.hpp"
#include "tinyscale/mesh/collective_cost.hpp"
#include "tinyscale/mesh/mesh_axis.hpp"
#include "tinyscale/mesh/message_log.hpp"
#include "tinyscale/mesh/endpoint.hpp"
#include "tinyscale/mesh/all_gather.hpp"
#include "tinyscale/mesh/reduce_scatter.hpp"
#include "tinyscale/mesh/all_reduce.hpp"
#include "tinyscale/mesh/broadcast.hpp"
#include "tinyscale/mesh/permute.hpp"
#include "tinyscale/mesh/device.hpp"
#include "tinyscale/mesh/route.hpp"
#include "tinyscale/mesh/fair_links.hpp"
#include "tinyscale/mesh/guess.hpp"
#include "tinyscale/mesh/replay.hpp"
#include "tinyscale/mesh/mesh_run.hpp"
#include "tinyscale/mesh/mesh.hpp"

// model: the transformer, its text, training, checkpoints
#include "tinyscale/model/experts.hpp"
#include "tinyscale/model/hooks.hpp"
#include "tinyscale/model/model_config.hpp"
#include "tinyscale/model/tokenizer.hpp"
#include "tinyscale/model/transformer.hpp"
#include "tinyscale/model/forward.hpp"
#include "tinyscale/model/json.hpp"
#include "tinyscale/model/read_text.hpp"
#include "tinyscale/model/safetensors.hpp"
#include "tinyscale/model/checkpoint.hpp"
#include "tinyscale/model/data.hpp"
#include "tinyscale/model/generate.hpp"
#include "tinyscale/model/model_presets.hpp"
#include "tinyscale/model/optimizer.hpp"
#include "tinyscale/model/train_step.hpp"
#include "tinyscale/model/training_memory.hpp"

// parallel: one model on many devices
#include "tinyscale/parallel/layout.hpp"
#include "tinyscale/parallel/train_report.hpp"
#include "tinyscale/parallel/train.hpp"

// plan: what would it cost?
#include "tinyscale/plan/transformer_math.hpp"
#include "tinyscale/plan/serving.hpp"
#include "tinyscale/plan/training_layout.hpp"
#include "tinyscale/plan/training.hpp"

// show: pictures and pages
#include "tinyscale/show/svg.hpp"
#include "tinyscale/show/html.hpp"
#include "tinyscale/show/display.hpp"
#include "tinyscale/show/heat_map.hpp"
#include "tinyscale/show/plot.hpp"
#include "tinyscale/show/pictures.hpp"
#include "tinyscale/show/array_pictures.hpp"
#include "tinyscale/show/report_pictures.hpp"
