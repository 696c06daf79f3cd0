/* Seconds of one MPI_Allreduce in SimGrid's SMPI, a line "bytes seconds" for each size of the
 * arguments. All ranks sleep until one moment of the simulated clock, so that the skew that a
 * barrier leaves is not part of the time. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static double largest(double mine) {
  double all = 0;
  MPI_Allreduce(&mine, &all, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
  return all;
}

static double start_together(void) {
  const double wait = largest(MPI_Wtime()) + 1 - MPI_Wtime();
  struct timespec sleep = {(time_t)wait, (long)((wait - (double)(time_t)wait) * 1e9)};
  nanosleep(&sleep, NULL);
  return MPI_Wtime();
}

int main(int count, char** words) {
  MPI_Init(&count, &words);
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  for (int i = 1; i < count; ++i) {
    const size_t bytes = (size_t)atol(words[i]);
    float* const mine = SMPI_SHARED_MALLOC(bytes);
    float* const sum = SMPI_SHARED_MALLOC(bytes);
    const double start = start_together();
    MPI_Allreduce(mine, sum, (int)(bytes / sizeof(float)), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    const double end = MPI_Wtime(), last = largest(end), first = -largest(-start);
    if (rank == 0) {
      printf("%zu %.9g\n", bytes, last - first);
    }
    SMPI_SHARED_FREE(mine);
    SMPI_SHARED_FREE(sum);
  }
  MPI_Finalize();
  return 0;
}
