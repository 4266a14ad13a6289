/* Builds every plan that training requests from cuDNN, through attn.c, for devices that are
 * absent: the heuristics must offer an engine, and its kernel must compile.  Runs with the driver of driver.c. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "device/cuda/attn.c"

#include "base/clock.h"
#include "device/cuda/attn.h"
#include "device/cuda/cuda_stream.h"
#include "device/cuda/cuda_sys.h"
#include "io/file.h"

/* Samples of a pack: n of `len` rows, each shorter by `less` than the one before. */
struct pack {
	int n, len, less;
};

static const struct problem {
	const char *what;
	int h, hkv, d;
	struct pack q, k;    /* k.n 0: the same */
	bool fused;          /* q, k and v are slices of one projection, and their gradients likewise; else only v */
	enum vfm_dtype grad; /* f32: the ring */
	int brief;           /* 0: built for H200; 1: also for A100 and B200; 2: for every device */
} problems[] = {
	{"dit-s", 6, 6, 64, {1, 8192, 0}, {0}, false, VFM_BF16, 0},
	{"dit-b packed", 12, 12, 64, {5, 2500, 391}, {0}, false, VFM_BF16, 1},
	{"dit-l fused", 16, 16, 64, {7, 3001, 77}, {0}, true, VFM_BF16, 0},
	{"dit-xl", 16, 16, 72, {8, 1024, 0}, {0}, false, VFM_BF16, 0},
	{"dit-xl, images of 256", 16, 16, 72, {192, 256, 0}, {0}, false, VFM_BF16, 0},
	{"dit-xl packed", 16, 16, 72, {9, 2048, 111}, {0}, false, VFM_BF16, 1},
	{"stdit columns", 16, 16, 72, {900, 17, 0}, {0}, false, VFM_BF16, 0},
	{"dit-7b 8k", 32, 32, 128, {1, 8192, 0}, {0}, false, VFM_BF16, 1},
	{"dit-7b 64k", 32, 32, 128, {1, 65536, 0}, {0}, false, VFM_BF16, 0},
	{"dit-7b 64k packed", 32, 32, 128, {11, 11000, 917}, {0}, false, VFM_BF16, 2},
	{"dit-7b 64k, one long", 32, 32, 128, {30, 33000, 1100}, {0}, false, VFM_BF16, 0},
	{"dit-7b text", 32, 32, 128, {5, 2500, 391}, {5, 512, 60}, false, VFM_BF16, 1},
	{"dit-7b text 512", 32, 32, 128, {2, 4096, 0}, {2, 512, 0}, true, VFM_BF16, 0},
	{"dit-7b ring", 32, 32, 128, {4, 5000, 700}, {4, 4700, 600}, false, VFM_F32, 1},
	{"dit-7b ring, one sample", 32, 32, 128, {1, 8192, 0}, {0}, false, VFM_F32, 0},
	{"dit-7b 1 of 8 ranks' heads", 4, 4, 128, {3, 20000, 1000}, {0}, true, VFM_BF16, 0},
	{"moviegen-1b", 32, 8, 64, {6, 2000, 300}, {0}, false, VFM_BF16, 0},
	{"moviegen-5b", 24, 8, 128, {1, 8192, 0}, {0}, false, VFM_BF16, 0},
	{"moviegen-30b packed", 48, 8, 128, {9, 9000, 500}, {0}, false, VFM_BF16, 1},
	{"moviegen-30b ring", 48, 8, 128, {3, 9000, 500}, {0}, false, VFM_F32, 1},
	{"moviegen-30b ring, one sample", 48, 8, 128, {1, 16384, 0}, {0}, false, VFM_F32, 0},
	{"d 96 gqa ring", 8, 4, 96, {3, 1000, 100}, {0}, true, VFM_F32, 0},
	{"d 80", 8, 8, 80, {3, 1000, 100}, {0}, false, VFM_BF16, 0},
	{"d 96", 8, 8, 96, {3, 1000, 100}, {0}, false, VFM_BF16, 0},
	{"d 112", 8, 8, 112, {3, 1000, 100}, {0}, false, VFM_BF16, 0},
	{"d 120 gqa ring", 8, 2, 120, {3, 1000, 100}, {0}, true, VFM_F32, 0},
	{"d 40", 4, 4, 40, {3, 1000, 100}, {0}, false, VFM_BF16, 0},
	{"d 8", 4, 4, 8, {3, 1000, 100}, {0}, false, VFM_BF16, 0},
};

static struct vfm_seqs seqs_of(const struct pack *p, int32_t *cu)
{
	struct vfm_seqs q = {.n = p->n, .cu = cu};

	cu[0] = 0;
	for (int i = 0; i < p->n; i++)
		cu[i + 1] = cu[i] + p->len - i * p->less;
	q.total = cu[p->n];
	return q;
}

/* A valid address that is never read. */
static struct vfm_tensor rows(enum vfm_dtype t, int64_t n, int64_t h, int64_t d, int64_t row)
{
	static char base[256] __attribute__((aligned(256)));
	struct vfm_tensor x = vfm_t3(base, t, n, h, d);

	x.stride[0] = row;
	return x;
}

/* A stream without a device, which is not being captured. */
static struct vfm_stream *no_stream(void)
{
	static struct vfm_cuda_sys sys;
	static struct vfm_cuda cuda = {.sys = &sys};
	static struct vfm_cuda_stream st = {.s = {.dev = &cuda.dev}};

	return &st.s;
}

static void job_of(struct attn_job *j, const struct problem *p, struct vfm_cuda_attn *c, const struct vfm_seqs *q,
	const struct vfm_seqs *k, bool bwd)
{
	int64_t fused = (int64_t)(p->h + 2 * p->hkv) * p->d, hq = (int64_t)p->h * p->d, hk = (int64_t)p->hkv * p->d,
		d = p->d;

	*j = (struct attn_job){
		.c = c, .s = no_stream(), .q = q, .k = k, .bwd = bwd, .lse = vfm_t2(NULL, VFM_F32, q->total, p->h)};
	j->x[VFM_DNN_Q] = rows(VFM_BF16, q->total, p->h, d, p->fused ? fused : hq);
	j->x[VFM_DNN_K] = rows(VFM_BF16, k->total, p->hkv, d, p->fused ? fused : hk);
	j->x[VFM_DNN_V] = rows(VFM_BF16, k->total, p->hkv, d, fused);
	j->x[VFM_DNN_O] = rows(VFM_BF16, q->total, p->h, d, hq);
	if (!bwd)
		return;
	j->x[VFM_DNN_DOUT] = j->x[VFM_DNN_O];
	j->x[VFM_DNN_DQ] = rows(p->grad, q->total, p->h, d, p->fused ? fused : hq);
	j->x[VFM_DNN_DK] = rows(p->grad, k->total, p->hkv, d, p->fused ? fused : hk);
	j->x[VFM_DNN_DV] = rows(p->grad, k->total, p->hkv, d, p->grad == VFM_F32 ? hk : fused);
}

static int build(
	struct vfm_cuda_attn *c, const struct problem *p, const struct form *form, bool bwd, bool deterministic)
{
	static int32_t cu_q[1001], cu_k[1001];
	struct vfm_seqs q = seqs_of(&p->q, cu_q), k = seqs_of(p->k.n ? &p->k : &p->q, cu_k);
	struct vfm_err err = {0};
	double t0 = vfm_now();
	size_t had = c->n;
	struct attn_job j;
	int rc;

	job_of(&j, p, c, &q, &k, bwd);
	j.deterministic = deterministic;
	j.form = form;
	assert_true(is_supported(&j));
	rc = plan_pieces(&j, &err);
	print_message("%-30s %s %s %2d/%d d %-3d  ", p->what, form->name, bwd ? "bwd" : "fwd", p->h, p->hkv, p->d);
	if (rc < 0)
		print_message("%s\n", err.msg);
	for (int i = 0; rc == 0 && i < j.n; i++) {
		struct vfm_dnn_facts f = vfm_dnn_facts(j.plan[i]->a->g);
		struct vfm_suballoc m = {.align = SCRATCH_ALIGN};

		assert_true(f.configs > 0 && f.workspace >= 0);
		lay_out_piece(&j, j.plan[i]->a, &m);
		print_message("%s%dx%dx%d%s engine %d of %d, %d plans, %d operations, scratch %.1f MiB", i ? "; " : "",
			(int)j.piece[i].b, (int)j.piece[i].sq, (int)j.piece[i].sk,
			j.piece[i].kind == VFM_ATTN_PACKED ? " packed" : "", (int)f.engine, f.configs, f.plans, f.ops,
			(double)m.used * 0x1p-20);
	}
	if (rc == 0)
		print_message(" (%d plans, %.2f s)\n", (int)(c->n - had), vfm_now() - t0);
	free(j.piece);
	free(j.plan);
	return rc;
}

/* Problems of which all forms are built. */
static bool is_ladder(const char *what)
{
	return strcmp(what, "dit-7b 8k") == 0 || strcmp(what, "dit-7b 64k packed") == 0;
}

/* Loads the description of a device from the JSON that cuDNN writes of device properties. */
static int describe_absent_device(struct vfm_dnn_on *on, const char *json, size_t len, struct vfm_err *err)
{
	*on = (struct vfm_dnn_on){0};
	while (len && strchr(" \n\r\t", json[len - 1]))
		len--;
	TRY(vfm_dnn_check(cudnnBackendCreateDescriptor(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR, &on->devprop),
		"device properties", err));
	TRY(vfm_dnn_check(cudnnBackendSetAttribute(on->devprop, CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION,
				  CUDNN_TYPE_CHAR, (int64_t)len, json),
		"device properties", err));
	return vfm_dnn_check(cudnnBackendFinalize(on->devprop), "device properties", err);
}

static void device(const char *name, int sm, int brief)
{
	struct vfm_cuda_attn *c = vfm_calloc(1, sizeof(*c));
	struct vfm_err err = {0};
	char path[256], *json = NULL;
	size_t len = 0;
	int bad = 0;

	snprintf(path, sizeof(path), "tests/cuda/devices/%s.json", name);
	if (vfm_read_file(path, 1 << 16, &json, &len, &err) < 0 || describe_absent_device(&c->on, json, len, &err) < 0)
		fail_msg("%s", err.msg);
	c->sm = sm;
	c->pairs = PAIRS;
	c->set.tune = true; /* all engines of the largest problems */
	c->tune_flops = 3e13;
	for (size_t i = 0; i < sizeof(problems) / sizeof(problems[0]); i++)
		for (int bwd = 0; bwd < 2 && problems[i].brief >= brief; bwd++)
			bad += build(c, &problems[i], &forms[0], bwd, false) < 0;
	/* the forms that replace refused ones */
	for (size_t i = 0; i < sizeof(problems) / sizeof(problems[0]); i++)
		for (int f = 1; f < FORMS && is_ladder(problems[i].what); f++)
			for (int bwd = 0; bwd < 2 - forms[f].unified; bwd++)
				bad += build(c, &problems[i], &forms[f], bwd, false) < 0;
	/* deterministic: cuDNN supports it only on Hopper */
	for (size_t i = 0; i < sizeof(problems) / sizeof(problems[0]) && brief == 0; i++)
		if (i < 2 || strstr(problems[i].what, "d 96 gqa ring"))
			bad += build(c, &problems[i], &forms[0], true, true) < 0;
	free(json);
	if (c->on.devprop)
		cudnnBackendDestroyDescriptor(c->on.devprop);
	c->on.devprop = NULL;
	vfm_cuda_attn_close(c);
	assert_int_equal(bad, 0);
}

static void test_h200(void **state)
{
	(void)state;
	device("h200", 90, 0);
}

static void test_h100(void **state)
{
	(void)state;
	device("h100", 90, 2);
}

static void test_a100(void **state)
{
	(void)state;
	device("a100", 80, 1);
}

static void test_b200(void **state)
{
	(void)state;
	device("b200", 100, 1);
}

static void test_rtx_4090(void **state)
{
	(void)state;
	device("rtx-4090", 89, 1);
}

static void test_rtx_5090(void **state)
{
	(void)state;
	device("rtx-5090", 120, 1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_h200),
		cmocka_unit_test(test_h100),
		cmocka_unit_test(test_a100),
		cmocka_unit_test(test_b200),
		cmocka_unit_test(test_rtx_4090),
		cmocka_unit_test(test_rtx_5090),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
