#include "io/yaml.h"

#include <errno.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "io/file.h"
#include "io/json.h"

#define MAX_DEPTH 32

struct yaml_line {
	char *text; /* without indentation, comment and trailing blanks */
	int indent, number;
};

struct yaml {
	const char *name;
	struct yaml_line *lines;
	size_t n, cap, at;
	int depth;
	struct vfm_err *err;
};

static json_t *parse_yaml_block(struct yaml *y, int indent);
static json_t *parse_yaml_flow(struct yaml *y, const char **at, const char *stop);

static json_t *refuse_yaml(struct yaml *y, const char *why)
{
	size_t i = y->at < y->n ? y->at : y->n ? y->n - 1 : 0;

	vfm_fail(y->err, VFM_EUSAGE, "'%s', line %d: %s", y->name, y->n ? y->lines[i].number : 1, why);
	return NULL;
}

/* ---- lines ---- */

/* Ends the line at a comment: # at its beginning or behind a blank, outside of quotes. */
static void cut_comment(char *s)
{
	char quote = 0;

	for (char *p = s; *p; p++) {
		if (quote == '"' && *p == '\\' && p[1])
			p++;
		else if (quote == '\'' && *p == '\'' && p[1] == '\'')
			p++;
		else if (quote)
			quote = *p == quote ? 0 : quote;
		else if ((*p == '"' || *p == '\'') && (p == s || strchr(" [{,:-", p[-1])))
			quote = *p;
		else if (*p == '#' && (p == s || p[-1] == ' ' || p[-1] == '\t')) {
			*p = 0;
			return;
		}
	}
}

static bool is_document_mark(const char *line, const char *mark)
{
	return strncmp(line, mark, 3) == 0 && (!line[3] || line[3] == ' ');
}

/* Divides the text, which it changes. */
static bool split_yaml_lines(struct yaml *y, char *text)
{
	int number = 0;

	for (char *line = text, *end; line; line = end) {
		size_t n;
		int indent;

		end = strchr(line, '\n');
		if (end)
			*end++ = 0;
		number++;
		cut_comment(line);
		n = strlen(line);
		while (n && strchr(" \t\r", line[n - 1]))
			line[--n] = 0;
		indent = (int)strspn(line, " ");
		if (!line[indent] || (is_document_mark(line, "---") && !line[3] && y->n == 0))
			continue;
		if (is_document_mark(line, "..."))
			return true;
		vfm_grow(&y->lines, &y->cap, y->n + 1, sizeof(*y->lines));
		y->lines[y->n] = (struct yaml_line){line + indent, indent, number};
		y->at = y->n++;
		if (line[indent] == '\t' || *line == '%' || is_document_mark(line, "---")) {
			refuse_yaml(y, "a tab before the text, a directive or a second document");
			return false;
		}
	}
	return true;
}

/* ---- scalars ---- */

static json_t *new_yaml_string(struct yaml *y, const char *s, size_t n)
{
	struct vfm_err err;
	json_t *j = vfm_json_string(s, n, "a text", &err);

	return j ? j : refuse_yaml(y, err.msg);
}

/* *at stands at the quote, and then behind the closing one. */
static json_t *parse_yaml_quoted(struct yaml *y, const char **at)
{
	static const char escapes[] = "\\\\\"\"//n\nt\tr\r";
	const char quote = **at, *p = *at + 1;
	struct vfm_buf b = {0};
	json_t *j = NULL;

	for (; *p && (*p != quote || (quote == '\'' && p[1] == '\'')); p++) {
		const char *e = escapes;

		if (quote == '"' && *p == '\\') {
			p++;
			while (*e && *e != *p)
				e += 2;
			if (!*e) {
				vfm_buf_release(&b);
				return refuse_yaml(y, "an escape that is not read");
			}
			vfm_buf_add(&b, e + 1, 1);
			continue;
		}
		p += *p == quote;
		vfm_buf_add(&b, p, 1);
	}
	if (*p == quote)
		j = new_yaml_string(y, b.data ? b.data : "", b.len);
	else
		refuse_yaml(y, "a quoted text does not end in its line");
	*at = p + (*p == quote);
	vfm_buf_release(&b);
	return j;
}

static bool is_yaml_word(const char *s, size_t n, const char *const words[3])
{
	for (int i = 0; i < 3; i++)
		if (strlen(words[i]) == n && memcmp(words[i], s, n) == 0)
			return true;
	return false;
}

/* A number of the core schema, or NULL. */
static json_t *yaml_number(const char *s, size_t n)
{
	char text[64], *end;
	double x;

	if (n == 0 || n >= sizeof(text) || strspn(s, "+-.0123456789eE") < n || !strpbrk(s, "0123456789"))
		return NULL;
	memcpy(text, s, n);
	text[n] = 0;
	if (!strpbrk(text, ".eE")) {
		errno = 0;
		long long v = strtoll(text, &end, 10);

		if (!*end && end != text && errno == 0)
			return json_integer(v);
	}
	x = strtod(text, &end);
	return *end || end == text || !isfinite(x) ? NULL : json_real(x);
}

static json_t *make_yaml_plain(struct yaml *y, const char *s, size_t n)
{
	static const char *const nulls[] = {"null", "~", "Null"}, *const yes[] = {"true", "True", "TRUE"},
				 *const no[] = {"false", "False", "FALSE"};
	json_t *number;

	if (n == 0 || is_yaml_word(s, n, nulls))
		return json_null();
	if (is_yaml_word(s, n, yes) || is_yaml_word(s, n, no))
		return json_boolean(is_yaml_word(s, n, yes));
	if (strchr("&*!|>%@`?", *s))
		return refuse_yaml(y, "anchors, aliases, tags, block scalars and complex keys are not read");
	number = yaml_number(s, n);
	return number ? number : new_yaml_string(y, s, n);
}

/* A plain scalar ends at ": ", or within a flow at one of the characters of `stop`. */
static size_t plain_length(const char *s, const char *stop)
{
	size_t n = 0;

	while (s[n] && !strchr(stop, s[n]) &&
		!(s[n] == ':' && (!s[n + 1] || s[n + 1] == ' ' || strchr(stop, s[n + 1]))))
		n++;
	while (n && s[n - 1] == ' ')
		n--;
	return n;
}

static void skip_blanks(const char **at)
{
	*at += strspn(*at, " \t");
}

/* ---- flow ---- */

/* A member "KEY: VALUE" of a mapping in one line; *at stands at the key. */
static bool parse_yaml_flow_member(struct yaml *y, const char **at, json_t *map)
{
	json_t *key = parse_yaml_flow(y, at, ",]}"), *value;
	bool ok = false;

	if (!key)
		return false;
	skip_blanks(at);
	if (!json_is_string(key) || **at != ':') {
		refuse_yaml(y, "expected KEY: VALUE");
	} else if (json_object_get(map, json_string_value(key))) {
		refuse_yaml(y, "a key stands twice");
	} else {
		++*at;
		value = parse_yaml_flow(y, at, ",]}");
		ok = value && json_object_set_new(map, json_string_value(key), value) == 0;
		if (value && !ok)
			refuse_yaml(y, "a key that JSON cannot hold");
	}
	json_decref(key);
	return ok;
}

static json_t *parse_yaml_collection(struct yaml *y, const char **at)
{
	const bool is_map = **at == '{';
	json_t *all = is_map ? json_object() : json_array();
	bool ok = ++y->depth < MAX_DEPTH;

	if (!ok)
		refuse_yaml(y, "nested too deeply");
	++*at;
	skip_blanks(at);
	while (ok && **at != (is_map ? '}' : ']')) {
		if (is_map) {
			ok = parse_yaml_flow_member(y, at, all);
		} else {
			json_t *v = parse_yaml_flow(y, at, ",]}");

			ok = v && json_array_append_new(all, v) == 0;
		}
		skip_blanks(at);
		if (ok && **at == ',')
			++*at;
		else if (ok && **at != (is_map ? '}' : ']'))
			ok = refuse_yaml(y, "expected a comma, or the end of the list in this line") != NULL;
		skip_blanks(at);
	}
	y->depth--;
	if (ok) {
		++*at;
		return all;
	}
	json_decref(all);
	return NULL;
}

/* A value within a line; *at moves behind it.  stop: the characters that end a plain scalar. */
static json_t *parse_yaml_flow(struct yaml *y, const char **at, const char *stop)
{
	const char *s;
	size_t n;

	skip_blanks(at);
	s = *at;
	if (*s == '[' || *s == '{')
		return parse_yaml_collection(y, at);
	if (*s == '"' || *s == '\'')
		return parse_yaml_quoted(y, at);
	n = plain_length(s, stop);
	*at = s + n;
	return make_yaml_plain(y, s, n);
}

/* The value that the rest of a line consists of. */
static json_t *parse_yaml_rest(struct yaml *y, const char *s)
{
	json_t *v = parse_yaml_flow(y, &s, "");

	skip_blanks(&s);
	if (v && *s) {
		json_decref(v);
		return refuse_yaml(y, "something follows the value");
	}
	return v;
}

/* ---- blocks ---- */

static bool is_item(const char *s)
{
	return *s == '-' && (!s[1] || s[1] == ' ');
}

/* The block that is indented deeper than the line before, or null. */
static json_t *parse_yaml_below(struct yaml *y, int indent, bool is_value)
{
	const struct yaml_line *l = y->at < y->n ? &y->lines[y->at] : NULL;

	/* the items of a sequence may stand below the first letter of its key */
	if (l && (l->indent > indent || (is_value && l->indent == indent && is_item(l->text))))
		return parse_yaml_block(y, l->indent);
	return json_null();
}

static json_t *parse_yaml_item(struct yaml *y, int indent)
{
	struct yaml_line *l = &y->lines[y->at];
	int blanks = (int)strspn(l->text + 1, " ");

	if (!l->text[1]) {
		y->at++;
		return parse_yaml_below(y, indent, false);
	}
	l->text += 1 + blanks; /* the content is a block of its own, indented as far as it stands */
	l->indent += 1 + blanks;
	return parse_yaml_block(y, l->indent);
}

/* "KEY: VALUE", or "KEY:" and a block.  Returns whether the line begins with a key. */
static bool parse_yaml_member(struct yaml *y, int indent, json_t *map)
{
	const char *s = y->lines[y->at].text;
	json_t *key = parse_yaml_flow(y, &s, ""), *value = NULL;

	if (!key)
		return false;
	skip_blanks(&s);
	if (json_is_string(key) && *s == ':' && (!s[1] || s[1] == ' ')) {
		s++;
		skip_blanks(&s);
		if (json_object_get(map, json_string_value(key))) {
			refuse_yaml(y, "a key stands twice");
		} else if (*s) {
			value = parse_yaml_rest(y, s);
			y->at++;
		} else {
			y->at++;
			value = parse_yaml_below(y, indent, true);
		}
	} else {
		refuse_yaml(y, "expected KEY: VALUE");
	}
	if (value && json_object_set_new(map, json_string_value(key), value) != 0) {
		refuse_yaml(y, "a key that JSON cannot hold");
		value = NULL;
	}
	json_decref(key);
	return value;
}

static bool begins_with_key(const char *s)
{
	if (*s == '"' || *s == '\'') {
		const char quote = *s++;

		for (; *s && (*s != quote || (quote == '\'' && s[1] == '\'')); s++)
			s += s[1] && (*s == quote || (quote == '"' && *s == '\\'));
		return *s && s[1] == ':';
	}
	if (*s == '[' || *s == '{')
		return false;
	s += plain_length(s, "");
	return *s == ':' || (*s == ' ' && s[strspn(s, " ")] == ':');
}

static json_t *parse_yaml_block(struct yaml *y, int indent)
{
	const bool is_seq = is_item(y->lines[y->at].text);
	json_t *all;
	bool ok = ++y->depth < MAX_DEPTH;

	if (!ok)
		return refuse_yaml(y, "nested too deeply");
	if (!is_seq && !begins_with_key(y->lines[y->at].text)) {
		all = parse_yaml_rest(y, y->lines[y->at].text);
		y->at++;
		y->depth--;
		return all;
	}
	all = is_seq ? json_array() : json_object();
	while (ok && y->at < y->n && y->lines[y->at].indent == indent && is_item(y->lines[y->at].text) == is_seq) {
		if (is_seq) {
			json_t *v = parse_yaml_item(y, indent);

			ok = v && json_array_append_new(all, v) == 0;
		} else {
			ok = parse_yaml_member(y, indent, all);
		}
	}
	if (ok && y->at < y->n && y->lines[y->at].indent > indent)
		ok = refuse_yaml(y, "the indentation fits no block") != NULL;
	y->depth--;
	if (ok)
		return all;
	json_decref(all);
	return NULL;
}

json_t *vfm_yaml_parse(const char *text, size_t len, const char *name, struct vfm_err *err)
{
	struct vfm_err unused;
	struct yaml y = {.name = name, .err = err ? err : &unused};
	char *copy = vfm_malloc(len + 1);
	json_t *all = NULL;

	memcpy(copy, text, len);
	copy[len] = 0;
	if (memchr(text, 0, len)) {
		refuse_yaml(&y, "a byte of zero");
	} else if (split_yaml_lines(&y, copy)) {
		y.at = 0;
		all = y.n ? parse_yaml_block(&y, y.lines[0].indent) : json_null();
		if (all && y.at < y.n) {
			json_decref(all);
			all = refuse_yaml(&y, "the indentation fits no block");
		}
	}
	free(y.lines);
	free(copy);
	return all;
}

json_t *vfm_yaml_load(const char *path, size_t max, struct vfm_err *err)
{
	json_t *all;
	char *text;
	size_t len;

	if (vfm_read_file(path, max, &text, &len, err) < 0)
		return NULL;
	all = vfm_yaml_parse(text, len, path, err);
	free(text);
	return all;
}
