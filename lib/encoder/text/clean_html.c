/* HTML entities.  Names come from Gumbo, whose parser has the table of HTML5; numbers follow html.unescape of Python,
 * which follows the HTML5 specification but removes code points that are not allowed. */
#include <gumbo.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "base/mem.h"
#include "encoder/text/clean_impl.h"

enum { NAME_MAX_CHARS = 32, STRICT_MAX_CHARS = 24 };

static bool is_alnum(int32_t c)
{
	return (c >= '0' && c <= '9') || ((c | 0x20) >= 'a' && (c | 0x20) <= 'z' && c < 0x80);
}

static int digit_value(int32_t c, bool hex)
{
	if (c >= '0' && c <= '9')
		return c - '0';
	if (hex && c < 0x80 && (c | 0x20) >= 'a' && (c | 0x20) <= 'f')
		return (c | 0x20) - 'a' + 10;
	return -1;
}

/* ---- numbers ---- */

/* Appends the character of a number. */
static void put_number(struct clean_text *out, int64_t v)
{
	bool removed = (v >= 1 && v <= 8) || v == 0xb || (v >= 0xe && v <= 0x1f) || v == 0x7f ||
		(v >= 0xfdd0 && v <= 0xfdef) || (v & 0xfffe) == 0xfffe;

	if (v >= 0x80 && v <= 0x9f)
		clean_put(out, clean_from_cp1252((uint8_t)v));
	else if (!v || (v >= 0xd800 && v <= 0xdfff) || v > 0x10ffff)
		clean_put(out, 0xfffd);
	else if (!removed)
		clean_put(out, (int32_t)v);
}

/* Reads "&#12;" at c and appends its character.  Returns the characters read, 0: no number.  strict: a semicolon must
 * end it, and the result is no semicolon. */
static size_t decode_number(const int32_t *c, size_t n, bool strict, struct clean_text *out)
{
	bool hex = n > 2 && (c[2] == 'x' || c[2] == 'X');
	size_t i = hex ? 3 : 2, first = i;
	int64_t v = 0;

	for (int d; i < n && (d = digit_value(c[i], hex)) >= 0; i++)
		v = v > 0x10ffff ? v : v * (hex ? 16 : 10) + d;
	if (i == first)
		return 0;
	if (i < n && c[i] == ';')
		i++;
	else if (strict)
		return 0;
	if (strict && (v == ';' || i - 2 > STRICT_MAX_CHARS + 1))
		return 0;
	put_number(out, v);
	return i;
}

/* ---- names ---- */

/* Appends what HTML5 makes of "&name", at most NAME_MAX_CHARS + 1 characters; returns false if it stays as it is. */
static bool decode_html(const char *name, struct clean_text *out)
{
	char *doc = vfm_strfmt("<body>.&%s", name);
	GumboOutput *o = gumbo_parse(doc);
	const GumboNode *root = o->root, *body, *node = NULL;
	const char *text = NULL;
	bool found = false;
	utf8proc_int32_t c;

	body = root->v.element.children.length ? root->v.element.children.data[root->v.element.children.length - 1]
					       : NULL;
	if (body && body->type == GUMBO_NODE_ELEMENT && body->v.element.children.length)
		node = body->v.element.children.data[0];
	if (node && node->type == GUMBO_NODE_TEXT)
		text = node->v.text.text + 1;
	found = text && (text[0] != '&' || strncmp(text + 1, name, strlen(name)) != 0);
	for (utf8proc_ssize_t n; found && *text && (n = utf8proc_iterate((const uint8_t *)text, -1, &c)) > 0; text += n)
		clean_put(out, c);
	gumbo_destroy_output(&kGumboDefaultOptions, o);
	free(doc);
	return found;
}

/* The upper case of Python, which has several characters for these. */
static void put_upper(struct clean_text *out, int32_t c)
{
	static const struct {
		int32_t c;
		const char *upper;
	} several[] = {{0xdf, "SS"}, {0xfb00, "FF"}, {0xfb01, "FI"}, {0xfb02, "FL"}, {0xfb03, "FFI"}, {0xfb04, "FFL"}};

	if (c == 0x149) {
		clean_put(out, 0x2bc);
		clean_put(out, 'N');
		return;
	}
	for (size_t i = 0; i < sizeof(several) / sizeof(*several); i++)
		if (several[i].c == c) {
			for (const char *s = several[i].upper; *s; s++)
				clean_put(out, *s);
			return;
		}
	clean_put(out, utf8proc_toupper(c));
}

/* "NTILDE;", which HTML5 does not know: the upper case of what it makes of "ntilde;". */
static bool decode_upper(const char *name, struct clean_text *out)
{
	char lower[NAME_MAX_CHARS + 2];
	struct clean_text t = {0};
	size_t n = strlen(name);
	bool found;

	for (size_t i = 0; i <= n; i++) {
		if (name[i] >= 'a' && name[i] <= 'z')
			return false;
		lower[i] = (char)(name[i] >= 'A' && name[i] <= 'Z' ? name[i] | 0x20 : name[i]);
	}
	found = decode_html(lower, &t) && (t.n == 1 || t.c[t.n - 1] != ';');
	for (size_t i = 0; found && i < t.n; i++)
		put_upper(out, t.c[i]);
	free(t.c);
	return found;
}

/* Reads "&name;" at c and appends its characters.  Returns the characters read, 0: no entity. */
static size_t decode_name(const int32_t *c, size_t n, bool strict, struct clean_text *out)
{
	char name[NAME_MAX_CHARS + 2];
	size_t len = 0, before = out->n, max = strict ? STRICT_MAX_CHARS : NAME_MAX_CHARS;
	bool found;

	while (len < max && len + 1 < n && is_alnum(c[len + 1])) {
		name[len] = (char)c[len + 1];
		len++;
	}
	if (!len)
		return 0;
	if (len + 1 < n && c[len + 1] == ';')
		name[len++] = ';';
	else if (strict)
		return 0;
	name[len] = 0;
	found = decode_html(name, out);
	/* A shorter name without semicolon leaves the semicolon. */
	if (strict && found && out->n - before > 1 && out->c[out->n - 1] == ';') {
		out->n = before;
		return 0;
	}
	if (strict && !found)
		found = decode_upper(name, out);
	return found ? len + 1 : 0;
}

void clean_entities(const struct clean_text *in, bool strict, struct clean_text *out)
{
	out->n = 0;
	for (size_t i = 0; i < in->n;) {
		const int32_t *c = in->c + i;
		size_t n = in->n - i, used = 0;

		if (c[0] == '&' && n > 1)
			used = c[1] == '#' ? decode_number(c, n, strict, out) : decode_name(c, n, strict, out);
		if (!used) {
			clean_put(out, c[0]);
			used = 1;
		}
		i += used;
	}
}
