/* Any bytes as a Parquet file, and as compressed data: what is accepted has as many rows as the footer says, and the
 * same when it is read a second time. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/mem.h"
#include "curate/table/parquet.h"
#include "curate/table/unpack.h"
#include "io/hash.h"
#include "io/json.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* A few bytes may stand for many rows.  Larger inputs have nothing that small ones cannot have. */
enum { MAX_ROWS = 500, MAX_COLUMNS = 64, MAX_INPUT = 1 << 16, MAX_TEXT = 1 << 20 };

static void add_cell(struct vfm_buf *b, const struct vfm_cell *cell)
{
	uint64_t sum = cell->type;

	if (cell->type == VFM_CELL_JSON)
		vfm_json_text(b, cell->json, 0);
	else if (cell->type == VFM_CELL_TEXT)
		sum = vfm_fnv64(cell->text.s, cell->text.len);
	else if (cell->type != VFM_CELL_NULL)
		sum += (uint64_t)cell->i;
	vfm_buf_add(b, &sum, sizeof(sum));
}

/* Appends what is read up to a limit. */
static void read_rows(struct vfm_parquet *p, int n, struct vfm_buf *text)
{
	struct vfm_cell cells[MAX_COLUMNS];
	struct vfm_err err;
	bool is_good = true;
	int64_t rows = 0;
	int rc = 1;

	while (rows < MAX_ROWS && text->len < MAX_TEXT && (rc = vfm_parquet_next(p, cells, &err)) != 0) {
		rows++;
		is_good &= rc == 1;
		vfm_buf_addf(text, "%d", rc);
		for (int i = 0; rc == 1 && i < n; i++)
			add_cell(text, &cells[i]);
	}
	if (rc == 0 && (is_good ? rows != vfm_parquet_rows(p) : rows > vfm_parquet_rows(p) + 1))
		abort();
}

/* Reads the columns of which a bit of `which` is set.  Returns a hash of the cells. */
static uint64_t read_columns(int fd, uint64_t which)
{
	int columns[MAX_COLUMNS], n = 0;
	struct vfm_buf text = {0};
	struct vfm_parquet *p;
	struct vfm_err err;
	uint64_t sum;

	if (vfm_parquet_open(&p, fd, "fuzz", &err) < 0)
		return 0;
	for (int i = 0; i < vfm_parquet_columns(p) && n < MAX_COLUMNS; i++)
		if (which >> (i % 64) & 1)
			columns[n++] = i;
	if (vfm_parquet_select(p, columns, n, &err) == 0)
		read_rows(p, n, &text);
	vfm_parquet_close(p);
	sum = vfm_fnv64(text.data, text.len);
	vfm_buf_release(&text);
	return sum;
}

/* The first byte is the codec, the second the length. */
static void unpack(const uint8_t *data, size_t size)
{
	uint8_t unpacked[255];
	struct vfm_err err;

	if (size > 2 && data[0] < 8 && vfm_codec_check(data[0], &err) == 0)
		vfm_unpack(data[0], data + 2, size - 2, unpacked, data[1], &err);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	/* All columns, or those of a hash, so that one damaged column does not hide the others. */
	uint64_t which = size ? vfm_fnv64(data, size) : 0;
	int fd = memfd_create("fuzz", MFD_CLOEXEC);

	if (fd < 0 || size > MAX_INPUT)
		return fd < 0 ? 0 : close(fd);
	if (write(fd, data, size) != (ssize_t)size)
		abort();
	which = which & 3 ? which >> 2 : ~(uint64_t)0;
	if (read_columns(fd, which) != read_columns(fd, which))
		abort();
	close(fd);
	unpack(data, size);
	return 0;
}
