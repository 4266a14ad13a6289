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
int bench_sample(int argc, char **argv, struct vfm_err *err);
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
/* Sets the cells slow_attn, slow_gemm and heuristic_gemm of the row to the number of calls since `before`. */
void bench_fallback_cells(struct vfm_table *t, const struct vfm_dev *d, const struct bench_fallbacks *before);
void bench_fallback_notes(struct vfm_table *t, const struct vfm_dev *d);

typedef int (*bench_fill)(struct vfm_table *t, struct vfm_stream *s, void *ctx, struct vfm_err *err);
/* Opens the device, calls `fill` to fill a table, and prints it.  Adds notes on the device, on fallbacks, and on
 * the machine. */
int bench_on_device(const char *device, int repeat, const struct vfm_table_opts *o, bench_fill fill, void *ctx,
	struct vfm_err *err);

enum { BENCH_REPEAT_MAX = 1000 };

/* Measures the seconds of one call of an allocated case, repeat <= BENCH_REPEAT_MAX times.  Calls too short for the
 * clock are timed in batches. */
int bench_time_case(
	struct vfm_case *c, struct vfm_stream *s, int repeat, struct vfm_spread *seconds, struct vfm_err *err);
/* Measures the seconds of a copy of n bytes, repeat <= BENCH_REPEAT_MAX times after a warmup.  With to_host, src is
 * device memory and dst host memory; else dst is device memory and src host or device memory. */
int bench_time_copies(struct vfm_stream *s, void *dst, const void *src, size_t n, bool to_host, int repeat,
	struct vfm_spread *seconds, struct vfm_err *err);
/* Sets *bytes_s to the median speed of copies of n bytes within device memory, in bytes read and written per second. */
int bench_copy_speed(struct vfm_stream *s, size_t n, int repeat, double *bytes_s, struct vfm_err *err);

/* The measured collectives, in the order of bench_collective_names. */
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
/* Calls a collective on the vectors a and b [n] of dtype t; n is a multiple of the ranks.
 *
 *   all_reduce, broadcast   in place in a
 *   all_gather              from the first n / ranks elements of a to b
 *   reduce_scatter          from a to the first n / ranks elements of b
 *   all_to_all              from a to b
 *   exchange                a goes to the next rank, b comes from the previous one
 *   send                    a of each even rank goes to b of the next odd rank */
int bench_call_collective(enum bench_collective what, struct vfm_comm *c, struct vfm_stream *s, enum vfm_dtype t,
	char *a, char *b, int64_t n, struct vfm_err *err);

#endif
