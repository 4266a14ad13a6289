/* json.c - loads documents strictly, reads typed keys, writes text, and reads JSON Lines in blocks. */
#include "io/json.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/near.h"
#include "io/file.h"
#include "io/input.h"

void vfm_json_init(void)
{
	json_set_alloc_funcs(vfm_malloc, free);
}

/* ---- whole documents --------------------------------------------------------- */

static void fail_parse(const json_error_t *e, const char *what, struct vfm_err *err)
{
	vfm_fail(err, VFM_EUSAGE, "%s:%d:%d: %s", what, e->line > 0 ? e->line : 1, e->column > 0 ? e->column : 1,
		e->text);
}

json_t *vfm_json_parse(const char *text, size_t len, const char *what, struct vfm_err *err)
{
	json_error_t e;
	json_t *v = json_loadb(text, len, JSON_REJECT_DUPLICATES, &e);

	if (!v)
		fail_parse(&e, what, err);
	return v;
}

/* read: vfm_read_file or vfm_read_regular. */
static json_t *load_json(int (*read)(const char *, size_t, char **, size_t *, struct vfm_err *), const char *path,
	size_t max_bytes, struct vfm_err *err)
{
	const char *placeholder;
	char *text = NULL;
	size_t len = 0;
	json_t *v;

	if (read(path, max_bytes, &text, &len, err) < 0) {
		if (err && err->code == VFM_EINPUT)
			err->code = VFM_EUSAGE;
		return NULL;
	}
	v = vfm_json_parse(text, len, path, err);
	placeholder = v ? NULL : vfm_placeholder(text, len);
	if (placeholder)
		vfm_fail(err, VFM_EUSAGE, "%s: %s", path, placeholder);
	free(text);
	return v;
}

json_t *vfm_json_load(const char *path, size_t max_bytes, struct vfm_err *err)
{
	return load_json(vfm_read_file, path, max_bytes, err);
}

json_t *vfm_json_load_regular(const char *path, size_t max_bytes, struct vfm_err *err)
{
	return load_json(vfm_read_regular, path, max_bytes, err);
}

/* ---- texts and documents of other programs ----------------------------------- */

json_t *vfm_json_string(const char *s, size_t len, const char *what, struct vfm_err *err)
{
	bool has_zero = memchr(s, 0, len) != NULL;
	json_t *v = has_zero ? NULL : json_stringn(s, len);

	if (!v)
		vfm_fail(err, VFM_EINPUT, "%s %s", what, has_zero ? "has a zero byte" : "is not UTF-8");
	return v;
}

bool vfm_json_takes(const char *text)
{
	json_t *v = json_string(text);

	json_decref(v);
	return v != NULL;
}

json_t *vfm_json_shown(const char *text)
{
	json_t *v = json_string(text);
	char *shown;

	if (v)
		return v;
	shown = vfm_strdup(text);
	for (char *s = shown; *s; s++)
		if ((unsigned char)*s >= 0x80)
			*s = '?';
	v = json_string(shown);
	free(shown);
	return v;
}

/* Returns the length of a number of JSON's grammar at p [n]; 0: there is none. */
static size_t number_length(const char *p, size_t n, bool *is_real)
{
	size_t i = p[0] == '-', from = i;

	while (i < n && p[i] >= '0' && p[i] <= '9')
		i++;
	if (i == from || (p[from] == '0' && i > from + 1))
		return 0;
	*is_real = false;
	for (int part = 0; part < 2; part++) {
		if (i == n || !(part ? p[i] == 'e' || p[i] == 'E' : p[i] == '.'))
			continue;
		i++;
		i += part && i < n && (p[i] == '+' || p[i] == '-');
		from = i;
		while (i < n && p[i] >= '0' && p[i] <= '9')
			i++;
		if (i == from)
			return 0;
		*is_real = true;
	}
	return i;
}

/* Appends the number at p [n] as jansson can hold it.  Returns its length; 0: it is none, or may stay. */
static size_t put_foreign_number(struct vfm_buf *b, const char *p, size_t n)
{
	size_t start = b->len, len;
	char real[VFM_REAL_TEXT];
	bool is_real = false, fits;
	double x;

	len = number_length(p, n, &is_real);
	if (len < (is_real ? sizeof("1e309") : sizeof("9223372036854775808")) - 1)
		return 0;
	vfm_buf_add(b, p, len);
	vfm_buf_add(b, "", 1);
	x = strtod(b->data + start, NULL);
	errno = 0;
	if (!is_real)
		(void)strtoll(b->data + start, NULL, 10);
	fits = is_real ? isfinite(x) : !errno;
	b->len = start;
	if (fits)
		return 0;
	vfm_buf_adds(b, isfinite(x) ? vfm_real_text(real, x) : "null");
	return len;
}

/* Appends what JSON has instead of the token at p [n].  Returns the token's length; 0: it stays as it is. */
static size_t put_foreign_token(struct vfm_buf *b, const char *p, size_t n)
{
	static const char *const names[] = {"NaN", "Infinity", "-Infinity"};

	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		if (n >= strlen(names[i]) && !memcmp(p, names[i], strlen(names[i]))) {
			vfm_buf_adds(b, "null");
			return strlen(names[i]);
		}
	return *p == '-' || (*p >= '0' && *p <= '9') ? put_foreign_number(b, p, n) : 0;
}

static size_t string_length(const char *p, size_t n)
{
	size_t i = 1;

	while (i < n && p[i] != '"')
		i += p[i] == '\\' ? 2 : 1;
	return i < n ? i + 1 : n;
}

/* Writes a document in JSON's grammar to b.  Returns false if it is too deep. */
static bool rewrite_foreign(struct vfm_buf *b, const char *text, size_t len)
{
	static const char ends[] = " \t\r\n,:[]{}\"";
	size_t from = 0, i = 0, n;
	int depth = 0;

	while (i < len) {
		if (text[i] == '"') {
			i += string_length(text + i, len - i);
			continue;
		}
		depth += (text[i] == '[' || text[i] == '{') - (text[i] == ']' || text[i] == '}');
		if (depth > VFM_JSON_DEPTH)
			return false;
		if (memchr(ends, text[i], sizeof(ends) - 1)) {
			i++;
			continue;
		}
		vfm_buf_add(b, text + from, i - from);
		n = put_foreign_token(b, text + i, len - i);
		from = i += n;
		while (i < len && !memchr(ends, text[i], sizeof(ends) - 1))
			i++;
	}
	vfm_buf_add(b, text + from, len - from);
	return true;
}

/* Sets *e if it returns NULL. */
static json_t *load_foreign(const char *text, size_t len, size_t flags, json_error_t *e)
{
	struct vfm_buf b = {0};
	json_t *v = NULL;

	*e = (json_error_t){.line = 1, .column = 1};
	if (vfm_has_byte_order_mark(text, len))
		text += 3, len -= 3;
	if (rewrite_foreign(&b, text, len))
		v = json_loadb(b.data ? b.data : "", b.len, flags, e);
	else
		snprintf(e->text, sizeof(e->text), "deeper than %d", VFM_JSON_DEPTH);
	vfm_buf_release(&b);
	return v;
}

json_t *vfm_json_parse_foreign(const char *text, size_t len, const char *what, struct vfm_err *err)
{
	json_error_t e;
	json_t *v = load_foreign(text, len, JSON_REJECT_DUPLICATES, &e);

	if (!v)
		fail_parse(&e, what, err);
	return v;
}

/* ---- getters ----------------------------------------------------------------- */

static const char *type_name(const json_t *v)
{
	switch (json_typeof(v)) {
	case JSON_OBJECT:
		return "an object";
	case JSON_ARRAY:
		return "an array";
	case JSON_STRING:
		return "a string";
	case JSON_INTEGER:
		return "an integer";
	case JSON_REAL:
		return "a number";
	case JSON_TRUE:
	case JSON_FALSE:
		return "a boolean";
	case JSON_NULL:
		break;
	}
	return "null";
}

#define DOT(where) (*(where) ? "." : "")

/* Returns 1 with the value in *v, or 0 if it is absent and not required. */
static int find_value(const json_t *obj, const char *where, const char *key, bool required, const char *expected,
	const json_t **v, struct vfm_err *err)
{
	if (!json_is_object(obj))
		return vfm_fail(err, VFM_EUSAGE, "%s: expected an object, got %s", *where ? where : "top level",
			obj ? type_name(obj) : "nothing");
	*v = json_object_get(obj, key);
	if (*v && !(json_is_null(*v) && !required))
		return 1;
	if (!required)
		return 0;
	return vfm_fail(err, VFM_EUSAGE, "%s%s%s: missing (expected %s)", where, DOT(where), key, expected);
}

static int fail_type(const char *where, const char *key, const char *expected, const json_t *v, struct vfm_err *err)
{
	char real[VFM_REAL_TEXT];

	if (json_is_real(v))
		return vfm_fail(err, VFM_EUSAGE, "%s%s%s: expected %s, got %s", where, DOT(where), key, expected,
			vfm_real_text(real, json_real_value(v)));
	return vfm_fail(err, VFM_EUSAGE, "%s%s%s: expected %s, got %s", where, DOT(where), key, expected, type_name(v));
}

int vfm_json_i64(const json_t *obj, const char *where, const char *key, bool required, int64_t min, int64_t max,
	int64_t *out, struct vfm_err *err)
{
	const json_t *v;
	double real;
	int64_t n;
	int rc = find_value(obj, where, key, required, "an integer", &v, err);

	if (rc <= 0)
		return rc;
	if (json_is_integer(v)) {
		n = json_integer_value(v);
	} else if (json_is_real(v)) {
		real = json_real_value(v);
		if (!(fabs(real) <= 0x1p53) || real != floor(real))
			return fail_type(where, key, "an integer", v, err);
		n = (int64_t)real;
	} else {
		return fail_type(where, key, "an integer", v, err);
	}
	if (n < min || n > max) {
		if (max == INT64_MAX)
			return vfm_fail(err, VFM_EUSAGE,
				"%s%s%s: expected an integer of at least %" PRId64 ", got %" PRId64, where, DOT(where),
				key, min, n);
		return vfm_fail(err, VFM_EUSAGE,
			"%s%s%s: expected an integer from %" PRId64 " to %" PRId64 ", got %" PRId64, where, DOT(where),
			key, min, max, n);
	}
	*out = n;
	return 0;
}

int vfm_json_i32(const json_t *obj, const char *where, const char *key, bool required, int32_t min, int32_t max,
	int32_t *out, struct vfm_err *err)
{
	int64_t n = *out;

	TRY(vfm_json_i64(obj, where, key, required, min, max, &n, err));
	*out = (int32_t)n;
	return 0;
}

int vfm_json_f64(const json_t *obj, const char *where, const char *key, bool required, double *out, struct vfm_err *err)
{
	const json_t *v;
	int rc = find_value(obj, where, key, required, "a number", &v, err);

	if (rc <= 0)
		return rc;
	if (!json_is_number(v))
		return fail_type(where, key, "a number", v, err);
	*out = json_number_value(v);
	return 0;
}

int vfm_json_str(
	const json_t *obj, const char *where, const char *key, bool required, const char **out, struct vfm_err *err)
{
	const json_t *v;
	int rc = find_value(obj, where, key, required, "a string", &v, err);

	if (rc <= 0)
		return rc;
	if (!json_is_string(v))
		return fail_type(where, key, "a string", v, err);
	*out = json_string_value(v);
	return 0;
}

int vfm_json_only_keys(const json_t *obj, const char *where, const char *const *keys, struct vfm_err *err)
{
	const char *key, *near;
	json_t *v;

	if (!json_is_object(obj))
		return vfm_fail(err, VFM_EUSAGE, "%s: expected an object, got %s", *where ? where : "top level",
			obj ? type_name(obj) : "nothing");
	json_object_foreach((json_t *)(uintptr_t)obj, key, v)
	{
		int i = 0;

		while (keys[i] && strcmp(keys[i], key) != 0)
			i++;
		if (keys[i])
			continue;
		near = vfm_near(key, keys);
		if (near)
			return vfm_fail(err, VFM_EUSAGE, "%s%s%s: unknown key (did you mean '%s'?)", where, DOT(where),
				key, near);
		return vfm_fail(err, VFM_EUSAGE, "%s%s%s: unknown key", where, DOT(where), key);
	}
	return 0;
}

/* ---- writing ----------------------------------------------------------------- */

json_t *vfm_json_real(double x)
{
	return isfinite(x) ? json_real(x) : json_null();
}

static void put_string(struct vfm_buf *b, const char *s, size_t len)
{
	static const char esc[] = "\b\f\n\r\t\"\\", as[] = "bfnrt\"\\";
	size_t from = 0;

	vfm_buf_add(b, "\"", 1);
	for (size_t i = 0; i < len; i++) {
		unsigned char c = (unsigned char)s[i];
		const char *e;

		if (c >= 0x20 && c != '"' && c != '\\')
			continue;
		vfm_buf_add(b, s + from, i - from);
		from = i + 1;
		e = c ? strchr(esc, c) : NULL;
		if (e)
			vfm_buf_addf(b, "\\%c", as[e - esc]);
		else
			vfm_buf_addf(b, "\\u%04x", c);
	}
	vfm_buf_add(b, s + from, len - from);
	vfm_buf_add(b, "\"", 1);
}

const char *vfm_real_text(char text[VFM_REAL_TEXT], double x)
{
	for (int digits = 15; digits <= 17; digits++) {
		snprintf(text, VFM_REAL_TEXT, "%.*g", digits, x);
		if (strtod(text, NULL) == x)
			break;
	}
	return text;
}

static void put_real(struct vfm_buf *b, double x)
{
	char s[VFM_REAL_TEXT];

	vfm_real_text(s, x);
	/* The next reader must see a real number. */
	if (!strpbrk(s, ".e"))
		memcpy(s + strlen(s), ".0", 3);
	vfm_buf_adds(b, s);
}

static void new_line(struct vfm_buf *b, int indent, int depth)
{
	if (indent > 0)
		vfm_buf_addf(b, "\n%*s", indent * depth, "");
}

static void put_value(struct vfm_buf *b, const json_t *v, int indent, int depth)
{
	const char *key;
	json_t *x;
	size_t i, n = 0;

	switch (json_typeof(v)) {
	case JSON_OBJECT:
		vfm_buf_adds(b, "{");
		json_object_foreach((json_t *)(uintptr_t)v, key, x)
		{
			if (n++)
				vfm_buf_adds(b, ",");
			new_line(b, indent, depth + 1);
			put_string(b, key, strlen(key));
			vfm_buf_adds(b, indent > 0 ? ": " : ":");
			put_value(b, x, indent, depth + 1);
		}
		if (n)
			new_line(b, indent, depth);
		vfm_buf_adds(b, "}");
		break;
	case JSON_ARRAY:
		vfm_buf_adds(b, "[");
		json_array_foreach(v, i, x)
		{
			if (i)
				vfm_buf_adds(b, indent > 0 ? ", " : ",");
			put_value(b, x, indent, depth + 1);
		}
		vfm_buf_adds(b, "]");
		break;
	case JSON_STRING:
		put_string(b, json_string_value(v), json_string_length(v));
		break;
	case JSON_INTEGER:
		vfm_buf_addf(b, "%" JSON_INTEGER_FORMAT, json_integer_value(v));
		break;
	case JSON_REAL:
		put_real(b, json_real_value(v));
		break;
	case JSON_TRUE:
		vfm_buf_adds(b, "true");
		break;
	case JSON_FALSE:
		vfm_buf_adds(b, "false");
		break;
	case JSON_NULL:
		vfm_buf_adds(b, "null");
		break;
	}
}

void vfm_json_text(struct vfm_buf *b, const json_t *v, int indent)
{
	put_value(b, v, indent, 0);
}

int vfm_json_save(const char *dir, const char *name, const json_t *v, int indent, struct vfm_err *err)
{
	char *path = dir ? vfm_strfmt("%s/%s", dir, name) : vfm_strdup(name);
	struct vfm_buf b = {0};
	int rc;

	vfm_json_text(&b, v, indent);
	vfm_buf_adds(&b, "\n");
	rc = vfm_write_file(path, b.data, b.len, err);
	vfm_buf_release(&b);
	free(path);
	return rc;
}

int vfm_jsonl_write(FILE *f, const json_t *obj, struct vfm_err *err)
{
	struct vfm_buf b = {0};
	int rc = 0;

	put_value(&b, obj, 0, 0);
	vfm_buf_adds(&b, "\n");
	if (fwrite(b.data, 1, b.len, f) != b.len)
		rc = vfm_fail_errno(err, errno == EPIPE ? VFM_EPIPE : VFM_EENV, "cannot write record");
	vfm_buf_release(&b);
	return rc;
}

/* ---- reading lines ----------------------------------------------------------- */

int vfm_jsonl_open(struct vfm_jsonl *r, const char *path, struct vfm_err *err)
{
	size_t max = r->max_line ? r->max_line : VFM_JSONL_LINE;

	*r = (struct vfm_jsonl){.max_line = max, .is_foreign = r->is_foreign};
	if (strcmp(path, "-") == 0) {
		r->f = stdin;
		r->name = "<stdin>";
		return 0;
	}
	r->f = fopen(path, "re");
	if (!r->f)
		return vfm_fail_errno(err, VFM_EUSAGE, "cannot open '%s'", path);
	r->owns_file = true;
	r->name = vfm_strdup(path);
	return 0;
}

void vfm_jsonl_close(struct vfm_jsonl *r)
{
	if (r->owns_file) {
		fclose(r->f);
		free((void *)(uintptr_t)r->name);
	}
	free(r->buf);
	*r = (struct vfm_jsonl){0};
}

int vfm_jsonl_too_long(const struct vfm_jsonl *r, int64_t line, size_t len, struct vfm_err *err)
{
	return vfm_fail(err, VFM_EINPUT, "%s:%" PRId64 ": line is too long (%zu bytes, at most %zu)", r->name, line,
		len, r->max_line);
}

/* Reads a line without its newline.  Returns 1, 0 at the end, VFM_EINPUT after skipping a line that is too long, or
 * VFM_EENV. */
static int read_jsonl_line(struct vfm_jsonl *r, size_t *len, struct vfm_err *err)
{
	size_t n = 0;
	int c = EOF;

	flockfile(r->f);
	for (;;) {
		c = getc_unlocked(r->f);
		if (c == EOF && ferror(r->f) && errno == EINTR) {
			clearerr(r->f);
			continue;
		}
		if (c == EOF || c == '\n')
			break;
		if (n < r->max_line) {
			if (n + 2 > r->cap)
				vfm_grow(&r->buf, &r->cap, n + 2, 1);
			r->buf[n] = (char)c;
		}
		n++;
	}
	funlockfile(r->f);
	if (c == EOF && ferror(r->f))
		return vfm_fail_errno(err, VFM_EENV, "cannot read '%s'", r->name);
	if (c == EOF && n == 0)
		return 0;
	r->line++;
	if (n > r->max_line)
		return vfm_jsonl_too_long(r, r->line, n, err);
	*len = n;
	if (n)
		r->buf[n] = 0;
	return 1;
}

/* Takes the byte order mark of some editors off the first line.  Returns whether the line is not blank. */
static bool trim_jsonl_line(char **text, size_t *len, int64_t line)
{
	size_t i = 0;

	if (line == 1 && vfm_has_byte_order_mark(*text, *len))
		*text += 3, *len -= 3;
	while (i < *len && ((*text)[i] == ' ' || (*text)[i] == '\t' || (*text)[i] == '\r'))
		i++;
	return i < *len;
}

int vfm_jsonl_text(struct vfm_jsonl *r, const char **text, size_t *bytes, struct vfm_err *err)
{
	size_t len = 0;
	char *s;
	int rc;

	do {
		rc = read_jsonl_line(r, &len, err);
		if (rc <= 0)
			return rc;
		s = r->buf;
	} while (!trim_jsonl_line(&s, &len, r->line));
	*text = s;
	*bytes = len;
	return 1;
}

int vfm_jsonl_parse(const struct vfm_jsonl *r, const char *s, size_t len, json_t **out, struct vfm_err *err)
{
	const size_t flags = JSON_REJECT_DUPLICATES | JSON_DECODE_ANY;
	json_error_t e;
	json_t *v;

	*out = NULL;
	v = r->is_foreign ? load_foreign(s, len, flags, &e) : json_loadb(s, len, flags, &e);
	if (!v)
		return vfm_fail(err, VFM_EINPUT, "%s:%" PRId64 ": %s", r->name, r->line, e.text);
	if (!json_is_object(v)) {
		vfm_fail(err, VFM_EINPUT, "%s:%" PRId64 ": expected an object, got %s", r->name, r->line, type_name(v));
		json_decref(v);
		return VFM_EINPUT;
	}
	*out = v;
	return 1;
}

int vfm_jsonl_next(struct vfm_jsonl *r, json_t **out, struct vfm_err *err)
{
	const char *text;
	size_t len;
	int rc = vfm_jsonl_text(r, &text, &len, err);

	*out = NULL;
	return rc == 1 ? vfm_jsonl_parse(r, text, len, out, err) : rc;
}

int vfm_jsonl_each(const char *path, int (*take)(void *ctx, const json_t *rec, struct vfm_err *err), void *ctx,
	struct vfm_err *err)
{
	struct vfm_jsonl in = {0};
	json_t *rec;
	int rc;

	TRY(vfm_jsonl_open(&in, path, err));
	while ((rc = vfm_jsonl_next(&in, &rec, err)) == 1) {
		rc = take(ctx, rec, err);
		json_decref(rec);
		if (rc < 0) {
			vfm_err_context(err, "%s:%lld", in.name, (long long)in.line);
			break;
		}
	}
	vfm_jsonl_close(&in);
	return rc;
}

/* ---- blocks of lines --------------------------------------------------------- */

static int fill_block(struct vfm_jsonl *r, struct vfm_jsonl_block *b, size_t bytes, struct vfm_err *err)
{
	size_t want = b->len + bytes, n = 1;

	vfm_grow(&b->text, &b->cap, want + 1, 1);
	while (b->len < want && n) {
		n = fread(b->text + b->len, 1, want - b->len, r->f);
		b->len += n;
		if (!n && ferror(r->f) && errno == EINTR) {
			clearerr(r->f);
			n = 1;
		}
	}
	if (ferror(r->f))
		return vfm_fail_errno(err, VFM_EENV, "cannot read '%s'", r->name);
	return b->len == want;
}

/* The line that begins the block is too long: skips it, and leaves the bytes after it to the next block. */
static int skip_long_line(struct vfm_jsonl *r, struct vfm_jsonl_block *b, size_t bytes, struct vfm_err *err)
{
	size_t len = b->len, left;
	char *end;
	int rc = 1;

	for (end = NULL; !end && rc == 1; len += end ? (size_t)(end - b->text) : b->len) {
		b->len = 0;
		rc = fill_block(r, b, bytes, err);
		TRY(rc);
		end = memchr(b->text, '\n', b->len);
	}
	left = end ? b->len - (size_t)(end + 1 - b->text) : 0;
	vfm_grow(&r->buf, &r->cap, left + 1, 1);
	if (left)
		memcpy(r->buf, end + 1, left);
	r->rest = left;
	vfm_grow(&b->lines, &b->cap_lines, 1, sizeof(*b->lines));
	b->lines[0] = (struct vfm_jsonl_line){.len = len, .line = ++r->line, .too_long = true};
	b->n = 1;
	b->len = 0;
	return 1;
}

int vfm_jsonl_block_read(struct vfm_jsonl *r, struct vfm_jsonl_block *b, size_t bytes, struct vfm_err *err)
{
	char *end = NULL;
	int rc = 1;

	b->name = r->name;
	b->max_line = r->max_line;
	b->first_line = r->line;
	b->n = 0;
	b->len = r->rest;
	vfm_grow(&b->text, &b->cap, r->rest + 1, 1);
	if (r->rest)
		memcpy(b->text, r->buf, r->rest);
	while (rc == 1 && !end) {
		size_t from = b->len;

		if (from > r->max_line)
			return skip_long_line(r, b, bytes, err);
		rc = fill_block(r, b, bytes, err);
		TRY(rc);
		end = memrchr(b->text, '\n', b->len);
	}
	r->rest = 0;
	if (rc == 1) { /* not at the end of the file */
		r->rest = b->len - (size_t)(end + 1 - b->text);
		vfm_grow(&r->buf, &r->cap, r->rest + 1, 1);
		memcpy(r->buf, end + 1, r->rest);
		b->len -= r->rest;
	}
	b->text[b->len] = 0;
	for (const char *p = b->text; (p = memchr(p, '\n', (size_t)(b->text + b->len - p))); p++)
		r->line++;
	r->line += b->len && b->text[b->len - 1] != '\n';
	return b->len > 0;
}

void vfm_jsonl_block_split(struct vfm_jsonl_block *b)
{
	char *p = b->text, *end = b->text + b->len;
	int64_t line = b->first_line;

	if (p == end)
		return;
	for (b->n = 0; p < end;) {
		char *next = memchr(p, '\n', (size_t)(end - p));
		struct vfm_jsonl_line l = {.text = p, .line = ++line};

		next = next ? next : end;
		l.len = (size_t)(next - p);
		*next = 0;
		p = next + 1;
		l.too_long = l.len > b->max_line;
		if (!l.too_long && !trim_jsonl_line(&l.text, &l.len, line))
			continue;
		vfm_grow(&b->lines, &b->cap_lines, b->n + 1, sizeof(*b->lines));
		b->lines[b->n++] = l;
	}
}

void vfm_jsonl_block_release(struct vfm_jsonl_block *b)
{
	free(b->text);
	free(b->lines);
	*b = (struct vfm_jsonl_block){0};
}
