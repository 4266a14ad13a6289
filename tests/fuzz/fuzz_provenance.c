/* Any bytes as lines of records and headers: the chain keeps its limits, and what it has is not added again. */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "data/record/provenance.h"
#include "io/json.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_chain(const json_t *chain)
{
	json_t *entry;
	size_t i;

	if (json_array_size(chain) > VFM_PROVENANCE_ENTRIES ||
		json_dumpb(chain, NULL, 0, JSON_COMPACT) > VFM_PROVENANCE_BYTES + VFM_PROVENANCE_ENTRIES * 100)
		abort();
	json_array_foreach(chain, i, entry)
	{
		if (!json_is_string(json_object_get(entry, "tool")))
			abort();
		free(vfm_provenance_models_text(json_object_get(entry, "maker")));
	}
}

static void read_record(json_t *chain, const json_t *rec)
{
	json_t *was = json_copy(chain);
	struct vfm_err err;
	int rc;

	if (!vfm_provenance_is_header(rec)) {
		vfm_provenance_note(chain, rec);
		if (vfm_provenance_note(chain, rec) && json_array_size(chain) < VFM_PROVENANCE_ENTRIES)
			abort();
	} else {
		rc = vfm_provenance_read(chain, rec, &err);
		if (rc < 0 ? rc != VFM_EINPUT || !json_equal(chain, was) : rc != !json_equal(chain, was))
			abort();
		if (rc >= 0 && vfm_provenance_read(chain, rec, &err) != 0)
			abort();
	}
	check_chain(chain);
	json_decref(was);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct vfm_jsonl r = {.max_line = 1 << 20, .name = "fuzz"};
	json_t *chain = json_array(), *rec, *header;
	struct vfm_err err;
	int rc;

	r.f = size ? fmemopen((void *)(uintptr_t)data, size, "r") : NULL;
	while (r.f && (rc = vfm_jsonl_next(&r, &rec, &err)) != 0) {
		if (rc < 0)
			continue;
		read_record(chain, rec);
		json_decref(rec);
	}
	header = vfm_provenance_header(chain);
	if (!vfm_provenance_is_header(header))
		abort();
	json_decref(header);
	json_decref(chain);
	if (r.f)
		fclose(r.f);
	free(r.buf);
	return 0;
}
