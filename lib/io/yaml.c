/* yaml.c - turns the events of libyaml into JSON values, without anchors, tags and duplicate keys. */
#include "io/yaml.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <yaml.h>

#include "io/json.h"

enum { MAX_DEPTH = 32 };

struct yaml {
	yaml_parser_t parser;
	yaml_event_t event;
	const char *name;
	int depth;
	bool failed; /* err has the first fault; no event is read any more */
	struct vfm_err *err;
};

static void refuse_yaml(struct yaml *y, size_t line, const char *why)
{
	if (!y->failed)
		vfm_fail(y->err, VFM_EUSAGE, "'%s', line %zu: %s", y->name, line + 1, why);
	y->failed = true;
}

static void refuse_event(struct yaml *y, const char *why)
{
	refuse_yaml(y, y->event.start_mark.line, why);
}

/* Returns false after a fault. */
static bool next_event(struct yaml *y)
{
	const yaml_parser_t *p = &y->parser;

	yaml_event_delete(&y->event);
	if (!y->failed && !yaml_parser_parse(&y->parser, &y->event))
		refuse_yaml(y, p->error == YAML_READER_ERROR ? p->mark.line : p->problem_mark.line,
			p->problem ? p->problem : "no memory");
	return !y->failed;
}

/* ---- scalars ---- */

static bool is_yaml_word(const char *s, const char *const words[], size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (strcmp(words[i], s) == 0)
			return true;
	return false;
}

/* A decimal number of the core schema that JSON can hold, or NULL. */
static json_t *parse_yaml_number(const char *s)
{
	char *end;
	double x;

	if (s[strspn(s, "+-.0123456789eE")] || !strpbrk(s, "0123456789"))
		return NULL;
	if (!strpbrk(s, ".eE")) {
		errno = 0;
		long long v = strtoll(s, &end, 10);

		if (!*end && errno == 0)
			return json_integer(v);
	}
	x = strtod(s, &end);
	return *end || !isfinite(x) ? NULL : json_real(x);
}

static json_t *read_yaml_text(struct yaml *y)
{
	struct vfm_err err;
	json_t *j =
		vfm_json_string((const char *)y->event.data.scalar.value, y->event.data.scalar.length, "a text", &err);

	if (!j)
		refuse_event(y, err.msg);
	return j;
}

static json_t *read_yaml_scalar(struct yaml *y)
{
	static const char *const nulls[] = {"", "~", "null", "Null", "NULL"}, *const yes[] = {"true", "True", "TRUE"},
				 *const no[] = {"false", "False", "FALSE"};
	const char *s = (const char *)y->event.data.scalar.value;
	json_t *number;

	if (y->event.data.scalar.style != YAML_PLAIN_SCALAR_STYLE)
		return read_yaml_text(y);
	if (is_yaml_word(s, nulls, 5))
		return json_null();
	if (is_yaml_word(s, yes, 3) || is_yaml_word(s, no, 3))
		return json_boolean(is_yaml_word(s, yes, 3));
	number = parse_yaml_number(s);
	return number ? number : read_yaml_text(y);
}

/* ---- nodes: each begins at the event that was read.  After a fault, NULL or a part of the value. ---- */

static json_t *read_node(struct yaml *y);

static bool has_no_properties(struct yaml *y)
{
	const yaml_event_t *e = &y->event;
	bool has;

	if (e->type == YAML_SCALAR_EVENT)
		has = e->data.scalar.anchor || e->data.scalar.tag;
	else if (e->type == YAML_MAPPING_START_EVENT)
		has = e->data.mapping_start.anchor || e->data.mapping_start.tag;
	else if (e->type == YAML_SEQUENCE_START_EVENT)
		has = e->data.sequence_start.anchor || e->data.sequence_start.tag;
	else
		has = true; /* an alias */
	if (has)
		refuse_event(y, "anchors, aliases and tags are not read");
	return !has;
}

static void read_pair(struct yaml *y, json_t *map)
{
	json_t *key = NULL;
	char why[256];

	if (has_no_properties(y) && y->event.type == YAML_SCALAR_EVENT)
		key = read_yaml_text(y);
	else
		refuse_event(y, "a key is no text");
	if (key && json_object_get(map, json_string_value(key))) {
		snprintf(why, sizeof(why), "the key '%.200s' occurs twice", json_string_value(key));
		refuse_event(y, why);
	}
	if (key && next_event(y))
		json_object_set_new(map, json_string_value(key), read_node(y));
	json_decref(key);
}

static json_t *read_collection(struct yaml *y)
{
	const bool is_map = y->event.type == YAML_MAPPING_START_EVENT;
	json_t *all = is_map ? json_object() : json_array();

	if (++y->depth > MAX_DEPTH)
		refuse_event(y, "nested too deeply");
	while (next_event(y) && y->event.type != YAML_MAPPING_END_EVENT && y->event.type != YAML_SEQUENCE_END_EVENT) {
		if (is_map)
			read_pair(y, all);
		else
			json_array_append_new(all, read_node(y));
	}
	y->depth--;
	return all;
}

static json_t *read_node(struct yaml *y)
{
	if (!has_no_properties(y))
		return NULL;
	return y->event.type == YAML_SCALAR_EVENT ? read_yaml_scalar(y) : read_collection(y);
}

json_t *vfm_yaml_parse(const char *text, size_t len, const char *name, struct vfm_err *err)
{
	struct yaml y = {.name = name, .err = err};
	json_t *all = NULL;

	if (!yaml_parser_initialize(&y.parser)) {
		vfm_fail(err, VFM_EENV, "no memory for a parser of YAML");
		return NULL;
	}
	yaml_parser_set_input_string(&y.parser, (const unsigned char *)text, len);
	if (next_event(&y) && next_event(&y) && y.event.type == YAML_STREAM_END_EVENT) {
		all = json_null();
	} else if (next_event(&y)) { /* after the beginnings of stream and document */
		all = read_node(&y);
		if (next_event(&y) && next_event(&y) && y.event.type != YAML_STREAM_END_EVENT)
			refuse_event(&y, "a second document");
	}
	yaml_event_delete(&y.event);
	yaml_parser_delete(&y.parser);
	if (!y.failed)
		return all;
	json_decref(all);
	return NULL;
}

bool vfm_yaml_is_name(const char *path)
{
	const char *dot = strrchr(path, '.');

	return dot && (strcmp(dot, ".yaml") == 0 || strcmp(dot, ".yml") == 0);
}
