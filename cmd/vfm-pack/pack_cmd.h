/* pack_cmd.h - the parts of vfm-pack. */
#ifndef VFM_PACK_CMD_H
#define VFM_PACK_CMD_H

#include "io/opt.h"

/* The options of one plan. */
struct pack_opts {
	int64_t context, batch, cp, steps, seed, window;
	double epochs, held_out;
	int one_each, by_cost, bin, drop_last, drop_long, drop_ragged; /* 0 or 1 */
	const char *cost, *patch, *check, *held_out_plan;
	const char *phase, *out, *split;
	struct vfm_strlist blend, max_passes, subset;
	bool force;
};

/* ---- options.c ---- */
/* Sets *o from words[0..n-1] and the defaults, and moves the operands to words[1..*n_operands] (vfm_opt_parse). */
int pack_parse(struct pack_opts *o, int n, char **words, int *n_operands, struct vfm_err *err);
void pack_opts_release(struct pack_opts *o); /* also after a failed parse */

/* ---- make.c ---- */
/* Where a plan goes. */
struct pack_out {
	FILE *f;
	const char *path;     /* of f; NULL: stdout */
	const char *held_out; /* file of the held-out plan; NULL: none */
};

/* Checks the options of a plan; reads no set. */
int pack_check(const struct pack_opts *o, int n_dirs, char **dirs, struct vfm_err *err);
/* Packs the sets of `dirs` or o->blend, writes the plan, and reports it.  Returns the number of held-out samples, or a
 * negative code. */
int64_t pack_make(const struct pack_opts *o, int n_dirs, char **dirs, const struct pack_out *out, struct vfm_err *err);

/* ---- phases.c ---- */
/* Returns whether argv has --phase. */
bool pack_has_phases(int argc, char **argv);
/* vfm-pack -o DIR [OPTION ...] --phase NAME [OPTION ...] [DIR ...] --phase ... */
int pack_phases(int argc, char **argv, struct vfm_err *err);

/* ---- show.c, stats.c ---- */
struct vfm_plan;
/* Parses the command line of a verb, which has one operand, and opens that plan.  Returns 0, VFM_OPT_DONE or a
 * negative code. */
int plan_open(struct vfm_plan **m, const struct vfm_cmd *cmd, int argc, char **argv, struct vfm_err *err);
/* The verbs: argv[0] is the verb. */
int pack_show(int argc, char **argv, struct vfm_err *err);
int pack_stats(int argc, char **argv, struct vfm_err *err);

#endif
