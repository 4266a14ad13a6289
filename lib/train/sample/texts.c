/* texts.c - encodes the texts of the prompts, many together and each one once, before the network runs. */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "train/sample/sampling_impl.h"

enum { WORDS = 64 /* texts that are encoded together, about */ };
#define TEXT_BYTES ((size_t)1 << 30) /* rows that wait for their batch on the host, about */

/* An item that reads text `word`. */
struct text_use {
	struct vfm_sample_item *it;
	bool negative;
	size_t word;
};
/* Different texts, and their uses. */
struct text_set {
	json_t *index; /* text -> number */
	const char **word;
	struct text_use *use;
	size_t n, n_uses, cap, use_cap;
};

static bool reads_text(const struct vfm_sampling *s)
{
	return vfm_model_reads_text(&s->c->model);
}

/* Returns whether a use needs the rows of the text encoder or, if `second`, those of the second one. */
static bool is_use_of(const struct vfm_sampling *s, const struct text_use *u, bool second)
{
	return second ? u->negative || !sampling_names_text2(u->it) : reads_text(s);
}

static void add_text_use(struct text_set *t, struct vfm_sample_item *it, bool negative)
{
	const char *text = negative ? it->p.negative : it->p.caption;
	const json_t *known = json_object_get(t->index, text);
	const size_t word = known ? (size_t)json_integer_value(known) : t->n;

	if (!known) {
		json_object_set_new(t->index, text, json_integer((json_int_t)t->n));
		vfm_grow(&t->word, &t->cap, t->n + 1, sizeof(*t->word));
		t->word[t->n++] = text;
	}
	vfm_grow(&t->use, &t->use_cap, t->n_uses + 1, sizeof(*t->use));
	t->use[t->n_uses++] = (struct text_use){it, negative, word};
}

static void add_item_texts(const struct vfm_sampling *s, struct text_set *t, struct vfm_sample_item *it)
{
	const struct vfm_sampler sampler = sampling_sampler(s, it);

	if (it->in.ready)
		return;
	it->in.has_texts = true;
	if (!reads_text(s) && !s->encoders.text2.ops)
		return;
	if (*it->p.caption)
		add_text_use(t, it, false);
	if (*it->p.negative && vfm_sampler_is_guided(&sampler))
		add_text_use(t, it, true);
}

/* Adds the texts of the next items of this group.  In training, all groups may sample an item. */
static void collect_texts(struct vfm_sampling *s, struct text_set *t)
{
	while (s->texts_next < s->n && t->n < WORDS) {
		struct sample_batch b = {s->texts_next, 1};
		size_t next = s->texts_next + 1;

		if (!s->o->in_training)
			b = sampling_own_batch(s, s->texts_next, &next);
		for (int i = 0; i < b.n; i++)
			add_item_texts(s, t, &s->v[b.first + (size_t)i]);
		s->texts_next = next;
	}
}

/* Returns how many of the rows of a text the model reads, and logs the first cut. */
static int64_t cut_prompt_rows(struct vfm_sampling *s, int64_t rows)
{
	const int64_t most = s->c->model.text_len;

	if (rows <= most)
		return rows;
	if (!s->logged_cut)
		vfm_info("a prompt has %lld text rows; of each prompt the first %lld are read (model.text_len)",
			(long long)rows, (long long)most);
	s->logged_cut = true;
	return most;
}

/* Gives an item a copy of the rows of its text, as many as the model reads.  Returns its bytes. */
static size_t give_rows(struct vfm_sampling *s, const struct text_use *u, const struct vfm_encoded *x, bool second)
{
	struct vfm_sample_inputs *in = &u->it->in;
	const int64_t n = second ? sampling_cut_text2(s, x->npy.shape[0]) : cut_prompt_rows(s, x->npy.shape[0]);
	const size_t bytes = (size_t)(n * x->npy.shape[1]) * sizeof(float);
	float **const rows =
		second ? (u->negative ? &in->negative2 : &in->text2) : (u->negative ? &in->negative : &in->text);
	int32_t *const count = second ? (u->negative ? &in->n_negative2 : &in->n_text2)
				      : (u->negative ? &in->n_negative : &in->n_text);

	*rows = vfm_malloc(bytes + 1);
	*count = (int32_t)n;
	if (n)
		memcpy(*rows, x->data, bytes);
	return bytes;
}

/* Gives the result of a text, rows or an error, to the items that read it. */
static int give_text(struct vfm_sampling *s, const struct text_set *t, size_t word, bool second,
	const struct vfm_encoded *x, int rc, const struct vfm_err *why, size_t *bytes)
{
	if (rc < 0 && rc != VFM_EINPUT)
		return rc;
	for (size_t i = 0; i < t->n_uses; i++) {
		const struct text_use *u = &t->use[i];

		if (u->word != word || !is_use_of(s, u, second))
			continue;
		if (rc >= 0)
			*bytes += give_rows(s, u, x, second);
		else if (!u->it->why)
			u->it->why = vfm_strdup(why->msg);
	}
	return 0;
}

/* Encodes the texts with the text encoder or, if `second`, with the second one: together if the encoder gains by it,
 * else one by one. */
static int encode_text_set(
	struct vfm_sampling *s, const struct text_set *t, bool second, size_t *bytes, struct vfm_err *err)
{
	const struct vfm_encoder_handle *text = second ? &s->encoders.text2 : &s->encoders.text;
	struct vfm_encoded *x = vfm_calloc(t->n + 1, sizeof(*x));
	struct vfm_err *why = vfm_calloc(t->n + 1, sizeof(*why));
	int *made = vfm_calloc(t->n + 1, sizeof(*made)), rc = 0;

	if (t->n && text->ops->encode_texts)
		text->ops->encode_texts(text->ctx, t->word, (int)t->n, x, made, why);
	for (size_t i = 0; i < t->n; i++) {
		if (rc >= 0 && !text->ops->encode_texts)
			made[i] = text->ops->encode_text(text->ctx, 0, t->word[i], &x[i], &why[i]);
		if (rc >= 0) {
			rc = give_text(s, t, i, second, &x[i], made[i], &why[i], bytes);
			*err = why[i];
		}
		vfm_encoded_release(&x[i]);
	}
	free(made);
	free(why);
	free(x);
	return rc;
}

int sampling_encode_texts(struct vfm_sampling *s, struct vfm_err *err)
{
	const size_t most = s->o->in_training ? SIZE_MAX : TEXT_BYTES;
	size_t bytes = 0;
	int rc = 0;

	while (s->texts_next < s->n && bytes < most && rc >= 0) {
		struct text_set t = {.index = json_object()};

		collect_texts(s, &t);
		if (reads_text(s))
			rc = encode_text_set(s, &t, false, &bytes, err);
		if (rc >= 0 && s->encoders.text2.ops)
			rc = encode_text_set(s, &t, true, &bytes, err);
		json_decref(t.index);
		free(t.word);
		free(t.use);
	}
	if (rc >= 0 && s->texts_next == s->n) {
		vfm_encoder_unload(&s->encoders);
		vfm_encoder_close_one(&s->encoders.text);
		vfm_encoder_close_one(&s->encoders.text2);
	}
	return rc;
}
