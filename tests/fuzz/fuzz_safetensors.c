/* safetensors headers: any bytes; what is accepted has no gaps between tensors and is equal after writing and reading.
 */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct vfm_st st, again;
	struct vfm_err err = {0};
	struct vfm_buf head = {0};
	uint64_t need, bytes = size, total;
	uint8_t *raw;

	raw = malloc(size ? size : 1); /* exact, so that the sanitizer sees a read beyond */
	memcpy(raw, data, size);
	if (size > 8 && data[7]) { /* correct the length, which few inputs would match */
		memset(raw, 0, 8);
		raw[0] = (uint8_t)(size - 8);
		raw[1] = (uint8_t)((size - 8) >> 8);
		bytes = size + data[7];
	}
	if (vfm_st_parse(&st, raw, size, bytes, "fuzz", &need, &err) == 0) {
		uint64_t at = 0;

		for (size_t i = 0; i < st.n; i++) {
			if (st.t[i].begin != at || !vfm_st_find(&st, st.t[i].name))
				abort();
			at = st.t[i].end;
		}
		if (at != st.bytes)
			abort();
		total = st.bytes;
		vfm_st_layout(st.t, st.n, NULL, 0, &head);
		if (vfm_st_parse(&again, head.data, head.len, head.len + total, "again", &need, &err) < 0 ||
			again.n != st.n)
			abort();
		vfm_st_release(&again);
		vfm_buf_release(&head);
		vfm_st_release(&st);
	}
	free(raw);
	return 0;
}
