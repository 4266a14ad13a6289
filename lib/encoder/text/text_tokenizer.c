/* text_tokenizer.c - reads the tokenizer's files, splits text at added tokens, and encodes words with a cache. */
#include "encoder/text/text_tokenizer.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <utf8proc.h>

#include "encoder/text/text_tokenizer_impl.h"
#include "io/file.h"
#include "io/input.h"
#include "io/json.h"

enum { SPACE_LEN = 3, FILE_MAX = 256 << 20, CONFIG_MAX = 16 << 20 };

void tokenizer_add(struct vfm_text_tokenizer *t, const char *text, int32_t id, bool lstrip, bool rstrip)
{
	size_t len = strlen(text);

	if (!len)
		return;
	vfm_grow(&t->added, &t->cap_added, t->n_added + 1, sizeof(*t->added));
	t->added[t->n_added++] = (struct tokenizer_added){vfm_strdup(text), len, id, lstrip, rstrip};
	t->starts[(uint8_t)text[0]] = true;
}

/* Longer tokens first; of equal ones the later. */
static int compare_added(const void *a, const void *b)
{
	const struct tokenizer_added *x = a, *y = b;

	return x->len != y->len ? (x->len < y->len) - (x->len > y->len) : (x->id < y->id) - (x->id > y->id);
}

/* ---- opening ---- */

/* Reads extra_ids of the tokenizer_config.json next to path. */
static int read_extra_ids(const char *path, int64_t *n, struct vfm_err *err)
{
	char *folder = vfm_dir_of(path), *config = vfm_strfmt("%s/tokenizer_config.json", folder);
	json_t *root = NULL;
	int rc = 0;

	free(folder);
	*n = 100;
	if (access(config, F_OK) != 0)
		goto out;
	root = vfm_json_load_regular(config, CONFIG_MAX, err);
	if (!root) {
		rc = VFM_EUSAGE;
		goto out;
	}
	rc = vfm_json_i64(root, config, "extra_ids", false, 0, 100000, n, err);
out:
	json_decref(root);
	free(config);
	return rc;
}

static int read_tokenizer(struct vfm_text_tokenizer *t, const char *path, struct vfm_err *err)
{
	struct vfm_sha256 *sha;
	const char *placeholder;
	int64_t extra_ids = -1;
	char *data = NULL;
	size_t len = 0;
	int rc;

	TRY_OUT(vfm_read_regular(path, FILE_MAX, &data, &len, err));
	placeholder = vfm_placeholder(data, len);
	if (placeholder) {
		rc = vfm_fail(err, VFM_EUSAGE, "%s: %s", path, placeholder);
		goto out;
	}
	if (len && data[0] == '{') {
		TRY_OUT(tokenizer_read_json(t, path, data, len, err));
	} else {
		TRY_OUT(read_extra_ids(path, &extra_ids, err));
		TRY_OUT(tokenizer_read_spm(t, path, data, len, extra_ids, err));
	}
	if (t->n_added)
		qsort(t->added, t->n_added, sizeof(*t->added), compare_added);
	sha = vfm_sha256_new();
	vfm_sha256_add(sha, data, len);
	vfm_sha256_add(sha, &extra_ids, sizeof(extra_ids));
	vfm_sha256_end(sha, t->sha256);
out:
	free(data);
	return rc;
}

/* Returns the file of the tokenizer at path, which the caller frees, or NULL. */
static char *tokenizer_file(const char *path)
{
	static const char *const names[] = {"tokenizer.json", "spiece.model", NULL};
	struct stat st;

	return stat(path, &st) == 0 && !S_ISDIR(st.st_mode) ? vfm_strdup(path) : vfm_first_in(path, names);
}

int vfm_text_tokenizer_open(struct vfm_text_tokenizer **out, const char *path, struct vfm_err *err)
{
	struct vfm_text_tokenizer *t;
	char *file = tokenizer_file(path);
	int rc;

	if (!file)
		return vfm_fail(err, VFM_EUSAGE, "%s: neither tokenizer.json nor spiece.model is there", path);
	t = vfm_calloc(1, sizeof(*t));
	rc = read_tokenizer(t, file, err);
	free(file);
	if (rc < 0) {
		vfm_text_tokenizer_close(t);
		return rc == VFM_EINPUT ? VFM_EUSAGE : rc;
	}
	*out = t;
	return 0;
}

void vfm_text_tokenizer_close(struct vfm_text_tokenizer *t)
{
	if (!t)
		return;
	for (int i = 0; i < t->n_steps; i++) {
		free(t->step[i].pattern);
		free(t->step[i].with);
	}
	for (size_t i = 0; i < t->n_added; i++)
		free(t->added[i].text);
	free(t->added);
	vfm_unigram_release(&t->model);
	vfm_charsmap_release(&t->charsmap);
	free(t);
}

const char *vfm_text_tokenizer_sha256(const struct vfm_text_tokenizer *t)
{
	return t->sha256;
}

int32_t vfm_text_tokenizer_max_id(const struct vfm_text_tokenizer *t)
{
	int32_t max = t->eos;

	for (size_t i = 0; i < t->n_added; i++)
		max = t->added[i].id > max ? t->added[i].id : max;
	return (int32_t)t->model.ids > max ? (int32_t)t->model.ids - 1 : max;
}

/* ---- normalization ---- */

/* Returns the bytes of the white space character (Unicode White_Space) that s begins with, or 0. */
static size_t space_bytes(const char *s, size_t len)
{
	utf8proc_int32_t c;
	utf8proc_ssize_t n = utf8proc_iterate((const uint8_t *)s, (utf8proc_ssize_t)len, &c);
	bool space;

	if (n <= 0)
		return 0;
	space = (c >= 9 && c <= 13) || c == 0x20 || c == 0x85 || c == 0xa0 || c == 0x1680 ||
		(c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
	return space ? (size_t)n : 0;
}

/* Returns the start of the white space at the end of s. */
static size_t trailing_space(const char *s, size_t len)
{
	while (len) {
		size_t at = len - 1;

		while (at > 0 && ((uint8_t)s[at] & 0xc0) == 0x80)
			at--;
		if (space_bytes(s + at, len - at) != len - at)
			break;
		len = at;
	}
	return len;
}

static size_t leading_space(const char *s, size_t len)
{
	size_t at = 0;

	for (size_t n; at < len && (n = space_bytes(s + at, len - at)); at += n)
		;
	return at;
}

static void replace_literal(const struct tokenizer_step *st, const char *s, size_t len, struct vfm_buf *out)
{
	size_t n = strlen(st->pattern);

	for (size_t i = 0; i < len;) {
		size_t run = 0;

		while (run + n <= len - i && !memcmp(s + i + run, st->pattern, n) && (st->run || !run))
			run += n;
		if (run > (st->run ? n : 0)) {
			vfm_buf_adds(out, st->with);
			i += run;
		} else {
			vfm_buf_add(out, s + i, 1);
			i++;
		}
	}
}

/* Memory of one call of encode. */
struct tokenizer_work {
	struct vfm_buf a, b; /* normalized text */
	struct vfm_buf word;
	struct vfm_unigram_scratch scratch;
	int32_t *ids;
	int64_t n, max; /* ids so far; those in front of the end of sequence */
};

/* Normalizes into w->a. */
static void normalize_segment(const struct vfm_text_tokenizer *t, const char *s, size_t len, struct tokenizer_work *w)
{
	vfm_buf_clear(&w->a);
	vfm_buf_add(&w->a, s, len);
	for (int i = 0; i < t->n_steps; i++) {
		const struct tokenizer_step *st = &t->step[i];
		struct vfm_buf swap = w->a;
		size_t from, to;

		vfm_buf_clear(&w->b);
		if (st->kind == STEP_CHARSMAP) {
			vfm_charsmap_apply(&t->charsmap, w->a.data, w->a.len, &w->b);
		} else if (st->kind == STEP_REPLACE) {
			replace_literal(st, w->a.data, w->a.len, &w->b);
		} else {
			to = st->right ? trailing_space(w->a.data, w->a.len) : w->a.len;
			from = st->left ? leading_space(w->a.data, to) : 0;
			vfm_buf_add(&w->b, w->a.data + from, to - from);
		}
		w->a = w->b;
		w->b = swap;
	}
}

/* ---- words ---- */

static void encode_word(const struct vfm_text_tokenizer *t, const char *word, size_t len, struct tokenizer_work *w)
{
	if (!len || w->n >= w->max)
		return;
	vfm_unigram_encode(&t->model, word, len, &w->scratch);
	for (size_t i = 0; i < w->scratch.n && w->n < w->max; i++)
		w->ids[w->n++] = w->scratch.id[i];
}

/* Encodes text with U+2581 in place of spaces. */
static void encode_text(
	const struct vfm_text_tokenizer *t, const char *s, size_t len, bool first, struct tokenizer_work *w)
{
	static const char mark[] = VFM_TEXT_TOKENIZER_SPACE;
	bool marked = (len >= SPACE_LEN && !memcmp(s, mark, SPACE_LEN)) || (len && s[0] == ' ');
	struct vfm_buf *b = &w->word;

	if (!len)
		return;
	vfm_buf_clear(b);
	if (!marked && (t->prepend == PREPEND_ALWAYS || (t->prepend == PREPEND_FIRST && first)))
		vfm_buf_add(b, mark, SPACE_LEN);
	for (size_t i = 0; i < len && w->n < w->max; i++) {
		bool space = s[i] == ' ' || (len - i >= SPACE_LEN && !memcmp(s + i, mark, SPACE_LEN));

		if (space && t->split_words) {
			encode_word(t, b->data, b->len, w);
			vfm_buf_clear(b);
		}
		if (s[i] == ' ')
			vfm_buf_add(b, mark, SPACE_LEN);
		else
			vfm_buf_add(b, s + i, 1);
	}
	encode_word(t, b->data, b->len, w);
}

/* Encodes text between added tokens. */
static void encode_segment(
	const struct vfm_text_tokenizer *t, const char *s, size_t len, bool first, struct tokenizer_work *w)
{
	const char *a;
	size_t n;

	if (!len || w->n >= w->max)
		return;
	normalize_segment(t, s, len, w);
	a = w->a.data;
	n = w->a.len;
	if (!t->split_space) {
		encode_text(t, a, n, first, w);
		return;
	}
	for (size_t i = 0; i < n && w->n < w->max;) {
		size_t end;

		i += leading_space(a + i, n - i);
		for (end = i; end < n && !space_bytes(a + end, n - end);)
			end++;
		encode_text(t, a + i, end - i, first && i == 0, w);
		i = end;
	}
}

static const struct tokenizer_added *added_at(const struct vfm_text_tokenizer *t, const char *s, size_t left)
{
	if (!t->starts[(uint8_t)s[0]])
		return NULL;
	for (size_t i = 0; i < t->n_added; i++)
		if (t->added[i].len <= left && !memcmp(s, t->added[i].text, t->added[i].len))
			return &t->added[i];
	return NULL;
}

static void encode_with_added(const struct vfm_text_tokenizer *t, const char *s, size_t len, struct tokenizer_work *w)
{
	size_t from = 0, i = 0;

	while (i < len && w->n < w->max) {
		const struct tokenizer_added *a = added_at(t, s + i, len - i);
		size_t to = i, next;

		if (!a) {
			i++;
			continue;
		}
		next = i + a->len;
		if (a->lstrip)
			to = from + trailing_space(s + from, i - from);
		if (a->rstrip)
			next += leading_space(s + next, len - next);
		encode_segment(t, s + from, to - from, from == 0, w);
		if (w->n < w->max)
			w->ids[w->n++] = a->id;
		from = i = next;
	}
	encode_segment(t, s + from, len - from, from == 0, w);
}

int64_t vfm_text_tokenizer_encode(
	const struct vfm_text_tokenizer *t, const char *text, int64_t max_len, int32_t *ids, struct vfm_err *err)
{
	struct tokenizer_work w = {.ids = ids, .max = max_len - 1};
	size_t len = strlen(text);

	if (max_len < 1)
		return vfm_fail(err, VFM_EUSAGE, "tokenizer: at most %lld tokens a text, expected 1 or more",
			(long long)max_len);
	if (len > VFM_TEXT_TOKENIZER_TEXT_MAX)
		return vfm_fail(
			err, VFM_EINPUT, "text: %zu bytes, at most %d are allowed", len, VFM_TEXT_TOKENIZER_TEXT_MAX);
	for (size_t i = 0; i < len;) {
		utf8proc_int32_t c;
		utf8proc_ssize_t n = utf8proc_iterate((const uint8_t *)text + i, (utf8proc_ssize_t)(len - i), &c);

		if (n <= 0)
			return vfm_fail(err, VFM_EINPUT, "text: byte %zu is not valid UTF-8", i);
		i += (size_t)n;
	}
	encode_with_added(t, text, len, &w);
	ids[w.n++] = t->eos;
	vfm_buf_release(&w.a);
	vfm_buf_release(&w.b);
	vfm_buf_release(&w.word);
	free(w.scratch.node);
	free(w.scratch.id);
	return w.n;
}
