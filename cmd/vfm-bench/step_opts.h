/* step_opts.h - the options that describe a model and synthetic samples, for step, launches and sample. */
#ifndef CMD_STEP_OPTS_H
#define CMD_STEP_OPTS_H

#include "device/sim/sim.h"
#include "io/opt.h"
#include "io/table.h"
#include "train/predict/bench.h"

struct bench_step_opts {
	const char *preset, *grid, *second, *dtype, *recompute;
	int64_t hidden, layers, heads, text_dim, samples, text_len, packs;
	struct vfm_strlist sets;
	const char *machine; /* of --device sim */
};

#define BENCH_STEP_OPTS_INIT                                                                                           \
	{                                                                                                              \
		.preset = "dit-s", .grid = "4,16,16", .dtype = "fp32", .recompute = "none", .hidden = VFM_UNSET,       \
		.layers = VFM_UNSET, .heads = VFM_UNSET, .text_dim = VFM_UNSET, .samples = 1, .text_len = 77,          \
		.packs = 1, .machine = "h200"                                                                          \
	}

/* Rows of a struct vfm_opt table; `o` is a struct bench_step_opts *. */
#define BENCH_MODEL_OPTS(o)                                                                                            \
	{VFM_OPT_GROUP, 0, NULL, NULL, "Model:", NULL},                                                                \
		{VFM_OPT_STR, 0, "model", "PRESET", "dimensions to start from (dit-s)", &(o)->preset},                 \
		{VFM_OPT_INT, 0, "hidden", "N", "override the width", &(o)->hidden},                                   \
		{VFM_OPT_INT, 0, "layers", "N", "override the number of blocks", &(o)->layers},                        \
		{VFM_OPT_INT, 0, "heads", "N", "override the number of heads", &(o)->heads},                           \
		{VFM_OPT_INT, 0, "text-dim", "N", "override the features of a text row", &(o)->text_dim},              \
		{VFM_OPT_LIST, 0, "set", "KEY=VALUE",                                                                  \
			"a key of the configuration (vfm-config(5)), such as parallel.tp=2; may be repeated",          \
			&(o)->sets},                                                                                   \
	{                                                                                                              \
		VFM_OPT_STR, 0, "dtype", "fp32|bf16", "of matrices and activations (fp32)", &(o)->dtype                \
	}
#define BENCH_GRID_OPTS(o)                                                                                             \
	{VFM_OPT_GROUP, 0, NULL, NULL, "Samples:", NULL},                                                              \
		{VFM_OPT_STR, 0, "grid", "T,H,W", "tokens of a sample as a grid of patches (4,16,16)", &(o)->grid},    \
		{VFM_OPT_INT, 0, "text-len", "N", "text rows of a sample (77)", &(o)->text_len},                       \
	{                                                                                                              \
		VFM_OPT_INT, 0, "samples", "N", "samples in a pack (1)", &(o)->samples                                 \
	}
#define BENCH_MACHINE_OPTS(o)                                                                                          \
	{VFM_OPT_GROUP, 0, NULL, NULL, "Measurement, prediction and output:", NULL},                                   \
	{                                                                                                              \
		VFM_OPT_STR, 0, "machine", "NAME|FILE", "machine to predict (h200; vfm-machine(5))", &(o)->machine     \
	}
/* All options of a training step. */
#define BENCH_STEP_OPTS(o)                                                                                             \
	BENCH_MODEL_OPTS(o),                                                                                           \
		{VFM_OPT_STR, 0, "recompute", "auto|none|light|outputs|selective|full",                                \
			"what the backward recomputes (none)", &(o)->recompute},                                       \
		BENCH_GRID_OPTS(o),                                                                                    \
		{VFM_OPT_STR, 0, "second-grid", "T,H,W", "grid of every second sample (that of all)", &(o)->second},   \
		{VFM_OPT_INT, 0, "packs", "N", "packs per step, over all ranks (1)", &(o)->packs},                     \
		BENCH_MACHINE_OPTS(o)

/* Sets the configuration, and the samples, grid, text and packs of *b.  Frees o->sets. */
int bench_step_parse(struct bench_step_opts *o, struct vfm_config *c, struct vfm_bench_step *b, struct vfm_err *err);

/* Adds the note of a table of predictions. */
void bench_note_predicted(struct vfm_table *t, const char *machine);

#endif
