/* Any bytes as a Parquet file, and as snappy data: what is accepted has as many rows as the footer says, and the same
 * when it is read a second time. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/hash.h"
#include "curate/parquet.h"
#include "curate/unpack.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MAX_ROWS = 20000, MAX_COLUMNS = 64 }; /* a few bytes may stand for many rows */

static void add_cell(struct vfm_sha256 *sum, const struct vfm_cell *cell)
{
	vfm_sha256_add(sum, &cell->type, sizeof(cell->type));
	if (cell->type == VFM_CELL_TEXT)
		vfm_sha256_add(sum, cell->text.s, cell->text.len);
	else if (cell->type != VFM_CELL_NULL)
		vfm_sha256_add(sum, &cell->i, sizeof(cell->i));
}

/* Reads the columns of which a bit of `which` is set. */
static int64_t read_rows(int fd, uint64_t which, char hex[VFM_SHA256_HEX])
{
	struct vfm_sha256 *sum = vfm_sha256_new();
	struct vfm_cell cells[MAX_COLUMNS];
	int columns[MAX_COLUMNS], n = 0, rc = 0;
	struct vfm_parquet *p;
	struct vfm_err err;
	int64_t rows = 0;

	if (vfm_parquet_open(&p, fd, "fuzz", &err) == 0) {
		for (int i = 0; i < vfm_parquet_columns(p) && n < MAX_COLUMNS; i++)
			if (which >> (i % 64) & 1)
				columns[n++] = i;
		if (vfm_parquet_select(p, columns, n, &err) == 0) {
			while (rows < MAX_ROWS && (rc = vfm_parquet_next(p, cells, &err)) == 1) {
				rows++;
				for (int i = 0; i < n; i++)
					add_cell(sum, &cells[i]);
			}
			if (rc == 0 && rows != vfm_parquet_rows(p))
				abort();
			if (rc < 0 && vfm_parquet_next(p, cells, &err) != 0)
				abort();
		}
		vfm_parquet_close(p);
	}
	vfm_sha256_end(sum, hex);
	return rows;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static const uint64_t columns[] = {~(uint64_t)0, 0x5555, 0xaaaa, 1, 2, 4, 8, 16};
	char hex[VFM_SHA256_HEX], again[VFM_SHA256_HEX];
	uint8_t unpacked[300];
	struct vfm_err err;
	int fd = memfd_create("fuzz", MFD_CLOEXEC);

	if (fd < 0 || write(fd, data, size) != (ssize_t)size)
		abort();
	for (size_t i = 0; i < sizeof(columns) / sizeof(columns[0]); i++)
		if (read_rows(fd, columns[i], hex) != read_rows(fd, columns[i], again) || strcmp(hex, again) != 0)
			abort();
	close(fd);
	if (size > 2 && data[0] < 128)
		vfm_unpack(VFM_CODEC_SNAPPY, data, size, unpacked, data[0], &err);
	return 0;
}
