/* index_read.c - reads the payloads of samples. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "data/dataset/index_impl.h"
#include "data/record/caption.h"
#include "io/file.h"
#include "io/hash.h"
#include "io/json.h"
#include "spec/model/dtype.h"

struct payload {
	uint32_t shard;
	const char *what;
	uint64_t offset, data_bytes;
	uint32_t crc;
	uint16_t header;
	uint8_t dtype;
	int ndim;
	uint16_t shape[4]; /* [ndim] */
};

enum {
	PIECE = 128 << 10, /* of an array: it is checked while it is in the cache */
	READS = 4          /* of a payload at most: other processes may replace a cached shard meanwhile */
};

/* Reads a payload into head and dst, and sets *crc to its checksum, and *is_finite. */
static int read_checked(int fd, const struct payload *p, void *head, void *dst, uint32_t *crc, bool *is_finite,
	const char *name, struct vfm_index_spent *spent, struct vfm_err *err)
{
	double start = vfm_now(), read, checked;

	TRY(vfm_full_pread(fd, head, p->header, p->offset, name, err));
	*crc = vfm_crc32c(0, head, p->header);
	*is_finite = true;
	if (spent)
		spent->bytes += p->header;
	for (uint64_t at = 0, n; at < p->data_bytes; at += n) {
		char *piece = (char *)dst + at;

		n = p->data_bytes - at < PIECE ? p->data_bytes - at : PIECE;
		TRY(vfm_full_pread(fd, piece, n, p->offset + p->header + at, name, err));
		read = vfm_now();
		*crc = vfm_crc32c(*crc, piece, n);
		*is_finite &= vfm_npy_is_finite(p->dtype, piece, n);
		checked = vfm_now();
		if (spent) {
			spent->files_s += read - start;
			spent->check_s += checked - read;
			spent->bytes += (int64_t)n;
		}
		start = checked;
	}
	return 0;
}

/* Checks that npy header and record agree, so that readers may use either, and that the elements are numbers.  Without
 * `head` the record alone describes the array. */
static int check_npy(const struct payload *p, const void *head, const void *data, bool is_finite, const char *name,
	struct vfm_err *err)
{
	struct vfm_npy n = {.type = p->dtype, .ndim = p->ndim, .data_bytes = p->data_bytes};
	bool same;

	for (int i = 0; i < p->ndim; i++)
		n.shape[i] = p->shape[i];
	if (!head)
		return is_finite ? 0 : vfm_npy_check_finite(&n, data, name, err);
	TRY(vfm_npy_parse(&n, head, p->header, p->header + p->data_bytes, p->what, err));
	if (p->ndim == 4)
		vfm_sample_add_time(&n);
	same = n.type == p->dtype && n.ndim == p->ndim && n.header_bytes == p->header;
	for (int i = 0; i < p->ndim && same; i++)
		same = n.shape[i] == p->shape[i];
	if (!same)
		return vfm_fail(err, VFM_EINPUT, "%s: the npy header and the index disagree", p->what);
	return is_finite ? 0 : vfm_npy_check_finite(&n, data, name, err);
}

/* Names file and byte. */
static int shard_context(const struct vfm_index *ix, uint32_t shard, uint64_t offset, struct vfm_err *err)
{
	struct vfm_index_shard s = {0};

	vfm_index_shard(ix, shard, &s, NULL);
	return vfm_err_context(err, "'%s/%.*s', byte %" PRIu64,
		s.folder ? vfm_index_info(ix)->parts[s.folder - 1].dir : vfm_index_info(ix)->dir, (int)sizeof(s.name),
		s.name, offset);
}

/* Reads and checks a payload.  *damaged: its bytes are not those that were written. */
static int read_once(int fd, const struct vfm_index_record *r, const struct payload *p, void *dst, bool *damaged,
	struct vfm_index_spent *spent, struct vfm_err *err)
{
	const bool unchecked = !p->crc && (r->flags & VFM_REC_UNCHECKED);
	uint8_t head[VFM_NPY_HEADER_MAX];
	bool is_finite;
	uint32_t crc;
	char name[96];

	snprintf(name, sizeof(name), "%s of sample %u of shard %u", p->what, r->index, r->shard);
	*damaged = true;
	TRY(read_checked(fd, p, head, dst, &crc, &is_finite, name, spent, err));
	if (crc != p->crc && !unchecked)
		return vfm_fail(err, VFM_EINPUT, "%s: wrong checksum", name);
	*damaged = unchecked;
	return check_npy(p, r->flags & VFM_REC_MDS ? NULL : head, dst, is_finite, name, err);
}

static int read_payload(struct vfm_index *ix, const struct vfm_index_record *r, const struct payload *p, void *dst,
	struct vfm_index_spent *spent, struct vfm_err *err)
{
	int again = 1, rc = 0;

	if (p->header > VFM_NPY_HEADER_MAX)
		return vfm_fail(err, VFM_EINPUT, "%s: npy header too long", p->what);
	for (int i = 0; i < READS && again == 1; i++) {
		struct vfm_index_fd *slot;
		bool damaged;
		int fd = vfm_index_acquire(ix, p->shard, &slot, err);

		if (fd < 0)
			return fd;
		rc = read_once(fd, r, p, dst, &damaged, spent, err);
		again = rc < 0 && damaged ? vfm_index_renew(ix, p->shard, fd, err) : 0;
		vfm_index_release(ix, slot, fd);
	}
	if (again < 0)
		return again;
	return rc < 0 ? shard_context(ix, p->shard, p->offset, err) : 0;
}

/* Widens n elements of two bytes in the upper half of dst: element i is written at bytes 4i to 4i+3, which
 * never reaches the elements still to be read, at 2n+2i and above. */
static void widen_halves(float *dst, uint64_t n, enum vfm_npy_type type)
{
	const char *src = (const char *)dst + 2 * n;
	uint16_t half[64];

	for (uint64_t i = 0, k; i < n; i += k) {
		k = n - i < 64 ? n - i : 64;
		memcpy(half, src + 2 * i, 2 * k);
		vfm_dtype_convert(VFM_F32, dst + i, vfm_dtype_of_npy(type), half, k);
	}
}

/* Reads a payload as f32: halves into the end of dst, where they are widened. */
static int read_as_f32(struct vfm_index *ix, const struct vfm_index_record *r, const struct payload *p, float *dst,
	struct vfm_index_spent *spent, struct vfm_err *err)
{
	const bool half = vfm_npy_type_size(p->dtype) == 2;

	TRY(read_payload(ix, r, p, (char *)dst + (half ? p->data_bytes : 0), spent, err));
	if (half)
		widen_halves(dst, p->data_bytes / 2, p->dtype);
	return 0;
}

int vfm_index_read_latent(struct vfm_index *ix, const struct vfm_index_record *r, void *dst,
	struct vfm_index_spent *spent, struct vfm_err *err)
{
	const struct payload p = {r->shard, "latent", r->latent_offset, r->latent_bytes - r->latent_header,
		r->latent_crc, r->latent_header, r->latent_dtype, 4, {r->c, r->t, r->h, r->w}};

	return read_payload(ix, r, &p, dst, spent, err);
}

/* Of an array of a record. */
static struct payload payload_of(const struct vfm_index_record *r, const struct vfm_index_text *t, const char *what,
	int ndim, const uint16_t shape[4])
{
	return (struct payload){t->shard ? t->shard - 1 : r->shard, what, t->offset, t->bytes - t->header, t->data_crc,
		t->header, t->dtype, ndim, {shape[0], shape[1], shape[2], shape[3]}};
}

int vfm_index_read_text_f32(struct vfm_index *ix, const struct vfm_index_record *r, const struct vfm_index_text *t,
	float *dst, struct vfm_index_spent *spent, struct vfm_err *err)
{
	const char *name = vfm_index_info(ix)->names[t->name];
	char what[VFM_TEXT_PART];
	const struct payload p = payload_of(r, t, what, 2, (const uint16_t[4]){t->rows, r->text_dim});

	snprintf(what, sizeof(what), "text%s%s", *name ? "." : "", name);
	return read_as_f32(ix, r, &p, dst, spent, err);
}

int vfm_index_read_cond(struct vfm_index *ix, const struct vfm_index_record *r, const struct vfm_index_text *t,
	void *dst, struct vfm_index_spent *spent, struct vfm_err *err)
{
	const char *what = vfm_extra_kinds[VFM_EXTRA_COND].name;
	const struct payload p = payload_of(r, t, what, 4, (const uint16_t[4]){t->rows, r->t, r->h, r->w});

	return read_payload(ix, r, &p, dst, spent, err);
}

int vfm_index_read_rows_f32(struct vfm_index *ix, const struct vfm_index_record *r, enum vfm_extra e,
	const struct vfm_index_text *t, float *dst, struct vfm_index_spent *spent, struct vfm_err *err)
{
	const char *what = vfm_extra_kinds[e].name;
	const struct payload p = payload_of(r, t, what, 2, (const uint16_t[4]){t->rows, t->width});

	return read_as_f32(ix, r, &p, dst, spent, err);
}

int vfm_index_read_json(struct vfm_index *ix, const struct vfm_index_record *r, json_t **json, struct vfm_err *err)
{
	char *text = vfm_big_alloc((size_t)r->json_bytes + 1, "the JSON of a sample", err), name[64];
	struct vfm_index_fd *slot;
	int fd, rc;

	*json = NULL;
	if (r->json_bytes == 0) {
		vfm_big_free(text, 1);
		*json = json_object();
		return 0;
	}
	if (!text)
		return VFM_EENV;
	snprintf(name, sizeof(name), "JSON of sample %u of shard %u", r->index, r->shard);
	fd = vfm_index_acquire(ix, r->shard, &slot, err);
	rc = fd < 0 ? fd : vfm_full_pread(fd, text, r->json_bytes, r->json_offset, name, err);
	if (fd >= 0)
		vfm_index_release(ix, slot, fd);
	if (rc == 0 && vfm_crc32c(0, text, r->json_bytes) != r->json_crc)
		rc = vfm_fail(err, VFM_EINPUT, "%s: wrong checksum", name);
	if (rc == 0) {
		*json = vfm_json_parse_foreign(text, r->json_bytes, name, err);
		if (!json_is_object(*json)) {
			json_decref(*json);
			*json = NULL;
			rc = vfm_fail(err, VFM_EINPUT, "%s: no JSON object", name);
		}
	}
	vfm_big_free(text, (size_t)r->json_bytes + 1);
	return rc < 0 ? shard_context(ix, r->shard, r->json_offset, err) : 0;
}
