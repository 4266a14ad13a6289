/* t5.h - text encoders: the encoders of T5 v1.1 and UMT5 (Raffel et al., arXiv 1910.10683; Chung et al., arXiv
 * 2304.09151), from folders of transformers and the release of Wan.
 *
 *	t5 = vfm_t5_open(&t5, stream, &(struct vfm_t5_opts){.path = dir, .dtype = VFM_BF16, .clean = true}, err);
 *	vfm_t5_encode(t5, texts, n, VFM_F32, rows, n_rows, err);
 *
 * Texts are packed by their tokens, without padding, into packs of at most max_rows tokens.  The rows of a text have
 * the same bits, whatever else is encoded with it.  Products run in `dtype`; the residual stream is f32.
 *
 * Calls are local and belong to the thread of the device.
 */
#ifndef VFM_ENCODER_TEXT_T5_H
#define VFM_ENCODER_TEXT_T5_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "data/record/encoder_id.h"
#include "device/dev/dev.h"
#include "spec/model/dtype.h"

struct vfm_t5;
struct vfm_t5_opts {
	/* A folder of transformers, of a pipeline (text_encoder/, tokenizer/) or of a release of Wan, or a file of
	 * weights */
	const char *path;
	/* File or folder of the tokenizer; NULL: in path, in tokenizer/ in or next to it, or in google/umt5-xxl next to
	 * it */
	const char *tokenizer;
	enum vfm_dtype dtype; /* VFM_F32 or VFM_BF16 */
	int64_t max_len;      /* maximum tokens of a text including its end token; longer texts are cut; 0: 512 */
	int64_t max_rows;     /* maximum tokens of a pack, at least max_len; 0: 8192 */
	bool stream;          /* copies the blocks to the device for each pack, instead of keeping them there */
	bool clean;           /* applies vfm_clean_text before tokenization, as Wan does */
};

/* Opens and checks the files, which must not change until vfm_t5_close.  The first vfm_t5_encode places the weights on
 * the device.  VFM_EUSAGE names the file and the key or tensors that do not fit. */
int vfm_t5_open(struct vfm_t5 **t, struct vfm_stream *s, const struct vfm_t5_opts *opts, struct vfm_err *err);
/* Frees all device memory; the next vfm_t5_encode places the weights again.  No-op for NULL. */
void vfm_t5_unload(struct vfm_t5 *t);
void vfm_t5_close(struct vfm_t5 *t); /* no-op for NULL */

int64_t vfm_t5_dim(const struct vfm_t5 *t);
/* Sets name, version, sha256, dim and max_rows.  The sha256 covers the weights, the tokenizer, the clean-up, dtype and
 * max_len.  The first call reads the weight files in full. */
int vfm_t5_id(struct vfm_t5 *t, struct vfm_encoder_id *m, struct vfm_err *err);

/* Returns the rows of a text, 1 to max_len.  VFM_EINPUT: not valid UTF-8, or longer than
 * VFM_TEXT_TOKENIZER_TEXT_MAX. */
int64_t vfm_t5_count(const struct vfm_t5 *t, const char *text, struct vfm_err *err);
/* Encodes n texts.  Sets rows[i] to [n_rows[i], dim]; the caller frees it with free().  An error returns no rows;
 * VFM_EINPUT names the number of the text. */
int vfm_t5_encode(
	struct vfm_t5 *t, const char *const *texts, int n, float **rows, int64_t *n_rows, struct vfm_err *err);

#endif
