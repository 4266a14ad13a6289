/* JSON Lines: any bytes; every record that is read is equal after writing and reading.  Lines of other programs: the
 * same, and the strict reader's records are among theirs. */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "io/json.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* A document of at most 1000 bytes is not too deep. */
static void compare_foreign(const char *text, size_t len, const json_t *v)
{
	struct vfm_err err;
	json_t *w = vfm_json_parse_foreign(text, len, "foreign", &err);

	if (len <= VFM_JSON_DEPTH && (!w || !json_equal(v, w)))
		abort();
	json_decref(w);
}

static void read_lines(const uint8_t *data, size_t size, bool is_foreign)
{
	struct vfm_jsonl r = {.max_line = 4096, .name = "fuzz", .is_foreign = is_foreign};
	struct vfm_err err;
	json_t *v, *w;
	int rc;

	r.f = fmemopen((void *)(uintptr_t)data, size, "r");
	if (!r.f)
		return;
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
		compare_foreign(b.data, b.len, v);
		vfm_buf_release(&b);
		json_decref(v);
		json_decref(w);
	}
	fclose(r.f);
	free(r.buf);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct vfm_err err;
	json_t *text = vfm_json_string((const char *)data, size, "fuzz", &err);
	struct vfm_buf b = {0};

	if (text) { /* what records take, their readers take */
		json_t *list = json_pack("[O]", text), *again;

		vfm_json_text(&b, list, 0);
		again = vfm_json_parse(b.data, b.len, "again", &err);
		if (!again || !json_equal(list, again))
			abort();
		json_decref(list);
		json_decref(again);
	}
	json_decref(text);
	vfm_buf_release(&b);
	if (size) {
		read_lines(data, size, false);
		read_lines(data, size, true);
	}
	return 0;
}
