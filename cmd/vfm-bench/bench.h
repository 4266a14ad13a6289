/* bench.h - the benchmarks; each stands in a file of its own, with one line in the table of main.c. */
#ifndef CMD_BENCH_H
#define CMD_BENCH_H

#include "base/err.h"
#include "base/table.h"

int bench_matrix(int argc, char **argv, struct vfm_err *err);
int bench_step(int argc, char **argv, struct vfm_err *err);
int bench_plot(int argc, char **argv, struct vfm_err *err);
int bench_ops(int argc, char **argv, struct vfm_err *err);
int bench_loader(int argc, char **argv, struct vfm_err *err);
int bench_comm(int argc, char **argv, struct vfm_err *err);

/* Adds the note that every report ends with: CPU model, threads, program version, measured. */
void bench_note_machine(struct vfm_table *t);

/* Adds a note where the device's library left calls of attention to slower kernels. */
struct vfm_dev;
void bench_note_attn(struct vfm_table *t, const struct vfm_dev *d);

/* Sorts x[n]; the median. */
double bench_median(double *x, int n);

#endif
