/* Reads tokenizer.json of the `tokenizers` library: unigram models as T5 and UMT5 have them.  A key whose meaning is
 * not implemented is refused by its path. */
#include <openssl/evp.h>
#include <stdlib.h>
#include <string.h>

#include "encoder/text/text_tokenizer_impl.h"
#include "io/json.h"

enum { PIECE_MAX = 4096, PIECES_MAX = 4 << 20, ADDED_MAX = 100000, GROWTH_MAX = 32 };

static int refuse_key(const char *where, const char *key, const json_t *v, const char *expected, struct vfm_err *err)
{
	char *text = json_dumps(v, JSON_ENCODE_ANY | JSON_COMPACT);
	int rc = vfm_fail(err, VFM_EUSAGE, "%s.%s: %.60s is not supported, expected %s", where, key,
		text ? text : "nothing", expected);

	free(text);
	return rc;
}

static const char *type_of(const json_t *o)
{
	const char *s = json_string_value(json_object_get(o, "type"));

	return s ? s : "";
}

/* Calls read(t, where, element) on the elements of a Sequence, or on o itself. */
static int each_of(struct vfm_text_tokenizer *t, const char *where, const json_t *o, const char *list,
	int (*read)(struct vfm_text_tokenizer *, const char *, const json_t *, struct vfm_err *), struct vfm_err *err)
{
	const json_t *a = json_object_get(o, list);

	if (!o || json_is_null(o))
		return 0;
	if (strcmp(type_of(o), "Sequence") != 0)
		return read(t, where, o, err);
	for (size_t i = 0; i < json_array_size(a); i++) {
		char *at = vfm_strfmt("%s.%s[%zu]", where, list, i);
		int rc = read(t, at, json_array_get(a, i), err);

		free(at);
		if (rc < 0)
			return rc;
	}
	return 0;
}

/* ---- normalizer ---- */

static int read_precompiled(struct vfm_text_tokenizer *t, const char *where, const json_t *o, struct vfm_err *err)
{
	const json_t *map = json_object_get(o, "precompiled_charsmap");
	size_t len = json_string_length(map);
	unsigned char *blob;
	int n, rc;

	if (!json_is_string(map) || t->charsmap.n_units || len > 64 << 20)
		return refuse_key(where, "precompiled_charsmap", map, "one map in base64", err);
	blob = vfm_malloc(len + 4);
	n = EVP_DecodeBlock(blob, (const unsigned char *)json_string_value(map), (int)len);
	for (size_t i = len; n > 0 && i-- > 0 && len - i <= 2 && json_string_value(map)[i] == '=';)
		n--;
	rc = n < 0 ? vfm_fail(err, VFM_EUSAGE, "%s.precompiled_charsmap: not in base64", where)
		   : vfm_charsmap_init(&t->charsmap, blob, (size_t)n, where, err);
	free(blob);
	return rc;
}

static int read_replace(struct tokenizer_step *st, const char *where, const json_t *o, struct vfm_err *err)
{
	const json_t *pattern = json_object_get(o, "pattern");
	const char *literal = json_string_value(json_object_get(pattern, "String")),
		   *regex = json_string_value(json_object_get(pattern, "Regex")), *with = NULL;

	TRY(vfm_json_str(o, where, "content", true, &with, err));
	st->run = regex && !strcmp(regex, " {2,}");
	if (!st->run && (!literal || !literal[0]))
		return refuse_key(where, "pattern", pattern, "a text or the expression \" {2,}\"", err);
	st->pattern = vfm_strdup(st->run ? " " : literal);
	st->with = vfm_strdup(with);
	return 0;
}

static int read_normalizer_step(struct vfm_text_tokenizer *t, const char *where, const json_t *o, struct vfm_err *err)
{
	struct tokenizer_step *st = &t->step[t->n_steps];
	const char *type = type_of(o);

	if (t->n_steps == TOKENIZER_STEPS_MAX)
		return vfm_fail(err, VFM_EUSAGE, "%s: more than %d steps", where, TOKENIZER_STEPS_MAX);
	t->n_steps++;
	if (!strcmp(type, "Precompiled")) {
		st->kind = STEP_CHARSMAP;
		return read_precompiled(t, where, o, err);
	}
	if (!strcmp(type, "Replace")) {
		st->kind = STEP_REPLACE;
		return read_replace(st, where, o, err);
	}
	if (strcmp(type, "Strip") != 0)
		return refuse_key(where, "type", json_object_get(o, "type"), "Precompiled, Replace or Strip", err);
	st->kind = STEP_STRIP;
	st->left = json_is_true(json_object_get(o, "strip_left"));
	st->right = json_is_true(json_object_get(o, "strip_right"));
	return 0;
}

/* ---- pre-tokenizer ---- */

static int read_pre_tokenizer(struct vfm_text_tokenizer *t, const char *where, const json_t *o, struct vfm_err *err)
{
	const json_t *scheme = json_object_get(o, "prepend_scheme"), *mark = json_object_get(o, "replacement");
	const char *s = json_string_value(scheme);

	if (!strcmp(type_of(o), "WhitespaceSplit")) {
		t->split_space = true;
		return 0;
	}
	if (strcmp(type_of(o), "Metaspace") != 0)
		return refuse_key(where, "type", json_object_get(o, "type"), "WhitespaceSplit or Metaspace", err);
	if (!json_is_string(mark) || strcmp(json_string_value(mark), VFM_TEXT_TOKENIZER_SPACE) != 0)
		return refuse_key(where, "replacement", mark, "U+2581", err);
	if (s && strcmp(s, "always") != 0 && strcmp(s, "first") != 0 && strcmp(s, "never") != 0)
		return refuse_key(where, "prepend_scheme", scheme, "always, first or never", err);
	if (s)
		t->prepend = s[0] == 'a' ? PREPEND_ALWAYS : s[0] == 'f' ? PREPEND_FIRST : PREPEND_NEVER;
	else if (json_is_false(json_object_get(o, "add_prefix_space")))
		t->prepend = PREPEND_NEVER;
	t->split_words = !json_is_false(json_object_get(o, "split"));
	t->metaspace = true;
	return 0;
}

/* ---- model, added tokens, post-processor ---- */

static int read_pieces(struct vfm_text_tokenizer *t, const char *where, const json_t *model, struct vfm_err *err)
{
	const json_t *vocab = json_object_get(model, "vocab");

	if (strcmp(type_of(model), "Unigram") != 0)
		return refuse_key(where, "type", json_object_get(model, "type"), "Unigram", err);
	if (json_array_size(vocab) > PIECES_MAX)
		return vfm_fail(err, VFM_EUSAGE, "%s.vocab: more than %d pieces", where, PIECES_MAX);
	for (size_t i = 0; i < json_array_size(vocab); i++) {
		const json_t *p = json_array_get(vocab, i), *text = json_array_get(p, 0), *score = json_array_get(p, 1);

		if (!json_is_string(text) || !json_is_number(score) || json_string_length(text) > PIECE_MAX)
			return vfm_fail(err, VFM_EUSAGE,
				"%s.vocab[%zu]: expected a text of at most %d bytes and a number", where, i, PIECE_MAX);
		vfm_unigram_add(&t->model, json_string_value(text), json_string_length(text), json_number_value(score));
	}
	TRY(vfm_json_i32(model, where, "unk_id", true, 0, PIECES_MAX, &t->model.unk_id, err));
	t->model.byte_fallback = json_is_true(json_object_get(model, "byte_fallback"));
	return 0;
}

static int read_added(struct vfm_text_tokenizer *t, const char *path, const json_t *list, struct vfm_err *err)
{
	if (json_array_size(list) > ADDED_MAX)
		return vfm_fail(err, VFM_EUSAGE, "%s: added_tokens: more than %d", path, ADDED_MAX);
	for (size_t i = 0; i < json_array_size(list); i++) {
		const json_t *o = json_array_get(list, i);
		char *where = vfm_strfmt("%s: added_tokens[%zu]", path, i);
		const char *text = NULL;
		int64_t id = 0;
		int rc = vfm_json_str(o, where, "content", true, &text, err);

		if (rc >= 0)
			rc = vfm_json_i64(o, where, "id", true, 0, INT32_MAX, &id, err);
		if (rc >= 0 && json_is_true(json_object_get(o, "single_word")))
			rc = refuse_key(where, "single_word", json_true(), "false", err);
		if (rc >= 0 && json_is_true(json_object_get(o, "normalized")))
			rc = refuse_key(where, "normalized", json_true(), "false", err);
		if (rc >= 0)
			tokenizer_add(t, text, (int32_t)id, json_is_true(json_object_get(o, "lstrip")),
				json_is_true(json_object_get(o, "rstrip")));
		free(where);
		if (rc < 0)
			return rc;
	}
	return 0;
}

/* The template must be the text and then one token, the end of sequence. */
static int read_post_processor(struct vfm_text_tokenizer *t, const char *where, const json_t *o, struct vfm_err *err)
{
	const json_t *single = json_object_get(o, "single"),
		     *name = json_object_get(json_object_get(json_array_get(single, 1), "SpecialToken"), "id"),
		     *token = json_object_get(
			     json_object_get(o, "special_tokens"), json_is_string(name) ? json_string_value(name) : ""),
		     *ids = json_object_get(token, "ids"), *id = json_array_get(ids, 0);

	if (json_array_size(single) != 2 || !json_object_get(json_array_get(single, 0), "Sequence") ||
		json_array_size(ids) != 1 || !json_is_integer(id) || json_integer_value(id) < 0 ||
		json_integer_value(id) > INT32_MAX)
		return refuse_key(where, "single", single, "the text and the end of sequence", err);
	t->eos = (int32_t)json_integer_value(id);
	return 0;
}

/* Refuses replacements that make a text much longer: hostile ones would fill the memory. */
static int check_growth(const struct vfm_text_tokenizer *t, const char *path, struct vfm_err *err)
{
	double growth = 1;

	for (int i = 0; i < t->n_steps; i++) {
		const struct tokenizer_step *st = &t->step[i];
		double ratio = 1;

		if (st->kind == STEP_REPLACE)
			ratio = (double)strlen(st->with) / (double)(strlen(st->pattern) * (st->run ? 2 : 1));
		growth *= ratio > 1 ? ratio : 1;
	}
	return growth <= GROWTH_MAX
		? 0
		: vfm_fail(err, VFM_EUSAGE, "%s: normalizer: replacements that make a text over %d times as long", path,
			  GROWTH_MAX);
}

static int read_root(struct vfm_text_tokenizer *t, const char *path, const json_t *root, struct vfm_err *err)
{
	char *where = vfm_strfmt("%s: model", path);
	int rc = read_pieces(t, where, json_object_get(root, "model"), err);

	free(where);
	if (rc < 0)
		return rc;
	TRY(vfm_unigram_finish(&t->model, path, err));
	TRY(read_added(t, path, json_object_get(root, "added_tokens"), err));
	where = vfm_strfmt("%s: normalizer", path);
	rc = each_of(t, where, json_object_get(root, "normalizer"), "normalizers", read_normalizer_step, err);
	free(where);
	if (rc >= 0)
		rc = check_growth(t, path, err);
	where = vfm_strfmt("%s: pre_tokenizer", path);
	if (rc >= 0)
		rc = each_of(
			t, where, json_object_get(root, "pre_tokenizer"), "pretokenizers", read_pre_tokenizer, err);
	if (rc >= 0 && !t->metaspace)
		rc = vfm_fail(err, VFM_EUSAGE, "%s: no Metaspace", where);
	free(where);
	where = vfm_strfmt("%s: post_processor", path);
	if (rc >= 0)
		rc = read_post_processor(t, where, json_object_get(root, "post_processor"), err);
	free(where);
	return rc;
}

int tokenizer_read_json(
	struct vfm_text_tokenizer *t, const char *path, const char *data, size_t len, struct vfm_err *err)
{
	json_t *root = vfm_json_parse(data, len, path, err);
	int rc = root ? read_root(t, path, root, err) : VFM_EUSAGE;

	json_decref(root);
	return rc;
}
