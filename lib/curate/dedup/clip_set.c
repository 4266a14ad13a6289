/* clip_set.c - keeps packed hashes in an unlinked file, and saves and loads the set. */
#include "curate/dedup/clip_set.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/le.h"
#include "base/mem.h"
#include "io/file.h"
#include "io/hash.h"
#include "io/input.h"

#define MAGIC   "VFMDEDUP"
#define VERSION 1
#define HEADER  64
#define HEAD    16 /* bytes before the name of a clip */

/* ---- the set ---- */

int vfm_clip_set_open(struct vfm_clip_set *s, struct vfm_err *err)
{
	*s = (struct vfm_clip_set){0};
	return vfm_unlinked_temp(&s->spool, err);
}

void vfm_clip_set_close(struct vfm_clip_set *s)
{
	if (s->spool)
		fclose(s->spool);
	free(s->entries);
	vfm_names_release(&s->names);
	*s = (struct vfm_clip_set){0};
}

int vfm_clip_set_add_packed(struct vfm_clip_set *s, const char *name, double quality, const uint8_t *hash, size_t len,
	int slots, struct vfm_err *err)
{
	size_t name_len = strlen(name);

	if (name_len < 1 || name_len > VFM_CLIP_NAME_MAX)
		return vfm_fail(err, VFM_EINPUT, "id: expected 1 to %d bytes", VFM_CLIP_NAME_MAX);
	if (!isfinite(quality))
		return vfm_fail(err, VFM_EINPUT, "'%s': the quality is not finite", name);
	if (vfm_names_add(&s->names, name) < 0)
		return vfm_fail(err, VFM_EINPUT, "id: '%.80s' is there already", name);
	if (fwrite(hash, 1, len, s->spool) != len)
		return vfm_fail_errno(err, VFM_EENV, "cannot write the temporary file of hashes (TMPDIR)");
	vfm_grow(&s->entries, &s->cap, (size_t)s->n + 1, sizeof(*s->entries));
	s->entries[s->n++] = (struct vfm_clip_entry){s->spool_bytes, quality, slots, (int32_t)len};
	s->spool_bytes += len;
	return 0;
}

int vfm_clip_set_add(
	struct vfm_clip_set *s, const char *name, double quality, const struct vfm_clip_hash *h, struct vfm_err *err)
{
	uint8_t bytes[VFM_CLIP_HASH_BYTES];
	size_t len = vfm_clip_hash_pack(h, bytes);

	return vfm_clip_set_add_packed(s, name, quality, bytes, len, h->slots, err);
}

int vfm_clip_set_flush(struct vfm_clip_set *s, struct vfm_err *err)
{
	if (fflush(s->spool) != 0)
		return vfm_fail_errno(err, VFM_EENV, "cannot write the temporary file of hashes (TMPDIR)");
	return 0;
}

/* Reads the bytes of a hash to out [VFM_CLIP_HASH_BYTES]; *len gets their number. */
static int read_bytes(const struct vfm_clip_set *s, int64_t i, uint8_t *out, size_t *len, struct vfm_err *err)
{
	*len = (size_t)s->entries[i].bytes;
	return vfm_full_pread(fileno(s->spool), out, *len, s->entries[i].offset, "the temporary file of hashes", err);
}

int vfm_clip_set_read(const struct vfm_clip_set *s, int64_t i, struct vfm_clip_hash *h, struct vfm_err *err)
{
	uint8_t bytes[VFM_CLIP_HASH_BYTES];
	size_t len;

	TRY(read_bytes(s, i, bytes, &len, err));
	return vfm_clip_hash_unpack(h, bytes, len, err);
}

/* ---- reading ---- */

struct body { /* the body of an index while it is read */
	FILE *f;
	const char *path;
	uint64_t left; /* bytes that were not read yet */
	uint32_t crc;
};

static int take_body(struct body *b, void *out, size_t len, struct vfm_err *err)
{
	if (len > b->left)
		return vfm_fail(err, VFM_EUSAGE, "'%s': damaged: a clip is longer than the file", b->path);
	if (fread(out, 1, len, b->f) != len)
		return vfm_fail(err, VFM_EUSAGE, "'%s': truncated", b->path);
	b->crc = vfm_crc32c(b->crc, out, len);
	b->left -= len;
	return 0;
}

static int load_clip(struct vfm_clip_set *s, struct body *b, struct vfm_err *err)
{
	uint8_t head[HEAD], bytes[VFM_CLIP_HASH_BYTES];
	char name[VFM_CLIP_NAME_MAX + 1];
	struct vfm_clip_hash h;
	uint64_t name_len, len, bits;
	double quality;
	int rc;

	TRY(take_body(b, head, HEAD, err));
	name_len = vfm_read_le(head, 4);
	len = vfm_read_le(head + 4, 4);
	bits = vfm_read_le(head + 8, 8);
	memcpy(&quality, &bits, sizeof(quality));
	if (name_len < 1 || name_len > VFM_CLIP_NAME_MAX || len > sizeof(bytes))
		return vfm_fail(err, VFM_EUSAGE, "'%s': damaged: a name of %llu bytes, a hash of %llu", b->path,
			(unsigned long long)name_len, (unsigned long long)len);
	TRY(take_body(b, name, name_len, err));
	name[name_len] = 0;
	TRY(take_body(b, bytes, len, err));
	if (strlen(name) != name_len)
		return vfm_fail(err, VFM_EUSAGE, "'%s': damaged: a name with a zero byte", b->path);
	rc = vfm_clip_hash_unpack(&h, bytes, len, err);
	if (rc == 0)
		rc = vfm_clip_set_add_packed(s, name, quality, bytes, len, h.slots, err);
	if (rc == VFM_EINPUT) {
		vfm_err_context(err, "'%s': damaged: clip '%.80s'", b->path, name);
		return err->code = VFM_EUSAGE;
	}
	return rc;
}

/* Checks the header, and the size of the file against it. */
static int check_set_header(const uint8_t *h, uint64_t bytes, const char *path, struct vfm_err *err)
{
	uint64_t body = vfm_read_le(h + 24, 8);

	if (memcmp(h, MAGIC, 8) != 0)
		return vfm_fail(err, VFM_EUSAGE, "'%s' is not an index of vfm-curate dedup", path);
	if (vfm_read_le(h + 60, 4) != vfm_crc32c(0, h, 60))
		return vfm_fail(err, VFM_EUSAGE, "'%s': the header is damaged (checksum)", path);
	if (vfm_read_le(h + 8, 4) != VERSION)
		return vfm_fail(err, VFM_EUSAGE, "'%s': an index of version %llu, this program reads version %d", path,
			(unsigned long long)vfm_read_le(h + 8, 4), VERSION);
	if (vfm_read_le(h + 12, 4) != VFM_CLIP_HASH_COEFS)
		return vfm_fail(err, VFM_EUSAGE, "'%s': hashes of %llu coefficients, expected %d", path,
			(unsigned long long)vfm_read_le(h + 12, 4), VFM_CLIP_HASH_COEFS);
	if (bytes - HEADER < body)
		return vfm_fail(err, VFM_EUSAGE, "'%s': truncated: %llu bytes, expected %llu", path,
			(unsigned long long)bytes, (unsigned long long)(body + HEADER));
	if (bytes - HEADER > body)
		return vfm_fail(err, VFM_EUSAGE, "'%s': more bytes than the header says", path);
	return 0;
}

int vfm_clip_set_load_file(struct vfm_clip_set *s, FILE *f, uint64_t bytes, const char *path, struct vfm_err *err)
{
	struct body b = {.f = f, .path = path};
	uint8_t h[HEADER];
	uint64_t n;

	if (bytes < HEADER || fread(h, 1, HEADER, f) != HEADER)
		return vfm_fail(err, VFM_EUSAGE, "'%s' is not an index of vfm-curate dedup", path);
	TRY(check_set_header(h, bytes, path, err));
	n = vfm_read_le(h + 16, 8);
	b.left = vfm_read_le(h + 24, 8);
	for (uint64_t i = 0; i < n; i++)
		TRY(load_clip(s, &b, err));
	if (b.left || b.crc != vfm_read_le(h + 32, 4))
		return vfm_fail(err, VFM_EUSAGE, "'%s': damaged (checksum)", path);
	s->loaded_crc = b.crc;
	return 0;
}

int vfm_clip_set_load(struct vfm_clip_set *s, const char *path, struct vfm_err *err)
{
	uint64_t bytes;
	int fd = vfm_open_regular(path, &bytes, err), rc;
	FILE *f;

	if (fd < 0)
		return err->code = fd == VFM_EINPUT ? VFM_EUSAGE : fd;
	f = fdopen(fd, "r");
	if (!f) {
		rc = vfm_fail_errno(err, VFM_EENV, "cannot read '%s'", path);
		close(fd);
		return rc;
	}
	rc = vfm_clip_set_load_file(s, f, bytes, path, err);
	fclose(f);
	return rc;
}

/* ---- writing ---- */

static int put_body(FILE *f, uint32_t *crc, uint64_t *written, const void *data, size_t len)
{
	*crc = vfm_crc32c(*crc, data, len);
	*written += len;
	return fwrite(data, 1, len, f) == len ? 0 : -1;
}

static int save_clips(
	const struct vfm_clip_set *s, const uint8_t *keep, struct vfm_atomic *a, uint8_t *h, struct vfm_err *err)
{
	uint8_t head[HEAD], bytes[VFM_CLIP_HASH_BYTES];
	uint64_t body = 0, n = 0, bits;
	uint32_t crc = 0;

	for (int64_t i = 0; i < s->n; i++) {
		const char *name = vfm_names_at(&s->names, i);
		size_t len;

		if (keep && !keep[i])
			continue;
		TRY(read_bytes(s, i, bytes, &len, err));
		memcpy(&bits, &s->entries[i].quality, sizeof(bits));
		vfm_write_le(head, strlen(name), 4);
		vfm_write_le(head + 4, len, 4);
		vfm_write_le(head + 8, bits, 8);
		if (put_body(a->f, &crc, &body, head, HEAD) < 0 ||
			put_body(a->f, &crc, &body, name, strlen(name)) < 0 ||
			put_body(a->f, &crc, &body, bytes, len) < 0)
			return vfm_fail_errno(err, VFM_EENV, "cannot write '%s'", a->path);
		n++;
	}
	memcpy(h, MAGIC, 8);
	vfm_write_le(h + 8, VERSION, 4);
	vfm_write_le(h + 12, VFM_CLIP_HASH_COEFS, 4);
	vfm_write_le(h + 16, n, 8);
	vfm_write_le(h + 24, body, 8);
	vfm_write_le(h + 32, crc, 4);
	vfm_write_le(h + 60, vfm_crc32c(0, h, 60), 4);
	return 0;
}

int vfm_clip_set_save(const struct vfm_clip_set *s, const uint8_t *keep, const char *path, struct vfm_err *err)
{
	uint8_t h[HEADER] = {0};
	struct vfm_atomic a;
	int rc;

	TRY(vfm_atomic_open(&a, path, err));
	if (fwrite(h, 1, HEADER, a.f) != HEADER)
		TRY_OUT(vfm_fail_errno(err, VFM_EENV, "cannot write '%s'", path));
	TRY_OUT(save_clips(s, keep, &a, h, err));
	if (fseeko(a.f, 0, SEEK_SET) != 0 || fwrite(h, 1, HEADER, a.f) != HEADER)
		TRY_OUT(vfm_fail_errno(err, VFM_EENV, "cannot write '%s'", path));
	return vfm_atomic_commit(&a, err);
out:
	vfm_atomic_abort(&a);
	return rc;
}
