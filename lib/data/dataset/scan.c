/* scan.c - walks the members of a shard and builds and checks the index record of each sample. */
#include "data/dataset/scan.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/le.h"
#include "base/map.h"
#include "data/record/binding.h"
#include "data/record/caption.h"
#include "data/record/sample_key.h"
#include "data/record/stage.h"
#include "io/file.h"
#include "io/hash.h"
#include "io/json.h"
#include "io/tar.h"
#include "spec/model/geometry.h"

#define MAX_PARTS 64
#define MAX_JSON  (16u << 20)

static void set_fault(struct vfm_scan *s, struct vfm_scan_sample *m, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));

static void set_fault(struct vfm_scan *s, struct vfm_scan_sample *m, const char *fmt, ...)
{
	char text[512];
	va_list ap;

	if (m->fault)
		return;
	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	m->fault = vfm_arena_strdup(&s->arena, text);
}

/* A column may have the name of a part by accident. */
static void set_part_fault(
	struct vfm_scan *s, struct vfm_scan_sample *m, const struct vfm_mds_column *column, const char *why)
{
	if (!column || column->is_chosen)
		set_fault(s, m, "%s", why);
	else
		set_fault(s, m, "%s; the column has the name of a part (--columns %s=COLUMN: use another, %s=: none)",
			why, column->name, column->name);
}

/* ---- what a part says about the record ---- */

static int parse_part_array(struct vfm_npy *n, const uint8_t *data, const struct vfm_scan_part *p, struct vfm_err *err)
{
	return p->column ? vfm_mds_array(n, p->column, data + p->offset, p->bytes, p->name, err)
			 : vfm_npy_parse(n, data + p->offset, p->bytes, p->bytes, p->name, err);
}

/* crc: of all bytes of the part; 0 if only its header is read. */
static int take_npy(const struct vfm_scan *s, struct vfm_npy *n, const uint8_t *data, const struct vfm_scan_part *p,
	int ndim, uint32_t *crc, struct vfm_err *err)
{
	*crc = 0;
	TRY(parse_part_array(n, data, p, err));
	if (ndim == 4)
		vfm_sample_add_time(n);
	if (p->bytes > UINT32_MAX)
		return vfm_fail(err, VFM_EINPUT, "%s: more than %u bytes", p->name, UINT32_MAX);
	TRY(vfm_sample_shape_check(n, ndim, p->name, err));
	if (s->headers_only)
		return 0;
	*crc = vfm_crc32c(0, data + p->offset, p->bytes);
	return vfm_npy_check_finite(n, data + p->offset + n->header_bytes, p->name, err);
}

static int take_latent(const struct vfm_scan *s, struct vfm_index_record *r, const uint8_t *data,
	const struct vfm_scan_part *p, struct vfm_err *err)
{
	struct vfm_npy n;

	TRY(take_npy(s, &n, data, p, 4, &r->latent_crc, err));
	r->latent_offset = p->offset;
	r->latent_bytes = (uint32_t)p->bytes;
	r->latent_header = (uint16_t)n.header_bytes;
	r->latent_dtype = (uint8_t)n.type;
	r->c = (uint16_t)n.shape[0];
	r->t = (uint16_t)n.shape[1];
	r->h = (uint16_t)n.shape[2];
	r->w = (uint16_t)n.shape[3];
	return 0;
}

/* Inserts the text of a caption in the order of names. */
static int take_text(struct vfm_scan *s, struct vfm_scan_sample *m, const uint8_t *data, const struct vfm_scan_part *p,
	const char *name, struct vfm_err *err)
{
	struct vfm_index_record *r = &m->rec;
	struct vfm_npy n;
	uint32_t at, crc;

	if (*name && !vfm_caption_name_ok(name))
		return vfm_fail(err, VFM_EINPUT, "%s: a caption is named by 1 to %d characters of a-z, 0-9, _ and -",
			p->name, VFM_CAPTION_NAME - 1);
	if (r->n_texts == VFM_TEXTS_MAX)
		return vfm_fail(err, VFM_EINPUT, "more than %d texts", VFM_TEXTS_MAX);
	TRY(take_npy(s, &n, data, p, 2, &crc, err));
	if (r->n_texts && n.shape[1] != r->text_dim)
		return vfm_fail(err, VFM_EINPUT, "%s: width %" PRId64 ", another text has %d", p->name, n.shape[1],
			r->text_dim);
	if (!r->n_texts) {
		m->texts = vfm_arena_alloc(&s->arena, (size_t)(m->n_parts + VFM_EXTRAS) * sizeof(*m->texts));
		m->text_names = vfm_arena_alloc(&s->arena, (size_t)m->n_parts * sizeof(*m->text_names));
	}
	for (at = r->n_texts; at > 0 && strcmp(m->text_names[at - 1], name) > 0; at--) {
		m->texts[at] = m->texts[at - 1];
		m->text_names[at] = m->text_names[at - 1];
	}
	m->texts[at] = (struct vfm_index_text){.offset = p->offset,
		.bytes = (uint32_t)p->bytes,
		.data_crc = crc,
		.header = (uint16_t)n.header_bytes,
		.rows = (uint16_t)n.shape[0],
		.dtype = (uint8_t)n.type};
	m->text_names[at] = vfm_arena_strdup(&s->arena, name);
	r->text_dim = (uint16_t)n.shape[1];
	r->n_texts++;
	return 0;
}

/* Returns whether a part is a second text without rows: an empty array or, as each sample of MosaicML Streaming has all
 * columns, an empty value. */
static bool is_no_text2(const uint8_t *data, const struct vfm_scan_part *p, int e)
{
	struct vfm_npy n;

	if (e != VFM_EXTRA_TEXT2)
		return false;
	if (p->column && !p->bytes)
		return true;
	return parse_part_array(&n, data, p, NULL) == 0 && n.ndim == 2 && n.shape[0] == 0;
}

static int take_extra(const struct vfm_scan *s, struct vfm_scan_sample *m, struct vfm_index_text extra[VFM_EXTRAS],
	const uint8_t *data, const struct vfm_scan_part *p, int e, struct vfm_err *err)
{
	struct vfm_npy n;
	uint32_t crc;

	if (is_no_text2(data, p, e))
		return 0;
	TRY(take_npy(s, &n, data, p, vfm_extra_kinds[e].ndim, &crc, err));
	m->rec.flags |= vfm_extra_kinds[e].flag;
	extra[e] = (struct vfm_index_text){.offset = p->offset,
		.bytes = (uint32_t)p->bytes,
		.data_crc = crc,
		.header = (uint16_t)n.header_bytes,
		.rows = (uint16_t)n.shape[0],
		.dtype = (uint8_t)n.type,
		.width = (uint16_t)(n.ndim == 2 ? n.shape[1] : 0)};
	if (n.ndim == 4 && !m->rec.c) { /* it counts if the sample has no latents */
		m->rec.t = (uint16_t)n.shape[1];
		m->rec.h = (uint16_t)n.shape[2];
		m->rec.w = (uint16_t)n.shape[3];
	}
	return 0;
}

/* Appends the extra arrays to the texts. */
static void place_extras(struct vfm_scan *s, struct vfm_scan_sample *m, const struct vfm_index_text extra[VFM_EXTRAS])
{
	uint32_t at = m->rec.n_texts;

	if (!m->texts && vfm_record_n_extras(&m->rec))
		m->texts = vfm_arena_alloc(&s->arena, VFM_EXTRAS * sizeof(*m->texts));
	for (int e = 0; e < VFM_EXTRAS; e++)
		if (vfm_record_has_extra(&m->rec, (enum vfm_extra)e))
			m->texts[at++] = extra[e];
}

/* Compares the extra arrays with the latents, the digests of the record and the encoders. */
static int check_extras(const struct vfm_scan_sample *m, const uint8_t *data,
	const struct vfm_index_text extra[VFM_EXTRAS], const struct vfm_binding *b, struct vfm_err *err)
{
	const struct vfm_index_record *r = &m->rec;

	for (int e = 0; e < VFM_EXTRAS; e++) {
		const struct vfm_extra_kind *k = &vfm_extra_kinds[e];

		if (!vfm_record_has_extra(r, (enum vfm_extra)e)) {
			if (b->extra[e][0])
				return vfm_fail(err, VFM_EINPUT, "%s is missing", k->part);
			continue;
		}
		TRY(vfm_binding_check(b->extra[e], data + extra[e].offset, extra[e].bytes, k->part, err));
		if (k->ndim == 2)
			TRY(vfm_encoder_id_check_rows(
				k->encoder, &m->encoder_ids->of[k->encoder], extra[e].rows, extra[e].width, err));
		else if (vfm_extra_count(r, VFM_EXTRA_COND, &extra[e]) * vfm_npy_type_size(extra[e].dtype) +
				extra[e].header !=
			extra[e].bytes)
			return vfm_fail(
				err, VFM_EINPUT, "%s: the latents are %ux%ux%u, it is not", k->part, r->t, r->h, r->w);
	}
	return 0;
}

static int find_extra(const char *part)
{
	for (int e = 0; e < VFM_EXTRAS; e++)
		if (strcmp(vfm_extra_kinds[e].part, part) == 0)
			return e;
	return -1;
}

/* A record of this toolkit ("v") has its key as id; those of other programs may use "id" for something else. */
static int check_record_id(const struct vfm_scan_sample *m, const json_t *rec, struct vfm_err *err)
{
	const char *id = vfm_rec_str(rec, "id", NULL);

	if (!json_object_get(rec, "v") || !id || strcmp(id, m->key) == 0)
		return 0;
	return vfm_fail(err, VFM_EINPUT, "json: the record is that of sample '%.80s'", id);
}

/* Most samples of a shard have the same encoders; one copy of the identities, the largest fields, serves them all. */
static int read_encoder_ids(struct vfm_scan *s, struct vfm_scan_sample *m, const json_t *rec, struct vfm_err *err)
{
	struct vfm_encoder_ids encoder_ids, *copy;

	TRY(vfm_encoder_ids_from_record(&encoder_ids, rec, err));
	if (!s->encoder_ids || memcmp(s->encoder_ids, &encoder_ids, sizeof(encoder_ids)) != 0) {
		copy = vfm_arena_alloc(&s->arena, sizeof(encoder_ids));
		memcpy(copy, &encoder_ids, sizeof(encoder_ids));
		s->encoder_ids = copy;
	}
	m->encoder_ids = s->encoder_ids;
	return 0;
}

static int take_json(struct vfm_scan *s, struct vfm_scan_sample *m, const uint8_t *data, const struct vfm_scan_part *p,
	struct vfm_binding *binding, struct vfm_err *err)
{
	struct vfm_index_record *r = &m->rec;
	double frames = 0, fps = 0;
	json_t *j;
	int rc;

	if (p->bytes > MAX_JSON)
		return vfm_fail(err, VFM_EINPUT, "json: more than %u bytes", MAX_JSON);
	j = vfm_json_parse_foreign((const char *)data + p->offset, p->bytes, "json", err);
	if (!j)
		return VFM_EINPUT;
	if (!json_is_object(j)) {
		json_decref(j);
		return vfm_fail(err, VFM_EINPUT, "json: not an object");
	}
	if (vfm_rec_num(j, "latent.frames", &frames) && frames >= 1 && frames <= UINT32_MAX)
		r->frames = (uint32_t)frames;
	if (vfm_rec_num(j, "latent.fps", &fps) && fps > 0 && fps < 1e6)
		r->fps_milli = (uint32_t)lround(fps * 1000);
	if (strcmp(vfm_rec_str(j, "kind", ""), "image") == 0)
		r->flags |= VFM_REC_IMAGE;
	rc = check_record_id(m, j, err);
	if (rc >= 0)
		rc = read_encoder_ids(s, m, j, err);
	if (rc >= 0)
		rc = vfm_binding_of(binding, j, err);
	r->json_offset = p->offset;
	r->json_bytes = (uint32_t)p->bytes;
	r->json_crc = vfm_crc32c(0, data + p->offset, p->bytes);
	json_decref(j);
	return rc;
}

/* Compares the members of a sample with the digests of its record. */
static int check_binding(
	struct vfm_scan_sample *m, const uint8_t *data, const struct vfm_binding *b, struct vfm_err *err)
{
	const struct vfm_index_record *r = &m->rec;
	char part[VFM_TEXT_PART];

	if (!(r->flags & VFM_REC_NO_LATENT))
		TRY(vfm_binding_check(b->latent, data + r->latent_offset, r->latent_bytes, "latent.npy", err));
	for (int i = 0; i < b->n_texts; i++) {
		const struct vfm_index_text *t = NULL;

		vfm_text_part(part, b->texts[i].name);
		for (uint32_t k = 0; k < r->n_texts && !t; k++)
			if (strcmp(m->text_names[k], b->texts[i].name) == 0)
				t = &m->texts[k];
		if (b->texts[i].sha256[0] && !t)
			return vfm_fail(err, VFM_EINPUT, "%s is missing", part);
		if (t)
			TRY(vfm_binding_check(b->texts[i].sha256, data + t->offset, t->bytes, part, err));
	}
	m->is_bound = vfm_binding_is_whole(b, (int)r->n_texts);
	m->files = vfm_binding_number(b);
	return 0;
}

/* Compares the arrays of a sample with the identities of their encoders. */
static int check_arrays(const struct vfm_scan_sample *m, struct vfm_err *err)
{
	if (!(m->rec.flags & VFM_REC_NO_LATENT))
		TRY(vfm_encoder_id_check_latent(&m->encoder_ids->tokenizer, m->rec.c, err));
	for (uint32_t i = 0; i < m->rec.n_texts; i++)
		TRY(vfm_encoder_id_check_rows(
			VFM_ENCODER_TEXT, &m->encoder_ids->text, m->texts[i].rows, m->rec.text_dim, err));
	return 0;
}

enum { HAS_LATENT = 1, HAS_JSON = 2 };

/* Names what the sample has instead: latents in another format or under another name are a common reason. */
static void set_missing_latent(struct vfm_scan *s, struct vfm_scan_sample *m)
{
	char have[200];
	size_t n = 0;

	for (int i = 0; i < m->n_parts && n < sizeof(have); i++)
		n += (size_t)snprintf(have + n, sizeof(have) - n, "%s%.60s", i ? ", " : "", m->parts[i].name);
	set_fault(s, m, "latent.npy is missing; it has: %s", have);
}

/* All parts are known: builds the record. */
static void close_sample(struct vfm_scan *s, struct vfm_scan_sample *m, const uint8_t *data)
{
	struct vfm_index_text extra[VFM_EXTRAS] = {0};
	struct vfm_binding binding = {0};
	unsigned seen = 0;
	struct vfm_err err = {0};
	char name[VFM_CAPTION_NAME + 1];
	size_t bytes = (size_t)m->n_parts * sizeof(*m->parts);

	m->parts = memcpy(vfm_arena_alloc(&s->arena, bytes), m->parts, bytes);
	for (int i = 0; i < m->n_parts; i++) {
		const struct vfm_scan_part *p = &m->parts[i];
		int rc = 0, e = find_extra(p->name);

		for (int k = 0; k < i; k++)
			if (strcmp(m->parts[k].name, p->name) == 0)
				set_fault(s, m, "%s occurs twice", p->name);
		if (strcmp(p->name, "latent.npy") == 0) {
			seen |= HAS_LATENT;
			rc = take_latent(s, &m->rec, data, p, &err);
		} else if (e >= 0) {
			rc = take_extra(s, m, extra, data, p, e, &err);
		} else if (vfm_text_part_name(p->name, name)) {
			rc = take_text(s, m, data, p, name, &err);
		} else if (strcmp(p->name, "json") == 0) {
			seen |= HAS_JSON;
			rc = take_json(s, m, data, p, &binding, &err);
		} else if (!(m->rec.flags & VFM_REC_MEDIA)) {
			m->rec.flags |= VFM_REC_MEDIA;
			m->rec.media_offset = p->offset;
			m->rec.media_bytes = p->bytes;
		}
		if (rc < 0)
			set_part_fault(s, m, p->column, err.msg);
	}
	if (!(seen & HAS_LATENT) && !s->for_join)
		set_missing_latent(s, m);
	else if (!(seen & HAS_LATENT))
		m->rec.flags |= VFM_REC_NO_LATENT;
	if (!(seen & HAS_JSON) && !s->is_mds && !s->for_join)
		set_fault(s, m, "json is missing");
	else if (!(seen & HAS_JSON))
		m->rec.json_offset = m->rec.sample_offset;
	if (s->is_mds)
		m->rec.flags |= VFM_REC_MDS;
	place_extras(s, m, extra);
	if (s->headers_only) {
		m->rec.flags |= VFM_REC_UNCHECKED;
		binding = (struct vfm_binding){0}; /* the digests cannot be compared */
	}
	if (!m->fault &&
		(check_binding(m, data, &binding, &err) < 0 || check_arrays(m, &err) < 0 ||
			check_extras(m, data, extra, &binding, &err) < 0))
		m->mismatch = vfm_arena_strdup(&s->arena, err.msg);
	if (!m->rec.frames && m->rec.flags & VFM_REC_IMAGE)
		m->rec.frames = 1;
	else if (!m->rec.frames && m->rec.t && vfm_geometry_is_known(&m->encoder_ids->tokenizer.geometry))
		m->rec.frames = (uint32_t)vfm_geometry_pictures(&m->encoder_ids->tokenizer.geometry, m->rec.t);
}

/* key: its first len bytes. */
static struct vfm_scan_sample *open_sample(
	struct vfm_scan *s, const char *key, size_t len, uint64_t offset, struct vfm_scan_part *parts)
{
	static const struct vfm_encoder_ids unknown;
	struct vfm_scan_sample *sample;
	char *own = vfm_arena_alloc(&s->arena, len + 1);

	memcpy(own, key, len);
	vfm_grow(&s->samples, &s->cap, s->n + 1, sizeof(*s->samples));
	sample = &s->samples[s->n++];
	*sample = (struct vfm_scan_sample){.key = own, .encoder_ids = &unknown, .parts = parts};
	sample->rec.id = vfm_sample_id(own);
	sample->rec.sample_offset = offset;
	return sample;
}

/* ---- the tar ---- */

/* If only headers are read and members are large, a read-ahead would read what lies between. */
static void advise_headers(const struct vfm_tar *t, int members)
{
	enum { FEW = 32, LARGE = 64 << 10 };

	if (members == FEW && t->pos / FEW > LARGE)
		(void)madvise((void *)(uintptr_t)t->data, t->size, MADV_RANDOM);
}

static int scan_members(struct vfm_scan *s, struct vfm_tar *t, struct vfm_tar_member *m, struct vfm_err *err)
{
	struct vfm_scan_part parts[MAX_PARTS]; /* of `now` */
	struct vfm_scan_sample *now = NULL;
	struct vfm_err why;
	int rc, members = 0;

	while ((rc = vfm_tar_next(t, m, err)) == 1) {
		const char *part;
		size_t key_len = vfm_tar_split_name(m->name, &part);

		if (s->headers_only)
			advise_headers(t, ++members);

		if (m->type != '0' || !key_len) {
			rc = vfm_fail(
				err, VFM_EINPUT, "'%s': the member '%.100s' is not part of a sample", t->what, m->name);
			break;
		}
		if (!now || strlen(now->key) != key_len || memcmp(now->key, m->name, key_len) != 0) {
			if (now)
				close_sample(s, now, t->data);
			now = open_sample(s, m->name, key_len, m->header_offset, parts);
		}
		if (now->n_parts == MAX_PARTS) {
			rc = vfm_fail(err, VFM_EINPUT, "'%s': sample '%.100s' has more than %d parts", t->what,
				now->key, MAX_PARTS);
			break;
		}
		if (vfm_sample_member_check(m->name, &why) < 0)
			set_fault(s, now, "%s", why.msg);
		now->parts[now->n_parts++] =
			(struct vfm_scan_part){vfm_arena_strdup(&s->arena, part), m->data_offset, m->size, NULL};
		now->rec.sample_bytes = vfm_tar_end_of(m) - now->rec.sample_offset;
	}
	if (now)
		close_sample(s, now, t->data);
	s->end = t->pos;
	return rc;
}

int vfm_scan_tar(struct vfm_scan *s, const char *path, struct vfm_err *err)
{
	struct vfm_tar_member *m;
	struct vfm_map map;
	struct vfm_tar t;
	int rc;

	TRY(vfm_map_open(&map, path, err));
	m = vfm_malloc(sizeof(*m));
	s->bytes = map.size;
	if (map.size) /* only advice */
		(void)madvise((void *)(uintptr_t)map.data, map.size, MADV_SEQUENTIAL);
	vfm_tar_init(&t, map.data, map.size, path);
	rc = scan_members(s, &t, m, err);
	if (vfm_map_check(&map, NULL, NULL, err) < 0) /* a fault of the tar may follow from it */
		rc = VFM_EENV;
	free(m);
	vfm_map_close(&map);
	return rc;
}

/* ---- a shard of MosaicML Streaming ---- */

enum { MDS_KEY = 1001 };

/* Writes a whole number in decimal. */
static size_t mds_number_key(char *key, const struct vfm_mds_column *c, const uint8_t *value)
{
	uint64_t number = vfm_read_le(value, c->bytes);

	if (!c->is_signed)
		return (size_t)snprintf(key, MDS_KEY, "%" PRIu64, number);
	number <<= 64 - 8 * c->bytes; /* its sign is that of 64 bits */
	return (size_t)snprintf(key, MDS_KEY, "%" PRId64, (int64_t)number >> (64 - 8 * c->bytes));
}

/* Returns the column of the keys; -1: none. */
static int find_key_column(const struct vfm_mds_shard *shard)
{
	for (int k = 0; k < shard->n_columns; k++)
		if (shard->columns[k].part && !strcmp(shard->columns[k].part, "key"))
			return k;
	return -1;
}

/* Writes the value of a column as key and returns its length.  Sets *why if it cannot be a key. */
static size_t mds_key(
	char key[MDS_KEY], const struct vfm_mds_column *c, const uint8_t *value, uint64_t bytes, const char **why)
{
	size_t len = bytes < MDS_KEY ? (size_t)bytes : MDS_KEY - 1;

	if (c->kind == VFM_MDS_INT)
		return mds_number_key(key, c, value);
	memcpy(key, value, len);
	if (bytes > len)
		*why = "a key of more than 1000 bytes";
	else if (memchr(key, 0, len))
		*why = "a key that holds a zero byte";
	return strnlen(key, len);
}

static int scan_values(struct vfm_scan *s, const struct vfm_mds_shard *shard, const uint8_t *data, struct vfm_err *err)
{
	uint64_t at[VFM_MDS_COLUMNS], bytes[VFM_MDS_COLUMNS], whole[2];
	struct vfm_scan_part parts[MAX_PARTS];
	const int key_column = find_key_column(shard);
	const struct vfm_mds_column *of_key = key_column < 0 ? NULL : &shard->columns[key_column];
	char key[MDS_KEY];
	struct vfm_err why;

	_Static_assert((int)VFM_MDS_COLUMNS <= MAX_PARTS, "a part for each column");
	TRY(vfm_mds_check(shard, data, s->bytes, err));
	for (uint32_t i = 0; i < shard->samples; i++) {
		struct vfm_scan_sample *m;
		const char *fault = NULL;
		size_t len;

		TRY(vfm_mds_sample(shard, data, s->bytes, i, at, bytes, whole, err));
		len = of_key ? mds_key(key, of_key, data + at[key_column], bytes[key_column], &fault)
			     : (size_t)snprintf(key, MDS_KEY, "%s/%u", shard->file, i);
		m = open_sample(s, key, len, whole[0], parts);
		m->rec.sample_bytes = whole[1] - whole[0];
		if (fault)
			set_part_fault(s, m, of_key, fault);
		else if (vfm_sample_member_check(m->key, &why) < 0)
			set_part_fault(s, m, of_key, why.msg);
		for (int k = 0; k < shard->n_columns; k++) {
			const struct vfm_mds_column *c = &shard->columns[k];

			if (c->part && strcmp(c->part, "key") != 0)
				parts[m->n_parts++] = (struct vfm_scan_part){c->part, at[k], bytes[k], c};
		}
		close_sample(s, m, data);
		s->end = whole[1];
	}
	return s->check_hashes ? vfm_mds_check_hashes(shard, data, s->bytes, &s->unchecked_hash, err) : 0;
}

int vfm_scan_mds(struct vfm_scan *s, const struct vfm_mds_shard *shard, const char *path, struct vfm_err *err)
{
	struct vfm_map map;
	int rc;

	TRY(vfm_map_open(&map, path, err));
	s->is_mds = true;
	s->bytes = map.size;
	if (map.size) /* only advice */
		(void)madvise((void *)(uintptr_t)map.data, map.size, s->headers_only ? MADV_RANDOM : MADV_SEQUENTIAL);
	rc = scan_values(s, shard, map.data, err);
	if (rc < 0)
		vfm_err_context(err, "'%s'", path);
	if (vfm_map_check(&map, NULL, NULL, err) < 0) /* a fault of the shard may follow from it */
		rc = VFM_EENV;
	vfm_map_close(&map);
	return rc;
}

void vfm_scan_release(struct vfm_scan *s)
{
	free(s->samples);
	vfm_arena_release(&s->arena);
	*s = (struct vfm_scan){0};
}
