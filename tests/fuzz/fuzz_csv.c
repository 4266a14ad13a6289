/* Any bytes as CSV: the rows that are read, written again with all cells in quotes, are read as the same rows. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "curate/table/csv.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void write_row(struct vfm_buf *b, const struct vfm_csv *c)
{
	for (int i = 0; i < c->n; i++) {
		vfm_buf_add(b, &c->sep, i > 0);
		vfm_buf_adds(b, "\"");
		for (size_t k = 0; k < c->cells[i].len; k++) {
			vfm_buf_add(b, "\"", c->cells[i].s[k] == '"');
			vfm_buf_add(b, c->cells[i].s + k, 1);
		}
		vfm_buf_adds(b, "\"");
	}
	vfm_buf_adds(b, "\r\n");
}

/* Appends the rows to `b`; returns their number. */
static int64_t read_rows(const void *data, size_t size, char sep, char *found, struct vfm_buf *b, int64_t *faults)
{
	FILE *f = fmemopen((void *)(uintptr_t)data, size, "r");
	struct vfm_csv c;
	struct vfm_err err;
	int64_t rows = 0;
	int rc;

	if (!f)
		return 0;
	if (vfm_csv_open(&c, f, "fuzz", sep, &err) < 0)
		abort();
	while ((rc = vfm_csv_next(&c, &err)) != 0) {
		if (rc < 0) {
			++*faults;
			continue;
		}
		for (int i = 0; i < c.n; i++)
			if (strlen(c.cells[i].s) != c.cells[i].len)
				abort();
		write_row(b, &c);
		rows++;
	}
	*found = c.sep;
	vfm_csv_close(&c);
	fclose(f);
	return rows;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct vfm_buf first = {0}, second = {0};
	int64_t faults = 0, rows;
	char sep = 0;

	if (!size)
		return 0;
	rows = read_rows(data, size, 0, &sep, &first, &faults);
	faults = 0;
	if (rows &&
		(read_rows(first.data, first.len, sep, &sep, &second, &faults) != rows || faults ||
			first.len != second.len || memcmp(first.data, second.data, first.len) != 0))
		abort();
	vfm_buf_release(&first);
	vfm_buf_release(&second);
	return 0;
}
