/* The text of a record: what is accepted, the parser accepts too, writes so again, and digests so. */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "curate/dedup/record_text.h"
#include "data/record/record.h"
#include "io/json.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static const char *const without[] = {"v", "by", NULL};
	char *line = vfm_malloc(size + 1), a[VFM_SHA256_HEX], b[VFM_SHA256_HEX];
	struct vfm_record_text t = {0};
	struct vfm_buf again = {0};
	double x, y;
	json_t *v;

	if (size)
		memcpy(line, data, size);
	line[size] = 0;
	if (vfm_record_text_read(&t, line, size)) {
		v = json_loadb(line, size, JSON_REJECT_DUPLICATES, NULL);
		if (!v)
			abort();
		vfm_json_text(&again, v, 0);
		if (again.len != size || memcmp(again.data, line, size) != 0)
			abort();
		vfm_rec_digest("head", v, without, a);
		vfm_record_text_digest(&t, "head", without, b);
		if (strcmp(a, b) != 0)
			abort();
		if (vfm_rec_num(v, "a", &x) != vfm_record_text_num(&t, "a", &y) || (vfm_rec_num(v, "a", &x) && x != y))
			abort();
		if (!vfm_rec_at(v, "a.a") != !vfm_record_text_at(&t, "a.a"))
			abort();
		json_decref(v);
	}
	vfm_record_text_release(&t);
	vfm_buf_release(&again);
	free(line);
	return 0;
}
