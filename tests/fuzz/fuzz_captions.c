/* Any bytes as captions of other programs: a text file, a table of any format, an object, and the captions of a list.  A
 * caption that is accepted is one of a record, is trimmed, and is found again under its name; a refusal has a sentence.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "curate/table/caption_table.h"
#include "curate/table/caption_value.h"
#include "data/record/caption.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_trimmed(const json_t *text)
{
	const char *s = json_string_value(text);
	size_t n = json_string_length(text);

	if (n && (strchr(" \t\n\v\f\r", s[0]) || strchr(" \t\n\v\f\r", s[n - 1])))
		abort();
}

static void check_caption(const json_t *caption)
{
	struct vfm_captions all;
	json_t *rec = json_object();
	struct vfm_err err;

	json_object_set(rec, "caption", (json_t *)(uintptr_t)caption);
	if (vfm_captions_of(&all, rec, &err) < 0)
		abort();
	for (int i = 0; i < all.n; i++)
		check_trimmed(all.list[i].value);
	json_decref(rec);
}

static void check_table(struct vfm_caption_table *t, FILE *store)
{
	struct vfm_err err;
	json_t *caption;

	for (int64_t i = 0; i < t->names.n; i++) {
		char *plain = vfm_plain_path(vfm_names_at(&t->names, i));

		if (strcmp(plain, vfm_names_at(&t->names, i)) != 0 || vfm_names_find(&t->names, plain) != i)
			abort();
		free(plain);
		if (vfm_caption_table_get(t, i, store, &caption, &err) < 0)
			abort();
		if (caption)
			check_caption(caption);
		json_decref(caption);
	}
}

static void write_fuzz_file(const char *path, const void *data, size_t size)
{
	FILE *f = fopen(path, "w");

	if (!f || fwrite(data, 1, size, f) != size || fclose(f) != 0)
		abort();
}

static void read_table(const char *path, bool maybe)
{
	struct vfm_caption_table t = {0};
	struct vfm_err err = {0};
	FILE *store = tmpfile();
	int rc = vfm_caption_table_open(&t, path, store, maybe, &err);

	if (rc == 1)
		check_table(&t, store);
	else if ((rc != 0 || !maybe) && rc != VFM_EUSAGE)
		abort();
	if (rc != 1 && !err.msg[0])
		abort();
	vfm_caption_table_close(&t);
	fclose(store);
}

static void read_lists(const char *captions)
{
	static const char names[] = "a\n./b\nc/d\n\na\n";
	struct vfm_caption_table t = {0};
	char *path = vfm_strfmt("/dev/shm/fuzz-captions-%d.names", (int)getpid());
	struct vfm_err err = {0};
	FILE *store = tmpfile();
	int rc;

	write_fuzz_file(path, names, 9); /* three names */
	rc = vfm_caption_lists_open(&t, path, captions, store, &err);
	if (rc == 1 && t.names.n != 3)
		abort();
	if (rc == 1)
		check_table(&t, store);
	else if (rc != VFM_EUSAGE || !err.msg[0])
		abort();
	vfm_caption_table_close(&t);
	fclose(store);
	unlink(path);
	free(path);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static const char *const ends[] = {"json", "csv"};
	struct vfm_err err = {0};
	json_t *caption;

	for (int by_line = 0; by_line < 2; by_line++) {
		if (vfm_caption_of_text(&caption, (const char *)data, size, by_line, "text", &err) == 0)
			check_caption(caption);
		else if (caption || !err.msg[0])
			abort();
		json_decref(caption);
	}
	for (int i = 0; i < 2; i++) {
		char *path = vfm_strfmt("/dev/shm/fuzz-captions-%d.%s", (int)getpid(), ends[i]);

		write_fuzz_file(path, data, size);
		read_table(path, false);
		read_table(path, true);
		if (i == 0)
			read_lists(path);
		unlink(path);
		free(path);
	}
	return 0;
}
