/* joint.h - models with joint attention, where the text of a sample is a second stream of rows (Esser et al. 2024, arXiv
 * 2403.03206).  Each block has weights of its own for the tokens and for the text; both attend to both.
 *
 * The sequence of a sample is its tokens, then its text rows: those of the first encoder, of the second, and the image
 * rows.  cp divides it like the tokens of other models.  A rank therefore has rows of both kinds, which tp divides by
 * kind.  The residual stream of a rank is [rows of tokens | rows of text].
 */
#ifndef VFM_NET_DIFFUSION_JOINT_H
#define VFM_NET_DIFFUSION_JOINT_H

#include "net/mesh/attn.h"
#include "net/tape/gops.h"
#include "spec/layout/pack.h"
#include "spec/model/model.h"

/* The text of a pack that this rank needs.  R: rows of its cp rank, T: its own; with "_text" those of the text. */
struct vfm_joint_in {
	struct vfm_stream *stream;
	int32_t *cu_rows;              /* [n+1] boundaries of the samples in the text rows of the pack */
	int32_t *cu_whole;             /* [n+1] boundaries of the sequences */
	struct vfm_tokens whole, tok;  /* the sequences; the text rows */
	struct vfm_attn_layout attn;   /* of the sequences, for attention */
	struct vfm_attn_layout layers; /* of the text rows, for linear layers */
	struct vfm_row_parts rows;     /* R + R_text rows of the sequences, from tokens and text */
	struct vfm_row_parts own;      /* T + T_text rows of the residual stream, likewise */
	struct vfm_row_parts pick;     /* T_text rows, from the embedded rows of the encoders that the model has */
	struct vfm_seqs segs;          /* the segments (input.h) in the T_text rows; those of given frames are empty */
	struct vfm_seqs text_segs;     /* the same in the rows of the first encoder */
	int32_t *host;                 /* the boundaries of segs and text_segs */
	void *mem;                     /* all arrays on the device */
	size_t bytes;
};

/* The rows of each encoder in a pack.  [n+1] boundaries of the samples; NULL: the model has no such rows. */
struct vfm_joint_rows {
	const int32_t *cu[VFM_ROW_PARTS]; /* first encoder, second encoder, image */
};

/* Sets cu_rows and cu_whole from the boundaries of the tokens and of the encoders' rows. */
void vfm_joint_in_sizes(struct vfm_joint_in *j, int n, const int32_t *cu, const struct vfm_joint_rows *rows);
/* Makes the rest.  video: the tokens of this rank, which were cut with cu_whole.  segs, sample [segs->n]: the segments in
 * the T rows, and their samples.  The mesh and video must outlive j.  Release j even after a failure. */
int vfm_joint_in_make(struct vfm_joint_in *j, struct vfm_stream *s, const struct vfm_mesh *mesh,
	const struct vfm_tokens *video, const struct vfm_joint_rows *rows, const struct vfm_seqs *segs,
	const int32_t *sample, struct vfm_err *err);
void vfm_joint_in_release(struct vfm_joint_in *j);

#endif
