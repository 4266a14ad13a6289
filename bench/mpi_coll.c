/* mpi_coll - the collectives of an MPI, measured as `vfm-bench comm` does.
 *
 * usage: mpirun -n N mpi_coll REPEAT SECONDS OP[,OP...] SIZE[,SIZE...]    (sizes in bytes)
 * prints a JSON line for each: {"op":…,"bytes":…,"min_us":…,"median_us":…}
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static float *a, *b;
static int ranks, rank;

static void run(const char *op, int n)
{
	if (!strcmp(op, "all_reduce"))
		MPI_Allreduce(MPI_IN_PLACE, a, n, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
	else if (!strcmp(op, "all_gather"))
		MPI_Allgather(a, n / ranks, MPI_FLOAT, b, n / ranks, MPI_FLOAT, MPI_COMM_WORLD);
	else if (!strcmp(op, "reduce_scatter"))
		MPI_Reduce_scatter_block(a, b, n / ranks, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
	else if (!strcmp(op, "all_to_all"))
		MPI_Alltoall(a, n / ranks, MPI_FLOAT, b, n / ranks, MPI_FLOAT, MPI_COMM_WORLD);
	else
		MPI_Abort(MPI_COMM_WORLD, 2);
}

static double measure(const char *op, int n, int calls)
{
	double start;

	MPI_Barrier(MPI_COMM_WORLD);
	start = MPI_Wtime();
	for (int i = 0; i < calls; i++)
		run(op, n);
	MPI_Barrier(MPI_COMM_WORLD);
	return (MPI_Wtime() - start) / calls;
}

static int up(const void *x, const void *y)
{
	double p = *(const double *)x, q = *(const double *)y;

	return (p > q) - (p < q);
}

static void row(const char *op, size_t bytes, int repeat, double seconds)
{
	int n = (int)(bytes / sizeof(float)) / ranks * ranks, calls;
	double t[256];

	a = calloc((size_t)n, sizeof(float));
	b = calloc((size_t)n, sizeof(float));
	if (!a || !b)
		MPI_Abort(MPI_COMM_WORLD, 3);
	memset(a, 0, (size_t)n * sizeof(float));
	memset(b, 0, (size_t)n * sizeof(float));
	run(op, n);
	calls = (int)(seconds / measure(op, n, 2)) + 1;
	MPI_Bcast(&calls, 1, MPI_INT, 0, MPI_COMM_WORLD);
	for (int i = 0; i < repeat; i++)
		t[i] = measure(op, n, calls);
	qsort(t, (size_t)repeat, sizeof(*t), up);
	if (rank == 0) {
		printf("{\"op\":\"%s\",\"bytes\":%zu,\"min_us\":%.2f,\"median_us\":%.2f}\n", op, bytes, t[0] * 1e6,
			t[repeat / 2] * 1e6);
		fflush(stdout);
	}
	free(a);
	free(b);
}

int main(int argc, char **argv)
{
	int repeat = argc > 1 ? atoi(argv[1]) : 5;
	double seconds = argc > 2 ? atof(argv[2]) : 0.02;

	MPI_Init(&argc, &argv);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	if (argc != 5 || repeat < 1 || repeat > 256)
		MPI_Abort(MPI_COMM_WORLD, 2);
	for (char *save, *op = strtok_r(argv[3], ",", &save); op; op = strtok_r(NULL, ",", &save)) {
		char *sizes = strdup(argv[4]), *next;

		for (char *s = strtok_r(sizes, ",", &next); s; s = strtok_r(NULL, ",", &next))
			row(op, strtoul(s, NULL, 10), repeat, seconds);
		free(sizes);
	}
	MPI_Finalize();
	return 0;
}
