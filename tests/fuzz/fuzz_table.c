/* Any bytes as a table of any format: each row becomes a record that is equal after writing and reading, or an error;
 * and the end comes. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/json.h"
#include "base/mem.h"
#include "curate/table_records.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MAX_ROWS = 5000 }; /* a few bytes of Parquet may stand for many rows */

static void check_record(json_t *rec)
{
	const char *id = json_string_value(json_object_get(rec, "id"));
	struct vfm_buf b = {0};
	struct vfm_err err;
	json_t *again;

	vfm_json_text(&b, rec, 0);
	again = vfm_json_parse(b.data, b.len, "again", &err);
	if (!id || !again || !json_equal(rec, again) || json_object_get(rec, "drop") || json_object_get(rec, "by"))
		abort();
	json_decref(again);
	json_decref(rec);
	vfm_buf_release(&b);
}

static void read_table(struct vfm_table_records_opts *o)
{
	struct vfm_table_records *t;
	struct vfm_err err;
	json_t *rec;
	int rc;

	if (vfm_table_records_open(&t, o, &err) < 0)
		return;
	for (int i = 0; i < MAX_ROWS && (rc = vfm_table_records_next(t, &rec, &err)) != 0; i++) {
		if (rc == 1)
			check_record(rec);
		else if (rc != VFM_EINPUT || rec)
			abort();
	}
	vfm_table_records_close(t);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	int fd = memfd_create("fuzz", MFD_CLOEXEC);
	struct vfm_table_records_opts o = {.n_files = 1};
	char *path = vfm_strfmt("/proc/self/fd/%d", fd);

	if (fd < 0 || write(fd, data, size) != (ssize_t)size)
		abort();
	o.files = &path;
	read_table(&o);
	vfm_strlist_add(&o.take, "score=score.x,id");
	vfm_strlist_add(&o.take, "a.b");
	vfm_strlist_add(&o.numbers, "score");
	read_table(&o);
	vfm_strlist_release(&o.take);
	vfm_strlist_release(&o.numbers);
	free(path);
	close(fd);
	return 0;
}
