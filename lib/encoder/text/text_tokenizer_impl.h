/* text_tokenizer_impl.h - the tokenizer that text_tokenizer_json.c and text_tokenizer_spm.c read and text_tokenizer.c
 * applies. */
#ifndef VFM_ENCODER_TEXT_TEXT_TOKENIZER_IMPL_H
#define VFM_ENCODER_TEXT_TEXT_TOKENIZER_IMPL_H

#include "encoder/text/charsmap.h"
#include "encoder/text/text_tokenizer.h"
#include "encoder/text/unigram.h"

#define VFM_TEXT_TOKENIZER_SPACE "\xe2\x96\x81" /* U+2581, which represents a space within pieces */

/* The steps of a normalizer, in order. */
struct tokenizer_step {
	enum { STEP_CHARSMAP, STEP_STRIP, STEP_REPLACE } kind;
	bool left, right;     /* STEP_STRIP: the ends whose white space is stripped */
	char *pattern, *with; /* STEP_REPLACE: a literal text and its replacement */
	bool run;             /* STEP_REPLACE: replaces a run of two or more patterns, once */
};
enum { TOKENIZER_STEPS_MAX = 8 };

struct tokenizer_added {
	char *text;
	size_t len;
	int32_t id;
	bool lstrip, rstrip; /* absorbs the white space before it, after it */
};

enum tokenizer_prepend { PREPEND_ALWAYS, PREPEND_FIRST, PREPEND_NEVER };

struct vfm_text_tokenizer {
	struct vfm_unigram model;
	struct vfm_charsmap charsmap;
	struct tokenizer_step step[TOKENIZER_STEPS_MAX];
	int n_steps;
	bool split_space; /* words end at white space, which is dropped */
	enum tokenizer_prepend prepend;
	bool split_words; /* words begin at each U+2581 */
	bool metaspace;   /* tokenizer.json has a Metaspace */
	int32_t eos;
	struct tokenizer_added *added; /* longest first */
	size_t n_added, cap_added;
	bool starts[256]; /* first bytes of added tokens */
	char sha256[VFM_SHA256_HEX];
};

void tokenizer_add(struct vfm_text_tokenizer *t, const char *text, int32_t id, bool lstrip, bool rstrip);
/* Fill an empty tokenizer from the bytes of a file; `path` names the file. */
int tokenizer_read_json(
	struct vfm_text_tokenizer *t, const char *path, const char *data, size_t len, struct vfm_err *err);
int tokenizer_read_spm(struct vfm_text_tokenizer *t, const char *path, const char *data, size_t len, int64_t extra_ids,
	struct vfm_err *err);

#endif
