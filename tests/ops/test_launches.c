/* Launches of a dit-xl block in the forward and backward of a pack: each kernel of ours, each product of the library
 * and each memset or copy is a launch; attention by the library counts as one for each piece.  The block is narrow, but
 * its layers, dtypes and head dimension are those of dit-xl.  The count is the difference between models of three
 * blocks and two.
 *
 * A launch costs about 2 us of idle device between dependent small kernels, so a small model is limited by their
 * number. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "device/cpu/cpu.h"
#include "device/cuda/attn_pack.h"
#include "emu_dev.h"
#include "ok.h"
#include "train/step/synthetic.h"
#include "train/step/trainer.h"

enum { FEW = 2, MANY = 3, SAMPLES = 1, KINDS = 256, MOST = 60 };

/* ---- counting ---- */

struct kind {
	char what[160]; /* "op: kernel" */
	int n;
};
struct counts {
	struct kind kind[KINDS];
	int n, total;
};

static struct counts *counts; /* NULL: not counted */
static const char *op_now;

static void count(const char *kernel)
{
	char what[160];
	int i;

	if (!counts)
		return;
	snprintf(what, sizeof(what), "%s: %s", op_now ? op_now : "-", kernel);
	for (i = 0; i < counts->n && strcmp(counts->kind[i].what, what) != 0; i++)
		;
	assert_true(i < KINDS);
	if (i == counts->n)
		snprintf(counts->kind[counts->n++].what, sizeof(what), "%s", what);
	counts->kind[i].n++;
	counts->total++;
}

static const struct vfm_dev_table *emu;
static struct vfm_dev *cpu; /* computes what the libraries would */
static struct vfm_dev_table table;
static struct vfm_ops ops;

/* What lib/device/cuda/attn.c launches: the library's product of each piece, and for a packed piece the kernels that
 * make the inputs of its plan. */
static void count_attention(
	const struct vfm_seqs *q, const struct vfm_seqs *k, const struct vfm_tensor *kt, int64_t group, bool bwd)
{
	bool apart = bwd && kt->shape[2] % 16 != 0;
	struct vfm_attn_limits lim = {.hkv = kt->shape[1], .group = group, .rows = apart ? 1 << 17 : 0};
	struct vfm_attn_piece *piece;
	int n = vfm_attn_pieces(q, k, &lim, &piece);

	for (int i = 0; i < n; i++) {
		count("the library");
		if (piece[i].kind != VFM_ATTN_PACKED)
			continue;
		count("attn_lists");
		if (apart)
			count("attn_spread");
	}
	free(piece);
}

static int count_op_attn(struct vfm_stream *s, const struct vfm_attn *a, struct vfm_err *e)
{
	op_now = "attn";
	count_attention(a->seqs_q, a->seqs_k, &a->k, a->q.shape[1] / a->k.shape[1], false);
	op_now = NULL;
	return cpu->t->ops->attn(s, a, e);
}

static int count_op_attn_bwd(struct vfm_stream *s, const struct vfm_attn_bwd *a, struct vfm_err *e)
{
	op_now = "attn_bwd";
	count_attention(a->seqs_q, a->seqs_k, &a->k, a->q.shape[1] / a->k.shape[1], true);
	op_now = NULL;
	return cpu->t->ops->attn_bwd(s, a, e);
}

#define X(name)                                                                                                        \
	static int count_of_##name(struct vfm_stream *s, const struct vfm_##name *a, struct vfm_err *e)                \
	{                                                                                                              \
		int rc;                                                                                                \
                                                                                                                       \
		op_now = #name;                                                                                        \
		rc = emu->ops->name(s, a, e);                                                                          \
		op_now = NULL;                                                                                         \
		return rc;                                                                                             \
	}
VFM_OP_LIST(X)
#undef X

static int count_zero(struct vfm_stream *s, void *dst, size_t bytes, struct vfm_err *e)
{
	count("memset");
	return emu->zero(s, dst, bytes, e);
}

static int count_to_device(struct vfm_stream *s, void *dst, const void *host, size_t bytes, struct vfm_err *e)
{
	count("copy to the device");
	return emu->to_device(s, dst, host, bytes, e);
}

static int count_to_host(struct vfm_stream *s, void *host, const void *src, size_t bytes, struct vfm_err *e)
{
	count("copy to the host");
	return emu->to_host(s, host, src, bytes, e);
}

static struct vfm_dev *open_counting(void)
{
	struct vfm_dev *d = vfm_emu_open_epilogues(&err);

	if (!d)
		fail_msg("%s", err.msg);
	emu = d->t;
	table = *emu;
	ops = *emu->ops;
#define X(name) ops.name = emu->ops->name ? count_of_##name : NULL;
	VFM_OP_LIST(X)
#undef X
	ops.attn = count_op_attn;
	ops.attn_bwd = count_op_attn_bwd;
	table.ops = &ops;
	table.zero = count_zero;
	table.to_device = count_to_device;
	table.to_host = count_to_host;
	d->t = &table;
	vfm_emu_launched = count;
	cpu = vfm_cpu_open(&err);
	if (!cpu)
		fail_msg("%s", err.msg);
	return d;
}

/* ---- training ---- */

/* Counts the launches of a step's packs, optimizer and uploads included. */
static void train_step(const struct vfm_config *c, int packs, struct counts *out)
{
	static const struct vfm_synthetic images[SAMPLES] = {{{1, 16, 16}, 5, 11}};
	struct vfm_dev *dev = open_counting();
	struct vfm_stream *s = dev->t->stream_new(dev, false, &err);
	struct vfm_trainer *tr = s ? vfm_trainer_new(c, vfm_mesh_one(), s, &err) : NULL;
	struct vfm_pack b;
	struct vfm_pack_array array = {&b, 1, 0};
	struct vfm_pack_source source = vfm_pack_array_source(&array);
	struct vfm_step_stats stats;

	if (!tr)
		fail_msg("%s", err.msg);
	OK(vfm_synthetic_pack(&b, images, SAMPLES, &c->model, c->train.seed, &err));
	b.step_tokens = b.tokens;
	OK(vfm_params_fill_dense(vfm_trainer_params(tr), c->train.seed, &err));
	counts = out;
	OK(vfm_trainer_step(tr, 0, packs, &source, c->train.lr, &err));
	counts = NULL;
	OK(vfm_trainer_stats(tr, &stats, &err));
	assert_true(vfm_step_is_finite(&stats));
	vfm_pack_release(&b);
	vfm_trainer_free(tr);
	dev->t->stream_free(s);
	dev->t->dev_free(dev);
	cpu->t->dev_free(cpu);
	vfm_emu_launched = NULL;
	vfm_emu_close_libraries();
}

static int count_of(const struct counts *c, const char *what)
{
	for (int i = 0; i < c->n; i++)
		if (!strcmp(c->kind[i].what, what))
			return c->kind[i].n;
	return 0;
}

static void configure(struct vfm_config *c, int layers, const char *const *set)
{
	static const char *const xl[] = {"model.arch=dit", "model.hidden=144", "model.heads=2", "model.ffn=576",
		"model.text_dim=24", "model.text_len=16", "model.channels=4", "train.dtype=bf16", "train.seed=7"};
	char n[32];

	vfm_config_defaults(c);
	for (size_t i = 0; i < sizeof(xl) / sizeof(xl[0]); i++)
		OK(vfm_config_set(c, xl[i], &err));
	snprintf(n, sizeof(n), "model.layers=%d", layers);
	OK(vfm_config_set(c, n, &err));
	for (; *set; set++)
		OK(vfm_config_set(c, *set, &err));
	OK(vfm_config_check(c, &err));
}

/* Returns the launches of a block for one more pack of a step. */
static int launches_of_block(const char *what, const char *const *set, int packs)
{
	struct counts of[2][2] = {0}; /* [FEW, MANY][packs - 1, packs] */
	int total = 0;

	for (int m = 0; m < 2; m++)
		for (int k = 0; k < 2; k++) {
			struct vfm_config c;

			configure(&c, m ? MANY : FEW, set);
			if (packs > 1 || k)
				train_step(&c, packs - 1 + k, &of[m][k]);
		}
	print_message("%s, pack %d: launches of a block\n", what, packs);
	for (int i = 0; i < of[1][1].n; i++) {
		const char *name = of[1][1].kind[i].what;
		int n = count_of(&of[1][1], name) - count_of(&of[1][0], name) - count_of(&of[0][1], name) +
			count_of(&of[0][0], name);

		if (n)
			print_message("%5d  %s\n", n, name);
		total += n;
	}
	print_message("%5d\n", total);
	return total;
}

#define BLOCK(what, packs, ...) launches_of_block(what, (const char *const[]){__VA_ARGS__, NULL}, packs)

static void test_dit_xl(void **state)
{
	(void)state;
	/* The first pack's gradients overwrite, those of the second are added. */
	assert_in_range(BLOCK("dit-xl", 1, "model.pos=rope"), 1, MOST);
	assert_in_range(BLOCK("dit-xl", 2, "model.pos=rope"), 1, MOST);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_dit_xl),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
