/* estimate.c - time of GEMM, convolution, attention and other kernels from tiles, rates and bandwidth.
 *
 * One multiprocessor computes a tile of m x n results; a product lasts for ceil(tiles / multiprocessors) waves.  Its
 * rate follows from the measured square product, which has waves and an epilogue too.  The best of the machine's tiles,
 * and of splits along K, counts.  im2col is written at the bandwidth of kernels, and read from the L2 cache.
 *
 * The rate of attention is interpolated in 1 / tokens.  A head dim without rates is computed as the next larger one; at
 * high rates, as the next multiple of 16.
 */
#include "device/sim/estimate.h"

#include <math.h>

#include "device/ops/info.h"
#include "device/sim/kernels.h"

/* ---- classes ---- */

enum vfm_sim_class vfm_sim_class_of(enum vfm_op_id op)
{
	switch (op) {
	case VFM_OP_gemm:
	case VFM_OP_grouped_gemm:
	case VFM_OP_conv3d:
		return VFM_SIM_GEMM;
	case VFM_OP_attn:
	case VFM_OP_attn_bwd:
	case VFM_OP_attn_bias:
		return VFM_SIM_ATTENTION;
	case VFM_OP_adamw:
	case VFM_OP_block8:
	case VFM_OP_sumsq:
	case VFM_OP_clip:
	case VFM_OP_amax_push:
		return VFM_SIM_OPTIMIZER;
	default:
		return VFM_SIM_MEMORY;
	}
}

/* ---- GEMM ---- */

static bool is_f8(enum vfm_dtype t)
{
	return t == VFM_F8E4M3 || t == VFM_F8E5M2;
}

/* Returns the FLOPs that the device could compute in the time of a product on `sms` multiprocessors, split along K into
 * `parts`. */
static double count_slots(const struct vfm_machine *m, double sms, double M, double N, double K, int parts)
{
	double best = INFINITY;

	for (int i = 0; i < m->n_tiles; i++) {
		const struct vfm_gemm_tile *t = &m->tile[i];
		double tm = (double)t->m, tn = (double)t->n;
		double waves = ceil(ceil(M / tm) * ceil(N / tn) * parts / sms);

		best = fmin(best, waves * (double)m->sms * 2 * tm * tn * K / parts / t->rate);
	}
	return best;
}

/* Bytes per second of an op. */
static double bandwidth(const struct vfm_machine *m, const struct vfm_sim_room *r, enum vfm_estimate e)
{
	double all = m->copy.v[e] * m->kernel.v[e] * 1e9, each = m->sm_bw.v[e] * 1e9;

	if (r->units)
		return fmin((double)r->units * each, all);
	return r->shared[e] ? fmax(all - r->moved[e], all / 4) : all;
}

/* Seconds to write and read back the results, while nothing is computed. */
static double epilogue_s(const struct vfm_machine *m, const struct vfm_sim_room *r, double bytes, enum vfm_estimate e)
{
	return m->epilogue.v[e] * bytes / bandwidth(m, r, e);
}

double vfm_sim_gemm_s(const struct vfm_machine *m, const struct vfm_sim_room *r, const struct vfm_rate_range *rate,
	const struct vfm_sim_product *p, enum vfm_estimate e)
{
	static const struct vfm_sim_room alone;
	double S = (double)m->gemm_size, sms = (double)m->sms, best = INFINITY;
	/* of a slot, from the measured product, whose results are bf16 */
	double slot = (2 * S * S * S / (rate->v[e] * 1e12) - epilogue_s(m, &alone, 2 * S * S, e)) /
		count_slots(m, sms, S, S, S, 1);

	if (!(p->m > 0 && p->n > 0 && p->k > 0))
		return 0;
	/* Partial sums of a product that is split along K are written and read in f32. */
	for (int parts = 1; parts <= 32 && (parts == 1 || p->k / parts >= 256); parts *= 2)
		best = fmin(best,
			count_slots(m, sms - (double)r->taken, p->m, p->n, p->k, parts) * slot +
				(parts > 1 ? 8.0 * parts * p->m * p->n / bandwidth(m, r, e) : 0));
	return fmax(best + epilogue_s(m, r, p->results, e), p->bytes / bandwidth(m, r, e));
}

static const struct vfm_rate_range *gemm_rate(const struct vfm_machine *m, enum vfm_dtype t)
{
	return is_f8(t) ? &m->gemm_f8 : t == VFM_F32 ? &m->gemm_f32 : &m->gemm_bf16;
}

static int check_gemm_rate(const struct vfm_machine *m, enum vfm_dtype t, struct vfm_err *err)
{
	if (gemm_rate(m, t)->v[VFM_MID] > 0)
		return 0;
	return vfm_fail(
		err, VFM_EUSAGE, "the machine '%s' has no rate of matrix products in %s", m->name, vfm_dtype_name(t));
}

/* Bytes of the kernels around the library's product. */
static double bytes_around(const struct vfm_gemm *a)
{
	double n = 0;

	if (vfm_has(&a->a_rowsum))
		n += (double)vfm_nbytes(&a->a);
	if (a->act == VFM_ACT_SILU || a->dact == VFM_ACT_SILU) /* our epilogue reads a product in f32 */
		n += 8 * (double)vfm_numel(&a->c);
	return n;
}

static void time_gemm(
	const struct vfm_machine *m, const struct vfm_sim_room *r, const struct vfm_gemm *a, struct vfm_sim_cost *c)
{
	struct vfm_sim_product p = {.m = (double)a->c.shape[0],
		.n = (double)a->c.shape[1],
		.k = (double)a->a.shape[a->trans_a ? 0 : 1],
		.bytes = c->bytes,
		.results = (double)vfm_nbytes(&a->c) * (a->accumulate ? 2 : 1) + (double)vfm_nbytes(&a->aux)};

	for (int e = 0; e < VFM_ESTIMATES; e++)
		c->work[e] = vfm_sim_gemm_s(m, r, gemm_rate(m, a->a.dtype), &p, (enum vfm_estimate)e) +
			bytes_around(a) / bandwidth(m, r, (enum vfm_estimate)e);
}

/* The products of all groups run at once.  Their rows are rounded up to a tile each. */
static void time_grouped(const struct vfm_machine *m, const struct vfm_sim_room *r, const struct vfm_grouped_gemm *a,
	struct vfm_sim_cost *c)
{
	bool wgrad = a->what == VFM_GROUPED_WGRAD, fwd = a->what == VFM_GROUPED_FWD;
	const struct vfm_tensor *w = wgrad ? &a->c : &a->b; /* [G,O,I] */
	double G = (double)a->groups->n, rows = (double)a->groups->total / fmax(G, 1);
	double O = (double)w->shape[1], I = (double)w->shape[2], sums = (double)vfm_nbytes(&a->a);
	struct vfm_sim_product p = {.m = wgrad ? O * G : ceil(rows / 128) * 128 * G,
		.n = fwd ? O : I,
		.k = wgrad    ? rows
			: fwd ? I
			      : O,
		.bytes = c->bytes,
		.results = (double)vfm_nbytes(&a->c) * (a->accumulate ? 2 : 1) + (double)vfm_nbytes(&a->aux)};

	for (int e = 0; e < VFM_ESTIMATES; e++)
		c->work[e] = vfm_sim_gemm_s(m, r, gemm_rate(m, a->a.dtype), &p, (enum vfm_estimate)e) +
			(vfm_has(&a->a_colsum) ? sums / bandwidth(m, r, (enum vfm_estimate)e) : 0);
}

/* Blocks of pixels one after another, each a product after its im2col. */
static void time_conv(
	const struct vfm_machine *m, const struct vfm_sim_room *r, const struct vfm_conv3d *a, struct vfm_sim_cost *c)
{
	double pixels = (double)(a->y.shape[1] * a->y.shape[2]), rows = (double)vfm_sim_conv_rows(a);
	double blocks = rows > 0 ? (double)a->y.shape[0] * ceil(pixels / rows) : 0;
	double k = (double)(a->weight.shape[1] * a->weight.shape[2]);
	double im2col = (double)a->y.shape[0] * pixels * k * (double)vfm_dtype_size(a->x.dtype);
	struct vfm_sim_product p = {.m = rows, .n = (double)a->y.shape[3], .k = k};

	if (blocks <= 0)
		return;
	p.bytes = c->bytes / blocks;
	p.results = (double)(vfm_nbytes(&a->y) + vfm_nbytes(&a->add)) / blocks;
	for (int e = 0; e < VFM_ESTIMATES; e++) {
		c->work[e] = blocks * vfm_sim_gemm_s(m, r, gemm_rate(m, a->x.dtype), &p, (enum vfm_estimate)e);
		if (!vfm_sim_conv_direct(a))
			c->work[e] += im2col / bandwidth(m, r, (enum vfm_estimate)e);
	}
}

/* ---- attention ---- */

/* Returns the seconds of a TFLOP at this head dim and length: linear in 1 / tokens between the rows of the machine. */
static double attention_s(const struct vfm_machine *m, int64_t d, double tokens, bool backward, enum vfm_estimate e)
{
	const struct vfm_attn_rate *r = m->attn, *end = m->attn + m->n_attn;
	int64_t dim = end[-1].head_dim;
	double x = 1 / tokens, padding;
	int n = 0;

	for (int i = m->n_attn - 1; i >= 0; i--)
		if (m->attn[i].head_dim >= d)
			dim = m->attn[i].head_dim;
	while (r->head_dim != dim)
		r++;
	while (r + n < end && r[n].head_dim == dim)
		n++;
	/* cuDNN does not document how it computes other dims.  Its open-source kernels pad to the next larger one with
	 * zeros; matrix instructions require only multiples of 16. */
	padding = d < dim ? (double)(e == VFM_HIGH ? (d + 15) / 16 * 16 : dim) / (double)d : 1;
#define RATE(i) (backward ? r[i].backward.v[e] : r[i].forward.v[e])
	for (int i = 0; i + 1 < n; i++) {
		double x0 = 1 / (double)r[i].tokens, x1 = 1 / (double)r[i + 1].tokens, y0 = 1 / RATE(i),
		       y1 = 1 / RATE(i + 1);

		if (x >= x0) /* below the first row, or there */
			return padding * (y0 + fmax(y0 - y1, 0) / (x0 - x1) * (x - x0));
		if (x > x1)
			return padding * (y1 + (y0 - y1) / (x0 - x1) * (x - x1));
	}
	return padding / RATE(n - 1);
#undef RATE
}

static void time_attention(const struct vfm_machine *m, const struct vfm_sim_room *r, const struct vfm_tensor *q,
	const struct vfm_seqs *sq, const struct vfm_seqs *sk, bool backward, struct vfm_sim_cost *c)
{
	double per_pair = (backward ? 10 : 4) * (double)(q->shape[1] * q->shape[2]) / 1e12, blocks = 0;

	for (int s = 0; s < sq->n; s++) {
		double nq = (double)vfm_seqs_len(sq, s), nk = (double)vfm_seqs_len(sk, s);

		if (!(nq > 0 && nk > 0))
			continue;
		blocks += (double)q->shape[1] * ceil((backward ? nk : nq) / 128);
		for (int e = 0; e < VFM_ESTIMATES; e++)
			c->work[e] += per_pair * nq * nk *
				attention_s(m, q->shape[2], fmin(nq, nk), backward, (enum vfm_estimate)e);
	}
	for (int e = 0; e < VFM_ESTIMATES; e++) {
		double sms = (double)(m->sms - (r->shared[e] ? r->taken : 0));

		if (blocks > 0) /* some multiprocessors have no block, or are taken */
			c->work[e] *= (double)m->sms / fmin(blocks, sms);
		c->work[e] = fmax(c->work[e], c->bytes / bandwidth(m, r, (enum vfm_estimate)e));
	}
}

/* ---- all ---- */

/* Our own kernels, which compute in f32. */
static void time_own_attention(const struct vfm_machine *m, const struct vfm_sim_room *r, struct vfm_sim_cost *c)
{
	for (int e = 0; e < VFM_ESTIMATES; e++)
		c->work[e] =
			fmax(c->flops / (m->gemm_f32.v[e] * 1e12), c->bytes / bandwidth(m, r, (enum vfm_estimate)e));
}

static void time_bytes(const struct vfm_machine *m, const struct vfm_sim_room *r, struct vfm_sim_cost *c)
{
	for (int e = 0; e < VFM_ESTIMATES; e++)
		c->work[e] = c->bytes / bandwidth(m, r, (enum vfm_estimate)e);
}

int vfm_sim_cost_of(const struct vfm_machine *m, const struct vfm_sim_room *r, enum vfm_op_id op, const void *args,
	double pcie, struct vfm_sim_cost *out, struct vfm_err *err)
{
	struct vfm_cost cost = vfm_op_info(op)->cost(args);
	const struct vfm_gemm *gemm = args;
	const struct vfm_grouped_gemm *grouped = args;
	const struct vfm_conv3d *conv = args;
	const struct vfm_attn *attn = args;
	const struct vfm_attn_bwd *attn_bwd = args;
	/* cuDNN computes none in f32 and none with a bias (lib/device/cuda/attn.c). */
	bool own_attention = op == VFM_OP_attn_bias || (op == VFM_OP_attn && attn->q.dtype == VFM_F32) ||
		(op == VFM_OP_attn_bwd && attn_bwd->q.dtype == VFM_F32);

	*out = (struct vfm_sim_cost){.class = vfm_sim_class_of(op),
		.kernels = vfm_sim_kernels(op, args),
		.flops = cost.flops,
		.bytes = cost.bytes};
	if (m->kind == VFM_MACHINE_CPU) {
		vfm_sim_cpu_time(m, op, args, out);
		return 0;
	}
	if (op == VFM_OP_gemm || op == VFM_OP_grouped_gemm)
		TRY(check_gemm_rate(m, op == VFM_OP_gemm ? gemm->a.dtype : grouped->a.dtype, err));
	if (own_attention)
		TRY(check_gemm_rate(m, VFM_F32, err));
	if (op == VFM_OP_conv3d)
		TRY(check_gemm_rate(m, conv->x.dtype, err));
	if (op == VFM_OP_gemm)
		time_gemm(m, r, gemm, out);
	else if (op == VFM_OP_grouped_gemm)
		time_grouped(m, r, grouped, out);
	else if (op == VFM_OP_conv3d)
		time_conv(m, r, conv, out);
	else if (op == VFM_OP_attn && !own_attention)
		time_attention(m, r, &attn->q, attn->seqs_q, attn->seqs_k, false, out);
	else if (op == VFM_OP_attn_bwd && !own_attention)
		time_attention(m, r, &attn_bwd->q, attn_bwd->seqs_q, attn_bwd->seqs_k, true, out);
	else if (own_attention)
		time_own_attention(m, r, out);
	else
		time_bytes(m, r, out);
	for (int e = 0; e < VFM_ESTIMATES; e++) {
		double least = out->kernels * m->least.v[e] * 1e-6;

		out->work[e] = fmax(out->kernels ? fmax(out->work[e], least) : 0, pcie / (m->pcie.v[e] * 1e9));
	}
	return 0;
}
