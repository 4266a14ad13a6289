/* text_tokenizer.h - converts text to the token ids of T5 and UMT5, from tokenizer.json or else spiece.model:
 * vfm-text(7).  No C library gives these ids: `tokenizers` is Rust, and sentencepiece is C++ and differs for some
 * texts.
 *
 * The ids are those of the `tokenizers` library (transformers' T5TokenizerFast).
 *
 * - tokenizer.json is honoured or refused key by key: its normalizer, pre-tokenizer, unknown id, byte fallback and
 *   added tokens.
 * - spiece.model is read like T5Tokenizer of transformers 5: words between white space, "extra_ids" of
 *   tokenizer_config.json (or 100) tokens <extra_id_N> after the pieces, control and user-defined pieces recognized in
 *   the text, no byte fallback.  The unknown id is that of the model, whereas transformers 5 uses 2.
 *
 * The end of sequence is appended, and truncation keeps it.  Added tokens (</s>, <pad>, <unk>, <extra_id_7>) in a text
 * become their ids.  A tokenizer is immutable; threads may share it.
 */
#ifndef VFM_ENCODER_TEXT_TEXT_TOKENIZER_H
#define VFM_ENCODER_TEXT_TEXT_TOKENIZER_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "io/hash.h"

struct vfm_text_tokenizer;

/* The maximum length of a text, in bytes.  Encoding takes up to 40 times its bytes of memory. */
enum { VFM_TEXT_TOKENIZER_TEXT_MAX = 16 << 20 };

/* Opens a file, or the tokenizer of a folder: tokenizer.json, else spiece.model.  VFM_EUSAGE names file and key. */
int vfm_text_tokenizer_open(struct vfm_text_tokenizer **t, const char *path, struct vfm_err *err);
void vfm_text_tokenizer_close(struct vfm_text_tokenizer *t); /* no-op for NULL */

/* Writes the ids of a text and returns their number, 1 to max_len.  VFM_EINPUT: the text is not valid UTF-8 (the
 * message names the byte), or is too long. */
int64_t vfm_text_tokenizer_encode(const struct vfm_text_tokenizer *t, const char *text, int64_t max_len,
	int32_t *ids /* [max_len] */, struct vfm_err *err);

/* Returns the largest id that encode may return. */
int32_t vfm_text_tokenizer_max_id(const struct vfm_text_tokenizer *t);
/* Returns the SHA-256 of the file and of the settings read next to it. */
const char *vfm_text_tokenizer_sha256(const struct vfm_text_tokenizer *t);

#endif
