/* Text encoders: against a forward in double precision, and the same bits for any batch, placement of the weights and
 * device.  tests/ref/check_text.py compares them with transformers. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <cmocka.h>

#include "async_mock.h"
#include "ckpt/safetensors.h"
#include "device/cpu/cpu_isa.h"
#include "encoder/text/t5.h"
#include "io/file.h"

static char folder[] = "/tmp/vfm-test-t5-XXXXXX";

enum { VOCAB = 16, DIM = 40, HEADS = 3, HEAD = 16, INNER = HEADS * HEAD, FFN = 56, LAYERS = 3, BUCKETS = 8, FAR = 20 };
enum { MAX_LEN = 70, TEXTS = 9 };
#define SP "\xe2\x96\x81"

/* ---- the model ---- */

struct tensor {
	char name[96];
	int64_t rows, cols; /* rows 0: a vector */
	float *v;
};
struct model {
	struct tensor t[8 + LAYERS * 10];
	int n;
	bool own;
};

static float next_value(uint32_t *seed)
{
	*seed = *seed * 1664525u + 1013904223u;
	return (float)(*seed >> 8) / (1 << 24) * 2 - 1;
}

static float *add_tensor(
	struct model *m, int64_t rows, int64_t cols, float mean, float scale, const char *format, int i)
{
	struct tensor *t = &m->t[m->n++];
	int64_t n = rows ? rows * cols : cols;
	uint32_t seed = (uint32_t)m->n * 7919;

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
	snprintf(t->name, sizeof(t->name), format, i);
#pragma GCC diagnostic pop
	t->rows = rows;
	t->cols = cols;
	t->v = vfm_malloc((size_t)n * sizeof(*t->v));
	for (int64_t k = 0; k < n; k++) /* exact in bf16 */
		t->v[k] = vfm_bf16_to_f32(vfm_f32_to_bf16(mean + scale * next_value(&seed)));
	return t->v;
}

static struct model make_model(bool own)
{
	struct model m = {.own = own};

	add_tensor(&m, VOCAB, DIM, 0, 1, "shared.weight", 0);
	add_tensor(&m, 0, DIM, 1, .2f, "encoder.final_layer_norm.weight", 0);
	for (int i = 0; i < LAYERS; i++) {
		add_tensor(&m, 0, DIM, 1, .2f, "encoder.block.%d.layer.0.layer_norm.weight", i);
		add_tensor(&m, INNER, DIM, 0, .2f, "encoder.block.%d.layer.0.SelfAttention.q.weight", i);
		add_tensor(&m, INNER, DIM, 0, .2f, "encoder.block.%d.layer.0.SelfAttention.k.weight", i);
		add_tensor(&m, INNER, DIM, 0, .2f, "encoder.block.%d.layer.0.SelfAttention.v.weight", i);
		add_tensor(&m, DIM, INNER, 0, .2f, "encoder.block.%d.layer.0.SelfAttention.o.weight", i);
		add_tensor(&m, 0, DIM, 1, .2f, "encoder.block.%d.layer.1.layer_norm.weight", i);
		add_tensor(&m, FFN, DIM, 0, .2f, "encoder.block.%d.layer.1.DenseReluDense.wi_0.weight", i);
		add_tensor(&m, FFN, DIM, 0, .2f, "encoder.block.%d.layer.1.DenseReluDense.wi_1.weight", i);
		add_tensor(&m, DIM, FFN, 0, .2f, "encoder.block.%d.layer.1.DenseReluDense.wo.weight", i);
		if (own || i == 0)
			add_tensor(&m, BUCKETS, HEADS, 0, 2,
				"encoder.block.%d.layer.0.SelfAttention.relative_attention_bias.weight", i);
	}
	return m;
}

static void free_model(struct model *m)
{
	for (int i = 0; i < m->n; i++)
		free(m->t[i].v);
}

static void write_text(const char *name, const char *text)
{
	char *path = vfm_strfmt("%s/%s", folder, name);

	assert_int_equal(vfm_write_file(path, text, strlen(text), NULL), 0);
	free(path);
}

/* Writes all tensors but number `without`. */
static void write_model(const struct model *m, enum vfm_dtype dtype, int without)
{
	struct vfm_st_tensor st[8 + LAYERS * 10];
	char *path = vfm_strfmt("%s/model.safetensors", folder);
	struct vfm_buf head = {0};
	const size_t es = vfm_dtype_size(dtype);
	size_t n = 0;
	FILE *f = fopen(path, "wb");

	for (int i = 0; i < m->n; i++)
		if (i != without)
			st[n++] = (struct vfm_st_tensor){.name = m->t[i].name,
				.dtype = dtype,
				.ndim = m->t[i].rows ? 2 : 1,
				.shape = {m->t[i].rows ? m->t[i].rows : m->t[i].cols, m->t[i].cols}};
	vfm_st_layout(st, n, NULL, 0, &head);
	assert_int_equal(fwrite(head.data, 1, head.len, f), head.len);
	for (size_t i = 0; i < n; i++)
		for (int k = 0; k < m->n; k++)
			if (!strcmp(m->t[k].name, st[i].name)) {
				size_t numel = (st[i].end - st[i].begin) / es;
				void *v = vfm_malloc(numel * es);

				vfm_dtype_convert(dtype, v, VFM_F32, m->t[k].v, numel);
				assert_int_equal(fwrite(v, es, numel, f), numel);
				free(v);
			}
	assert_int_equal(fclose(f), 0);
	vfm_buf_release(&head);
	free(path);
}

static void write_config(const char *type, const char *more)
{
	char *text = vfm_strfmt("{\"model_type\":\"%s\",\"vocab_size\":%d,\"d_model\":%d,\"d_kv\":%d,\"d_ff\":%d,"
				"\"num_layers\":%d,\"num_heads\":%d,\"relative_attention_num_buckets\":%d,"
				"\"relative_attention_max_distance\":%d%s}",
		type, VOCAB, DIM, HEAD, FFN, LAYERS, HEADS, BUCKETS, FAR, more);

	write_text("config.json", text);
	free(text);
}

static void write_tokenizer(int last)
{
	char *text = vfm_strfmt(
		"{\"model\":{\"type\":\"Unigram\",\"unk_id\":2,\"vocab\":[[\"<pad>\",0],[\"</s>\",0],[\"<unk>\",0],"
		"[\"" SP "\",-2],[\"a\",-3],[\"b\",-3],[\"c\",-3],[\"d\",-3],[\"e\",-3]]},\"added_tokens\":"
		"[{\"id\":%d,\"content\":\"<x>\"}],\"pre_tokenizer\":{\"type\":\"Metaspace\",\"replacement\":\"" SP
		"\"},\"post_processor\":{\"single\":[{\"Sequence\":{\"id\":\"A\"}},{\"SpecialToken\":{\"id\":\"</"
		"s>\"}}],"
		"\"special_tokens\":{\"</s>\":{\"ids\":[1]}}}}",
		last);

	write_text("tokenizer.json", text);
	free(text);
}

/* ---- the reference ---- */

static const float *tensor_of(const struct model *m, const char *format, int i)
{
	char name[96];

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
	snprintf(name, sizeof(name), format, i);
#pragma GCC diagnostic pop
	for (int k = 0; k < m->n; k++)
		if (!strcmp(m->t[k].name, name))
			return m->t[k].v;
	return NULL;
}

static void ref_norm(double *y, const double *x, const float *w)
{
	double sum = 0;

	for (int i = 0; i < DIM; i++)
		sum += x[i] * x[i] / DIM;
	for (int i = 0; i < DIM; i++)
		y[i] = x[i] / sqrt(sum + 1e-6) * w[i];
}

/* y [out] = w [out, in] x */
static void ref_linear(double *y, const double *x, const float *w, int in, int out)
{
	for (int o = 0; o < out; o++) {
		y[o] = 0;
		for (int i = 0; i < in; i++)
			y[o] += w[o * in + i] * x[i];
	}
}

static int ref_bucket(int d)
{
	const int half = BUCKETS / 2, exact = half / 2;
	int a = abs(d), far;

	if (a < exact)
		return (d > 0 ? half : 0) + a;
	far = exact + (int)(log((double)a / exact) / log((double)FAR / exact) * (half - exact));
	return (d > 0 ? half : 0) + (far < half - 1 ? far : half - 1);
}

static void ref_attention(
	double (*a)[INNER], double (*q)[INNER], double (*k)[INNER], double (*v)[INNER], const float *bias, int n)
{
	for (int h = 0; h < HEADS; h++)
		for (int i = 0; i < n; i++) {
			double p[MAX_LEN], sum = 0, most = -1e30;

			for (int j = 0; j < n; j++) {
				p[j] = bias[ref_bucket(j - i) * HEADS + h];
				for (int c = 0; c < HEAD; c++)
					p[j] += q[i][h * HEAD + c] * k[j][h * HEAD + c];
				most = p[j] > most ? p[j] : most;
			}
			for (int j = 0; j < n; j++)
				sum += p[j] = exp(p[j] - most);
			for (int c = 0; c < HEAD; c++) {
				a[i][h * HEAD + c] = 0;
				for (int j = 0; j < n; j++)
					a[i][h * HEAD + c] += p[j] / sum * v[j][h * HEAD + c];
			}
		}
}

static double ref_gelu(double x)
{
	return .5 * x * (1 + tanh(sqrt(2 / M_PI) * (x + .044715 * x * x * x)));
}

static void ref_forward(const struct model *m, const int *ids, int n, double (*x)[DIM])
{
	static double q[MAX_LEN][INNER], k[MAX_LEN][INNER], v[MAX_LEN][INNER], a[MAX_LEN][INNER];
	double h[DIM], g[FFN], u[FFN];

	for (int i = 0; i < n; i++)
		for (int c = 0; c < DIM; c++)
			x[i][c] = m->t[0].v[ids[i] * DIM + c];
	for (int l = 0; l < LAYERS; l++) {
#define W(name) tensor_of(m, "encoder.block.%d.layer." name ".weight", l)
		for (int i = 0; i < n; i++) {
			ref_norm(h, x[i], W("0.layer_norm"));
			ref_linear(q[i], h, W("0.SelfAttention.q"), DIM, INNER);
			ref_linear(k[i], h, W("0.SelfAttention.k"), DIM, INNER);
			ref_linear(v[i], h, W("0.SelfAttention.v"), DIM, INNER);
		}
		ref_attention(a, q, k, v,
			tensor_of(m, "encoder.block.%d.layer.0.SelfAttention.relative_attention_bias.weight",
				m->own ? l : 0),
			n);
		for (int i = 0; i < n; i++) {
			ref_linear(h, a[i], W("0.SelfAttention.o"), INNER, DIM);
			for (int c = 0; c < DIM; c++)
				x[i][c] += h[c];
			ref_norm(h, x[i], W("1.layer_norm"));
			ref_linear(g, h, W("1.DenseReluDense.wi_0"), DIM, FFN);
			ref_linear(u, h, W("1.DenseReluDense.wi_1"), DIM, FFN);
			for (int c = 0; c < FFN; c++)
				g[c] = ref_gelu(g[c]) * u[c];
			ref_linear(h, g, W("1.DenseReluDense.wo"), FFN, DIM);
			for (int c = 0; c < DIM; c++)
				x[i][c] += h[c];
		}
#undef W
	}
	for (int i = 0; i < n; i++)
		ref_norm(x[i], x[i], m->t[1].v);
}

/* ---- runs ---- */

/* Texts of letters a to e; their ids are a space, then 4 to 8, then 1. */
static const char *const texts[TEXTS] = {"abcde", "", "a",
	"eeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeee", "deadbeddeadbed", "cab",
	"abcabcabcabcabcabcabcabcabcabcabcabcabcabc", "bed",
	"abcdeabcdeabcdeabcdeabcdeabcdeabcdeabcdeabcdeabcdeabcdeabcdeabcdeabcdeabcdeabcdeabcdeabcde"};

struct run {
	float *rows[TEXTS];
	int64_t n[TEXTS];
};

/* The device holds nothing before the first text and after vfm_t5_unload; then the rows are the same. */
static void check_unload(struct vfm_dev *dev, struct vfm_t5 *t, const char *text, const struct run *want)
{
	struct vfm_err err = {0};
	struct run again;

	assert_true(dev->mem_now > 0);
	vfm_t5_unload(t);
	assert_int_equal(dev->mem_now, 0);
	if (vfm_t5_encode(t, &text, 1, again.rows, again.n, &err) < 0)
		fail_msg("%s", err.msg);
	assert_int_equal(again.n[0], want->n[0]);
	assert_memory_equal(again.rows[0], want->rows[0], (size_t)(again.n[0] * DIM) * sizeof(float));
	free(again.rows[0]);
}

static void encode_on(struct vfm_dev *dev, const struct vfm_t5_opts *o, const char *const *in, int n, struct run *r)
{
	struct vfm_err err = {0};
	struct vfm_stream *s = dev->t->stream_new(dev, false, &err);
	struct vfm_t5 *t = NULL;

	if (vfm_t5_open(&t, s, o, &err) < 0)
		fail_msg("%s", err.msg);
	assert_int_equal(dev->mem_now, 0);
	if (vfm_t5_encode(t, in, n, r->rows, r->n, &err) < 0)
		fail_msg("%s", err.msg);
	assert_int_equal(vfm_t5_dim(t), DIM);
	check_unload(dev, t, in[0], r);
	vfm_t5_close(t);
	assert_int_equal(dev->mem_now, 0);
	dev->t->stream_free(s);
	dev->t->dev_free(dev);
}

static void encode_cpu(const struct vfm_t5_opts *o, struct run *r)
{
	struct vfm_err err = {0};
	struct vfm_dev *dev = vfm_cpu_open(&err);

	assert_non_null(dev);
	encode_on(dev, o, texts, TEXTS, r);
}

static void free_run(struct run *r)
{
	for (int i = 0; i < TEXTS; i++)
		free(r->rows[i]);
}

static void same_rows(const struct run *a, int i, const struct run *b, int k)
{
	assert_int_equal(a->n[i], b->n[k]);
	assert_memory_equal(a->rows[i], b->rows[k], (size_t)a->n[i] * DIM * sizeof(float));
}

static void test_values(void **state)
{
	static double x[MAX_LEN][DIM];

	(void)state;
	for (int own = 0; own < 2; own++) {
		struct model m = make_model(own);

		write_config(own ? "umt5" : "t5", ",\"feed_forward_proj\":\"gated-gelu\"");
		for (int bf = 0; bf < 2; bf++) {
			const struct vfm_t5_opts o = {
				.path = folder, .dtype = bf ? VFM_BF16 : VFM_F32, .max_len = MAX_LEN};
			double worst = 0, error = 0, all = 0;
			struct run r;

			write_model(&m, VFM_F32, -1);
			encode_cpu(&o, &r);
			for (int i = 0; i < TEXTS; i++) {
				int ids[MAX_LEN], n = 0;

				ids[n++] = 3;
				for (const char *c = texts[i]; *c && n < MAX_LEN - 1; c++)
					ids[n++] = *c - 'a' + 4;
				n = texts[i][0] ? n : 0;
				ids[n++] = 1;
				assert_int_equal(r.n[i], n);
				ref_forward(&m, ids, n, x);
				for (int k = 0; k < n * DIM; k++) {
					double d = r.rows[i][k] - (&x[0][0])[k];

					worst = fabs(d) > worst ? fabs(d) : worst;
					error += d * d;
					all += (&x[0][0])[k] * (&x[0][0])[k];
				}
			}
			if (bf ? !(sqrt(error / all) < .03) : !(worst < 1e-4))
				fail_msg("%s: largest difference %g, relative %g", bf ? "bf16" : "f32", worst,
					sqrt(error / all));
			free_run(&r);
		}
		free_model(&m);
	}
}

/* Each text alone, all in other orders, and in packs of other sizes, on each instruction set. */
static void test_batches(void **state)
{
	struct model m = make_model(true);
	char *before = getenv("VFM_CPU_ISA") ? vfm_strdup(getenv("VFM_CPU_ISA")) : NULL;

	(void)state;
	write_config("umt5", "");
	write_model(&m, VFM_BF16, -1);
	for (int isa = 0; isa <= (int)vfm_isa_best(); isa++)
		for (int bf = 0; bf < 2; bf++) {
			struct vfm_t5_opts o = {.path = folder, .dtype = bf ? VFM_BF16 : VFM_F32, .max_len = MAX_LEN};
			struct run all, other;

			setenv("VFM_CPU_ISA", vfm_isa_name((enum vfm_isa)isa), 1);
			encode_cpu(&o, &all);
			for (int shift = 1; shift < TEXTS; shift += 3) {
				const char *in[TEXTS];
				struct vfm_err err;

				for (int i = 0; i < TEXTS; i++)
					in[i] = texts[(i * 2 + shift) % TEXTS];
				o.max_rows = MAX_LEN + 20 * shift;
				encode_on(vfm_cpu_open(&err), &o, in, TEXTS, &other);
				for (int i = 0; i < TEXTS; i++)
					same_rows(&all, (i * 2 + shift) % TEXTS, &other, i);
				free_run(&other);
			}
			for (int i = 0; i < TEXTS; i++) {
				struct run one = {{0}, {0}};
				struct vfm_err err;

				encode_on(vfm_cpu_open(&err), &o, texts + i, 1, &one);
				same_rows(&all, i, &one, 0);
				free(one.rows[0]);
			}
			free_run(&all);
		}
	if (before)
		setenv("VFM_CPU_ISA", before, 1);
	else
		unsetenv("VFM_CPU_ISA");
	free(before);
	free_model(&m);
}

/* Resident, in place and streamed weights, on the CPU and on an asynchronous device. */
static void test_placement(void **state)
{
	struct model m = make_model(true);

	(void)state;
	write_config("umt5", "");
	for (int file = 0; file < 2; file++) {
		struct vfm_t5_opts o = {.path = folder, .dtype = VFM_F32, .max_len = MAX_LEN, .max_rows = MAX_LEN};
		struct run a, b;

		write_model(&m, file ? VFM_BF16 : VFM_F32, -1);
		encode_cpu(&o, &a);
		for (int k = 0; k < 3; k++) {
			struct vfm_err err = {0};

			o.stream = k != 1;
			if (k)
				encode_on(mock_open(true, &err), &o, texts, TEXTS, &b);
			else
				encode_cpu(&o, &b);
			for (int i = 0; i < TEXTS; i++)
				same_rows(&a, i, &b, i);
			free_run(&b);
		}
		free_run(&a);
	}
	free_model(&m);
}

static void expect_refused(const char *named, enum vfm_dtype dtype)
{
	struct vfm_err err = {0};
	struct vfm_dev *dev = vfm_cpu_open(&err);
	struct vfm_stream *s = dev->t->stream_new(dev, false, &err);
	struct vfm_t5 *t = NULL;
	const struct vfm_t5_opts o = {.path = folder, .dtype = dtype};

	assert_int_equal(vfm_t5_open(&t, s, &o, &err), VFM_EUSAGE);
	if (!strstr(err.msg, named))
		fail_msg("'%s' does not name '%s'", err.msg, named);
	assert_int_equal(dev->mem_now, 0);
	dev->t->stream_free(s);
	dev->t->dev_free(dev);
}

/* A release without configuration whose bias by distance has no rows. */
static void test_no_buckets(void **state)
{
	struct vfm_st_tensor t[] = {{.name = "token_embedding.weight", .ndim = 2, .shape = {VOCAB, DIM}},
		{.name = "blocks.0.attn.q.weight", .ndim = 2, .shape = {INNER, DIM}},
		{.name = "blocks.0.ffn.fc1.weight", .ndim = 2, .shape = {FFN, DIM}},
		{.name = "blocks.0.pos_embedding.embedding.weight", .ndim = 2, .shape = {0, HEADS}}};
	char *path = vfm_strfmt("%s/model.safetensors", folder);
	const float zeros[(VOCAB + INNER + FFN) * DIM] = {0};
	struct vfm_buf b = {0};

	(void)state;
	for (int i = 0; i < 4; i++)
		t[i].dtype = VFM_F32;
	vfm_st_layout(t, 4, NULL, 0, &b);
	vfm_buf_add(&b, zeros, sizeof(zeros));
	assert_int_equal(vfm_write_file(path, b.data, b.len, NULL), 0);
	expect_refused("0 buckets", VFM_F32);
	vfm_buf_release(&b);
	free(path);
}

static void test_refused(void **state)
{
	struct model m = make_model(true);

	(void)state;
	write_model(&m, VFM_F32, -1);
	write_config("umt5", "");
	expect_refused("dtype f16", VFM_F16);
	write_config("t5", "");
	expect_refused("feed_forward_proj: 'relu'", VFM_F32);
	write_config("t5", ",\"feed_forward_proj\":\"gated-gelu\"");
	expect_refused("block.{1-2}.layer.0.SelfAttention.relative_attention_bias.weight", VFM_F32); /* one too many */
	write_config("bert", "");
	expect_refused("model_type", VFM_F32);
	write_config("umt5", ",\"d_kv\":7");
	expect_refused("d_kv", VFM_F32);
	write_config("umt5", ",\"layer_norm_epsilon\":1e300");
	expect_refused("layer_norm_epsilon", VFM_F32);
	write_config("umt5", "");
	for (int i = 0; i < m.n; i += 5) {
		write_model(&m, VFM_F32, i);
		expect_refused(m.t[i].name, VFM_F32);
	}
	write_model(&m, VFM_F32, -1);
	write_tokenizer(VOCAB);
	expect_refused("embeddings of 16", VFM_F32);
	write_tokenizer(9);
	free_model(&m);
}

/* A bad text is named, and nothing is returned; identities tell options apart. */
static void test_texts_and_encoder_ids(void **state)
{
	const char *const bad[] = {"a", "b\xff", "c"};
	struct model m = make_model(true);
	struct vfm_err err = {0};
	struct vfm_dev *dev = vfm_cpu_open(&err);
	struct vfm_stream *s = dev->t->stream_new(dev, false, &err);
	struct vfm_encoder_id encoder_id[5];

	(void)state;
	write_config("umt5", "");
	write_model(&m, VFM_F32, -1);
	for (int i = 0; i < 5; i++) {
		const struct vfm_t5_opts o = {.path = folder,
			.dtype = i == 1 ? VFM_BF16 : VFM_F32,
			.max_len = i == 2 ? 7 : MAX_LEN,
			.clean = i == 3,
			.stream = i == 4};
		struct vfm_t5 *t = NULL;
		float *rows[3];
		int64_t n[3];

		assert_int_equal(vfm_t5_open(&t, s, &o, &err), 0);
		assert_int_equal(vfm_t5_encode(t, bad, 3, rows, n, &err), VFM_EINPUT);
		assert_non_null(strstr(err.msg, "text 1"));
		assert_true(!rows[0] && !rows[1] && !rows[2]);
		assert_int_equal(vfm_t5_count(t, " \t a", &err), i == 3 ? 3 : 5);
		assert_int_equal(vfm_t5_encode(t, NULL, 0, rows, n, &err), 0);
		assert_int_equal(vfm_t5_id(t, &encoder_id[i], &err), 0);
		for (int k = 0; k < i; k++) /* streaming does not change the rows */
			assert_true(!strcmp(encoder_id[i].sha256, encoder_id[k].sha256) == (i == 4 && k == 0));
		vfm_t5_close(t);
	}
	assert_int_equal(encoder_id[0].dim, DIM);
	assert_int_equal(encoder_id[2].max_rows, 7);
	dev->t->stream_free(s);
	dev->t->dev_free(dev);
	free_model(&m);
}

static int make_folder(void **state)
{
	(void)state;
	if (!mkdtemp(folder))
		return -1;
	write_tokenizer(9);
	return 0;
}

static int remove_folder(void **state)
{
	(void)state;
	return vfm_rm_rf(folder, NULL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_values),
		cmocka_unit_test(test_batches),
		cmocka_unit_test(test_placement),
		cmocka_unit_test(test_no_buckets),
		cmocka_unit_test(test_refused),
		cmocka_unit_test(test_texts_and_encoder_ids),
	};

	return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
