/* Any bytes as the file of a tokenizer (tokenizer.json if they begin with '{', else spiece.model) and as a text: what
 * is accepted gives ids within its range, and cleaned text is valid UTF-8. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "encoder/text/clean.h"
#include "encoder/text/text_tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MAX_LEN = 64 };

static void encode_one(const struct vfm_text_tokenizer *t, const char *text)
{
	int32_t ids[MAX_LEN];
	struct vfm_err err;
	int64_t n = vfm_text_tokenizer_encode(t, text, MAX_LEN, ids, &err);

	if (n == 0 || n > MAX_LEN || (n < 0 && n != VFM_EINPUT))
		abort();
	for (int64_t i = 0; i < n; i++)
		if (ids[i] < 0 || ids[i] > vfm_text_tokenizer_max_id(t))
			abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	int fd = memfd_create("tokenizer", MFD_CLOEXEC);
	struct vfm_text_tokenizer *t = NULL;
	struct vfm_buf text = {0}, out = {0};
	struct vfm_err err;
	char path[64];

	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	if (fd < 0 || write(fd, data, size) != (ssize_t)size)
		abort();
	vfm_buf_add(&text, data, size);
	if (vfm_text_tokenizer_open(&t, path, &err) == 0) {
		encode_one(t, "a  b\xe3\x80\x80\xc3\xa9 e\xcc\x81 \xf0\x9f\x98\x80</s>x <unk><extra_id_0> ");
		encode_one(t, text.data);
	}
	/* A second clean-up of what the first returned fails only for text that is no UTF-8. */
	if (vfm_clean_text(text.data, &out, &err) == 0 && vfm_clean_text(out.data, &text, &err) != 0)
		abort();
	vfm_text_tokenizer_close(t);
	vfm_buf_release(&text);
	vfm_buf_release(&out);
	close(fd);
	return 0;
}
