/* The files of a text encoder: names and sizes of its tensors, and the tokenizer next to them. */
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/mem.h"
#include "encoder/text/t5_impl.h"
#include "io/file.h"
#include "io/json.h"

enum { LAYERS_MAX = 1000, SIZE_MAX_DIM = 1 << 20, HEAD_MAX = 128 };

/* The names of transformers, and those of Wan's release. */
struct t5_names {
	const char *embed, *norm, *block_norm[2], *matrix[T5_MATRICES], *bias, *shared_bias;
};
static const struct t5_names names_transformers = {
	.embed = "shared.weight",
	.norm = "encoder.final_layer_norm.weight",
	.block_norm = {"encoder.block.%d.layer.0.layer_norm.weight", "encoder.block.%d.layer.1.layer_norm.weight"},
	.matrix = {[T5_Q] = "encoder.block.%d.layer.0.SelfAttention.q.weight",
		[T5_K] = "encoder.block.%d.layer.0.SelfAttention.k.weight",
		[T5_V] = "encoder.block.%d.layer.0.SelfAttention.v.weight",
		[T5_O] = "encoder.block.%d.layer.0.SelfAttention.o.weight",
		[T5_GATE] = "encoder.block.%d.layer.1.DenseReluDense.wi_0.weight",
		[T5_UP] = "encoder.block.%d.layer.1.DenseReluDense.wi_1.weight",
		[T5_DOWN] = "encoder.block.%d.layer.1.DenseReluDense.wo.weight"},
	.bias = "encoder.block.%d.layer.0.SelfAttention.relative_attention_bias.weight",
	.shared_bias = "encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight",
};
static const struct t5_names names_wan = {
	.embed = "token_embedding.weight",
	.norm = "norm.weight",
	.block_norm = {"blocks.%d.norm1.weight", "blocks.%d.norm2.weight"},
	.matrix = {[T5_Q] = "blocks.%d.attn.q.weight",
		[T5_K] = "blocks.%d.attn.k.weight",
		[T5_V] = "blocks.%d.attn.v.weight",
		[T5_O] = "blocks.%d.attn.o.weight",
		[T5_GATE] = "blocks.%d.ffn.gate.0.weight",
		[T5_UP] = "blocks.%d.ffn.fc1.weight",
		[T5_DOWN] = "blocks.%d.ffn.fc2.weight"},
	.bias = "blocks.%d.pos_embedding.embedding.weight",
	.shared_bias = "pos_embedding.embedding.weight",
};

/* ---- sizes ---- */

static const struct vfm_weight *find_numbered(const struct vfm_weights *w, const char *format, int i)
{
	char name[256];

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
	snprintf(name, sizeof(name), format, i);
#pragma GCC diagnostic pop
	return vfm_weights_find(w, name);
}

static int config_size(const json_t *c, const char *where, const char *key, int64_t *v, struct vfm_err *err)
{
	return vfm_json_i64(c, where, key, true, 1, SIZE_MAX_DIM, v, err);
}

/* Refuses activations other than the gated GELU by tanh. */
static int check_activation(const json_t *c, const char *where, struct vfm_err *err)
{
	const char *type = "", *act = NULL;

	TRY(vfm_json_str(c, where, "model_type", false, &type, err));
	act = !strcmp(type, "umt5") ? "gated-gelu" : "relu"; /* the defaults of transformers */
	TRY(vfm_json_str(c, where, "feed_forward_proj", false, &act, err));
	if (strcmp(act, "gated-gelu") != 0)
		return vfm_fail(err, VFM_EUSAGE,
			"%s.feed_forward_proj: '%s' is not supported, only gated-gelu (T5 v1.1, UMT5)", where, act);
	return 0;
}

static int dims_from_config(struct vfm_t5 *t, const json_t *c, struct vfm_err *err)
{
	char *where = vfm_strfmt("%s: config.json", vfm_weights_path(t->weights));
	struct t5_dims *d = &t->d;
	const char *type = NULL;
	double eps = 1e-6;
	int rc;

	TRY_OUT(vfm_json_str(c, where, "model_type", true, &type, err));
	if (strcmp(type, "t5") != 0 && strcmp(type, "umt5") != 0) {
		rc = vfm_fail(err, VFM_EUSAGE,
			"%s.model_type: '%s' is not that of a text encoder (t5, umt5); Wan's is in text_encoder/ or "
			"models_t5_umt5-xxl-enc-bf16.pth",
			where, type);
		goto out;
	}
	d->own_bias = !strcmp(type, "umt5");
	t->family = d->own_bias ? "umt5" : "t5";
	TRY_OUT(check_activation(c, where, err));
	TRY_OUT(config_size(c, where, "vocab_size", &d->vocab, err));
	TRY_OUT(config_size(c, where, "d_model", &d->dim, err));
	TRY_OUT(config_size(c, where, "d_kv", &d->head, err));
	TRY_OUT(config_size(c, where, "d_ff", &d->ffn, err));
	TRY_OUT(config_size(c, where, "num_heads", &d->heads, err));
	TRY_OUT(vfm_json_i64(c, where, "num_layers", true, 1, LAYERS_MAX, &d->layers, err));
	TRY_OUT(vfm_json_i64(c, where, "relative_attention_num_buckets", false, 4, SIZE_MAX_DIM, &d->buckets, err));
	TRY_OUT(vfm_json_i64(
		c, where, "relative_attention_max_distance", false, 2, SIZE_MAX_DIM, &d->max_distance, err));
	TRY_OUT(vfm_json_f64(c, where, "layer_norm_epsilon", false, &eps, err));
	if (!(eps >= 0 && eps < 1))
		TRY_OUT(vfm_fail(
			err, VFM_EUSAGE, "%s.layer_norm_epsilon: expected a number from 0 to 1, got %g", where, eps));
	d->eps = (float)eps;
	d->inner = d->heads * d->head;
out:
	free(where);
	return rc;
}

/* Sets dims from the shapes, where no config.json is; tensors that are missing are reported later. */
static void dims_from_shapes(struct vfm_t5 *t, const struct t5_names *n)
{
	const struct vfm_weight *embed = vfm_weights_find(t->weights, n->embed),
				*q = find_numbered(t->weights, n->matrix[T5_Q], 0),
				*up = find_numbered(t->weights, n->matrix[T5_UP], 0),
				*bias = find_numbered(t->weights, n->bias, 0);
	struct t5_dims *d = &t->d;

	d->own_bias = bias && (n == &names_wan || find_numbered(t->weights, n->bias, 1));
	if (!bias)
		bias = vfm_weights_find(t->weights, n->shared_bias);
	while (d->layers < LAYERS_MAX && find_numbered(t->weights, n->matrix[T5_Q], (int)d->layers))
		d->layers++;
	t->family = d->own_bias ? "umt5" : "t5";
	if (embed && embed->ndim == 2)
		d->vocab = embed->shape[0], d->dim = embed->shape[1];
	if (q && q->ndim == 2)
		d->inner = q->shape[0];
	if (up && up->ndim == 2)
		d->ffn = up->shape[0];
	if (bias && bias->ndim == 2)
		d->buckets = bias->shape[0], d->heads = bias->shape[1];
	d->head = d->heads ? d->inner / d->heads : 0;
}

static int check_t5_dims(const struct vfm_t5 *t, struct vfm_err *err)
{
	const struct t5_dims *d = &t->d;
	const char *path = vfm_weights_path(t->weights);

	if (d->dim < 1 || d->inner < 1 || d->ffn < 1 || d->vocab < 1 || d->layers < 1 || d->heads < 1)
		return vfm_fail(err, VFM_EUSAGE,
			"%s: not the weights of a T5 or UMT5 encoder: the %s of the first block is missing or empty, "
			"by the names of transformers or of Wan's release",
			path,
			d->dim < 1 || d->vocab < 1              ? "embedding in front"
				: d->inner < 1 || d->layers < 1 ? "matrix of queries"
				: d->ffn < 1                    ? "matrix of the feed-forward part"
								: "bias by distance");
	if (d->head > HEAD_MAX || d->head % 8 || d->head * d->heads != d->inner)
		return vfm_fail(err, VFM_EUSAGE, "%s: %lld heads of %lld: a head is a multiple of 8 up to %d", path,
			(long long)d->heads, (long long)d->head, HEAD_MAX);
	if (d->buckets < 4 || d->buckets % 4 || d->max_distance <= d->buckets / 4)
		return vfm_fail(err, VFM_EUSAGE,
			"%s: %lld buckets of distances up to %lld: expected a multiple of 4 and more than a quarter of "
			"it",
			path, (long long)d->buckets, (long long)d->max_distance);
	return 0;
}

/* ---- tensors ---- */

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
static void want_block(struct vfm_t5 *t, const struct t5_names *n, int i)
{
	const struct t5_dims *d = &t->d;
	const int64_t shape[T5_MATRICES][2] = {[T5_Q] = {d->inner, d->dim},
		[T5_K] = {d->inner, d->dim},
		[T5_V] = {d->inner, d->dim},
		[T5_O] = {d->dim, d->inner},
		[T5_GATE] = {d->ffn, d->dim},
		[T5_UP] = {d->ffn, d->dim},
		[T5_DOWN] = {d->dim, d->ffn}};
	struct t5_block *b = &t->block[i];

	for (int k = 0; k < 2; k++)
		b->norm[k] = vfm_weights_want(t->weights, 1, &d->dim, n->block_norm[k], i);
	for (int k = 0; k < T5_MATRICES; k++)
		b->m[k] = vfm_weights_want(t->weights, 2, shape[k], n->matrix[k], i);
	if (d->own_bias)
		b->bias = vfm_weights_want(t->weights, 2, (int64_t[]){d->buckets, d->heads}, n->bias, i);
	else if (i == 0)
		b->bias = vfm_weights_want(t->weights, 2, (int64_t[]){d->buckets, d->heads}, n->shared_bias);
}

static int want_all(struct vfm_t5 *t, const struct t5_names *n, struct vfm_err *err)
{
	const char *embed = n->embed, *copy = "encoder.embed_tokens.weight";
	char what[64];

	if (n == &names_transformers && !vfm_weights_has(t->weights, embed) && vfm_weights_has(t->weights, copy))
		embed = copy;
	t->block = vfm_calloc((size_t)t->d.layers, sizeof(*t->block));
	t->embed = vfm_weights_want(t->weights, 2, (int64_t[]){t->d.vocab, t->d.dim}, embed);
	t->norm = vfm_weights_want(t->weights, 1, &t->d.dim, n->norm);
	for (int i = 0; i < t->d.layers; i++)
		want_block(t, n, i);
	if (n == &names_transformers) { /* files of the whole model, and the second name of the embedding */
		vfm_weights_ignore(t->weights, copy);
		vfm_weights_ignore(t->weights, "decoder.");
		vfm_weights_ignore(t->weights, "lm_head.");
	}
	snprintf(what, sizeof(what), "the text encoder %s of %lld blocks", t->d.own_bias ? "UMT5" : "T5 v1.1",
		(long long)t->d.layers);
	return vfm_weights_check(t->weights, what, err);
}
#pragma GCC diagnostic pop

/* ---- files ---- */

/* Returns the tokenizer that belongs to the weights at path, or NULL.  The caller frees it. */
static char *find_tokenizer(const char *path)
{
	static const char *const places[] = {
		"tokenizer.json", "spiece.model", "tokenizer", "../tokenizer", "google/umt5-xxl", NULL};
	struct stat st;
	const bool is_dir = stat(path, &st) == 0 && S_ISDIR(st.st_mode);
	char *folder = is_dir ? vfm_strdup(path) : vfm_dir_of(path), *found = vfm_first_in(folder, places);

	free(folder);
	return found;
}

static int open_tokenizer(struct vfm_t5 *t, const struct vfm_t5_opts *o, const char *weights, struct vfm_err *err)
{
	char *path = o->tokenizer ? vfm_strdup(o->tokenizer) : find_tokenizer(weights);
	int rc;

	if (!path)
		return vfm_fail(err, VFM_EUSAGE,
			"%s: no tokenizer: neither tokenizer.json nor spiece.model there, in tokenizer/ or in "
			"google/umt5-xxl/",
			weights);
	rc = vfm_text_tokenizer_open(&t->tok, path, err);
	if (rc >= 0 && vfm_text_tokenizer_max_id(t->tok) >= t->d.vocab)
		rc = vfm_fail(err, VFM_EUSAGE, "%s: ids up to %d, but %s has embeddings of %lld tokens", path,
			vfm_text_tokenizer_max_id(t->tok), weights, (long long)t->d.vocab);
	free(path);
	return rc;
}

int t5_open_files(struct vfm_t5 *t, const struct vfm_t5_opts *o, struct vfm_err *err)
{
	static const char *const names[] = {"text_encoder", "models_t5_umt5-xxl-enc-bf16.pth", NULL};
	const struct t5_names *n = &names_transformers;
	char *path = vfm_weights_within(o->path, names);
	const json_t *config;
	int rc;

	t->d = (struct t5_dims){.buckets = 32, .max_distance = 128, .eps = 1e-6f};
	TRY_OUT(vfm_weights_open(&t->weights, path, err));
	config = vfm_weights_config(t->weights);
	if (vfm_weights_has(t->weights, names_wan.embed))
		n = &names_wan;
	if (n == &names_transformers && config)
		TRY_OUT(dims_from_config(t, config, err));
	else
		dims_from_shapes(t, n);
	TRY_OUT(check_t5_dims(t, err));
	TRY_OUT(want_all(t, n, err));
	TRY_OUT(open_tokenizer(t, o, path, err));
out:
	free(path);
	return rc;
}
