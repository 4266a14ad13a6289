/* The directory of a zip archive whose entries are stored, not compressed, as torch.save writes it.
 *
 * Format: PKWARE's APPNOTE 6.3.10, with the zip64 extensions.  The reader refuses compressed and encrypted entries,
 * several disks, more than 2^18 entries, and sizes beyond the file.  libzip would copy the data; here an entry's place
 * in the file is found, and the file is mapped. */

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/le.h"
#include "ckpt/ckpt_impl.h"
#include "io/file.h"

enum {
	LOCAL_HEAD = 30,
	CENTRAL_HEAD = 46,
	END_RECORD = 22,
	END64_LOCATOR = 20,
	END64_RECORD = 56,
	COMMENT_MAX = 65535,
	NAME_MAX_LEN = 1024,
	ENTRIES_MAX = 1 << 18,
	DIRECTORY_MAX = 64 << 20,
};

static bool has_mark(const uint8_t *p, int a, int b)
{
	return p[0] == 'P' && p[1] == 'K' && p[2] == a && p[3] == b;
}

/* Where the directory is, and how many entries it has. */
struct zip_end {
	uint64_t offset, size, n;
};

/* Reads the zip64 end record that the locator points to. */
static int read_end64(
	struct zip_end *end, int fd, uint64_t bytes, const uint8_t *locator, const char *name, struct vfm_err *err)
{
	uint64_t at = vfm_read_le(locator + 8, 8);
	uint8_t b[END64_RECORD];

	if (bytes < END64_RECORD || at > bytes - END64_RECORD)
		return vfm_fail(err, VFM_EUSAGE, "%s: the zip64 end record is beyond the file", name);
	TRY(vfm_full_pread(fd, b, sizeof(b), at, name, err));
	if (!has_mark(b, 6, 6) || vfm_read_le(b + 16, 4) || vfm_read_le(b + 20, 4) ||
		vfm_read_le(b + 24, 8) != vfm_read_le(b + 32, 8))
		return vfm_fail(err, VFM_EUSAGE, "%s: damaged zip64 end record", name);
	*end = (struct zip_end){vfm_read_le(b + 48, 8), vfm_read_le(b + 40, 8), vfm_read_le(b + 32, 8)};
	return 0;
}

/* Finds the end record; only a comment follows it. */
static int read_end(struct zip_end *end, int fd, uint64_t bytes, const char *name, struct vfm_err *err)
{
	size_t max = END64_LOCATOR + END_RECORD + COMMENT_MAX, len = bytes < max ? (size_t)bytes : max;
	uint8_t *b = vfm_malloc(len + 1);
	int64_t i = (int64_t)len - END_RECORD;
	int rc = vfm_full_pread(fd, b, len, bytes - len, name, err);

	while (!rc && i >= 0 && !(has_mark(b + i, 5, 6) && vfm_read_le(b + i + 20, 2) == len - (size_t)i - END_RECORD))
		i--;
	if (!rc && i < 0)
		rc = vfm_fail(err, VFM_EUSAGE, "%s: a zip archive without an end: truncated, or not an archive", name);
	if (!rc) {
		*end = (struct zip_end){
			vfm_read_le(b + i + 16, 4), vfm_read_le(b + i + 12, 4), vfm_read_le(b + i + 10, 2)};
		if (vfm_read_le(b + i + 4, 2) || vfm_read_le(b + i + 6, 2) || vfm_read_le(b + i + 8, 2) != end->n)
			rc = vfm_fail(err, VFM_EUSAGE, "%s: a zip archive of several disks", name);
		else if (i >= END64_LOCATOR && has_mark(b + i - END64_LOCATOR, 6, 7))
			rc = read_end64(end, fd, bytes, b + i - END64_LOCATOR, name, err);
	}
	free(b);
	if (!rc &&
		(end->size > DIRECTORY_MAX || end->offset > bytes || end->size > bytes - end->offset ||
			end->n > ENTRIES_MAX || end->n * CENTRAL_HEAD > end->size))
		rc = vfm_fail(err, VFM_EUSAGE, "%s: damaged directory of the zip archive", name);
	return rc;
}

/* Replaces the values that are 2^32 - 1 by those of the zip64 field, which has only these. */
static bool read_extra64(const uint8_t *p, size_t len, uint64_t *size, uint64_t *stored, uint64_t *head)
{
	uint64_t *v[3] = {size, stored, head};
	bool need = false;

	for (int i = 0; i < 3; i++)
		need = need || *v[i] == UINT32_MAX;
	while (need && len >= 4) {
		size_t n = (size_t)vfm_read_le(p + 2, 2);
		const uint8_t *q = p + 4;

		if (n > len - 4)
			return false;
		if (vfm_read_le(p, 2) != 1) {
			p += 4 + n;
			len -= 4 + n;
			continue;
		}
		for (int i = 0; i < 3; i++) {
			if (*v[i] != UINT32_MAX)
				continue;
			if (n < 8)
				return false;
			*v[i] = vfm_read_le(q, 8);
			q += 8;
			n -= 8;
		}
		return true;
	}
	return !need;
}

static int read_entry(
	struct vfm_zip *z, const uint8_t *p, size_t len, size_t *used, const char *file, struct vfm_err *err)
{
	struct vfm_zip_entry *e = &z->e[z->n];
	uint64_t stored;
	size_t n, extra;
	char *name;

	if (len < CENTRAL_HEAD || !has_mark(p, 1, 2))
		return vfm_fail(err, VFM_EUSAGE, "%s: damaged directory of the zip archive, entry %zu", file, z->n);
	n = (size_t)vfm_read_le(p + 28, 2);
	extra = (size_t)vfm_read_le(p + 30, 2);
	*used = CENTRAL_HEAD + n + extra + (size_t)vfm_read_le(p + 32, 2);
	if (*used > len || !n || n > NAME_MAX_LEN || memchr(p + CENTRAL_HEAD, 0, n))
		return vfm_fail(err, VFM_EUSAGE, "%s: damaged directory of the zip archive, entry %zu", file, z->n);
	name = vfm_arena_alloc(&z->arena, n + 1);
	memcpy(name, p + CENTRAL_HEAD, n);
	name[n] = 0;
	stored = vfm_read_le(p + 20, 4);
	*e = (struct vfm_zip_entry){.name = name, .head = vfm_read_le(p + 42, 4), .size = vfm_read_le(p + 24, 4)};
	if (!read_extra64(p + CENTRAL_HEAD + n, extra, &e->size, &stored, &e->head))
		return vfm_fail(err, VFM_EUSAGE, "%s: entry '%.200s': damaged zip64 field", file, name);
	if (vfm_read_le(p + 8, 2) & 1)
		return vfm_fail(err, VFM_EUSAGE, "%s: entry '%.200s' is encrypted", file, name);
	if (vfm_read_le(p + 10, 2) != 0 || stored != e->size)
		return vfm_fail(
			err, VFM_EUSAGE, "%s: entry '%.200s' is compressed; torch.save compresses none", file, name);
	if (e->head > z->directory || e->size > z->directory - e->head)
		return vfm_fail(err, VFM_EUSAGE, "%s: entry '%.200s' is beyond the data: truncated?", file, name);
	z->n++;
	return 0;
}

static int entry_cmp(const void *a, const void *b)
{
	return strcmp(((const struct vfm_zip_entry *)a)->name, ((const struct vfm_zip_entry *)b)->name);
}

int vfm_zip_open(struct vfm_zip *z, int fd, uint64_t file_bytes, const char *name, struct vfm_err *err)
{
	struct zip_end end = {0};
	uint8_t *b;
	int rc;

	*z = (struct vfm_zip){0};
	TRY(read_end(&end, fd, file_bytes, name, err));
	z->directory = end.offset;
	z->e = vfm_calloc((size_t)end.n + 1, sizeof(*z->e));
	b = vfm_malloc((size_t)end.size + 1);
	rc = vfm_full_pread(fd, b, (size_t)end.size, end.offset, name, err);
	for (size_t at = 0, used; z->n < end.n && !rc; at += used) {
		used = 0;
		rc = read_entry(z, b + at, (size_t)end.size - at, &used, name, err);
	}
	free(b);
	if (!rc && z->n)
		qsort(z->e, z->n, sizeof(*z->e), entry_cmp);
	for (size_t i = 1; i < z->n && !rc; i++)
		if (!strcmp(z->e[i - 1].name, z->e[i].name))
			rc = vfm_fail(err, VFM_EUSAGE, "%s: entry '%.200s' occurs twice", name, z->e[i].name);
	if (rc < 0)
		vfm_zip_release(z);
	return rc;
}

void vfm_zip_release(struct vfm_zip *z)
{
	free(z->e);
	vfm_arena_release(&z->arena);
	*z = (struct vfm_zip){0};
}

const struct vfm_zip_entry *vfm_zip_find(const struct vfm_zip *z, const char *name)
{
	struct vfm_zip_entry key = {.name = name};

	return z->n ? bsearch(&key, z->e, z->n, sizeof(key), entry_cmp) : NULL;
}

int vfm_zip_data(const struct vfm_zip *z, int fd, const struct vfm_zip_entry *e, const char *name, uint64_t *off,
	struct vfm_err *err)
{
	uint8_t b[LOCAL_HEAD];

	if (z->directory < LOCAL_HEAD || e->head > z->directory - LOCAL_HEAD)
		return vfm_fail(err, VFM_EUSAGE, "%s: entry '%.200s' is beyond the data", name, e->name);
	TRY(vfm_full_pread(fd, b, sizeof(b), e->head, name, err));
	*off = e->head + LOCAL_HEAD + vfm_read_le(b + 26, 2) + vfm_read_le(b + 28, 2);
	if (!has_mark(b, 3, 4) || vfm_read_le(b + 8, 2) != 0 || *off > z->directory || e->size > z->directory - *off)
		return vfm_fail(err, VFM_EUSAGE, "%s: entry '%.200s': damaged local header", name, e->name);
	return 0;
}
