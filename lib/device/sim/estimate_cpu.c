/* estimate_cpu.c - the time of ops on a CPU, which runs one after another and has no launch gaps.  The time of a FLOP
 * or byte is the mean of those measured at other sizes, weighted by 1 / distance^4 in the logarithms of the sizes. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "device/ops/info.h"
#include "device/sim/estimate.h"

/* Returns the dtype that the op computes in, f32 or bf16. */
static enum vfm_dtype compute_dtype(enum vfm_op_id op, const void *args)
{
	for (const struct vfm_operand *o = vfm_op_info(op)->operands; o->name; o++) {
		const struct vfm_tensor *t = vfm_operand_of((void *)args, o);

		if (vfm_has(t) && t->dtype == VFM_BF16)
			return VFM_BF16;
	}
	return VFM_F32;
}

static int count_operands(enum vfm_op_id op, const void *args)
{
	int n = 0;

	for (const struct vfm_operand *o = vfm_op_info(op)->operands; o->name; o++)
		n += vfm_has(vfm_operand_of((void *)args, o));
	return n;
}

static void set_product(
	struct vfm_sim_cpu_work *w, const char *op, bool trans_a, bool trans_b, bool act, double m, double n, double k)
{
	snprintf(w->op, sizeof(w->op), "%s/%c%c%s", op, trans_a ? 't' : 'n', trans_b ? 't' : 'n', act ? "/act" : "");
	w->size[0] = m, w->size[1] = n, w->size[2] = k;
}

/* Products of few rows each: their weights and gradients are read from memory, so they have rates of their own. */
static void set_grouped(struct vfm_sim_cpu_work *w, const struct vfm_grouped_gemm *a)
{
	const struct vfm_tensor *t = a->what == VFM_GROUPED_WGRAD ? &a->c : &a->b; /* [G,O,I] */
	double rows = (double)a->groups->total / fmax(a->groups->n, 1), O = (double)t->shape[1],
	       I = (double)t->shape[2];

	if (a->what == VFM_GROUPED_FWD)
		set_product(w, "grouped", false, true, false, rows, O, I);
	else if (a->what == VFM_GROUPED_DGRAD)
		set_product(w, "grouped", false, false, false, rows, I, O);
	else
		set_product(w, "grouped", true, false, false, O, I, rows);
}

struct vfm_sim_cpu_work vfm_sim_cpu_work_of(enum vfm_op_id op, const void *args)
{
	struct vfm_cost cost = vfm_op_info(op)->cost(args);
	struct vfm_sim_cpu_work w = {.dtype = compute_dtype(op, args), .work = cost.flops};
	const struct vfm_gemm *g = args;
	const struct vfm_attn *attn = args;
	const struct vfm_attn_bwd *bwd = args;

	if (op == VFM_OP_gemm) {
		w.dtype = g->a.dtype;
		set_product(&w, "gemm", g->trans_a, g->trans_b, g->act || g->dact, (double)g->c.shape[0],
			(double)g->c.shape[1], (double)g->a.shape[g->trans_a ? 0 : 1]);
	} else if (op == VFM_OP_grouped_gemm) {
		set_grouped(&w, args);
	} else if (op == VFM_OP_attn || op == VFM_OP_attn_bwd) {
		const struct vfm_seqs *q = op == VFM_OP_attn ? attn->seqs_q : bwd->seqs_q,
				      *k = op == VFM_OP_attn ? attn->seqs_k : bwd->seqs_k;

		snprintf(w.op, sizeof(w.op), "%s", vfm_op_info(op)->name);
		w.size[0] = (double)attn->q.shape[2]; /* both begin with q, k */
		w.size[1] = (double)q->total / fmax(q->n, 1);
		w.size[2] = (double)k->total / fmax(k->n, 1);
	} else {
		snprintf(w.op, sizeof(w.op), "%s", vfm_op_info(op)->name);
		w.work = cost.bytes;
		w.size[0] = cost.bytes;
		w.size[1] = count_operands(op, args);
	}
	for (int i = 0; i < 3; i++)
		w.size[i] = fmax(w.size[i], 1);
	return w;
}

double vfm_sim_cpu_rate(const struct vfm_machine *m, const struct vfm_sim_cpu_work *w)
{
	for (int any = 0; any < 2; any++) { /* of any dtype */
		double sum = 0, weights = 0;

		for (int i = 0; i < m->n_cpu; i++) {
			const struct vfm_cpu_rate *r = &m->cpu[i];
			double d2 = 1e-4, weight;

			if (strcmp(r->op, w->op) != 0 || (!any && r->dtype != w->dtype))
				continue;
			for (int k = 0; k < 3; k++) {
				double d = log2(w->size[k] / r->size[k]);

				d2 += d * d;
			}
			weight = 1 / (d2 * d2);
			sum += weight / r->rate;
			weights += weight;
		}
		if (weights > 0)
			return weights / sum;
	}
	return 0;
}

struct vfm_sim_cpu_work vfm_sim_cpu_coll_of(const char *kind, enum vfm_dtype dtype, double bytes, int ranks)
{
	struct vfm_sim_cpu_work w = {.dtype = dtype, .work = fmax(bytes, VFM_SIM_COLL_LEAST)};

	snprintf(w.op, sizeof(w.op), "comm/%s", kind);
	w.size[0] = w.work;
	w.size[1] = ranks;
	w.size[2] = 1;
	return w;
}

int vfm_sim_cpu_coll_s(const struct vfm_machine *m, const struct vfm_sim_cpu_work *w, double *s, struct vfm_err *err)
{
	double rate = vfm_sim_cpu_rate(m, w);

	if (!(rate > 0))
		return vfm_fail(err, VFM_EUSAGE, "the machine '%s' has no rate of %s", m->name, w->op);
	*s = w->work / (rate * 1e9);
	return 0;
}

void vfm_sim_cpu_time(const struct vfm_machine *m, enum vfm_op_id op, const void *args, struct vfm_sim_cost *out)
{
	struct vfm_sim_cpu_work w = vfm_sim_cpu_work_of(op, args);
	double rate = vfm_sim_cpu_rate(m, &w);

	if (!(rate > 0) && (op == VFM_OP_gemm || op == VFM_OP_grouped_gemm)) { /* plain products of the same layout */
		char layout[3] = {strchr(w.op, '/')[1], strchr(w.op, '/')[2]};

		snprintf(w.op, sizeof(w.op), "gemm/%s", layout);
		rate = vfm_sim_cpu_rate(m, &w);
	}
	for (int e = 0; e < VFM_ESTIMATES; e++)
		out->work[e] = rate > 0 ? w.work / (rate * 1e9) : out->bytes / (m->copy.v[e] * 1e9);
}
