/* record_text.c - scans the JSON text of a record for its members, numbers and digest. */
#include "curate/dedup/record_text.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "io/json.h"

#define DEPTH   32 /* of nested values */
#define MEMBERS 64 /* of an object */
#define DIGITS  18 /* of an integer: any of them fits */

struct reader {
	struct vfm_record_text *t;
	const char *p, *end;
};

/* ---- strings ---- */

/* Returns the bytes of a character of UTF-8 (RFC 3629) that is not ASCII; 0: it is none. */
static size_t measure_character(const unsigned char *p, size_t left)
{
	size_t n = p[0] >= 0xf0 ? 4 : p[0] >= 0xe0 ? 3 : 2;

	if (p[0] < 0xc2 || p[0] > 0xf4 || left < n)
		return 0;
	for (size_t i = 1; i < n; i++)
		if ((p[i] & 0xc0) != 0x80)
			return 0;
	if ((p[0] == 0xe0 && p[1] < 0xa0) || (p[0] == 0xed && p[1] >= 0xa0) || /* overlong; surrogates */
		(p[0] == 0xf0 && p[1] < 0x90) || (p[0] == 0xf4 && p[1] >= 0x90))
		return 0;
	return n;
}

/* Returns whether 8 bytes are ASCII without control characters, quotes and backslashes. */
static bool are_plain_bytes(const char *p)
{
	const uint64_t ones = UINT64_MAX / 255, high = ones << 7;
	uint64_t x, quote, slash;

	memcpy(&x, p, 8);
	quote = x ^ ones * '"';
	slash = x ^ ones * '\\';
	return !((x | (x - ones * 0x20) | (quote - ones) | (slash - ones)) & high);
}

/* Past a string; r->p is after its first quote. */
static bool skip_string(struct reader *r, bool *escaped)
{
	*escaped = false;
	for (;;) {
		unsigned char c;

		while (r->end - r->p >= 8 && are_plain_bytes(r->p))
			r->p += 8;
		if (r->p >= r->end)
			return false;
		c = (unsigned char)*r->p;
		if (c == '"') {
			r->p++;
			return true;
		}
		if (c == '\\') {
			if (r->end - r->p < 2 || !r->p[1] || !strchr("bfnrt\"\\", r->p[1]))
				return false;
			*escaped = true;
			r->p += 2;
		} else if (c < 0x20) {
			return false;
		} else if (c < 0x80) {
			r->p++;
		} else {
			size_t n = measure_character((const unsigned char *)r->p, (size_t)(r->end - r->p));

			if (!n)
				return false;
			r->p += n;
		}
	}
}

/* ---- numbers ---- */

/* Returns whether vfm_json_text writes a real as this text.  With at most 15 digits that is so unless it ends in a
 * zero, needs an exponent, or has one. */
static bool is_written_so(const char *text, size_t len, int digits, bool exponent)
{
	const char *point = memchr(text, '.', len), *first = text + (*text == '-');
	bool whole = point && text + len == point + 2 && point[1] == '0';
	char copy[VFM_REAL_TEXT + 1], again[VFM_REAL_TEXT + 2];

	if (*text == '-' && strtod(text, NULL) == 0)
		return false; /* -0.0 is 0 in a digest */
	if (point && !exponent && digits <= 15 && (whole || text[len - 1] != '0') &&
		(*first != '0' || whole || (len > (size_t)(point - text) + 1 && strncmp(point, ".000", 4) != 0)))
		return true;
	if (len >= VFM_REAL_TEXT)
		return false;
	memcpy(copy, text, len);
	copy[len] = 0;
	vfm_real_text(again, strtod(copy, NULL));
	if (!strpbrk(again, ".e"))
		strcat(again, ".0");
	return !strcmp(copy, again);
}

static bool read_number_text(struct reader *r, struct vfm_text_value *v)
{
	const char *from = r->p, *p = r->p + (*r->p == '-');
	bool point = false, exponent = false;
	int digits = 0;

	if (p >= r->end || *p < '0' || *p > '9')
		return false;
	if (*p == '0' && p + 1 < r->end && p[1] >= '0' && p[1] <= '9')
		return false;
	for (; p < r->end; p++) {
		if (*p >= '0' && *p <= '9') {
			digits++;
		} else if (*p == '.' && !point && !exponent && p + 1 < r->end && p[1] >= '0' && p[1] <= '9') {
			point = true;
		} else if (*p == 'e' && !exponent) {
			exponent = true;
			p += p + 1 < r->end && (p[1] == '-' || p[1] == '+');
			if (p + 1 >= r->end || p[1] < '0' || p[1] > '9')
				return false;
		} else {
			break;
		}
	}
	v->len = (uint32_t)(p - from);
	v->type = point || exponent ? VFM_TEXT_REAL : VFM_TEXT_INTEGER;
	r->p = p;
	if (v->type == VFM_TEXT_INTEGER)
		return digits <= DIGITS && (*from != '-' || from[1] != '0');
	return is_written_so(from, v->len, digits, exponent);
}

/* ---- values ---- */

static uint32_t add_value(struct vfm_record_text *t)
{
	vfm_grow(&t->v, &t->cap, (size_t)t->n + 1, sizeof(*t->v));
	t->v[t->n] = (struct vfm_text_value){0};
	return t->n++;
}

/* Returns whether the keys of an object differ. */
static bool keys_differ(const struct vfm_record_text *t, uint32_t object)
{
	uint32_t of[MEMBERS], n = 0;

	for (uint32_t i = object + 1; i < t->v[object].next; i = t->v[i].next) {
		for (uint32_t k = 0; k < n; k++)
			if (t->v[of[k]].key_len == t->v[i].key_len &&
				!memcmp(t->text + t->v[of[k]].key, t->text + t->v[i].key, t->v[i].key_len))
				return false;
		if (n == MEMBERS)
			return false;
		of[n++] = i;
	}
	return true;
}

static bool read_value(struct reader *r, uint32_t at, int depth);

static bool read_key(struct reader *r, struct vfm_text_value *v)
{
	const char *from = r->p + 1;
	bool escaped;

	if (r->p >= r->end || *r->p++ != '"' || !skip_string(r, &escaped) || escaped)
		return false;
	v->key = (uint32_t)(from - r->t->text);
	v->key_len = (uint32_t)(r->p - 1 - from);
	return r->p < r->end && *r->p++ == ':';
}

/* An object or an array; r->p is after the bracket. */
static bool read_members_text(struct reader *r, char close, int depth)
{
	if (r->p < r->end && *r->p == close) {
		r->p++;
		return true;
	}
	while (depth < DEPTH) {
		uint32_t i = add_value(r->t);

		if (close == '}' && !read_key(r, &r->t->v[i]))
			return false;
		if (!read_value(r, i, depth + 1) || r->p >= r->end)
			return false;
		if (*r->p == close) {
			r->p++;
			return true;
		}
		if (*r->p++ != ',')
			return false;
	}
	return false;
}

static bool read_text_word(struct reader *r)
{
	static const char *const words[] = {"true", "false", "null"};

	for (int i = 0; i < 3; i++) {
		size_t n = strlen(words[i]);

		if ((size_t)(r->end - r->p) >= n && !memcmp(r->p, words[i], n)) {
			r->p += n;
			return true;
		}
	}
	return false;
}

static bool read_value(struct reader *r, uint32_t at, int depth)
{
	struct vfm_record_text *t = r->t;
	const char *from = r->p;
	bool good, escaped = false;
	uint8_t type;

	if (r->p >= r->end)
		return false;
	t->v[at].at = (uint32_t)(from - t->text);
	if (*from == '{' || *from == '[') {
		type = *from == '{' ? VFM_TEXT_OBJECT : VFM_TEXT_ARRAY;
		r->p++;
		good = read_members_text(r, *from == '{' ? '}' : ']', depth);
	} else if (*from == '"') {
		type = VFM_TEXT_STRING;
		r->p++;
		good = skip_string(r, &escaped);
	} else if (*from == '-' || (*from >= '0' && *from <= '9')) {
		good = read_number_text(r, &t->v[at]);
		type = t->v[at].type;
	} else {
		type = VFM_TEXT_WORD;
		good = read_text_word(r);
	}
	t->v[at].type = type;
	t->v[at].escaped = escaped;
	t->v[at].len = (uint32_t)(r->p - from);
	t->v[at].next = t->n;
	return good && (type != VFM_TEXT_OBJECT || keys_differ(t, at));
}

bool vfm_record_text_read(struct vfm_record_text *t, const char *text, size_t len)
{
	struct reader r = {t, text, text + len};

	t->text = text;
	t->len = len;
	t->n = 0;
	t->is_sorted = false;
	return len < UINT32_MAX && len > 1 && *text == '{' && read_value(&r, add_value(t), 0) && r.p == r.end;
}

void vfm_record_text_release(struct vfm_record_text *t)
{
	free(t->v);
	free(t->members);
	vfm_buf_release(&t->sorted);
	*t = (struct vfm_record_text){0};
}

/* ---- access ---- */

static const struct vfm_text_value *find_member(
	const struct vfm_record_text *t, const struct vfm_text_value *object, const char *key, size_t len)
{
	uint32_t at = (uint32_t)(object - t->v);

	if (object->type != VFM_TEXT_OBJECT)
		return NULL;
	for (uint32_t i = at + 1; i < object->next; i = t->v[i].next)
		if (t->v[i].key_len == len && !memcmp(t->text + t->v[i].key, key, len))
			return &t->v[i];
	return NULL;
}

const struct vfm_text_value *vfm_record_text_get(const struct vfm_record_text *t, const char *key)
{
	return find_member(t, t->v, key, strlen(key));
}

const struct vfm_text_value *vfm_record_text_in(
	const struct vfm_record_text *t, const struct vfm_text_value *object, const char *key)
{
	return find_member(t, object, key, strlen(key));
}

const struct vfm_text_value *vfm_record_text_at(const struct vfm_record_text *t, const char *path)
{
	const struct vfm_text_value *v = t->v;
	const char *dot;

	while (v && (dot = strchr(path, '.'))) {
		v = find_member(t, v, path, (size_t)(dot - path));
		path = dot + 1;
	}
	return v ? find_member(t, v, path, strlen(path)) : NULL;
}

bool vfm_record_text_num(const struct vfm_record_text *t, const char *path, double *out)
{
	const struct vfm_text_value *v = vfm_record_text_at(t, path), *score;

	if (!v && !strchr(path, '.')) {
		score = vfm_record_text_get(t, "score");
		v = score ? find_member(t, score, path, strlen(path)) : NULL;
	}
	if (!v || (v->type != VFM_TEXT_INTEGER && v->type != VFM_TEXT_REAL))
		return false;
	*out = strtod(t->text + v->at, NULL);
	return true;
}

const char *vfm_record_text_str(const struct vfm_record_text *t, const struct vfm_text_value *v, size_t *len)
{
	if (!v || v->type != VFM_TEXT_STRING || v->escaped)
		return NULL;
	*len = v->len - 2;
	return t->text + v->at + 1;
}

/* ---- digests ---- */

struct sorting {
	const struct vfm_record_text *t;
	uint32_t value;
};

static int compare_sorted_keys(const void *a, const void *b)
{
	const struct sorting *p = a, *q = b;
	const struct vfm_text_value *x = &p->t->v[p->value], *y = &q->t->v[q->value];
	uint32_t least = x->key_len < y->key_len ? x->key_len : y->key_len;
	int order = memcmp(p->t->text + x->key, q->t->text + y->key, least);

	return order ? order : x->key_len < y->key_len ? -1 : 1;
}

/* Sets to [MEMBERS] to the members of an object by key.  Returns their number. */
static int sort_members(const struct vfm_record_text *t, uint32_t object, struct sorting *to)
{
	int n = 0;

	for (uint32_t i = object + 1; i < t->v[object].next; i = t->v[i].next) {
		struct sorting s = {t, i};
		int at = n++;

		for (; at > 0 && compare_sorted_keys(&to[at - 1], &s) > 0; at--)
			to[at] = to[at - 1];
		to[at] = s;
	}
	return n;
}

/* A real as vfm_rec_digest has it: a whole number as an integer, others as jansson writes them. */
static void add_real(struct vfm_buf *b, const char *text)
{
	double x = strtod(text, NULL);
	json_t *v;
	char out[64];

	if (fabs(x) < 0x1p53 && x == rint(x)) {
		vfm_buf_addf(b, "%lld", (long long)x);
		return;
	}
	v = json_real(x);
	vfm_buf_add(b, out, json_dumpb(v, out, sizeof(out), JSON_ENCODE_ANY | JSON_COMPACT));
	json_decref(v);
}

static void add_sorted(struct vfm_buf *b, const struct vfm_record_text *t, uint32_t at);

static void add_sorted_member(struct vfm_buf *b, const struct vfm_record_text *t, uint32_t at)
{
	vfm_buf_add(b, t->text + t->v[at].key - 1, (size_t)t->v[at].key_len + 2);
	vfm_buf_add(b, ":", 1);
	add_sorted(b, t, at);
}

static void add_sorted(struct vfm_buf *b, const struct vfm_record_text *t, uint32_t at)
{
	const struct vfm_text_value *v = &t->v[at];
	struct sorting members[MEMBERS];
	int n;

	if (v->type == VFM_TEXT_OBJECT) {
		n = sort_members(t, at, members);
		vfm_buf_add(b, "{", 1);
		for (int i = 0; i < n; i++) {
			vfm_buf_add(b, ",", i > 0);
			add_sorted_member(b, t, members[i].value);
		}
		vfm_buf_add(b, "}", 1);
	} else if (v->type == VFM_TEXT_ARRAY) {
		vfm_buf_add(b, "[", 1);
		for (uint32_t i = at + 1; i < v->next; i = t->v[i].next) {
			vfm_buf_add(b, ",", i > at + 1);
			add_sorted(b, t, i);
		}
		vfm_buf_add(b, "]", 1);
	} else if (v->type == VFM_TEXT_REAL) {
		add_real(b, t->text + v->at);
	} else {
		vfm_buf_add(b, t->text + v->at, v->len);
	}
}

static void sort_record(struct vfm_record_text *t)
{
	struct sorting members[MEMBERS];
	int n = sort_members(t, 0, members);

	vfm_buf_clear(&t->sorted);
	vfm_grow(&t->members, &t->cap_members, (size_t)n, sizeof(*t->members));
	for (int i = 0; i < n; i++) {
		size_t at = t->sorted.len;

		add_sorted_member(&t->sorted, t, members[i].value);
		t->members[i] = (struct sorted_member){members[i].value, at, t->sorted.len - at};
	}
	t->n_members = (size_t)n;
	t->is_sorted = true;
}

void vfm_record_text_digest(
	struct vfm_record_text *t, const char *head, const char *const *without, char hex[VFM_SHA256_HEX])
{
	struct vfm_buf b = {0};
	size_t n = 0;

	if (!t->is_sorted)
		sort_record(t);
	vfm_buf_adds(&b, head);
	vfm_buf_add(&b, "{", 1);
	for (size_t i = 0; i < t->n_members; i++) {
		const struct vfm_text_value *v = &t->v[t->members[i].value];
		const char *const *w = without;

		while (*w && (strlen(*w) != v->key_len || memcmp(*w, t->text + v->key, v->key_len) != 0))
			w++;
		if (*w)
			continue;
		vfm_buf_add(&b, ",", n++ > 0);
		vfm_buf_add(&b, t->sorted.data + t->members[i].at, t->members[i].len);
	}
	vfm_buf_add(&b, "}", 1);
	vfm_sha256_of(b.data, b.len, hex);
	vfm_buf_release(&b);
}
