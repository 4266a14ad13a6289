/* input.h - a pack of samples on the device, as every model reads it.  Training and sampling both make it from a pack
 * on the host (spec/pack.h).
 */
#ifndef VFM_MODEL_INPUT_H
#define VFM_MODEL_INPUT_H

#include "mesh/mops.h"
#include "model/units.h"
#include "nn/moe.h"
#include "spec/model.h"
#include "spec/pack.h"

/* What this rank needs of a pack.  T: the rows of its piece (spec/tokens.h); R: the rows of its cp rank. */
struct vfm_model_in {
	struct vfm_stream *stream;
	void *mem; /* one block that holds all below */
	size_t bytes;
	int32_t *host_cu_text, *host_cu; /* copies of the pack's: text_seqs and moe point at them */
	struct vfm_tokens tok;
	struct vfm_attn_layout attn;
	struct vfm_seqs seqs; /* samples in the T rows */
	struct vfm_seqs text_seqs;
	struct vfm_tensor x;              /* [T,F] in the compute dtype: the noisy input; the caller fills it */
	struct vfm_tensor t_cond;         /* [S] f32; the caller fills it */
	struct vfm_tensor id;             /* [S] i64 */
	struct vfm_tensor idx;            /* [T] i32 */
	struct vfm_tensor text;           /* [text, text_dim] f32 */
	struct vfm_tensor text_mean;      /* [S, text_dim] f32: mean of a sample's rows; absent without pooled_text */
	struct vfm_tensor rope;           /* [R, head_dim] f32; absent without it */
	struct vfm_tensor pos_embed;      /* [T, hidden] f32; absent without it */
	struct vfm_units frames, columns; /* stdit: where attention stays within a frame, and along time */
	struct vfm_moe_in moe;            /* moe; the caller may set moe.loss */
	struct vfm_tensor pos;            /* [T,3] i32: t, h, w; where positions are learned */
	struct vfm_tensor mod_rows; /* [S * n_mod] i32: 0 .. n_mod - 1 for each sample; where modulation is a table */
};

/* Uploads all but x and t_cond.  `dropped` [n] (NULL: none): samples whose text is replaced by zeros.
 * The pack may be released when it returns.  The mesh must outlive it. */
int vfm_model_in_make(struct vfm_model_in *in, struct vfm_stream *s, const struct vfm_mesh *mesh,
	const struct vfm_model_spec *m, const struct vfm_pack *p, const bool *dropped, enum vfm_dtype dtype,
	struct vfm_err *err);
void vfm_model_in_release(struct vfm_model_in *in);
/* The pack's row of each of the T rows. */
const int32_t *vfm_model_in_rows(const struct vfm_model_in *in);

#endif
