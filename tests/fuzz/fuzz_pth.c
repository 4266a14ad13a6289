/* .pth files: any bytes.  What is accepted has tensors within the file, with distinct names.  The zip archive around
 * the program of most inputs is broken by a mutation; so an input that begins with 'P' 'R' is a bare program, for which
 * the harness writes the archive. */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "ckpt/pth.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void put_le(struct vfm_buf *b, uint64_t v, int n)
{
	for (; n-- > 0; v >>= 8) {
		char c = (char)v;

		vfm_buf_add(b, &c, 1);
	}
}

/* Appends a stored entry, with its local header or as an entry of the directory. */
static void put_entry(struct vfm_buf *b, const char *name, const void *data, size_t size, uint64_t head, int central)
{
	vfm_buf_add(b, central ? "PK\1\2\0\0" : "PK\3\4", central ? 6 : 4);
	put_le(b, 0, 12); /* version, flags, method, time, date, low bytes of the checksum */
	put_le(b, 0, 2);
	put_le(b, size, 4);
	put_le(b, size, 4);
	put_le(b, strlen(name), 2);
	put_le(b, 0, central ? 12 : 2);
	if (central)
		put_le(b, head, 4);
	vfm_buf_adds(b, name);
	if (!central)
		vfm_buf_add(b, data, size);
}

static void put_archive(struct vfm_buf *b, const uint8_t *program, size_t size)
{
	static const char values[64];
	uint64_t at;

	put_entry(b, "a/data.pkl", program, size, 0, 0);
	at = b->len;
	put_entry(b, "a/data/0", values, sizeof(values), 0, 0);
	size = b->len;
	put_entry(b, "a/data.pkl", NULL, at - 40, 0, 1);
	put_entry(b, "a/data/0", NULL, sizeof(values), at, 1);
	at = b->len;
	vfm_buf_add(b, "PK\5\6\0\0\0\0\2\0\2\0", 12);
	put_le(b, at - size, 4);
	put_le(b, size, 4);
	put_le(b, 0, 2);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct vfm_buf b = {0};
	struct vfm_err err = {0};
	struct vfm_st st;
	int fd = memfd_create("pth", MFD_CLOEXEC);

	if (size >= 2 && data[0] == 'P' && data[1] == 'R')
		put_archive(&b, data + 2, size - 2);
	else
		vfm_buf_add(&b, data, size);
	if (fd < 0 || write(fd, b.data, b.len) != (ssize_t)b.len)
		abort();
	if (vfm_pth_open(&st, fd, b.len, "fuzz", &err) == 0) {
		for (size_t i = 0; i < st.n; i++) {
			const struct vfm_st_tensor *t = &st.t[i];
			int64_t numel = vfm_shape_numel(t->ndim, t->shape);

			if (numel < 0 || t->end - t->begin != (uint64_t)numel * vfm_dtype_size(t->dtype) ||
				t->end > b.len || vfm_st_find(&st, t->name) != t)
				abort();
		}
		vfm_st_release(&st);
	} else if (!err.msg[0]) {
		abort();
	}
	close(fd);
	vfm_buf_release(&b);
	return 0;
}
