/* bench.h - the benchmarks.  Each has its own file and one line in the table of main.c. */
#ifndef CMD_BENCH_H
#define CMD_BENCH_H

#include "base/err.h"
#include "base/mem.h"
#include "base/stats.h"
#include "device/ops/cases.h"
#include "io/table.h"
#include "spec/layout/parallel.h"

int bench_matrix(int argc, char **argv, struct vfm_err *err);
int bench_step(int argc, char **argv, struct vfm_err *err);
int bench_launches(int argc, char **argv, struct vfm_err *err);
int bench_plot(int argc, char **argv, struct vfm_err *err);
int bench_ops(int argc, char **argv, struct vfm_err *err);
int bench_calibrate(int argc, char **argv, struct vfm_err *err);
int bench_attn(int argc, char **argv, struct vfm_err *err);
int bench_cost(int argc, char **argv, struct vfm_err *err);
int bench_exec(int argc, char **argv, struct vfm_err *err);
int bench_loader(int argc, char **argv, struct vfm_err *err);
int bench_comm(int argc, char **argv, struct vfm_err *err);
int bench_eval(int argc, char **argv, struct vfm_err *err);

/* Writes the model of this CPU, or "unknown CPU". */
void bench_cpu_name(char *name, size_t size);
/* Adds the last note of every report: CPU model, threads (0: omitted), program version. */
void bench_note_machine(struct vfm_table *t, int threads);

/* Appends "tp=2 cp=2 ring fsdp": the degrees above 1 and the modes of parallelism; nothing for one rank. */
void bench_layout(const struct vfm_parallel *p, struct vfm_buf *out);

/* Fallbacks of the vendor libraries (device/dev/dev.h), counted since the device was opened. */
enum { BENCH_FALLBACKS = 3 };
struct bench_fallbacks {
	int64_t n[BENCH_FALLBACKS];
};
struct bench_fallbacks bench_fallbacks_of(const struct vfm_dev *d);
/* Columns slow_attn, slow_gemm, heuristic_gemm; their cells: the calls since `before`; notes on the counts above 0. */
void bench_fallback_columns(struct vfm_table *t);
void bench_fallback_cells(struct vfm_table *t, const struct vfm_dev *d, const struct bench_fallbacks *before);
void bench_fallback_notes(struct vfm_table *t, const struct vfm_dev *d);

typedef int (*bench_fill)(struct vfm_table *t, struct vfm_stream *s, void *ctx, struct vfm_err *err);
/* Opens the device, calls `fill` to fill a table, and prints it.  Adds notes on the device, on fallbacks, and on
 * the machine. */
int bench_on_device(
	const char *device, int repeat, enum vfm_table_format f, bench_fill fill, void *ctx, struct vfm_err *err);

enum { BENCH_REPEAT_MAX = 1000 };

/* Measures the seconds of one call of an allocated case, repeat <= BENCH_REPEAT_MAX times.  Batches short calls between
 * two readings of the clock. */
int bench_time_case(
	struct vfm_case *c, struct vfm_stream *s, int repeat, struct vfm_spread *seconds, struct vfm_err *err);

#endif
