/* input.h - the model's input: a pack of samples on the device, made from a pack on the host (spec/layout/pack.h).
 */
#ifndef VFM_NET_DIFFUSION_INPUT_H
#define VFM_NET_DIFFUSION_INPUT_H

#include "net/diffusion/joint.h"
#include "net/diffusion/units.h"
#include "net/mesh/attn.h"
#include "net/mesh/mops.h"
#include "net/nn/moe.h"
#include "spec/layout/pack.h"
#include "spec/model/model.h"

/* The caller's choices for the samples of a pack.  Arrays [n]; NULL: false or 0 for all samples. */
struct vfm_model_conds {
	const bool *drop_text; /* replaces the text by zeros, and removes the second text (a vector: by zeros) */
	/* replaces the condition and the image rows by zeros; with joint attention, removes the image rows */
	const bool *drop_image;
	const int32_t *given; /* the first n latent frames are given (enum vfm_given_kind); 0: none */
	float guidance;       /* the scale that a distilled network reads (model.guidance_dim) */
	/* [n] the tokens of the given frames, f32; NULL: those of the pack, which has latents */
	const float *const *frames;
};

/* The part of a pack that this rank needs.  T: rows of this rank (spec/layout/tokens.h); R: rows of its cp rank. */
struct vfm_model_in {
	struct vfm_stream *stream;
	void *mem; /* one allocation for the tensors below */
	size_t bytes;
	/* boundaries of the samples in the text rows, including padding (model.text_pad), and in the tokens; text_seqs
	 * and moe refer to them */
	int32_t *host_cu_text, *host_cu_text2, *host_cu, *host_cu_image;
	struct vfm_tokens tok;
	struct vfm_attn_layout attn;
	struct vfm_seqs seqs; /* the samples within the T rows */
	struct vfm_seqs text_seqs;
	/* The G segments: ranges of the T rows with one time each, hence one modulation.  A sample is one segment, or
	 * two if its first latent frames are given: these frames and the rest.  Norms, gates, noise and loss are per
	 * segment. */
	struct vfm_seqs segs;
	int32_t *host_cu_segs, *seg_sample; /* [G+1], [G] */
	bool *seg_given;                    /* [G] */
	struct vfm_tensor x;                /* [T,F] in the compute dtype: the noisy input; the caller fills it */
	struct vfm_tensor t_cond;           /* [G] f32; the caller fills it */
	struct vfm_tensor id;               /* [G] i64 */
	struct vfm_tensor idx;              /* [T] i32 */
	struct vfm_tensor text;             /* [text, text_dim] f32 */
	/* [text2, text2_dim] f32, or if it is a vector (spec/model/arch.h) [G, text2_dim], zeros for a sample without;
	 * absent without model.text2_dim */
	struct vfm_tensor text2;
	struct vfm_tensor guidance, guided; /* [1] f32: 1000 times the scale; [G] i32: 0, or -1 for given frames */
	struct vfm_tensor cond;             /* [T, cond_dim] f32 or bf16; absent without model.cond_channels */
	struct vfm_tensor given; /* [T, given_dim] f32: what the model reads of given frames; may be absent */
	/* [image rows, image_dim] f32: image_len for each sample, but with joint attention none for samples without an
	 * image; absent without model.image_dim */
	struct vfm_tensor image;
	struct vfm_seqs image_seqs; /* the samples in the image rows */
	/* [G, text_dim] f32: mean text row of each segment's sample, including padding; absent if nothing reads it */
	struct vfm_tensor text_mean;
	/* [R, head_dim] f32, or with RoPE over all heads [R, heads of this rank, head_dim]; absent without RoPE */
	struct vfm_tensor rope;
	struct vfm_tensor pos_embed; /* [T, hidden] f32; absent without sine-cosine positions */
	/* stdit: tokens distributed by frames and by columns, for spatial and temporal attention */
	struct vfm_units frames, columns;
	struct vfm_joint_in joint; /* of an architecture with joint attention */
	int64_t stream_rows;       /* rows of the residual stream: T, and with joint attention T_text */
	struct vfm_moe_in moe;     /* with experts; the caller may set moe.loss */
	struct vfm_tensor pos;     /* [T,3] i32: t, h, w; absent without learned positions */
};

/* Uploads everything except x and t_cond (vfm_dev_upload), and enqueues nothing else.  Pads texts (model.text_pad).
 * conds may be NULL.  The caller may release the pack on return.  The mesh must outlive the input.  VFM_EUSAGE: the
 * pack lacks the condition or the image rows that the model reads, or a given frame is the only one of its sample. */
int vfm_model_in_make(struct vfm_model_in *in, struct vfm_stream *s, const struct vfm_mesh *mesh,
	const struct vfm_model_spec *m, const struct vfm_pack *p, const struct vfm_model_conds *conds,
	enum vfm_dtype dtype, struct vfm_err *err);
void vfm_model_in_release(struct vfm_model_in *in);
/* Makes the tokens of cp rank cp_i in a pack of n samples. */
void vfm_model_in_tokens(
	const struct vfm_model_in *in, int n, const struct vfm_mesh *mesh, int cp_i, struct vfm_tokens *t);
/* Returns the pack row of each of the T rows, [T]. */
const int32_t *vfm_model_in_rows(const struct vfm_model_in *in);
/* Uploads the T rows of a host array [tokens of the pack, width], one copy per run of consecutive rows. */
int vfm_model_in_upload(struct vfm_model_in *in, const struct vfm_tensor *dst, const void *host, struct vfm_err *err);

#endif
