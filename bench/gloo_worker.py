# PyTorch's collectives through Gloo, beside ours: each line of input, "all_reduce BYTES TIMES", is
# answered with the seconds of one call, taken at rank 0 between two barriers, or "no" and why.
#   python3 bench/gloo_worker.py RANKS
import os
import sys
import tempfile
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def collective(name, count, size):
    whole = torch.zeros(count)
    part = torch.zeros(count // size)
    if name == "all_reduce":
        return lambda: dist.all_reduce(whole)
    if name == "all_gather":
        parts = list(whole.chunk(size))
        return lambda: dist.all_gather(parts, part)
    if name == "all_to_all":
        out = torch.zeros(count)
        return lambda: dist.all_to_all_single(out, whole)
    if name == "broadcast":
        return lambda: dist.broadcast(whole, 0)
    if name == "barrier":
        return dist.barrier
    raise ValueError("Gloo has no " + name)


def seconds_of(line, size):
    name, size_in_bytes, times = line.split()
    call = collective(name, int(size_in_bytes) // 4, size)
    for _ in range(1 + int(times) // 4):
        call()
    dist.barrier()
    start = time.perf_counter()
    for _ in range(int(times)):
        call()
    dist.barrier()
    return (time.perf_counter() - start) / int(times)


def serve(rank, size, store):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method="file://" + store, rank=rank, world_size=size)
    if rank == 0:
        print(f"Gloo, PyTorch {torch.__version__}", flush=True)
        stdin = os.fdopen(3)
    while True:
        line = [stdin.readline().strip() if rank == 0 else None]
        dist.broadcast_object_list(line)  # the others sleep in it
        if not line[0]:
            return
        try:
            answer = f"{seconds_of(line[0], size):.9g}"
        except Exception as error:  # pylint: disable=broad-except
            answer = "no " + str(error).replace("\n", " ")
        if rank == 0:
            print(answer, flush=True)


if __name__ == "__main__":
    os.dup2(0, 3)  # spawned processes have no input of their own
    ranks = int(sys.argv[1])
    with tempfile.TemporaryDirectory() as folder:
        mp.start_processes(serve, (ranks, os.path.join(folder, "store")), nprocs=ranks,
                           start_method="fork")
