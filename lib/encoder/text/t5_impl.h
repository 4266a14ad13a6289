/* t5_impl.h - shared by t5.c, t5_open.c and t5_place.c. */
#ifndef VFM_ENCODER_TEXT_T5_IMPL_H
#define VFM_ENCODER_TEXT_T5_IMPL_H

#include "ckpt/weights.h"
#include "device/ops/ops.h"
#include "encoder/text/t5.h"
#include "encoder/text/text_tokenizer.h"

enum t5_matrix { T5_Q, T5_K, T5_V, T5_O, T5_GATE, T5_UP, T5_DOWN, T5_MATRICES };

struct t5_dims {
	int64_t vocab, dim, inner, heads, head, ffn, layers;
	int64_t buckets, max_distance;
	float eps;
	bool own_bias; /* each block has its own table (UMT5) */
};
struct t5_block {
	const struct vfm_weight *m[T5_MATRICES], *norm[2];
	const struct vfm_weight *bias;    /* [buckets, heads]; NULL: uses that of block 0 */
	struct vfm_tensor w[T5_MATRICES]; /* resident or in place; absent while streamed */
	struct vfm_tensor norm_w[2];      /* [dim] f32 */
	struct vfm_tensor table;          /* [heads, 2 max_len - 1] f32 */
};

/* A buffer of streamed weights. */
struct t5_slot {
	char *mem, *host; /* on the device; pinned, or NULL if the device reads host memory */
	struct vfm_event *used, *copied;
};

struct vfm_t5 {
	struct vfm_stream *s, *copy; /* copy: NULL unless weights are streamed to an asynchronous device */
	struct vfm_weights *weights;
	struct vfm_text_tokenizer *tok;
	struct t5_dims d;
	const char *family; /* "t5" or "umt5" */
	enum vfm_dtype dtype;
	int64_t max_len, max_rows;
	bool clean, stream, in_place, placed;
	struct t5_block *block; /* [layers] */
	const struct vfm_weight *embed, *norm;
	struct vfm_tensor norm_w;
	char *small; /* norms and tables */
	size_t small_bytes;
	char *big; /* resident matrices of all blocks */
	size_t big_bytes, block_bytes;
	struct t5_slot slot[2];
	char sha256[VFM_SHA256_HEX]; /* "": not computed */
};

/* Opens the files, fills d, block, embed and norm, and checks them (t5_open.c). */
int t5_open_files(struct vfm_t5 *t, const struct vfm_t5_opts *o, struct vfm_err *err);
/* Places the weights, unless they are placed (t5_place.c). */
int t5_place(struct vfm_t5 *t, struct vfm_err *err);
void t5_release(struct vfm_t5 *t); /* the opposite, also after a failed t5_place */
/* Starts to copy the matrices of block i to the device, if they are streamed; t5_arrive sets w. */
int t5_fetch(struct vfm_t5 *t, int64_t i, struct vfm_err *err);
/* Makes the compute stream wait for block i, and sets w to its matrices. */
int t5_arrive(struct vfm_t5 *t, int64_t i, struct vfm_tensor w[T5_MATRICES], struct vfm_err *err);
/* Call once the compute stream has enqueued its last use of block i. */
int t5_leave(struct vfm_t5 *t, int64_t i, struct vfm_err *err);

#endif
