#include "curate/tar_samples.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/member.h"
#include "base/regular.h"
#include "base/tar.h"
#include "media/probe.h"

#define MAX_TEXT ((uint64_t)1 << 20)
#define MAX_JSON ((uint64_t)16 << 20)
#define MAX_TAIL ((uint64_t)1 << 20) /* bytes behind the end of a tar that are looked at */

enum { TXT, CLS, JSON, N_META };

static const char *const meta_name[N_META] = {"txt", "cls", "json"};
static const uint64_t meta_max[N_META] = {MAX_TEXT, MAX_TEXT, MAX_JSON};

struct media {
	char *name;
	uint64_t offset, size; /* offset: of its first header */
	bool is_twice;
};

struct meta {
	uint64_t at, size;
	bool is_there, is_twice;
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
	struct media *media; /* [n_media] */
	size_t cap;
	int n_media, next_media;
	bool too_many;
	struct meta meta[N_META];
	json_t *values; /* caption, cls and meta of the sample; NULL: not read */
	struct vfm_err fault;
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
	json_t *text = json_string(path);

	json_decref(text);
	if (!text)
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

static void forget_sample(struct vfm_tar_samples *s)
{
	for (int i = 0; i < s->n_media; i++)
		free(s->media[i].name);
	free(s->key);
	json_decref(s->values);
	s->key = NULL;
	s->values = NULL;
	s->n_media = s->next_media = 0;
	s->too_many = false;
	s->fault.code = 0;
	memset(s->meta, 0, sizeof(s->meta));
}

void vfm_tar_samples_close(struct vfm_tar_samples *s)
{
	if (!s)
		return;
	forget_sample(s);
	free(s->media);
	free(s->path);
	close(s->fd);
	free(s);
}

/* ---- the members ---- */

/* Bytes behind the end of the archive other than zeros: a second archive, or an end in the middle of one. */
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

/* Whether a name begins "__NAME__", as those of WebDataset's own members do. */
static bool is_shard_note(const char *name)
{
	const char *end = strncmp(name, "__", 2) == 0 ? strstr(name + 2, "__") : NULL;

	return end && !memchr(name, '/', (size_t)(end - name)) && (!end[2] || end[2] == '/');
}

/* The key's length, and what stands behind its dot; 0: the member belongs to no sample. */
static size_t split_member_name(const char *name, const char **part)
{
	const char *base = strrchr(name, '/'), *dot;

	base = base ? base + 1 : name;
	dot = strchr(base, '.');
	if (!dot || dot == base || !dot[1] || is_shard_note(name))
		return 0;
	*part = dot + 1;
	return (size_t)(dot - name);
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
		if (rc == 1 && s->m.type == '0' && split_member_name(s->m.name, &part))
			return true;
		if (rc == 1 && s->m.type == '0')
			s->left->members++;
		if (rc == 1 && (s->m.type == '1' || s->m.type == '2') && split_member_name(s->m.name, &part))
			s->left->links++;
	}
	return false;
}

static void add_sample_media(struct vfm_tar_samples *s)
{
	struct media *last;

	if (s->n_media == VFM_TAR_SAMPLE_MEDIA) {
		s->too_many = true;
		return;
	}
	vfm_grow(&s->media, &s->cap, (size_t)s->n_media + 1, sizeof(*s->media));
	last = &s->media[s->n_media];
	*last = (struct media){vfm_strdup(s->m.name), s->m.header_offset, s->m.size, false};
	for (int i = 0; i < s->n_media; i++)
		last->is_twice |= !strcmp(s->media[i].name, last->name);
	s->n_media++;
}

/* Adds the member that was read to the sample. */
static void add_sample_member(struct vfm_tar_samples *s, const char *part)
{
	for (int i = 0; i < N_META; i++)
		if (!strcasecmp(part, meta_name[i])) {
			s->meta[i] = (struct meta){s->m.data_offset, s->m.size, true, s->meta[i].is_there};
			return;
		}
	if (vfm_media_name(s->m.name))
		add_sample_media(s);
	else
		s->left->members++;
}

/* Gathers the next sample with media.  Returns false at the end. */
static bool gather_sample(struct vfm_tar_samples *s)
{
	const char *part;
	size_t len;

	for (;;) {
		forget_sample(s);
		if (!s->has_member && !read_member(s))
			return false;
		len = split_member_name(s->m.name, &part);
		s->key = vfm_strfmt("%.*s", (int)len, s->m.name);
		do {
			add_sample_member(s, part);
			s->has_member = read_member(s);
		} while (
			s->has_member && split_member_name(s->m.name, &part) == len && !memcmp(s->m.name, s->key, len));
		if (s->n_media)
			return true;
		s->left->samples++;
	}
}

/* ---- records ---- */

static json_t *text_value(const char *text, size_t len, const char *what, struct vfm_err *err)
{
	json_t *v;

	if (len && text[len - 1] == '\n')
		len--;
	if (len && text[len - 1] == '\r')
		len--;
	v = json_stringn(text, len);
	if (!v)
		vfm_fail(err, VFM_EINPUT, "%s is not UTF-8", what);
	return v;
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

static int set_meta(struct vfm_tar_samples *s, int which, const char *text, size_t len, struct vfm_err *err)
{
	static const char *const keys[N_META] = {"caption", "cls", "meta"};
	json_t *v;

	if (which == JSON)
		v = vfm_json_parse(text, len, "json", err);
	else
		v = which == TXT ? text_value(text, len, "txt", err) : label_value(text, len, err);
	if (v && which == JSON && !json_is_object(v)) {
		json_decref(v);
		return vfm_fail(err, VFM_EINPUT, "json is no object");
	}
	if (!v)
		return VFM_EINPUT;
	if (which == JSON && json_is_string(json_object_get(v, "caption")) && !json_object_get(s->values, "caption"))
		json_object_set(s->values, "caption", json_object_get(v, "caption"));
	json_object_set_new(s->values, keys[which], v);
	return 0;
}

static int read_meta(struct vfm_tar_samples *s, int which, struct vfm_err *err)
{
	const struct meta *m = &s->meta[which];
	char *text;
	int rc;

	if (!m->is_there)
		return 0;
	if (m->is_twice)
		return vfm_fail(err, VFM_EINPUT, "%s stands twice", meta_name[which]);
	if (m->size > meta_max[which])
		return vfm_fail(
			err, VFM_EINPUT, "%s has more than %" PRIu64 " bytes", meta_name[which], meta_max[which]);
	text = vfm_malloc((size_t)m->size + 1);
	rc = vfm_full_pread(s->fd, text, (size_t)m->size, m->at, s->path, err);
	if (rc == 0)
		rc = set_meta(s, which, text, (size_t)m->size, err);
	free(text);
	return rc;
}

/* Reads the metadata of the sample; s->fault says what is wrong with it. */
static void read_values(struct vfm_tar_samples *s)
{
	json_t *key = json_string(s->key);

	s->values = json_object();
	if (!key) {
		vfm_fail(&s->fault, VFM_EINPUT, "its name is not UTF-8");
		return;
	}
	json_object_set_new(s->values, "key", key);
	for (int i = 0; i < N_META; i++)
		if (read_meta(s, i, &s->fault) < 0) {
			s->fault.code = VFM_EINPUT;
			return;
		}
}

static int make_member_record(struct vfm_tar_samples *s, const struct media *m, json_t **rec, struct vfm_err *err)
{
	char *src;

	if (!s->values)
		read_values(s);
	if (s->fault.code)
		return vfm_fail(
			err, VFM_EINPUT, "'%s': sample '%.200s', '%.200s': %s", s->path, s->key, m->name, s->fault.msg);
	if (m->is_twice)
		return vfm_fail(err, VFM_EINPUT,
			"'%s': '%.200s' stands twice in a sample; this is the later one, at "
			"byte %" PRIu64,
			s->path, m->name, m->offset);
	src = vfm_member_name(s->path, m->offset, m->size, m->name);
	*rec = json_pack("{s:i,s:s,s:s}", "v", 1, "src", src, "kind", vfm_image_name(m->name) ? "image" : "video");
	free(src);
	if (!*rec) /* the key may be UTF-8 while the rest is not */
		return vfm_fail(err, VFM_EINPUT, "'%s': a name of sample '%.200s' is not UTF-8", s->path, s->key);
	json_object_update(*rec, s->values);
	return 1;
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
				"'%s': sample '%.200s' has more than %d media members: the others are left out",
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
