/* Any bytes as a table of any format, between two good ones: each row becomes a record that is equal after writing and
 * reading, or an error; a refused table changes nothing of the others; and the end comes. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/mem.h"
#include "curate/table/table_records.h"
#include "io/json.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MAX_ROWS = 5000 };

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

/* Ends with the record of `last`, if all tables were read. */
static void read_tables(struct vfm_table_records_opts *o)
{
	struct vfm_table_records *t;
	struct vfm_err err;
	json_t *rec, *at = NULL;
	int rc = 1;

	if (vfm_table_records_open(&t, o, &err) < 0)
		return;
	for (int i = 0; i < MAX_ROWS && (rc = vfm_table_records_next(t, &rec, &err)) != 0; i++) {
		if (rc == VFM_EUSAGE && !rec) /* an option does not fit this table: the command ends */
			break;
		if (rc != 1 && (rc != VFM_EINPUT || rec))
			abort();
		if (rc != 1)
			continue;
		json_decref(at);
		at = json_incref(rec);
		check_record(rec);
	}
	if (rc == 0 && strcmp(json_string_value(json_object_get(at, "id")), "last") != 0)
		abort();
	json_decref(at);
	vfm_table_records_close(t);
}

/* Returns the path of a file in memory, which the caller frees; sets *fd, which the caller closes. */
static char *make_table(int *fd, const void *data, size_t size)
{
	*fd = memfd_create("fuzz", MFD_CLOEXEC);
	if (*fd < 0 || write(*fd, data, size) != (ssize_t)size)
		abort();
	return vfm_strfmt("/proc/self/fd/%d", *fd);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static const char first[] = "score,id,a.b\n1,first,2\n", last[] = "score,id,a.b\n3,last,4\n";
	struct vfm_table_records_opts o = {.n_files = 3};
	char *path[3];
	int fd[3];

	path[0] = make_table(&fd[0], first, sizeof(first) - 1);
	path[1] = make_table(&fd[1], data, size);
	path[2] = make_table(&fd[2], last, sizeof(last) - 1);
	o.files = path;
	read_tables(&o);
	vfm_strlist_add(&o.take, "score=score.x,id");
	vfm_strlist_add(&o.take, "a.b");
	vfm_strlist_add(&o.numbers, "score");
	read_tables(&o);
	o.files++; /* the first table */
	o.n_files--;
	read_tables(&o);
	vfm_strlist_release(&o.take);
	vfm_strlist_release(&o.numbers);
	for (int i = 0; i < 3; i++) {
		free(path[i]);
		close(fd[i]);
	}
	return 0;
}
