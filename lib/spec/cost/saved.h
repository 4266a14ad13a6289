/* saved.h - the tensors that a transformer block saves in its forward for its backward, by architecture
 * (spec/model/arch.h), with the FLOPs of the products that make them.  Recompute, the planner (keep_plan.h), OOM hints
 * and memory estimates use this list.  tests/unit/test_saved.c compares it with the bytes on a device and the products
 * of a backward.
 */
#ifndef VFM_SPEC_COST_SAVED_H
#define VFM_SPEC_COST_SAVED_H

#include "spec/model/dtype.h"
#include "spec/model/linears.h"
#include "spec/model/model.h"
#include "spec/model/tuning.h"

/* The tensors of a block, in groups.  A set of groups tells which tensors a block keeps for its backward; the backward
 * recomputes the others. */
enum vfm_keep {
	VFM_KEEP_ATTN = 1 << 0,  /* output and lse of attention */
	VFM_KEEP_MLP = 1 << 1,   /* outputs of the last products of the MLP: fc2, w2, experts */
	VFM_KEEP_PROJ = 1 << 2,  /* outputs of the projections that follow attention */
	VFM_KEEP_QKV = 1 << 3,   /* outputs of the projections that precede attention */
	VFM_KEEP_FC1 = 1 << 4,   /* outputs of the first products of the MLP: fc1, w13, experts */
	VFM_KEEP_OTHER = 1 << 5, /* outputs of the other products: router */
	VFM_KEEP_REST = 1 << 6,  /* all other tensors that the backward reads; only together with all groups above */
	VFM_KEEP_INPUT =
		1 << 7, /* the residual stream before the block; always kept, so it occurs only in sets to offload */
	VFM_KEEP_MODULATION = 1 << 8, /* computed before the block; always kept, on the device */
	/* With REST: a rank keeps only its own rows of the inputs of layers whose columns are split over tp, and the
	 * backward gathers the others again (net/mesh/tp_linear.h). */
	VFM_KEEP_OWN_ROWS = 1 << 9,

	VFM_KEEP_PRODUCTS = VFM_KEEP_REST - 1, /* all products and attention */
	VFM_KEEP_ALL = VFM_KEEP_INPUT - 1,     /* nothing is recomputed */
};

/* The groups of tensors that a block keeps, and the subset that it offloads to host memory until its backward. */
struct vfm_keeps {
	unsigned keep, offload; /* sets of enum vfm_keep */
};

enum vfm_recompute {
	VFM_RECOMPUTE_NONE,      /* saves all tensors that the backward reads */
	VFM_RECOMPUTE_SELECTIVE, /* recomputes blocks; saves output and lse of attention */
	VFM_RECOMPUTE_FULL,      /* recomputes blocks; saves only their inputs */
	VFM_RECOMPUTE_LIGHT,     /* recomputes blocks; saves the outputs of matrix products and attention */
	VFM_RECOMPUTE_OUTPUTS,   /* recomputes blocks; saves the outputs of attention and of the MLP */
	VFM_RECOMPUTE_MODES,
	VFM_RECOMPUTE_AUTO = VFM_RECOMPUTE_MODES, /* a plan decides (keep_plan.h); without one, as NONE */
};
unsigned vfm_recompute_keeps(enum vfm_recompute mode); /* returns a set of enum vfm_keep */

/* Fills how [layers]: `blocks` evenly spaced blocks recompute in this mode and offload the set `offload`; the others
 * keep everything.  With blocks 0, all blocks recompute. */
void vfm_keeps_fill(struct vfm_keeps *how, int64_t layers, enum vfm_recompute mode, int64_t blocks, unsigned offload);

enum vfm_saved_rows { VFM_ROWS_TOKENS, VFM_ROWS_TEXT, VFM_ROWS_SAMPLES, VFM_ROWS_SEGMENTS, VFM_ROW_KINDS };
enum vfm_saved_dtype { VFM_SAVED_COMPUTE, VFM_SAVED_RESIDUAL, VFM_SAVED_F32 };

struct vfm_saved {
	const char *name;
	enum vfm_saved_rows rows;
	double width; /* elements per row; for experts, the mean over tokens */
	double in;    /* elements per row of the other factor of the product that makes it; 0: another op makes it */
	enum vfm_saved_dtype dtype;
	enum vfm_keep keep; /* the group */
	bool gathered;      /* over tp, a rank has the rows of all ranks, unless VFM_KEEP_OWN_ROWS is set */
	bool local;         /* a product that has only this rank's rows, also over tp */
	bool unread;        /* the backward does not read it: saved only if the block recomputes */
	double flops;       /* of the product or attention that makes it; 0: another op makes it */
};

/* The training settings that determine which tensors blocks save.  Zero-initialised: everything is trained, without
 * adapters. */
struct vfm_saved_tuning {
	unsigned fixed;   /* a set of enum vfm_block_layer: no gradients of weight and adapter in any block */
	unsigned adapted; /* a set of enum vfm_block_layer: an adapter in some block */
	double rank;      /* of the adapters */
};
struct vfm_saved_tuning vfm_saved_tuning(const struct vfm_model_spec *m, const struct vfm_tuning *t);

struct vfm_saved_how {
	unsigned keep;                  /* a set of enum vfm_keep */
	enum vfm_dtype dtype, residual; /* of activations, and of the residual stream */
	struct vfm_pack_sums pack;      /* q, c, n and g are its rows: tokens, text, samples, segments */
	struct vfm_saved_tuning tuning;
	bool exchanges_heads; /* cp by all-to-all: attention has its own tensors, with all rows of some heads */
	bool exchanges_units; /* over cp: spatial attention has its own tensors, with whole frames */
	int tp;               /* spatial and temporal attention keep their inputs from all tp ranks; 0: 1 */
	double single; /* the share of single-stream blocks (arch.h): 0 or 1 for one block, else of a mean block */
};

enum { VFM_SAVED_MAX = 96 };
/* Fills `out` with the tensors of one block for a pack and returns their number; of a mean block, those of both kinds,
 * with widths and FLOPs times their share.  Reads how->pack, how->tuning and how->single; ignores fp8.  m must have
 * passed the check.  Widths and FLOPs are those of the unsharded model; a rank holds and computes 1/tp of them.  A block
 * saves less if nothing before it is trained. */
int vfm_block_saved(
	const struct vfm_model_spec *m, const struct vfm_saved_how *how, struct vfm_saved out[VFM_SAVED_MAX]);

/* Returns the bytes that one block saves. */
double vfm_block_saved_bytes(const struct vfm_model_spec *m, const struct vfm_saved_how *how);
/* Returns the bytes of all tensors that the forward of a block makes or reads, its result included, whatever a backward
 * would read: without a backward, they live until the block ends.  Ignores how->keep. */
double vfm_block_forward_bytes(const struct vfm_model_spec *m, const struct vfm_saved_how *how);
/* Returns the bytes of one rank's rows of the gathered tensors that a block saves if it keeps everything. */
double vfm_block_gathered_bytes(const struct vfm_model_spec *m, const struct vfm_saved_how *how);
/* Returns the bytes of the saved tensors that are in the set `of`. */
double vfm_block_saved_part(const struct vfm_model_spec *m, const struct vfm_saved_how *how, unsigned of);

/* Returns the bytes that a block on a rank of `tp` holds between its backward and its deferred weight gradients: the
 * inputs of its linear layers and the gradients of their outputs. */
double vfm_block_deferred_bytes(const struct vfm_model_spec *m, const struct vfm_saved_how *how, int tp);

/* The work that the backward of a block recomputes. */
struct vfm_block_again {
	double flops;   /* of products and attention */
	double traffic; /* bytes of the other ops, estimated: each tensor is written once and something as large is read
			 */
};
struct vfm_block_again vfm_block_again(const struct vfm_model_spec *m, const struct vfm_saved_how *how);

#endif
