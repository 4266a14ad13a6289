/* modulation.h - the shifts, scales and gates of the blocks, [G,D] each, from the conditioning.
 *
 * One product computes the modulation of a group of consecutive blocks, since all read the same input.  A group's
 * parameters belong to the unit of its first block, which computes the product before its region.  The backward
 * therefore has their gradients when it leaves that unit, and recompute does not repeat the product.  The value [G,
 * n_mod * D] f32 of each block lives until its backward.
 *
 * On one rank, a group has all blocks of a chunk.  With fsdp it has one block.  Otherwise it has about
 * parallel.bucket_mib of gradients, so that their reduction overlaps.  The blocks of a group are all frozen or all
 * trained, and all double-stream or all single-stream.
 */
#ifndef VFM_NET_DIFFUSION_MODULATION_H
#define VFM_NET_DIFFUSION_MODULATION_H

#include "net/nn/layers.h"
#include "spec/model/model.h"

/* Each block has a full matrix, or an addend to the modulation that all blocks share: either two rank-r matrices
 * (adaln_lora) or a table.  The block may divide its modulation into equal parts, each with its own rank-r matrices;
 * they share one part's modulation. */
struct vfm_modulation {
	int layers, n_mod; /* layers 0: no group */
	int parts;         /* of a block; 1: undivided */
	int64_t hidden, rank;
	/* [layers], b [layers * parts]; NULL if the modulation has another form */
	struct vfm_linear *ada, *a, *b;
	struct vfm_param **table; /* [layers] [n_mod, D] */
	struct vfm_linear_stack ada_all, a_all;
};

/* Declares the parameters "blocks.I.…" of the group that begins with layer `first` of a chunk whose layers end at
 * `end`.  Sets mod->layers to its size. */
void vfm_modulation_declare(struct vfm_modulation *mod, const struct vfm_model_spec *m, struct vfm_params *ps, int unit,
	int64_t first, int64_t end);
void vfm_modulation_release(struct vfm_modulation *mod);

struct vfm_modulation_in {
	struct vfm_var *sc;     /* [G,D] f32, silu of the conditioning */
	struct vfm_var *shared; /* [G, n_mod / parts * D] f32: modulation shared by all blocks; NULL without */
};
/* Returns [layers][n_mod] views [G,D] f32, in memory of the tape. */
struct vfm_var **vfm_modulation(
	struct vfm_tape *t, const struct vfm_modulation *mod, const struct vfm_modulation_in *in);
enum { VFM_MODULATION_SOURCES = 4 }; /* at most, of a block */
/* Sets the variables that hold the values of a block; mod: its n_mod views.  Returns their number. */
int vfm_modulation_sources(struct vfm_var *const *mod, int n_mod, struct vfm_var *sources[VFM_MODULATION_SOURCES]);

#endif
