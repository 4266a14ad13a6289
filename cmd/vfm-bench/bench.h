/* bench.h - the benchmarks.  Each has its own file and one line in the table of main.c. */
#ifndef CMD_BENCH_H
#define CMD_BENCH_H

#include "base/err.h"
#include "base/mem.h"
#include "base/stats.h"
#include "comm/coll/comm.h"
#include "device/ops/cases.h"
#include "io/table.h"
#include "spec/layout/parallel.h"

int bench_matrix(int argc, char **argv, struct vfm_err *err);
int bench_step(int argc, char **argv, struct vfm_err *err);
int bench_launches(int argc, char **argv, struct vfm_err *err);
int bench_plot(int argc, char **argv, struct vfm_err *err);
int bench_ops(int argc, char **argv, struct vfm_err *err);
int bench_calibrate(int argc, char **argv, struct vfm_err *err);
int bench_cost(int argc, char **argv, struct vfm_err *err);
int bench_loader(int argc, char **argv, struct vfm_err *err);
int bench_comm(int argc, char **argv, struct vfm_err *err);
int bench_eval(int argc, char **argv, struct vfm_err *err);

/* Writes the model of this CPU, or "unknown CPU". */
void bench_cpu_name(char *name, size_t size);
/* Adds the note on the machine: CPU model, threads (0: omitted), name and description of the device (NULL:
 * omitted), program version. */
void bench_note_machine(struct vfm_table *t, int threads, const char *device, const char *descr);

/* Fallbacks of the vendor libraries (device/dev/dev.h), counted since the device was opened. */
struct bench_fallbacks {
	int64_t slow_attn, slow_gemm, heuristic_gemm;
};
struct bench_fallbacks bench_fallbacks_of(const struct vfm_dev *d);
/* The cells slow_attn, slow_gemm, heuristic_gemm: the calls since `before`; notes on the counts above 0. */
void bench_fallback_cells(struct vfm_table *t, const struct vfm_dev *d, const struct bench_fallbacks *before);
void bench_fallback_notes(struct vfm_table *t, const struct vfm_dev *d);

typedef int (*bench_fill)(struct vfm_table *t, struct vfm_stream *s, void *ctx, struct vfm_err *err);
/* Opens the device, calls `fill` to fill a table, and prints it.  Adds notes on the device, on fallbacks, and on
 * the machine. */
int bench_on_device(const char *device, int repeat, const struct vfm_table_opts *o, bench_fill fill, void *ctx,
	struct vfm_err *err);

enum { BENCH_REPEAT_MAX = 1000 };

/* Measures the seconds of one call of an allocated case, repeat <= BENCH_REPEAT_MAX times.  Batches short calls between
 * two readings of the clock. */
int bench_time_case(
	struct vfm_case *c, struct vfm_stream *s, int repeat, struct vfm_spread *seconds, struct vfm_err *err);
/* Measures the seconds of a copy of n bytes, repeat <= BENCH_REPEAT_MAX times after one to warm up; to_host: out of
 * device memory, else into it, from host or device memory. */
int bench_time_copies(struct vfm_stream *s, void *dst, const void *src, size_t n, bool to_host, int repeat,
	struct vfm_spread *seconds, struct vfm_err *err);
/* Sets *bytes_s to the median speed of copies of n bytes within device memory, bytes read and written. */
int bench_copy_speed(struct vfm_stream *s, size_t n, int repeat, double *bytes_s, struct vfm_err *err);

/* The collectives of a communicator that are measured, in the order of bench_collective_names. */
enum bench_collective {
	BENCH_ALL_REDUCE,
	BENCH_ALL_GATHER,
	BENCH_REDUCE_SCATTER,
	BENCH_ALL_TO_ALL,
	BENCH_BROADCAST,
	BENCH_EXCHANGE,
	BENCH_SEND,
	BENCH_BARRIER,
	BENCH_COLLECTIVES,
};
extern const char *const bench_collective_names[BENCH_COLLECTIVES];
/* Calls a collective of vectors a, b [n] of dtype t, n a multiple of the ranks.  All-reduce and broadcast work on a,
 * the others from a to b: all_gather reads the first n / ranks elements of a, reduce_scatter writes those of b.
 * exchange sends to the next rank; send goes from each even rank to the next odd one. */
int bench_call_collective(enum bench_collective what, struct vfm_comm *c, struct vfm_stream *s, enum vfm_dtype t,
	char *a, char *b, int64_t n, struct vfm_err *err);

#endif
