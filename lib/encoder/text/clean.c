/* clean.c - rewrites characters, entities, widths and white space of a prompt in passes. */
#include "encoder/text/clean.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "encoder/text/clean_impl.h"

/* Each "amp;" of "&amp;amp;..." costs another round, so that without a limit the time is quadratic. */
enum { ROUNDS_MAX = 64 };

void clean_put(struct clean_text *t, int32_t c)
{
	vfm_grow(&t->c, &t->cap, t->n + 1, sizeof(*t->c));
	t->c[t->n++] = c;
}

static void add_characters(struct clean_text *t, const int32_t *c, size_t n)
{
	vfm_grow(&t->c, &t->cap, t->n + n, sizeof(*t->c));
	if (n)
		memcpy(t->c + t->n, c, n * sizeof(*c));
	t->n += n;
}

static bool equal_texts(const struct clean_text *a, const struct clean_text *b)
{
	return a->n == b->n && (!a->n || !memcmp(a->c, b->c, a->n * sizeof(*a->c)));
}

/* \s of Python. */
static bool is_python_space(int32_t c)
{
	return (c >= 9 && c <= 13) || (c >= 0x1c && c <= 0x20) || c == 0x85 || c == 0xa0 || c == 0x1680 ||
		(c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}

int32_t clean_from_cp1252(uint8_t byte)
{
	static const uint16_t high[32] = {0x20ac, 0x81, 0x201a, 0x192, 0x201e, 0x2026, 0x2020, 0x2021, 0x2c6, 0x2030,
		0x160, 0x2039, 0x152, 0x8d, 0x17d, 0x8f, 0x90, 0x2018, 0x2019, 0x201c, 0x201d, 0x2022, 0x2013, 0x2014,
		0x2dc, 0x2122, 0x161, 0x203a, 0x153, 0x9d, 0x17e, 0x178};

	return byte >= 0x80 && byte <= 0x9f ? high[byte - 0x80] : byte;
}

/* ---- single characters ---- */

static const char *ligature_of(int32_t c)
{
	static const struct {
		int32_t c;
		const char *text;
	} map[] = {{0x132, "IJ"}, {0x133, "ij"}, {0x149, "\xca\xbcn"}, {0x1c4, "D\xc5\xbd"}, {0x1c5, "D\xc5\xbe"},
		{0x1c6, "d\xc5\xbe"}, {0x1c7, "LJ"}, {0x1c8, "Lj"}, {0x1c9, "lj"}, {0x1ca, "NJ"}, {0x1cb, "Nj"},
		{0x1cc, "nj"}, {0x1f1, "DZ"}, {0x1f2, "Dz"}, {0x1f3, "dz"}, {0xfb00, "ff"}, {0xfb01, "fi"},
		{0xfb02, "fl"}, {0xfb03, "ffi"}, {0xfb04, "ffl"}, {0xfb05, "\xc5\xbft"}, {0xfb06, "st"}};

	if (c < 0x132 || (c > 0x1f3 && (c < 0xfb00 || c > 0xfb06)))
		return NULL;
	for (size_t i = 0; i < sizeof(map) / sizeof(*map); i++)
		if (map[i].c == c)
			return map[i].text;
	return NULL;
}

static void put_utf8(struct clean_text *t, const char *s)
{
	utf8proc_int32_t c;

	for (utf8proc_ssize_t n; *s && (n = utf8proc_iterate((const uint8_t *)s, -1, &c)) > 0; s += n)
		clean_put(t, c);
}

/* The compatibility form of a full-width or half-width character. */
static void put_width(struct clean_text *t, int32_t c)
{
	utf8proc_int32_t d[8];
	utf8proc_ssize_t n = utf8proc_decompose_char(c, d, 8, UTF8PROC_COMPAT | UTF8PROC_DECOMPOSE, NULL);

	if (n < 1 || n > 8)
		clean_put(t, c);
	else
		add_characters(t, d, (size_t)n);
}

static bool is_removed_control(int32_t c)
{
	return (c >= 0 && c <= 8) || c == 0xb || (c >= 0xe && c <= 0x1f) || c == 0x7f || (c >= 0x206a && c <= 0x206f) ||
		c == 0xfeff || (c >= 0xfff9 && c <= 0xfffc);
}

/* Returns the characters of a terminal escape at c[0], ESC [ 0-9; letter; 0: none. */
static size_t escape_length(const int32_t *c, size_t n)
{
	size_t i = 2;

	if (n < 3 || c[0] != 0x1b || c[1] != '[')
		return 0;
	while (i < n && (c[i] == ';' || utf8proc_category(c[i]) == UTF8PROC_CATEGORY_ND))
		i++;
	return i < n && ((c[i] | 0x20) >= 'a' && (c[i] | 0x20) <= 'z') ? i + 1 : 0;
}

/* Step 2. */
static void map_characters(const struct clean_text *in, struct clean_text *out)
{
	out->n = 0;
	for (size_t i = 0; i < in->n; i++) {
		int32_t c = in->c[i];
		const char *ligature;

		if (c < 0x80 && c != '\r') {
			clean_put(out, c);
			continue;
		}
		ligature = ligature_of(c);
		if (c >= 0x80 && c <= 0x9f)
			c = clean_from_cp1252((uint8_t)c);
		if (ligature)
			put_utf8(out, ligature);
		else if (c >= 0xff01 && c <= 0xffef)
			put_width(out, c);
		else if (c == 0x3000)
			clean_put(out, ' ');
		else if (c == 0x2bc || (c >= 0x2018 && c <= 0x201b))
			clean_put(out, '\'');
		else if (c >= 0x201c && c <= 0x201f)
			clean_put(out, '"');
		else if (c == '\r' || c == 0x2028 || c == 0x2029 || c == 0x85)
			clean_put(out, '\n');
		else
			clean_put(out, c);
		if (in->c[i] == '\r' && i + 1 < in->n && in->c[i + 1] == '\n')
			i++;
	}
}

static void remove_controls(struct clean_text *t)
{
	size_t n = 0;

	for (size_t i = 0; i < t->n;) {
		size_t skip = escape_length(t->c + i, t->n - i);

		if (skip) {
			i += skip;
			continue;
		}
		if (!is_removed_control(t->c[i]))
			t->c[n++] = t->c[i];
		i++;
	}
	t->n = n;
}

static int combining_class(int32_t c)
{
	return c < 0x300 ? 0 : utf8proc_get_property(c)->combining_class;
}

/* Sorts n characters by their combining class, stable.  Overwrites *tmp. */
static void sort_marks(int32_t *c, size_t n, struct clean_text *tmp)
{
	size_t first[257] = {0};

	tmp->n = 0;
	add_characters(tmp, c, n);
	for (size_t i = 0; i < n; i++)
		first[combining_class(c[i]) + 1]++;
	for (int k = 0; k < 256; k++)
		first[k + 1] += first[k];
	for (size_t i = 0; i < n; i++)
		c[first[combining_class(tmp->c[i])]++] = tmp->c[i];
}

/* Writes the NFC of *in to *out: what utf8proc composes of the decomposition.  Overwrites *in. */
static void compose_text(struct clean_text *in, struct clean_text *out)
{
	utf8proc_int32_t d[32];
	utf8proc_ssize_t n;
	bool plain = true;

	for (size_t i = 0; i < in->n && plain; i++)
		plain = in->c[i] < 0x300;
	out->n = 0;
	if (plain) { /* such text is in NFC */
		add_characters(out, in->c, in->n);
		return;
	}
	for (size_t i = 0; i < in->n; i++) {
		n = utf8proc_decompose_char(in->c[i], d, 32, UTF8PROC_STABLE | UTF8PROC_DECOMPOSE, NULL);
		add_characters(out, n > 0 && n <= 32 ? d : in->c + i, n > 0 && n <= 32 ? (size_t)n : 1);
	}
	for (size_t i = 0, end; i < out->n; i = end + 1) {
		for (end = i; end < out->n && combining_class(out->c[end]); end++)
			;
		if (end - i > 1)
			sort_marks(out->c + i, end - i, in);
	}
	n = utf8proc_normalize_utf32(out->c, (utf8proc_ssize_t)out->n, UTF8PROC_STABLE | UTF8PROC_COMPOSE);
	if (n >= 0)
		out->n = (size_t)n;
}

/* ---- the whole ---- */

static void swap_texts(struct clean_text *a, struct clean_text *b)
{
	struct clean_text t = *a;

	*a = *b;
	*b = t;
}

/* fix_text on one line, in place. */
static void fix_line(struct clean_text *t, bool entities, struct clean_text *a, struct clean_text *b)
{
	for (int i = 0; i < ROUNDS_MAX; i++) {
		a->n = 0;
		if (entities)
			clean_entities(t, true, a);
		else
			add_characters(a, t->c, t->n);
		map_characters(a, b);
		remove_controls(b);
		compose_text(b, a);
		if (equal_texts(a, t))
			return;
		swap_texts(a, t);
	}
}

/* Replaces *t by fix_text(*t). */
static void fix_lines(struct clean_text *t)
{
	struct clean_text out = {0}, line = {0}, a = {0}, b = {0};
	bool entities = true;

	for (size_t i = 0, end; i < t->n; i = end) {
		for (end = i; end < t->n && t->c[end] != '\n'; end++)
			if (t->c[end] == '<')
				entities = false;
		end += end < t->n;
		line.n = 0;
		add_characters(&line, t->c + i, end - i);
		fix_line(&line, entities, &a, &b);
		add_characters(&out, line.c, line.n);
	}
	swap_texts(t, &out);
	free(out.c);
	free(line.c);
	free(a.c);
	free(b.c);
}

/* Appends t with each run of white space as one space, none at the ends. */
static void write_words(const struct clean_text *t, struct vfm_buf *out)
{
	bool space = false;

	vfm_buf_add(out, "", 0);
	for (size_t i = 0; i < t->n; i++) {
		uint8_t utf8[4];

		if (is_python_space(t->c[i])) {
			space = out->len > 0;
			continue;
		}
		if (space)
			vfm_buf_add(out, " ", 1);
		space = false;
		vfm_buf_add(out, utf8, (size_t)utf8proc_encode_char(t->c[i], utf8));
	}
}

int vfm_clean_text(const char *text, struct vfm_buf *out, struct vfm_err *err)
{
	struct clean_text t = {0}, u = {0};
	size_t len = strlen(text);
	int rc = 0;

	for (size_t i = 0; i < len;) {
		utf8proc_int32_t c;
		utf8proc_ssize_t n = utf8proc_iterate((const uint8_t *)text + i, (utf8proc_ssize_t)(len - i), &c);

		if (n <= 0) {
			rc = vfm_fail(err, VFM_EINPUT, "text: byte %zu is not valid UTF-8", i);
			goto out;
		}
		clean_put(&t, c);
		i += (size_t)n;
	}
	fix_lines(&t);
	clean_entities(&t, false, &u);
	clean_entities(&u, false, &t);
	vfm_buf_clear(out);
	write_words(&t, out);
out:
	free(t.c);
	free(u.c);
	return rc;
}
