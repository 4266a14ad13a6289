/* no_text.c - the functions of a build without utf8proc and Gumbo (make WITHOUT=text): no text can be encoded. */
#include "encoder/text/clean.h"
#include "encoder/text/text_tokenizer.h"

static const char why[] = "this program was built without utf8proc and Gumbo, which text encoders need";

int vfm_clean_text(const char *text, struct vfm_buf *out, struct vfm_err *err)
{
	(void)text, (void)out;
	return vfm_fail(err, VFM_EENV, "%s", why);
}

int vfm_text_tokenizer_open(struct vfm_text_tokenizer **t, const char *path, struct vfm_err *err)
{
	(void)t, (void)path;
	return vfm_fail(err, VFM_EENV, "%s", why);
}

void vfm_text_tokenizer_close(struct vfm_text_tokenizer *t)
{
	(void)t;
}

int64_t vfm_text_tokenizer_encode(
	const struct vfm_text_tokenizer *t, const char *text, int64_t max_len, int32_t *ids, struct vfm_err *err)
{
	(void)t, (void)text, (void)max_len, (void)ids;
	return vfm_fail(err, VFM_EENV, "%s", why);
}

int32_t vfm_text_tokenizer_max_id(const struct vfm_text_tokenizer *t)
{
	(void)t;
	return 0;
}

const char *vfm_text_tokenizer_sha256(const struct vfm_text_tokenizer *t)
{
	(void)t;
	return "";
}
