/* JSON Lines: any bytes; every record that is read is equal after writing and reading. */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include "base/json.h"
#include "base/mem.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct vfm_jsonl r = {.max_line = 4096, .name = "fuzz"};
	struct vfm_err err;
	json_t *v, *w;
	int rc;

	if (!size)
		return 0;
	r.f = fmemopen((void *)(uintptr_t)data, size, "r");
	if (!r.f)
		return 0;
	while ((rc = vfm_jsonl_next(&r, &v, &err)) != 0) {
		struct vfm_buf b = {0};

		if (rc < 0) {
			if (rc != VFM_EINPUT || v)
				abort();
			continue;
		}
		vfm_json_text(&b, v, 0);
		w = vfm_json_parse(b.data, b.len, "again", &err);
		if (!w || !json_equal(v, w))
			abort();
		vfm_buf_release(&b);
		json_decref(v);
		json_decref(w);
	}
	fclose(r.f);
	free(r.buf);
	return 0;
}
