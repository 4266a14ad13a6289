/* tar_samples.c - groups the members of a tar by key into media, metadata and labels.
 *
 * Members without a key belong to no sample.  The type of a member is the last part of its extension, in any case; its
 * prefix is the part before: "mp4" and "seg1" of "x/0001.seg1.mp4".  txt, cls and json are the members with the prefix
 * of the video or image, or else those without a prefix.
 */
#include "curate/table/tar_samples.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "base/mem.h"
#include "io/file.h"
#include "io/input.h"
#include "io/json.h"
#include "io/tar.h"
#include "media/av/probe.h"

#define MAX_TEXT ((uint64_t)1 << 20)
#define MAX_JSON ((uint64_t)8 << 20) /* a line of records has 16 MiB */
#define MAX_TAIL ((uint64_t)1 << 20) /* bytes after the end of a tar that are looked at */

enum { TXT, CLS, JSON, N_META };

static const char *const meta_name[N_META] = {"txt", "cls", "json"};
static const uint64_t meta_max[N_META] = {MAX_TEXT, MAX_TEXT, MAX_JSON};

struct media {
	char *name;
	uint64_t offset, size; /* offset: of its first header */
	bool is_twice;
};

struct meta {
	char *name;
	int type;          /* TXT, ... */
	uint64_t at, size; /* of its content */
	bool is_twice, is_used;
	/* kept of the last one of each type that was read */
	json_t *value; /* NULL: fault says why */
	bool may_miss; /* the record continues without it */
	struct vfm_err fault;
};

struct vfm_tar_samples {
	char *path;
	int fd;
	struct vfm_tar tar;
	struct vfm_tar_member m;           /* the last one read */
	bool has_member;                   /* m begins the next sample */
	bool at_end;                       /* no member follows m */
	struct vfm_err damage;             /* code 0: none, or reported */
	struct vfm_tar_samples_left *left; /* of the caller */
	struct vfm_tar_samples_left unused;
	/* the sample */
	char *key;
	size_t key_len;
	struct media *media; /* [n_media] */
	struct meta *meta;   /* [n_meta] */
	size_t media_cap, meta_cap;
	int n_media, next_media, n_meta;
	bool too_many;
	struct meta *read[N_META];
};

/* ---- opening ---- */

static int refuse_compressed(const struct vfm_tar_samples *s, struct vfm_err *err)
{
	static const struct {
		const char *magic, *name;
		size_t n;
	} kinds[] = {{"\x1f\x8b", "gzip", 2}, {"BZh", "bzip2", 3},
		{"\xfd"
		 "7zXZ",
			"xz", 5},
		{"\x28\xb5\x2f\xfd", "zstd", 4}, {"\x04\x22\x4d\x18", "lz4", 4}};
	char head[8] = "";

	if (s->tar.size < sizeof(head))
		return 0;
	TRY(vfm_full_pread(s->fd, head, sizeof(head), 0, s->path, err));
	for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++)
		if (!memcmp(head, kinds[i].magic, kinds[i].n))
			return vfm_fail(err, VFM_EINPUT,
				"'%s' is compressed with %s, so that no member can be read alone: decompress it before",
				s->path, kinds[i].name);
	return 0;
}

/* A name that a record can hold, and that names a tar only. */
static int check_tar_name(const char *path, struct vfm_err *err)
{
	if (!vfm_json_takes(path))
		return vfm_fail(err, VFM_EINPUT, "the name of a tar is not UTF-8");
	if (vfm_member_parse(NULL, path))
		return vfm_fail(
			err, VFM_EINPUT, "'%s' has the name of a member of a tar: rename it or its folder", path);
	return 0;
}

int vfm_tar_samples_open(
	struct vfm_tar_samples **out, const char *path, struct vfm_tar_samples_left *left, struct vfm_err *err)
{
	struct vfm_tar_samples *s;
	uint64_t size = 0;
	int fd, rc;

	*out = NULL;
	TRY(check_tar_name(path, err));
	fd = vfm_open_regular(path, &size, err);
	TRY(fd);
	s = vfm_calloc(1, sizeof(*s));
	s->path = vfm_strdup(path);
	s->fd = fd;
	s->left = left ? left : &s->unused;
	vfm_tar_init_fd(&s->tar, fd, size, s->path);
	rc = size ? refuse_compressed(s, err) : vfm_fail(err, VFM_EINPUT, "'%s' is empty", path);
	if (rc < 0) {
		vfm_tar_samples_close(s);
		return rc;
	}
	*out = s;
	return 0;
}

static void forget_value(struct meta *m)
{
	json_decref(m->value);
	m->value = NULL;
	m->may_miss = false;
}

static void forget_sample(struct vfm_tar_samples *s)
{
	for (int i = 0; i < s->n_media; i++)
		free(s->media[i].name);
	for (int i = 0; i < s->n_meta; i++) {
		forget_value(&s->meta[i]);
		free(s->meta[i].name);
	}
	free(s->key);
	s->key = NULL;
	s->n_media = s->next_media = s->n_meta = 0;
	s->too_many = false;
	memset(s->read, 0, sizeof(s->read));
}

void vfm_tar_samples_close(struct vfm_tar_samples *s)
{
	if (!s)
		return;
	forget_sample(s);
	free(s->media);
	free(s->meta);
	free(s->path);
	close(s->fd);
	free(s);
}

/* ---- the members ---- */

/* Bytes after the end of the archive other than zeros: a second archive, or an end in the middle of one. */
static void check_tail(struct vfm_tar_samples *s)
{
	enum { CHUNK = 1 << 16 };
	uint64_t end = s->tar.size - s->tar.pos < MAX_TAIL ? s->tar.size : s->tar.pos + MAX_TAIL, at = s->tar.pos;
	char *buf = vfm_malloc(CHUNK);

	while (at < end && !s->damage.code) {
		size_t n = end - at < CHUNK ? (size_t)(end - at) : CHUNK, i = 0;

		if (vfm_full_pread(s->fd, buf, n, at, s->path, &s->damage) < 0)
			break;
		while (i < n && !buf[i])
			i++;
		if (i < n)
			vfm_fail(&s->damage, VFM_EINPUT,
				"'%s' ends at byte %" PRIu64 ", but data follow at byte %" PRIu64
				", which were not read",
				s->path, s->tar.pos, at + i);
		at += n;
	}
	free(buf);
}

/* The bytes of a name up to its type, with the dot before it. */
static size_t prefix_end(const char *name)
{
	return (size_t)(strrchr(name, '.') + 1 - name);
}

/* Says which sample the damage has cut. */
static void note_sample(struct vfm_tar_samples *s)
{
	char *why = vfm_strdup(s->damage.msg);

	vfm_fail(&s->damage, s->damage.code, "%s; other members of sample '%.200s' may be missing", why, s->key);
	free(why);
}

/* Reads on to the next member that belongs to a sample. */
static bool read_member(struct vfm_tar_samples *s)
{
	const char *part;
	int rc;

	while (!s->at_end) {
		rc = vfm_tar_next(&s->tar, &s->m, &s->damage);
		s->at_end = rc != 1;
		if (rc == 0)
			check_tail(s);
		if (rc < 0 && s->key)
			note_sample(s);
		if (rc == 1 && s->m.type == '0' && vfm_tar_split_name(s->m.name, &part))
			return true;
		if (rc == 1 && s->m.type == '0')
			vfm_named_add(&s->left->members, s->m.name);
		if (rc == 1 && (s->m.type == '1' || s->m.type == '2') && vfm_tar_split_name(s->m.name, &part))
			vfm_named_add(&s->left->links, s->m.name);
	}
	return false;
}

static void add_sample_media(struct vfm_tar_samples *s)
{
	struct media *last;

	vfm_grow(&s->media, &s->media_cap, (size_t)s->n_media + 1, sizeof(*s->media));
	last = &s->media[s->n_media];
	*last = (struct media){vfm_strdup(s->m.name), s->m.header_offset, s->m.size, false};
	for (int i = 0; i < s->n_media; i++)
		last->is_twice |= !strcmp(s->media[i].name, last->name);
	s->n_media++;
}

/* Extensions that differ in case alone are the same to WebDataset. */
static void add_sample_meta(struct vfm_tar_samples *s, int type)
{
	struct meta m = {.type = type, .at = s->m.data_offset, .size = s->m.size};

	for (int i = 0; i < s->n_meta; i++)
		if (!strcasecmp(s->meta[i].name + s->key_len, s->m.name + s->key_len)) {
			s->meta[i].is_twice = true;
			return;
		}
	m.name = vfm_strdup(s->m.name);
	vfm_grow(&s->meta, &s->meta_cap, (size_t)s->n_meta + 1, sizeof(*s->meta));
	s->meta[s->n_meta++] = m;
}

/* Adds the member that was read to the sample. */
static void add_sample_member(struct vfm_tar_samples *s)
{
	const char *type = s->m.name + prefix_end(s->m.name);
	int n = vfm_media_name(s->m.name) ? s->n_media : s->n_meta;

	if (n == VFM_TAR_SAMPLE_MEDIA) {
		s->too_many = true;
		return;
	}
	if (vfm_media_name(s->m.name)) {
		add_sample_media(s);
		return;
	}
	for (int i = 0; i < N_META; i++)
		if (!strcasecmp(type, meta_name[i])) {
			add_sample_meta(s, i);
			return;
		}
	vfm_named_add(&s->left->members, s->m.name);
}

/* Returns the metadata of a type for a media member: with its prefix, or else without one; NULL: none. */
static struct meta *find_meta(const struct vfm_tar_samples *s, const struct media *media, int type)
{
	size_t own = prefix_end(media->name), end;
	struct meta *shared = NULL;

	for (int i = 0; i < s->n_meta; i++) {
		struct meta *m = &s->meta[i];

		end = prefix_end(m->name);
		if (m->type != type)
			continue;
		if (end == own && !strncasecmp(m->name + s->key_len, media->name + s->key_len, end - s->key_len))
			return m;
		if (end == s->key_len + 1)
			shared = m;
	}
	return shared;
}

/* Counts the metadata that belongs to none of the media. */
static void count_unused_meta(struct vfm_tar_samples *s)
{
	for (int k = 0; k < s->n_media * N_META; k++) {
		struct meta *m = find_meta(s, &s->media[k / N_META], k % N_META);

		if (m)
			m->is_used = true;
	}
	for (int i = 0; i < s->n_meta; i++)
		if (!s->meta[i].is_used)
			vfm_named_add(&s->left->members, s->meta[i].name);
}

/* Gathers the next sample with media.  Returns false at the end. */
static bool gather_sample(struct vfm_tar_samples *s)
{
	const char *part;

	for (;;) {
		forget_sample(s);
		if (!s->has_member && !read_member(s))
			return false;
		s->key_len = vfm_tar_split_name(s->m.name, &part);
		s->key = vfm_strfmt("%.*s", (int)s->key_len, s->m.name);
		do {
			add_sample_member(s);
			s->has_member = read_member(s);
		} while (s->has_member && vfm_tar_split_name(s->m.name, &part) == s->key_len &&
			!memcmp(s->m.name, s->key, s->key_len));
		if (s->n_media) {
			count_unused_meta(s);
			return true;
		}
		vfm_named_add(&s->left->samples, s->key);
	}
}

/* ---- records ---- */

static json_t *text_value(const char *text, size_t len, const char *what, struct vfm_err *err)
{
	if (vfm_has_byte_order_mark(text, len))
		text += 3, len -= 3;
	if (len && text[len - 1] == '\n')
		len--;
	if (len && text[len - 1] == '\r')
		len--;
	return vfm_json_string(text, len, what, err);
}

/* A class label: an integer, or else a text. */
static json_t *label_value(const char *text, size_t len, struct vfm_err *err)
{
	json_t *v = text_value(text, len, "cls", err);
	char *end;
	long long n;

	if (!v || !json_string_length(v))
		return v;
	errno = 0;
	n = strtoll(json_string_value(v), &end, 10);
	if (*end || errno)
		return v;
	json_decref(v);
	return json_integer(n);
}

static json_t *json_value(const char *text, size_t len, struct vfm_err *err)
{
	json_t *v = vfm_json_parse_foreign(text, len, "json", err);

	if (!v || json_is_object(v))
		return v;
	json_decref(v);
	vfm_fail(err, VFM_EINPUT, "json is no object");
	return NULL;
}

/* Sets the value of metadata, or its fault. */
static void read_meta(const struct vfm_tar_samples *s, struct meta *m)
{
	const char *what = meta_name[m->type];
	char *text;

	if (m->is_twice) {
		vfm_fail(&m->fault, VFM_EINPUT, "%s occurs twice", what);
		return;
	}
	if (m->size > meta_max[m->type]) {
		m->may_miss = m->type == JSON;
		vfm_fail(&m->fault, VFM_EINPUT, "%s has more than %" PRIu64 " bytes", what, meta_max[m->type]);
		return;
	}
	text = vfm_malloc((size_t)m->size + 1);
	if (vfm_full_pread(s->fd, text, (size_t)m->size, m->at, s->path, &m->fault) == 0) {
		m->may_miss = m->type == JSON;
		m->value = m->type == JSON ? json_value(text, (size_t)m->size, &m->fault)
			: m->type == TXT   ? text_value(text, (size_t)m->size, what, &m->fault)
					   : label_value(text, (size_t)m->size, &m->fault);
	}
	free(text);
}

/* Reads metadata once for the media that share it. */
static const struct meta *meta_of(struct vfm_tar_samples *s, const struct media *media, int type)
{
	struct meta *m = find_meta(s, media, type);

	if (!m || m == s->read[type])
		return m;
	if (s->read[type])
		forget_value(s->read[type]);
	s->read[type] = m;
	read_meta(s, m);
	return m;
}

/* Sets the metadata of a media member.  VFM_EINPUT: err names its fault. */
static int set_meta(struct vfm_tar_samples *s, const struct media *media, json_t *rec, struct vfm_err *err)
{
	static const char *const keys[N_META] = {"caption", "cls", "meta"};

	for (int i = 0; i < N_META; i++) {
		const struct meta *m = meta_of(s, media, i);
		json_t *caption = m && i == JSON ? json_object_get(m->value, "caption") : NULL;

		if (!m)
			continue;
		if (!m->value && !m->may_miss)
			return vfm_fail(err, VFM_EINPUT, "%s", m->fault.msg);
		if (json_is_string(caption) && !json_object_get(rec, "caption"))
			json_object_set(rec, "caption", caption);
		if (m->value)
			json_object_set(rec, keys[i], m->value);
		else
			json_object_set_new(rec, "meta_error", vfm_json_shown(m->fault.msg));
		if (!m->value)
			vfm_named_add(&s->left->json, m->name);
	}
	return 0;
}

static int make_member_record(struct vfm_tar_samples *s, const struct media *m, json_t **rec, struct vfm_err *err)
{
	json_t *key = vfm_json_string(s->key, s->key_len, "its name", err), *name = NULL;
	struct vfm_err why;
	char *src;

	if (key && m->is_twice) {
		json_decref(key);
		return vfm_fail(err, VFM_EINPUT,
			"'%s': '%.200s' occurs twice in a sample; this is the later one, at "
			"byte %" PRIu64,
			s->path, m->name, m->offset);
	}
	src = vfm_member_name(s->path, m->offset, m->size, m->name);
	if (key)
		name = vfm_json_string(src, strlen(src), "its name", err);
	free(src);
	if (name) {
		*rec = json_pack("{s:i,s:o,s:s,s:o}", "v", 1, "src", name, "kind",
			vfm_image_name(m->name) ? "image" : "video", "key", key);
		if (set_meta(s, m, *rec, err) == 0)
			return 1;
		json_decref(*rec);
		*rec = NULL;
	}
	why = *err;
	return vfm_fail(err, VFM_EINPUT, "'%s': sample '%.200s', '%.200s': %s", s->path, s->key, m->name, why.msg);
}

int vfm_tar_samples_next(struct vfm_tar_samples *s, json_t **rec, struct vfm_err *err)
{
	*rec = NULL;
	for (;;) {
		if (s->next_media < s->n_media)
			return make_member_record(s, &s->media[s->next_media++], rec, err);
		if (s->too_many) {
			s->too_many = false;
			return vfm_fail(err, VFM_EINPUT,
				"'%s': sample '%.200s' has more than %d media members, or others: the rest is left out",
				s->path, s->key, VFM_TAR_SAMPLE_MEDIA);
		}
		if (gather_sample(s))
			continue;
		if (!s->damage.code)
			return 0;
		*err = s->damage;
		s->damage.code = 0;
		return err->code == VFM_EENV ? VFM_EENV : VFM_EINPUT;
	}
}
