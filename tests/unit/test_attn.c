/* Attention against float64 references: forward, lse, gradients; all kernels that this CPU can run. */
#include <math.h>
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "base/par.h"
#include "base/philox.h"
#include "device/cpu/cpu.h"
#include "device/cpu/cpu_attn_impl.h"
#include "device/cpu/cpu_impl.h"

enum { MAX_S = 64 };

/* A problem: samples of (q, k) tokens.  Strided: q, k, v are column blocks of wider rows. */
struct shape {
	int n, q[MAX_S], k[MAX_S];
	int heads, kv_heads, d;
	bool strided;
	float scale;
};

struct problem {
	struct shape sh;
	int32_t cu_q[MAX_S + 1], cu_k[MAX_S + 1];
	struct vfm_seqs sq, sk;
	int64_t tq, tk;
	/* exact values of the operands, contiguous */
	double *q, *k, *v, *dout;
	/* the reference */
	double *o, *lse, *dq, *dk, *dv;
	float *lse_out;
	struct vfm_tensor tq_, tk_, tv_, to_, tg_, tlse, tdq, tdk, tdv;
	void *mem[12];
};

#ifndef ATTN_KERNELS /* test_attn_amx_avx512bf16.c has others */
#define ATTN_KERNELS                                                                                                   \
	&vfm_attn_base, &vfm_attn_avx2, &vfm_attn_avx512, &vfm_attn_avx512bf16, &vfm_attn_amx, &vfm_attn_amx_f32
#endif
static const struct attn_isa *const all_isa[] = {ATTN_KERNELS};
enum { N_ISA = sizeof all_isa / sizeof *all_isa };

static struct vfm_dev *dev;
static struct vfm_stream *stream;

static const char *name(const struct attn_isa *isa)
{
	return vfm_isa_name(isa->isa);
}

/* On this CPU, with operands of this type. */
static bool runs(const struct attn_isa *isa, bool bf16)
{
	return isa->isa <= vfm_isa_best() && (bf16 || !isa->bf16);
}

static double *doubles(int64_t n)
{
	return vfm_calloc((size_t)n + 1, sizeof(double));
}

/* A [t, h, d] view with guard elements between rows, filled with `fill`. */
static struct vfm_tensor tensor(void **mem, enum vfm_dtype dt, int64_t t, int64_t h, int64_t d, bool strided)
{
	int64_t row = strided ? 3 * h * d + 8 : h * d;
	size_t size = (size_t)(t * row + 64) * vfm_dtype_size(dt);
	struct vfm_tensor x = {.dtype = dt, .ndim = 3, .shape = {t, h, d}, .stride = {row, d, 1}};

	*mem = malloc(size);
	memset(*mem, 0x7f, size); /* NaN or huge: what is not written shows */
	x.data = (char *)*mem + (strided ? (size_t)(h * d) * vfm_dtype_size(dt) : 0);
	if (strided)
		x.data = (char *)*mem + 16;
	return x;
}

static void put(struct vfm_tensor *x, int64_t i, float v)
{
	int64_t d = x->shape[2], h = x->shape[1];
	int64_t at = i / (h * d) * x->stride[0] + i / d % h * x->stride[1] + i % d;

	if (x->dtype == VFM_F32)
		((float *)x->data)[at] = v;
	else
		((uint16_t *)x->data)[at] = vfm_f32_to_bf16(v);
}

static double get(const struct vfm_tensor *x, int64_t i)
{
	int64_t d = x->shape[2], h = x->shape[1];
	int64_t at = i / (h * d) * x->stride[0] + i / d % h * x->stride[1] + i % d;

	return x->dtype == VFM_F32 ? ((float *)x->data)[at] : vfm_bf16_to_f32(((uint16_t *)x->data)[at]);
}

static double *fill(struct vfm_tensor *x, uint64_t id, float amp)
{
	struct vfm_rng r = vfm_rng_stream(1, 0, id, VFM_RNG_TEST);
	int64_t n = vfm_numel(x);
	double *out = doubles(n);

	for (int64_t i = 0; i < n; i++) {
		put(x, i, amp * vfm_rng_normal(&r, (uint64_t)i));
		out[i] = get(x, i);
	}
	return out;
}

/* One row of softmax; s has room for nk. */
static void ref_row(struct problem *p, int sm, int64_t t, int h, double *s, double *g)
{
	const struct shape *sh = &p->sh;
	int d = sh->d, kh = h / (sh->heads / sh->kv_heads);
	int64_t k0 = p->cu_k[sm], nk = p->cu_k[sm + 1] - k0, qi = (t * sh->heads + h) * d;
	double mx = -INFINITY, sum = 0, delta = 0;

	for (int64_t j = 0; j < nk; j++) {
		const double *k = p->k + ((k0 + j) * sh->kv_heads + kh) * d;

		s[j] = 0;
		for (int c = 0; c < d; c++)
			s[j] += p->q[qi + c] * k[c];
		s[j] *= sh->scale;
		mx = fmax(mx, s[j]);
	}
	for (int64_t j = 0; j < nk; j++)
		sum += s[j] = exp(s[j] - mx);
	p->lse[t * sh->heads + h] = nk ? mx + log(sum) : -INFINITY;
	for (int64_t j = 0; j < nk; j++) {
		int64_t at = ((k0 + j) * sh->kv_heads + kh) * d;

		s[j] /= sum;
		g[j] = 0;
		for (int c = 0; c < d; c++) {
			p->o[qi + c] += s[j] * p->v[at + c];
			g[j] += p->dout[qi + c] * p->v[at + c];
			p->dv[at + c] += s[j] * p->dout[qi + c];
		}
		delta += s[j] * g[j];
	}
	for (int64_t j = 0; j < nk; j++) {
		int64_t at = ((k0 + j) * sh->kv_heads + kh) * d;
		double ds = sh->scale * s[j] * (g[j] - delta);

		for (int c = 0; c < d; c++) {
			p->dq[qi + c] += ds * p->k[at + c];
			p->dk[at + c] += ds * p->q[qi + c];
		}
	}
}

static void reference(struct problem *p)
{
	const struct shape *sh = &p->sh;
	int64_t nq = p->tq * sh->heads * sh->d, nk = p->tk * sh->kv_heads * sh->d;
	double *s = doubles(p->tk), *g = doubles(p->tk);

	p->o = doubles(nq);
	p->dq = doubles(nq);
	p->dk = doubles(nk);
	p->dv = doubles(nk);
	p->lse = doubles(p->tq * sh->heads);
	for (int i = 0; i < sh->n; i++)
		for (int64_t t = p->cu_q[i]; t < p->cu_q[i + 1]; t++)
			for (int h = 0; h < sh->heads; h++)
				ref_row(p, i, t, h, s, g);
	free(s);
	free(g);
}

static void problem_init(struct problem *p, const struct shape *sh, enum vfm_dtype dt, enum vfm_dtype grad, float amp)
{
	*p = (struct problem){.sh = *sh};
	if (p->sh.scale == 0)
		p->sh.scale = 1 / sqrtf((float)sh->d);
	for (int i = 0; i < sh->n; i++) {
		p->cu_q[i + 1] = p->cu_q[i] + sh->q[i];
		p->cu_k[i + 1] = p->cu_k[i] + sh->k[i];
	}
	p->tq = p->cu_q[sh->n];
	p->tk = p->cu_k[sh->n];
	p->sq = (struct vfm_seqs){.n = sh->n, .total = p->tq, .cu = p->cu_q};
	p->sk = (struct vfm_seqs){.n = sh->n, .total = p->tk, .cu = p->cu_k};
	p->tq_ = tensor(&p->mem[0], dt, p->tq, sh->heads, sh->d, sh->strided);
	p->tk_ = tensor(&p->mem[1], dt, p->tk, sh->kv_heads, sh->d, sh->strided);
	p->tv_ = tensor(&p->mem[2], dt, p->tk, sh->kv_heads, sh->d, sh->strided);
	p->to_ = tensor(&p->mem[3], dt, p->tq, sh->heads, sh->d, false);
	p->tg_ = tensor(&p->mem[4], dt, p->tq, sh->heads, sh->d, false);
	p->tdq = tensor(&p->mem[5], grad, p->tq, sh->heads, sh->d, sh->strided);
	p->tdk = tensor(&p->mem[6], grad, p->tk, sh->kv_heads, sh->d, sh->strided);
	p->tdv = tensor(&p->mem[7], grad, p->tk, sh->kv_heads, sh->d, sh->strided);
	p->q = fill(&p->tq_, 1, amp);
	p->k = fill(&p->tk_, 2, amp);
	p->v = fill(&p->tv_, 3, 1);
	p->dout = fill(&p->tg_, 4, 1);
	p->mem[8] = p->lse_out = malloc((size_t)(p->tq * sh->heads + 1) * sizeof(float));
	p->tlse = (struct vfm_tensor){
		.data = p->lse_out, .ndim = 2, .shape = {p->tq, sh->heads}, .stride = {sh->heads, 1}};
}

static void problem_free(struct problem *p)
{
	for (int i = 0; i < 9; i++)
		free(p->mem[i]);
	free(p->q), free(p->k), free(p->v), free(p->dout);
	free(p->o), free(p->lse), free(p->dq), free(p->dk), free(p->dv);
}

static void run(struct problem *p, const struct attn_isa *isa)
{
	struct vfm_err err = {0};
	struct vfm_attn a = {.q = p->tq_,
		.k = p->tk_,
		.v = p->tv_,
		.o = p->to_,
		.lse = p->tlse,
		.seqs_q = &p->sq,
		.seqs_k = &p->sk,
		.scale = p->sh.scale};
	struct vfm_attn_bwd b = {.q = p->tq_,
		.k = p->tk_,
		.v = p->tv_,
		.o = p->to_,
		.lse = p->tlse,
		.dout = p->tg_,
		.dq = p->tdq,
		.dk = p->tdk,
		.dv = p->tdv,
		.seqs_q = &p->sq,
		.seqs_k = &p->sk,
		.scale = p->sh.scale};

	if (vfm_attn_fwd_isa(isa, stream, &a, &err) || vfm_attn_bwd_isa(isa, stream, &b, &err))
		fail_msg("%s: %s", name(isa), err.msg);
}

/* Every element within tol of the root mean square, plus the rounding of its own size; `floor` is for gradients that
 * cancel to nothing (a sample with one key). */
static void compare(const char *what, const struct problem *p, const struct attn_isa *isa, const struct vfm_tensor *x,
	const double *ref, double tol)
{
	const bool bf16 = p->tq_.dtype == VFM_BF16;
	const double floor = bf16 ? 0.01 : 5e-6, own = bf16 ? 0.0125 : 1e-5;
	int64_t n = vfm_numel(x), worst = -1;
	double rms = 0;

	for (int64_t i = 0; i < n; i++)
		rms += ref[i] * ref[i];
	rms = sqrt(rms / (double)(n ? n : 1));
	for (int64_t i = 0; i < n; i++)
		if (!(fabs(get(x, i) - ref[i]) <= tol * rms + own * fabs(ref[i]) + floor))
			worst = i;
	if (worst >= 0)
		fail_msg("%s %s: n %d, q %d, k %d, heads %d/%d, d %d: element %ld is %g, not %g (rms %g, tol %g)",
			name(isa), what, p->sh.n, p->sh.q[0], p->sh.k[0], p->sh.heads, p->sh.kv_heads, p->sh.d,
			(long)worst, get(x, worst), ref[worst], rms, tol);
}

static void check(const struct shape *sh, enum vfm_dtype dt, enum vfm_dtype grad, float amp)
{
	struct problem p;
	bool bf16 = dt == VFM_BF16;

	problem_init(&p, sh, dt, grad, amp);
	reference(&p);
	for (size_t i = 0; i < N_ISA; i++) {
		/* largest error in units of the rms: rounding of the output alone is up to 2^-9 of up to 5 rms */
		double out = bf16 ? 0.02 : 1e-5, g = bf16 ? 0.05 : 4e-5;

		if (!runs(all_isa[i], bf16))
			continue;
		run(&p, all_isa[i]);
		compare("o", &p, all_isa[i], &p.to_, p.o, out);
		for (int64_t j = 0; j < p.tq * sh->heads; j++)
			if (p.lse[j] != p.lse_out[j] &&
				!(fabs(p.lse[j] - p.lse_out[j]) <= (bf16 ? 3e-4 : 1e-5) + 1e-6 * fabs(p.lse[j])))
				fail_msg("%s lse %ld: %g, not %g", name(all_isa[i]), (long)j, p.lse_out[j], p.lse[j]);
		compare("dv", &p, all_isa[i], &p.tdv, p.dv, g);
		compare("dk", &p, all_isa[i], &p.tdk, p.dk, g);
		compare("dq", &p, all_isa[i], &p.tdq, p.dq, g);
	}
	problem_free(&p);
}

static void check_all(const struct shape *sh)
{
	check(sh, VFM_F32, VFM_F32, 1);
	check(sh, VFM_BF16, sh->n % 2 ? VFM_BF16 : VFM_F32, 1);
}

static void head_dims(void **state)
{
	(void)state;
	for (int d = 8; d <= 128; d += 8)
		check_all(
			&(struct shape){.n = 3, .q = {33, 64, 7}, .k = {33, 64, 7}, .heads = 2, .kv_heads = 2, .d = d});
}

static void lengths(void **state)
{
	static const int len[] = {1, 2, 3, 5, 15, 16, 17, 31, 47, 63, 65, 77, 127, 128, 129, 131, 200, 255, 257};

	(void)state;
	for (size_t i = 0; i < sizeof len / sizeof *len; i++) {
		check_all(&(struct shape){.n = 1, .q = {len[i]}, .k = {len[i]}, .heads = 1, .kv_heads = 1, .d = 24});
		check_all(&(struct shape){.n = 1, .q = {9}, .k = {len[i]}, .heads = 1, .kv_heads = 1, .d = 64});
		check_all(&(struct shape){.n = 1, .q = {len[i]}, .k = {5}, .heads = 1, .kv_heads = 1, .d = 64});
	}
}

static void long_samples(void **state)
{
	(void)state;
	check_all(&(struct shape){.n = 1, .q = {1000}, .k = {999}, .heads = 1, .kv_heads = 1, .d = 72});
	check_all(&(struct shape){.n = 2, .q = {70, 513}, .k = {1100, 513}, .heads = 2, .kv_heads = 1, .d = 16});
	check_all(&(struct shape){.n = 1, .q = {100}, .k = {1601}, .heads = 3, .kv_heads = 3, .d = 40});
	check_all(&(struct shape){.n = 2, .q = {2300, 2050}, .k = {77, 1}, .heads = 2, .kv_heads = 2, .d = 24});
}

static void empty_samples(void **state)
{
	(void)state;
	check_all(&(struct shape){
		.n = 6, .q = {0, 20, 0, 40, 3, 0}, .k = {0, 20, 9, 0, 5, 0}, .heads = 2, .kv_heads = 1, .d = 32});
	check_all(&(struct shape){.n = 1, .q = {0}, .k = {7}, .heads = 2, .kv_heads = 2, .d = 64});
	check_all(&(struct shape){.n = 1, .q = {7}, .k = {0}, .heads = 2, .kv_heads = 2, .d = 64});
	check_all(&(struct shape){.n = 0, .heads = 2, .kv_heads = 2, .d = 64});
}

static void grouped_and_strided(void **state)
{
	(void)state;
	for (int st = 0; st < 2; st++) {
		check_all(&(struct shape){.n = 4,
			.q = {50, 3, 16, 90},
			.k = {50, 30, 77, 1},
			.heads = 8,
			.kv_heads = 2,
			.d = 64,
			.strided = st});
		check_all(&(struct shape){
			.n = 2, .q = {131, 20}, .k = {131, 20}, .heads = 6, .kv_heads = 1, .d = 80, .strided = st});
		check_all(&(struct shape){.n = 3,
			.q = {300, 256, 1},
			.k = {77, 77, 77},
			.heads = 2,
			.kv_heads = 2,
			.d = 128,
			.strided = st});
	}
}

static void scales(void **state)
{
	(void)state;
	check_all(&(struct shape){.n = 1, .q = {40}, .k = {300}, .heads = 2, .kv_heads = 2, .d = 64, .scale = -0.1f});
	check_all(&(struct shape){.n = 1, .q = {40}, .k = {300}, .heads = 2, .kv_heads = 2, .d = 64, .scale = 1e-4f});
	/* peaked: scores of +-30 */
	check(&(struct shape){.n = 1, .q = {40}, .k = {300}, .heads = 1, .kv_heads = 1, .d = 64}, VFM_F32, VFM_F32,
		2.5f);
}

/* A NaN in an operand must reach the outputs of its sample and no other's. */
static void nan_spreads(void **state)
{
	struct shape sh = {.n = 2, .q = {20, 20}, .k = {150, 20}, .heads = 1, .kv_heads = 1, .d = 32};

	(void)state;
	for (int dt = VFM_F32; dt <= VFM_BF16; dt++)
		for (size_t i = 0; i < N_ISA; i++) {
			struct problem p;

			if (!runs(all_isa[i], dt == VFM_BF16))
				continue;
			problem_init(&p, &sh, dt, dt, 1);
			put(&p.tk_, 100 * 32 + 5, NAN);
			run(&p, all_isa[i]);
			for (int64_t j = 0; j < vfm_numel(&p.to_); j++)
				assert_int_equal(isnan(get(&p.to_, j)) != 0, j < 20 * 32);
			problem_free(&p);
		}
}

/* The same bits from every run and number of threads. */
static void deterministic(void **state)
{
	struct shape sh = {
		.n = 5, .q = {700, 30, 256, 1, 2200}, .k = {1300, 30, 600, 1, 90}, .heads = 4, .kv_heads = 2, .d = 64};
	int before = vfm_par_threads();

	(void)state;
	for (int dt = VFM_F32; dt <= VFM_BF16; dt++)
		for (size_t i = 0; i < N_ISA; i++) {
			struct problem p;
			void *keep[9];
			size_t size[9];

			if (!runs(all_isa[i], dt == VFM_BF16))
				continue;
			sh.d = all_isa[i]->isa == VFM_ISA_BASE ? 8 : 64; /* it is slow */
			problem_init(&p, &sh, dt, dt, 1);
			const struct vfm_tensor *t[] = {&p.to_, &p.tdq, &p.tdk, &p.tdv, &p.tlse};
			for (int n = 1; n <= 4; n++) {
				vfm_par_set_threads(n == 4 ? 1 : n);
				run(&p, all_isa[i]);
				for (size_t x = 0; x < 5; x++) {
					if (n == 1) {
						size[x] = vfm_nbytes(t[x]);
						keep[x] = malloc(size[x]);
						memcpy(keep[x], t[x]->data, size[x]);
					} else {
						assert_memory_equal(keep[x], t[x]->data, size[x]);
					}
				}
			}
			for (size_t x = 0; x < 5; x++)
				free(keep[x]);
			problem_free(&p);
		}
	vfm_par_set_threads(before);
}

/* Ring attention: the gradients of blocks of keys, with the global o and lse, add up to the whole. */
static void key_blocks_add_up(void **state)
{
	struct shape sh = {.n = 1, .q = {60}, .k = {200}, .heads = 2, .kv_heads = 2, .d = 64};
	struct problem p;
	struct vfm_err err = {0};
	double *sum;

	(void)state;
	problem_init(&p, &sh, VFM_F32, VFM_F32, 1);
	reference(&p);
	run(&p, &vfm_attn_base); /* for o and lse */
	sum = doubles(vfm_numel(&p.tdq));
	for (int part = 0; part < 2; part++) {
		int32_t cu[2] = {0, part ? 77 : 123};
		struct vfm_seqs sk = {.n = 1, .total = cu[1], .cu = cu};
		int64_t skip = part ? 123 : 0;
		struct vfm_attn_bwd b = {.q = p.tq_,
			.k = p.tk_,
			.v = p.tv_,
			.o = p.to_,
			.lse = p.tlse,
			.dout = p.tg_,
			.dq = p.tdq,
			.dk = p.tdk,
			.dv = p.tdv,
			.seqs_q = &p.sq,
			.seqs_k = &sk,
			.scale = p.sh.scale};
		struct vfm_tensor *of[] = {&b.k, &b.v, &b.dk, &b.dv};

		for (int i = 0; i < 4; i++)
			of[i]->data = (float *)of[i]->data + skip * of[i]->stride[0];
		assert_int_equal(vfm_cpu_attn_bwd(stream, &b, &err), 0);
		for (int64_t i = 0; i < vfm_numel(&p.tdq); i++)
			sum[i] += get(&p.tdq, i);
	}
	for (int64_t i = 0; i < vfm_numel(&p.tdq); i++)
		put(&p.tdq, i, (float)sum[i]);
	compare("dq in parts", &p, &vfm_attn_base, &p.tdq, p.dq, 4e-5);
	compare("dk in parts", &p, &vfm_attn_base, &p.tdk, p.dk, 4e-5);
	compare("dv in parts", &p, &vfm_attn_base, &p.tdv, p.dv, 4e-5);
	free(sum);
	problem_free(&p);
}

static int __attribute__((noinline)) run_kernels(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(head_dims),
		cmocka_unit_test(lengths),
		cmocka_unit_test(long_samples),
		cmocka_unit_test(empty_samples),
		cmocka_unit_test(grouped_and_strided),
		cmocka_unit_test(scales),
		cmocka_unit_test(nan_spreads),
		cmocka_unit_test(deterministic),
		cmocka_unit_test(key_blocks_add_up),
	};
	struct vfm_err err = {0};
	int rc;

	dev = vfm_cpu_open(&err);
	stream = dev ? dev->t->stream_new(dev, false, &err) : NULL;
	if (!stream) {
		fprintf(stderr, "%s\n", err.msg);
		return 1;
	}
	rc = cmocka_run_group_tests(tests, NULL, NULL);
	dev->t->stream_free(stream);
	dev->t->dev_free(dev);
	return rc;
}

/* Whatever comes after the check may be compiled for an instruction set that this CPU does not have. */
int main(void)
{
	size_t n = 0;

	for (size_t i = 0; i < N_ISA; i++) {
		n += runs(all_isa[i], true);
		if (!runs(all_isa[i], true))
			printf("skip: this CPU has no %s\n", name(all_isa[i]));
	}
	return n ? run_kernels() : 0;
}
