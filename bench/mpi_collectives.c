/* MPI's collectives beside ours. Each line of rank 0's input, "all_reduce BYTES TIMES", is answered
 * with the seconds of one call, taken at rank 0 between two barriers after a fourth as many calls
 * that are not counted. Bytes are those of the whole vector: what all_gather makes, what the others
 * take from a rank. Between lines all ranks sleep, so that they do not disturb whoever is measured
 * next. mpicc -O2 bench/mpi_collectives.c -o mpi &&
 * mpirun -n 8 --oversubscribe ./mpi */
#include <fcntl.h>
#include <mpi.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { max_ranks = 64 };
static sem_t* turns[max_ranks]; /* one a rank: rank 0 posts all of them when a line has come */
static int rank, size;
static float *in, *out;

static void open_turns(void) {
  long id = (long)MPI_Wtime();
  MPI_Bcast(&id, 1, MPI_LONG, 0, MPI_COMM_WORLD);
  for (int i = 0; i < size; ++i) {
    char name[64];
    snprintf(name, sizeof name, "/ts-%ld-%d-%d", id % 1000000, size, i);
    turns[i] = sem_open(name, O_CREAT, 0600, 0);
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0) {
      sem_unlink(name);
    }
    if (turns[i] == SEM_FAILED) {
      MPI_Abort(MPI_COMM_WORLD, 1);
    }
  }
}

static int call(const char* name, int count) {
  const MPI_Comm world = MPI_COMM_WORLD;
  if (strcmp(name, "all_reduce") == 0) {
    return MPI_Allreduce(in, out, count, MPI_FLOAT, MPI_SUM, world);
  }
  if (strcmp(name, "all_gather") == 0) {
    return MPI_Allgather(in, count / size, MPI_FLOAT, out, count / size, MPI_FLOAT, world);
  }
  if (strcmp(name, "reduce_scatter") == 0) {
    return MPI_Reduce_scatter_block(in, out, count / size, MPI_FLOAT, MPI_SUM, world);
  }
  if (strcmp(name, "all_to_all") == 0) {
    return MPI_Alltoall(in, count / size, MPI_FLOAT, out, count / size, MPI_FLOAT, world);
  }
  if (strcmp(name, "broadcast") == 0) {
    return MPI_Bcast(in, count, MPI_FLOAT, 0, world);
  }
  return MPI_Barrier(world);
}

static double seconds_of(const char* name, size_t bytes, int times) {
  static size_t held = 0;
  if (bytes != held) {
    free(in);
    free(out);
    in = malloc(bytes + 64);
    out = malloc(bytes + 64);
    memset(in, 0, bytes);
    memset(out, 0, bytes);
    held = bytes;
  }
  const int count = (int)(bytes / sizeof(float));
  for (int i = 0; i < 1 + times / 4; ++i) {
    call(name, count);
  }
  MPI_Barrier(MPI_COMM_WORLD);
  const double start = MPI_Wtime();
  for (int i = 0; i < times; ++i) {
    call(name, count);
  }
  MPI_Barrier(MPI_COMM_WORLD);
  return (MPI_Wtime() - start) / times;
}

int main(int words, char** word) {
  MPI_Init(&words, &word);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  if (size > max_ranks) {
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
  open_turns();
  if (rank == 0) {
    int length = 0;
    char version[MPI_MAX_LIBRARY_VERSION_STRING];
    MPI_Get_library_version(version, &length);
    version[strcspn(version, ",\n")] = 0;
    printf("%s\n", version);
    fflush(stdout);
  }
  for (;;) {
    char line[128] = "end 0 0";
    if (rank == 0) {
      if (fgets(line, sizeof line, stdin) == NULL) {
        snprintf(line, sizeof line, "end 0 0");
      }
      for (int i = 0; i < size; ++i) {
        sem_post(turns[i]);
      }
    }
    sem_wait(turns[rank]);
    MPI_Bcast(line, sizeof line, MPI_CHAR, 0, MPI_COMM_WORLD);
    char name[32] = "";
    unsigned long bytes = 0;
    int times = 1;
    if (sscanf(line, "%31s %lu %d", name, &bytes, &times) != 3 || strcmp(name, "end") == 0) {
      break;
    }
    const double seconds = seconds_of(name, bytes, times);
    if (rank == 0) {
      printf("%.9g\n", seconds);
      fflush(stdout);
    }
  }
  MPI_Finalize();
  return 0;
}
